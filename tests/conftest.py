"""Every test of the project sees the shipped fixtures, and can be interrupted."""

from __future__ import annotations

import signal

pytest_plugins = ["ledgerstone.testing.fixtures"]

# A shell that runs `make test` in the background makes all of it deaf to Ctrl-C; the programs that
# the tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
