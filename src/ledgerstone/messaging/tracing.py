"""Trace context: a message carries the trace of whoever published it (W3C Trace Context)."""

from __future__ import annotations

import sys
from collections.abc import Mapping


def carried(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with the trace that is under way, unless the publisher gave one.

    Only where OpenTelemetry is used in this process: it is not imported for this.
    """
    found = dict(headers)
    telemetry = sys.modules.get("opentelemetry.propagate")
    if telemetry is not None and not any(name.lower() == "traceparent" for name in found):
        telemetry.inject(found)
    return found
