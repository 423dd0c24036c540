"""Retention: a snapshot of a protocol's tables, and the content of older events is pruned.

    events  1 ─────────────── 700 ────────── 900 ──────── 1000
            └── pruned ────────┘              │             └ the newest
                                              └ the newest snapshot: what came of 1 … 900
    the tables = snapshot + what its projectors do for 901 … 1000

Read `snapshots` (what is kept), `pruning`, `source` (when it happens) and `rebuilding` (the proof
that the tables still follow from what is kept).
"""
