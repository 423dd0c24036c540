"""`python -m bench.events --scale 1`: measure, show, write down; `--events N` fits anywhere."""

from __future__ import annotations

import argparse
import sys

from bench import command
from bench.events.plot import draw
from bench.events.run import PARTS, WORDS, Plan, measured

if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--events", type=int)
    given, sys.argv[1:] = parser.parse_known_args()
    command.run(
        "events",
        parts=list(PARTS),
        measured=lambda scale, chosen, say: measured(Plan.of(scale, given.events), chosen, say=say),
        words=WORDS,
        draw=draw,
    )
