"""`ledgerstone failed`: list failed messages, retry them, or remove them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import Annotated, cast

import msgspec
import typer
from rich.console import Group, RenderableType

from ledgerstone.console import moments, output
from ledgerstone.console.application import ByOption, ledger_of, who
from ledgerstone.console.call import EXIT_REFUSED, Call, command, flag
from ledgerstone.console.groups import group
from ledgerstone.console.moments import now_of
from ledgerstone.console.output import Text
from ledgerstone.console.pages import LIST_ROWS, CursorOption, LimitOption
from ledgerstone.console.steps import STEPS_MAX, removed_in_steps
from ledgerstone.errors import NotAllowedNow, NotFound
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.messaging import record
from ledgerstone.messaging.cli import failed_views
from ledgerstone.messaging.cli.calls import (
    NONE_SO_FAR,
    confirmed,
    first_with_rows,
    looking_at,
    ready,
)
from ledgerstone.messaging.failed.failed import RETRY_MAX, BulkResult, Filters

PREVIEW_ROWS = 5
NAMED_MAX = 10_000
"""The result names at most this many ids."""

IdsArgument = Annotated[
    list[int] | None, typer.Argument(metavar="ID", help="The ids, as `failed show` lists them.")
]
ConsumerOption = Annotated[
    str | None,
    typer.Option("--consumer", metavar="NAME", help="Only failures of this consumer."),
]
NameOption = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Only messages of this name.")
]
CodeOption = Annotated[
    str | None, typer.Option("--code", metavar="CODE", help="Only failures with this code.")
]
OriginOption = Annotated[
    str | None,
    typer.Option(
        "--origin", metavar="NAME", help="Only failures of this destination or subscription."
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="WHEN", help="Only failures since: 30m, 2h, 7d, or a time."),
]
AllOption = Annotated[bool, flag("--all", help="All that match the filters, the oldest first.")]
LimitOfAllOption = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", min=1, help="With --all: at most this many."),
]
DryRunOption = Annotated[bool, flag("--dry-run", help="Only show what would be done.")]
ForceOption = Annotated[bool, flag("--force", help="With --all: do not ask.")]


def show(
    call: Call,
    *,
    failed_id: Annotated[
        int | None, typer.Argument(metavar="ID", help="Show everything about this one.")
    ] = None,
    grouped: Annotated[bool, flag("--group", help="Count them by cause.")] = False,
    consumer: ConsumerOption = None,
    name: NameOption = None,
    code: CodeOption = None,
    origin: OriginOption = None,
    since: SinceOption = None,
    limit: LimitOption = LIST_ROWS,
    cursor: CursorOption = None,
) -> None:
    """Show failed messages: a list, newest first; groups by cause; or one of them.

    Example: ledgerstone failed show --group --since 2h
    """
    filters = _filters(consumer=consumer, name=name, code=code, origin=origin, since=since)
    if failed_id is not None:
        if grouped or filters or cursor is not None:
            raise typer.BadParameter("an ID goes without --group, filters and --cursor")
        _show_one(call, failed_id)
    elif grouped:
        if cursor is not None:
            raise typer.BadParameter("--group and --cursor do not go together")
        _show_groups(call, filters)
    else:
        _show_list(call, filters, limit, cursor)


def _filters(**given: str | None) -> Filters:
    """The given filters, with --since as a datetime."""
    found: dict[str, object] = {name: text for name, text in given.items() if text is not None}
    if "since" in found:
        found["since"] = moments.given_or_ago("--since", given["since"])
    return cast("Filters", found)


def _show_one(call: Call, failed_id: int) -> None:
    with looking_at(call, "failed") as (_, tx), _hinting():
        found, now = tx.failed.get(failed_id), now_of(tx)
        events = record.of_message(tx, found.message_id).rows if found.message_id else []
    facts = {"failed": failed_views.facts(found, whole=True), "record": events}
    output.show(facts, failed_views.portrait(found, events, now), json=call.json)


def _show_groups(call: Call, filters: Filters) -> None:
    with looking_at(call, "failed") as (_, tx):
        found, now = tx.failed.groups(**filters), now_of(tx)
    seen: RenderableType = failed_views.groups(found, now)
    if not found.groups:
        seen = _none(filters, complete=found.counted_all)
    output.show(found, seen, json=call.json)


def _show_list(call: Call, filters: Filters, limit: int, cursor: str | None) -> None:
    with looking_at(call, "failed") as (_, tx):
        page = first_with_rows(lambda at: tx.failed.find(**filters, limit=limit, cursor=at), cursor)
        now = now_of(tx)
    facts = {"failed": [failed_views.facts(row) for row in page.rows], "next": page.next}
    seen: RenderableType = failed_views.listing(page.rows, now)
    if not page.rows:
        seen = _none(filters, complete=page.next is None)
    output.show(facts, seen, json=call.json)
    output.say_next(page.next, json=call.json)


def _none(filters: Filters, *, complete: bool) -> str:
    if not complete:
        return NONE_SO_FAR
    return "no failed message matches these filters" if filters else "no message has failed"


def retry(
    call: Call,
    *,
    ids: IdsArgument = None,
    every: AllOption = False,
    consumer: ConsumerOption = None,
    name: NameOption = None,
    code: CodeOption = None,
    origin: OriginOption = None,
    since: SinceOption = None,
    limit: LimitOfAllOption = None,
    cursor: CursorOption = None,
    dry_run: DryRunOption = False,
    force: ForceOption = False,
    by: ByOption = None,
) -> None:
    """Send failed messages again to the consumer or destination where they failed.

    Example: ledgerstone failed retry --all --code timeout --dry-run
    """
    filters = _filters(consumer=consumer, name=name, code=code, origin=origin, since=since)
    if cursor is not None and not every:
        raise typer.BadParameter("--cursor goes with --all")
    act = _Act(
        "retried",
        ("sent again", "would be sent again"),
        lambda tx, each: tx.failed.retry(each, by=who(by)),
        lambda tx, most, at: tx.failed.retry_all(**filters, limit=most, cursor=at, dry_run=True),
    )
    chosen = _All(limit, cursor) if every else None
    _do(call, act, ids or [], filters, every=chosen, dry_run=dry_run, force=force)


def remove(
    call: Call,
    *,
    ids: IdsArgument = None,
    every: AllOption = False,
    consumer: ConsumerOption = None,
    name: NameOption = None,
    code: CodeOption = None,
    origin: OriginOption = None,
    since: SinceOption = None,
    limit: LimitOfAllOption = None,
    cursor: CursorOption = None,
    dry_run: DryRunOption = False,
    force: ForceOption = False,
    by: ByOption = None,
) -> None:
    """Remove failed messages for good. The record keeps that they existed.

    Example: ledgerstone failed remove --all --name order.placed --since 7d --dry-run
    """
    filters = _filters(consumer=consumer, name=name, code=code, origin=origin, since=since)
    if cursor is not None and not every:
        raise typer.BadParameter("--cursor goes with --all")
    act = _Act(
        "removed",
        ("removed", "would be removed"),
        lambda tx, each: tx.failed.remove(each, by=who(by)),
        lambda tx, most, at: tx.failed.remove_all(**filters, limit=most, cursor=at, dry_run=True),
    )
    chosen = _All(limit, cursor) if every else None
    _do(call, act, ids or [], filters, every=chosen, dry_run=dry_run, force=force)


class _Act(msgspec.Struct, frozen=True):
    """An action on failed messages, with its words."""

    key: str
    words: tuple[str, str]
    """The result, and the result of a dry run."""
    do: Callable[[Transaction, int], None]
    choose: Callable[[Transaction, int, str | None], BulkResult]
    """Selects a page of messages from a cursor on, without changing them."""


class _All(msgspec.Struct, frozen=True):
    """All messages that match the filters: the limit and the cursor."""

    limit: int | None
    cursor: str | None


class _Done(msgspec.Struct, kw_only=True):
    """The result; of very many messages the first are named."""

    count: int = 0
    ids: list[int] = []
    refused: list[dict[str, object]] = []
    """The refused ones, each with its reason."""
    left: list[int] = []
    """Messages that cannot be sent again."""
    next: str | None = None
    """The cursor of the rest."""


def _do(
    call: Call,
    act: _Act,
    ids: list[int],
    filters: Filters,
    *,
    every: _All | None,
    dry_run: bool,
    force: bool,
) -> None:
    if bool(ids) is (every is not None):
        raise typer.BadParameter("name one ID or more, or --all")
    if ids and (filters or force):
        raise typer.BadParameter("filters and --force go with --all")
    with ledger_of(call) as ledger, _hinting():
        ready(ledger, ledger.registry.shared.outbox, ledger.registry.shared.failed)
        if every is not None:
            done = _do_all(call, ledger, act, every, dry_run=dry_run, force=force)
        else:
            done = _do_some(ledger, act, list(dict.fromkeys(ids)), dry_run=dry_run)
    facts = {
        "count": done.count,
        act.key: done.ids,
        "refused": done.refused,
        "left": done.left,
        "next": done.next,
        "dry_run": dry_run,
    }
    output.show(facts, _told(act, done, dry_run=dry_run), json=call.json)
    if done.refused:
        raise typer.Exit(EXIT_REFUSED)


def _do_some(ledger: Ledger, act: _Act, ids: list[int], *, dry_run: bool) -> _Done:
    """Each in its own transaction, so that a refused one does not stop the others."""
    done: list[int] = []
    refused: list[dict[str, object]] = []
    for each in ids:
        try:
            ledger.run(partial(_do_one, act=act, each=each, dry_run=dry_run))
        except _Undo:
            done.append(each)
        except (NotFound, NotAllowedNow) as error:
            if not ids[1:]:
                raise
            refused.append({"id": each, **output.told(error)})
        else:
            done.append(each)
    return _Done(count=len(done), ids=done, refused=refused)


class _Undo(Exception):
    """Rolls back a dry run."""


def _do_one(tx: Transaction, *, act: _Act, each: int, dry_run: bool) -> None:
    act.do(tx, each)
    if dry_run:
        raise _Undo


def _do_all(
    call: Call, ledger: Ledger, act: _Act, every: _All, *, dry_run: bool, force: bool
) -> _Done:
    done = _Done()
    pages = _pages(ledger, act, every, done)
    first = next(pages, [])
    # One page is read, so the exact number of all is not known.
    more = "+" if done.next is not None and len(first) == RETRY_MAX != every.limit else ""
    if first and not call.json and (dry_run or not force):
        output.say_database()
        output.console().print(_preview(ledger, first, more), "")
    if dry_run or not first:
        done.count, done.ids = len(first), first
        return done
    count = f"{len(first):,}{more} failed message{'' if len(first) == 1 else 's'}"
    hint = "--force does it, --dry-run lists them, --limit takes fewer"
    confirmed(call, f"{count} {act.words[1]}", yes=force, hint=hint)
    counts = filter(None, _acted(ledger, act, chain([first], pages), done))
    removed_in_steps(lambda: next(counts, 0), "Failed messages", json=call.json, verb=act.words[0])
    return done


def _pages(ledger: Ledger, act: _Act, every: _All, done: _Done) -> Iterator[list[int]]:
    """The messages of each page. Filters may leave out all messages of a page.

    Messages that fail meanwhile, perhaps again, are left alone.
    """
    cursor, last_id = every.cursor, None
    for _ in range(STEPS_MAX):
        most = RETRY_MAX if every.limit is None else min(RETRY_MAX, every.limit - done.count)
        if most <= 0:
            return
        with ledger.reading() as tx:
            last_id = tx.failed.last_id() if last_id is None else last_id
            page = act.choose(tx, most, cursor)
        done.next = cursor = page.next
        done.left += page.left[: NAMED_MAX - len(done.left)]
        ids = [each for each in page.ids if each <= last_id]
        if ids:
            yield ids
        if cursor is None:
            return


def _preview(ledger: Ledger, ids: list[int], more: str) -> RenderableType:
    rows = []
    with ledger.reading() as tx:
        for each in ids[:PREVIEW_ROWS]:
            # It may have been retried or removed meanwhile.
            with suppress(NotFound):
                rows.append(tx.failed.get(each))
        listing = failed_views.listing(rows, now_of(tx))
    if len(ids) <= PREVIEW_ROWS:
        return listing
    rest = f"{len(ids) - PREVIEW_ROWS:,}{more}"
    return Group(listing, f"and {rest} more (--json names {'some' if more else 'them'})")


def _acted(ledger: Ledger, act: _Act, pages: Iterable[list[int]], done: _Done) -> Iterator[int]:
    """Runs the action on each page in a transaction; yields how many messages it handled."""
    for ids in pages:
        did, refused = ledger.run(partial(_done_to_these, act=act, ids=ids))
        done.count += len(did)
        done.ids += did[: NAMED_MAX - len(done.ids)]
        done.refused += refused[: NAMED_MAX - len(done.refused)]
        yield len(did)


def _done_to_these(
    tx: Transaction, act: _Act, ids: list[int]
) -> tuple[list[int], list[dict[str, object]]]:
    """Runs the action on exactly these messages."""
    done: list[int] = []
    refused: list[dict[str, object]] = []
    for each in ids:
        try:
            act.do(tx, each)
        except (NotFound, NotAllowedNow) as error:
            refused.append({"id": each, **output.told(error)})
        else:
            done.append(each)
    return done, refused


def _told(act: _Act, done: _Done, *, dry_run: bool) -> RenderableType:
    did, would = act.words
    lines = [Text(f"{done.count:,} {would if dry_run else did}")]
    if not done.count and not done.refused and not done.left and done.next is None:
        lines = [Text("no failed message matches these filters")]
    for each in done.refused:
        lines.append(Text(f"{each['id']}: {each['message']}", "red"))
    if done.left:
        some = ", ".join(map(str, done.left[:PREVIEW_ROWS]))
        words = f"{len(done.left):,} cannot be sent again, as {some}: `failed show ID` says why"
        lines.append(Text(words, "yellow"))
    if done.next is not None:
        words = f"there may be more: repeat the call with --cursor {done.next}"
        lines.append(Text(words, "yellow"))
    return Text("\n").join(lines)


@contextmanager
def _hinting() -> Iterator[None]:
    """Adds a hint to refusals that have none."""
    try:
        yield
    except NotFound as error:
        error.hint = error.hint or "`ledgerstone failed show` lists the ids"
        raise


app = group(
    "List failed messages, retry them, or remove them.",
)
for function in (show, retry, remove):
    app.command()(command(function))
