"""The figures of messaging and what is promised of each."""

from __future__ import annotations

from bench.report import Figure, Unit

HEAD_LOOKUP = "messaging.head_lookup_100k"
HEAD_LOOKUP_MS_MAX = 5.0
AT_LEAST = {
    "messaging.amqp.competing.vs_client": 0.5,
    "messaging.amqp.ordered.vs_client": 0.35,
    "messaging.amqp.competing.vs_faststream_outbox": 3.0,
    "messaging.inbox.handled.vs_client": 0.6,
}
FIGURES = (*AT_LEAST, HEAD_LOOKUP)
"""Every figure, in the order in which they are printed."""


def figure(name: str, value: float) -> Figure:
    """The figure of this name."""
    if name == HEAD_LOOKUP:
        return Figure(unit=Unit.MS, name=name, value=value, bound=HEAD_LOOKUP_MS_MAX)
    return Figure(unit=Unit.RATIO, name=name, value=value, bound=AT_LEAST[name])
