"""`python -m bench.jobs --scale 1`: measure, show, write down."""

from __future__ import annotations

from bench import command
from bench.jobs.databases import PLACES
from bench.jobs.plot import draw
from bench.jobs.run import WORDS, Plan, measured

if __name__ == "__main__":
    command.run(
        "jobs",
        parts=list(PLACES),
        measured=lambda scale, chosen, say: measured(Plan.of(scale), chosen, say=say),
        words=WORDS,
        draw=draw,
    )
