"""Tests of one `xdist_group` run in one process, one after the other, and share its servers.

pytest-xdist 3.8 writes the group into `_nodeid`, which pytest 9.2 does not read any more: the tests
of a group were spread over all processes, and each of them started the servers of the group.
"""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.nodeid import coerce_node_id


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Append the group to the test's id, where the scheduler of pytest-xdist looks for it."""
    if not hasattr(config, "workerinput"):
        return
    for item in items:
        if (mark := item.get_closest_marker("xdist_group")) is None:
            continue
        suffix = f"@{mark.args[0]}"
        if not item.nodeid.endswith(suffix):
            renamed: Any = item
            renamed._id = coerce_node_id(item.nodeid + suffix)
