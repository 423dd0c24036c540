"""`python -m bench.engine --scale 1`: measure, show, write down."""

from __future__ import annotations

from bench import command
from bench.engine.databases import PLACES
from bench.engine.plot import draw
from bench.engine.run import WORDS, Plan, measured

if __name__ == "__main__":
    command.run(
        "engine",
        parts=list(PLACES),
        measured=lambda scale, chosen, say: measured(Plan.of(scale), chosen, say=say),
        words=WORDS,
        draw=draw,
    )
