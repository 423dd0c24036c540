"""What a handler may send: one statement that reads, or that changes tables of its protocol.

A text is refused unless it is understood: which tables it changes has to stand in it in the plain
form, `INSERT INTO t`, `UPDATE t SET`, `DELETE FROM t WHERE`. So is what databases read in different
ways: what one of them takes for a text another may carry out.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from ledgerstone.errors import NotAllowedNow

SHOWN_CHARS_MAX = 80
COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_QUOTED = r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`"
_NO_CODE = re.compile(f"{_QUOTED}|{COMMENT.pattern}", re.DOTALL)
"""In one pass: a quote in a comment begins no text, and two hyphens in a text begin no comment."""
_AMBIGUOUS = (
    (re.compile(r"/\*M?!"), "a comment that MySQL carries out"),
    (re.compile(r"\\"), "a backslash: give the text as a parameter"),
    (re.compile(r"\$\w*\$"), "a text between dollars: give it as a parameter"),
    (re.compile(r"\r(?!\n)"), "a carriage return, which ends a comment on PostgreSQL alone"),
    (re.compile(r"--(?![\s-]|\Z)"), "two hyphens that begin a comment on some databases"),
)
_READS = re.compile(r"\s*(?:SELECT|WITH)\b", re.IGNORECASE)
_CHANGES = re.compile(r"\s*(?:SELECT|WITH|INSERT|UPDATE|DELETE)\b", re.IGNORECASE)
_WRITES = re.compile(r"\b(?:INSERT|UPDATE|DELETE|MERGE|INTO|REPLACE(?!\s*\())\b", re.IGNORECASE)
_HARMLESS = re.compile(
    r"\bDO\s+UPDATE\s+SET\b|\bON\s+DUPLICATE\s+KEY\s+UPDATE\b|\bFOR\s+(?:NO\s+KEY\s+)?UPDATE\b",
    re.IGNORECASE,
)
_TARGET = re.compile(
    r"\b(?:"
    r"INSERT\s+(?:OR\s+\w+\s+|IGNORE\s+)?INTO\s+(?P<into>[\"`]?\w+[\"`]?)(?=\s*[(\s])"
    r"|UPDATE\s+(?:OR\s+\w+\s+)?(?P<of>[\"`]?\w+[\"`]?)(?:\s+(?:AS\s+)?(?!SET\b)\w+)?\s+SET\b"
    r"|DELETE\s+FROM\s+(?P<from>[\"`]?\w+[\"`]?)(?:\s+AS\s+\w+)?"
    r"(?=\s*(?:\bWHERE\b|\bRETURNING\b|\bUSING\b|\bORDER\b|\bLIMIT\b|\)|;|\Z))"
    r")",
    re.IGNORECASE,
)
_HINT = "the framework owns the transaction: a handler sends SELECT, INSERT, UPDATE and DELETE"
_OWN = "a projector writes the tables of its protocol's schema.sql"
_PLAIN = "write INSERT INTO t …, UPDATE t SET … or DELETE FROM t WHERE …"


def check_query(sql: str) -> None:
    """NotAllowedNow unless the text is one query that changes nothing."""
    bare = _bare(sql)
    if _READS.match(bare) is None or _WRITES.search(bare):
        raise NotAllowedNow(f"this is no query: {shown(sql)}", hint="a query begins with SELECT")


def check_change(sql: str, tables: Collection[str]) -> None:
    """NotAllowedNow unless the text is one statement that changes only these tables."""
    bare = _bare(sql)
    if _CHANGES.match(bare) is None:
        raise NotAllowedNow(f"a handler cannot send this: {shown(sql)}", hint=_HINT)
    left = _HARMLESS.sub(" ", _named(sql))
    for found in _TARGET.finditer(left):
        check_table((found["into"] or found["of"] or found["from"]).strip('"`'), tables)
    if _WRITES.search(_TARGET.sub(" ", left)):
        message = f"which table this changes cannot be seen: {shown(sql)}"
        raise NotAllowedNow(message, hint=_PLAIN)


def check_table(name: str, tables: Collection[str]) -> None:
    """NotAllowedNow unless the table is one of these."""
    if name.lower() not in tables:
        raise NotAllowedNow(f"{name} is not a table of the protocol", hint=_OWN)


def shown(sql: str) -> str:
    """A text as an error names it."""
    words = " ".join(sql.split())
    return words if len(words) <= SHOWN_CHARS_MAX else f"{words[: SHOWN_CHARS_MAX - 1]}…"


def _bare(sql: str) -> str:
    """The text without quotes and comments; more than one statement is refused."""
    for pattern, what in _AMBIGUOUS:
        if pattern.search(sql):
            raise NotAllowedNow(f"{what}: {shown(sql)}", hint=_HINT)
    bare = _NO_CODE.sub(lambda found: " " if found[0][0] in "-/" else "''", sql)
    if "#" in bare:
        raise NotAllowedNow(f"a comment on MySQL: {shown(sql)}", hint=_HINT)
    if ";" in bare.rstrip().removesuffix(";"):
        raise NotAllowedNow(f"one statement at a time: {shown(sql)}", hint=_HINT)
    return bare


def _named(sql: str) -> str:
    """The text without literals and comments, with the names that are quoted."""
    return _NO_CODE.sub(lambda found: found[0] if found[0][0] in '"`' else " ", sql).strip()
