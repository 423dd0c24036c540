"""Every test of the project sees the shipped fixtures, and can be interrupted."""

from __future__ import annotations

import os
import signal

import pytest

pytest_plugins = ["ledgerstone.testing.fixtures"]

# A shell that runs `make test` in the background makes all of it deaf to Ctrl-C; the programs that
# the tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# PyMySQL reads the certificates of the system for each connection, and checks none: more work than
# most tests have.
os.environ.setdefault("SSL_CERT_FILE", os.devnull)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first: at the end one worker would be busy and the others idle."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
