"""`python -m bench.blobs --scale 1`: measure, show, write down."""

from __future__ import annotations

from bench import command
from bench.blobs.plot import draw
from bench.blobs.run import PARTS, WORDS, Plan, measured

if __name__ == "__main__":
    command.run(
        "blobs",
        parts=list(PARTS),
        measured=lambda scale, chosen, say: measured(Plan.of(scale), chosen, say=say),
        words=WORDS,
        draw=draw,
    )
