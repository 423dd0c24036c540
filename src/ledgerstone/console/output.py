"""The output of commands: tables for people, one JSON document for programs, errors for both."""

from __future__ import annotations

import json as ascii_json
import re
import sys
from datetime import datetime
from typing import Any, Self

import msgspec
import rich.console
import rich.text
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from ledgerstone.errors import LedgerstoneError

SHORT_ID_CHARS = 8
BODY_CHARS_SHOWN_MAX = 2000
MINUTE, HOUR, DAY = 60, 3600, 86_400

_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def visible(words: str) -> str:
    r"""The words, with what a terminal would obey spelled out, as \x1b; lines and tabs stay.

    Names, errors and bodies come from the database, where anybody may have written them.
    """
    return _OBEYED.sub(lambda found: f"\\x{ord(found[0]):02x}", words.replace("\r\n", "\n"))


class Text(rich.text.Text):
    """Text that a terminal shows and never obeys."""

    __slots__ = ()

    def __init__(self, text: str = "", style: Any = "", **options: Any) -> None:
        super().__init__(visible(text), style, **options)

    def append(self, text: Any, style: Any = None) -> Self:
        super().append(visible(text) if isinstance(text, str) else text, style)
        return self

    @classmethod
    def assemble(cls, *parts: Any, **options: Any) -> Self:
        made = cls(**options)
        for part in parts:
            made.append(*part) if isinstance(part, tuple) else made.append(part)
        return made


AnyConsole = rich.console.Console


class Console(rich.console.Console):
    """Where people read; what is given as a plain string is shown as `Text` is."""

    def render_str(self, text: str, **options: Any) -> rich.text.Text:
        return super().render_str(visible(text), **options)


def console(**options: Any) -> Console:
    """Where people read: with colours on a terminal, unless NO_COLOR is set."""
    return Console(highlight=False, **options)


class _Database:
    """The database that the running command works on."""

    url: str | None = None
    told = False


def begin() -> None:
    """A command begins: no database is known yet."""
    _Database.url, _Database.told = None, False


def on_database(url: str, *, tell: bool = True) -> None:
    """The command works on this database, its password masked.

    The output says so: for people on stderr, for programs in the JSON document. A command that
    says it by itself need not `tell`.
    """
    _Database.url, _Database.told = url, not tell


def say_database() -> None:
    """Say on stderr which database the command works on, once."""
    if _Database.url is not None and not _Database.told:
        _Database.told = True
        console(stderr=True, soft_wrap=True).print(Text(f"database: {_Database.url}", "dim"))


def show(facts: object, seen: RenderableType, *, json: bool) -> None:
    """Print what was found: the facts as JSON, or as people see them."""
    if json:
        show_json(facts)
    else:
        say_database()
        console().print(seen)


def show_json(facts: object) -> None:
    """Print the one JSON document; where stdout is not Unicode, with other characters escaped."""
    document = msgspec.to_builtins(facts)
    if _Database.url is not None and isinstance(document, dict):
        document.setdefault("url", _Database.url)
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    if "utf" not in sys.stdout.encoding.lower():
        text = _NOT_ASCII.sub(lambda found: ascii_json.dumps(found[0])[1:-1], text)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def complain(error: LedgerstoneError, *, json: bool) -> None:
    """Print a refusal and what to do about it."""
    if json:
        show_json({"error": told(error)})
        return
    stderr = console(stderr=True, soft_wrap=True)
    stderr.print(_labelled("error", "bold red", error.message))
    if error.hint:
        stderr.print(_labelled("hint", "bold cyan", error.hint))
    say_database()


def told(error: LedgerstoneError) -> dict[str, object]:
    """A refusal for programs."""
    return {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "retryable": error.retryable,
    }


def _labelled(label: str, style: str, words: str) -> Text:
    indented = words.strip().replace("\n", "\n" + " " * (len(label) + 2))
    return Text.assemble((f"{label}: ", style), indented)


def table(title: str, *columns: str, numbers: tuple[str, ...] = ()) -> Table:
    """An empty table; the columns that hold numbers are aligned to the right."""
    made = Table(
        title=f"[bold]{escape(title)}[/]",
        title_justify="left",
        title_style="",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="dim",
    )
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return made


def pairs(rows: dict[str, RenderableType]) -> Table:
    """Names and what belongs to them, one below the other."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows.items():
        grid.add_row(name, value)
    return grid


def counted(count: int, most: int) -> str:
    """A count that stops at a most: 10,000+ where there may be more."""
    return f"{count:,}+" if count >= most else f"{count:,}"


def foldable(listed: str) -> str:
    """A list without blanks, so that a line can end at its commas."""
    return re.sub(r",(?=\S)", ", ", listed)


def one_line(words: str | None) -> str | None:
    """A message of a driver in one line instead of several."""
    return None if words is None else " ".join(words.split())


def short(identity: str | None) -> str:
    """The end of an id: ids made at the same time begin alike."""
    return "" if identity is None else f"…{identity[-SHORT_ID_CHARS:]}"


def lasting(milliseconds: float) -> str:
    """How long something lasted, to the nearest unit that is worth saying."""
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{max(milliseconds, 0):.0f} ms"
    if seconds < 2 * MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * HOUR:
        return f"{seconds / MINUTE:.0f} min"
    if seconds < 2 * DAY:
        return f"{seconds / HOUR:.0f} h"
    return f"{seconds / DAY:.0f} d"


def since(earlier: datetime, later: datetime) -> str:
    """How long it is from one moment to another."""
    return lasting((later - earlier).total_seconds() * 1000)


def moment(at: datetime | None, now: datetime) -> Text | None:
    """A moment, and how far away it is."""
    if at is None:
        return None
    away = f"{since(at, now)} ago" if at <= now else f"in {since(now, at)}"
    return Text.assemble(f"{at:%Y-%m-%d %H:%M:%S} UTC", (f"  {away}", "dim"))


def cut(text: str, chars_max: int) -> str:
    """The text, or its beginning and how long it is."""
    if len(text) <= chars_max:
        return text
    return f"{text[:chars_max]}… ({len(text):,} characters; --json shows all)"


def document(body: object) -> Text:
    """A JSON document as people read it."""
    text = msgspec.json.format(msgspec.json.encode(body), indent=2).decode()
    return Text(cut(text, BODY_CHARS_SHOWN_MAX))


def say_next(cursor: str | None, *, json: bool) -> None:
    """Where the next page begins, in one line however long, so that it can be copied."""
    if cursor is not None and not json:
        words = Text.assemble(("more: the same with ", "dim"), f"--cursor {cursor}")
        console().print(words, soft_wrap=True)
