"""Shared by the commands of jobs: how a job is named, and hints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated
from uuid import UUID

import typer

from ledgerstone.errors import BadInput, KeyConflict, LedgerstoneError, NotAllowedNow, NotFound

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The id of the job.")]
OrgOption = Annotated[
    str | None, typer.Option("--org", metavar="UUID", help="Only jobs of this organisation.")
]
TypeOption = Annotated[
    str | None, typer.Option("--type", metavar="TYPE", help="Only jobs of this type.")
]
OPTIONS = {
    "delay_seconds": "--delay",
    "max_attempts": "--max-attempts",
    "priority": "--priority",
    "requested_by": "--requested-by",
    "run_at": "--at",
    "an organisation": "--org",
    "a page": "--limit",
    "a queue": "--queue",
    "a key": "--key",
}
"""Names of the library that differ from those of the command line."""
QueueOption = Annotated[
    str | None, typer.Option("--queue", metavar="NAME", help="Only jobs of this queue.")
]


def id_of(given: str) -> str:
    """The id as it is kept: databases that know ids as such refuse anything else in their words."""
    try:
        return str(UUID(given))
    except ValueError as error:
        hint = "`ledgerstone jobs list` shows the ids"
        raise BadInput(f"the id of a job is a UUID, not {given!r}", hint=hint) from error


@contextmanager
def hinting(job_id: str | None = None, *, key: str | None = None) -> Iterator[None]:
    """Where a refusal says what is wrong only, add what to do; options by their names here."""
    try:
        yield
    except LedgerstoneError as error:
        if isinstance(error, BadInput):
            name = next((name for name in OPTIONS if error.message.startswith(f"{name} ")), None)
            if name is not None:
                error.message = _by_option(name, error.message)
        if error.hint is None:
            error.hint = _hint(error, job_id, key)
        raise


def _by_option(name: str, message: str) -> str:
    """A parameter is replaced by its option; what is a word for people stays behind it."""
    option = OPTIONS[name]
    return f"{option}: {message}" if " " in name else message.replace(name, option, 1)


def _hint(error: LedgerstoneError, job_id: str | None, key: str | None) -> str | None:
    match error:
        case NotFound():
            return "`ledgerstone jobs list` shows the ids"
        case NotAllowedNow():
            return f"`ledgerstone jobs show {job_id}` tells how it stands"
        case KeyConflict():
            return f"`ledgerstone jobs list --key {key}` shows it; other content needs another key"
        case _:
            return None
