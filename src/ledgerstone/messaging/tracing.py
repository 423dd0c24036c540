"""Trace context: a message carries the trace of its publisher (W3C Trace Context)."""

from __future__ import annotations

import sys
from collections.abc import Mapping


def carried(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with the current trace context, unless the publisher set one.

    Adds nothing if this process has not imported OpenTelemetry, and does not import it.
    """
    found = dict(headers)
    telemetry = sys.modules.get("opentelemetry.propagate")
    if telemetry is not None and not any(name.lower() == "traceparent" for name in found):
        telemetry.inject(found)
    return found
