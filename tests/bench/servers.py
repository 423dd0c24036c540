"""The servers that benchmarks are tried on, beside the embedded database."""

from __future__ import annotations

import pytest

SERVERS = [
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("mysql", marks=pytest.mark.mysql),
]
