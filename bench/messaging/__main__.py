"""`python -m bench.messaging --scale 1`: measure, show, write down."""

from __future__ import annotations

from bench import command
from bench.messaging.plot import draw
from bench.messaging.run import PARTS, WORDS, Plan, measured

if __name__ == "__main__":
    command.run(
        "messaging",
        parts=PARTS,
        measured=lambda scale, chosen, say: measured(Plan.of(scale), chosen, say=say),
        words=WORDS,
        draw=draw,
    )
