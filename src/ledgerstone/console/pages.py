"""The options of commands that list, page by page."""

from __future__ import annotations

from typing import Annotated

import typer

LIST_ROWS = 20

LimitOption = Annotated[
    int, typer.Option("--limit", metavar="N", help="At most so many, up to 1000.")
]
CursorOption = Annotated[
    str | None,
    typer.Option("--cursor", metavar="CURSOR", help="Go on where the page before ended."),
]
