"""`ledgerstone signing request`: list and show requests, abort one, adopt another program's."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import RenderableType

from ledgerstone.console import output
from ledgerstone.console.call import Call, command, flag
from ledgerstone.console.groups import group as command_group
from ledgerstone.console.output import Text
from ledgerstone.console.pages import LIST_ROWS, LimitOption
from ledgerstone.signing.cli import views
from ledgerstone.signing.cli.documents import bytes_of
from ledgerstone.signing.cli.groups import GroupArgument
from ledgerstone.signing.cli.opening import DataOption, reading_of, signing_of
from ledgerstone.signing.cli.pages import CursorOption, cursor_of, encoded
from ledgerstone.signing.states import Status
from ledgerstone.signing.values import GroupId, PeerId, RequestId, Stored

RequestArgument = Annotated[str, typer.Argument(metavar="REQUEST", help="The request id.")]
PeerOption = Annotated[
    str, typer.Option("--peer", metavar="PEER", help="The member in whose name it happens.")
]


def list_(
    call: Call,
    *,
    state: Annotated[
        Status | None, typer.Option("--state", help="Only requests that stand there.")
    ] = None,
    archived: Annotated[bool, flag("--archived", help="Archived requests instead.")] = False,
    limit: LimitOption = LIST_ROWS,
    cursor: CursorOption = None,
    data: DataOption = None,
) -> None:
    """List the requests by their ids, with votes, missing signatures and the time left.

    Example: ledgerstone signing request list --state approved
    """
    after = cursor_of(cursor)
    with reading_of(call, data) as signing:
        # Only here: before, nothing has looked whether the packages of the extra are there.
        from ledgerstone.signing.read.requests import standing_requests

        page = standing_requests(
            signing, status=state, archived=archived, after=after, rows_max=limit
        )
    seen: RenderableType = views.requests(page.requests)
    if not page.requests:
        seen = "no request meets these filters" if state or cursor else "there are no requests"
    listed = [views.listed_facts(each) for each in page.requests]
    output.show({"requests": listed, "next": encoded(page.after)}, seen, json=call.json)
    output.say_next(encoded(page.after), json=call.json)


def show(call: Call, request_id: RequestArgument, data: DataOption = None) -> None:
    """Show where a request stands: votes, signatures, and what a signer should know.

    Example: ledgerstone signing request show REQUEST
    """
    wanted = RequestId(request_id)
    with reading_of(call, data) as signing:
        report = signing.audit_request(wanted)
        # After the approval the request's own reservation would count against it.
        pending = report.request.decision.status is Status.PENDING
        known = report.group is not None and report.event is not None
        review = signing.review_request(wanted) if pending and known else None
    facts = views.standing_facts(report, review)
    output.show(facts, views.standing(report, review), json=call.json)


def abort(
    call: Call,
    *,
    request_id: RequestArgument,
    peer: PeerOption,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the record.")],
    data: DataOption = None,
) -> None:
    """Give a request up; only its coordinator may.

    Example: ledgerstone signing request abort REQUEST --peer ann --reason mistyped
    """
    wanted = RequestId(request_id)
    with signing_of(call, data) as signing:
        stored = signing.abort_request(wanted, peer_id=PeerId(peer), reason=reason)
    facts = {"request_id": request_id, "state": Status.ABORTED, "stored": stored}
    _said(call, facts, request_id, "aborted", stored)


def adopt(
    call: Call, request_id: RequestArgument, group_id: GroupArgument, data: DataOption = None
) -> None:
    """Give a request that another program stored its group.

    Example: ledgerstone signing request adopt REQUEST GROUP
    """
    group = GroupId(bytes_of(group_id, "a group id"))
    with signing_of(call, data) as signing:
        stored = signing.adopt_request(RequestId(request_id), group_id=group)
    facts = {"request_id": request_id, "group_id": group_id, "stored": stored}
    _said(call, facts, request_id, "adopted", stored)


def _said(call: Call, facts: dict[str, object], name: str, done: str, stored: Stored) -> None:
    words = (f"  {done}", "green") if stored is Stored.NEW else (f"  {done} before", "dim")
    output.show(facts, Text.assemble(name, words), json=call.json)


def propose(
    call: Call,
    *,
    event_hash: Annotated[
        str, typer.Argument(metavar="EVENT", help="The event hash, 64 hex digits.")
    ],
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="The transaction in JSON; - reads stdin."),
    ],
    group_id: Annotated[
        str, typer.Option("--group", metavar="GROUP", help="The group that is to sign.")
    ],
    peer: Annotated[
        str, typer.Option("--peer", metavar="PEER", help="The member that coordinates.")
    ],
    request_id: Annotated[
        str | None,
        typer.Option("--id", metavar="REQUEST", help="The request id; otherwise a new one."),
    ] = None,
    data: DataOption = None,
) -> None:
    """Propose a transaction that pays an event: begins its request.

    FILE holds tx_template_hash, kpsbt_blob and inputs, each input with
    utxo_tx_id, utxo_output_index, utxo_value and signing_hash; bytes in hex.
    The same id and content again is the same request.

    Example: ledgerstone signing propose EVENT tx.json --group GROUP --peer ann
    """
    from ledgerstone.signing.cli.proposing import begun

    with signing_of(call, data) as signing:
        request, stored = begun(
            signing,
            event_hash=bytes_of(event_hash, "an event hash"),
            group_id=bytes_of(group_id, "a group id"),
            peer=peer,
            request_id=request_id,
            file=file,
        )
    _said(
        call,
        {**views.request_facts(request), "stored": stored},
        request.request_id,
        "proposed",
        stored,
    )


app = command_group(
    "List and show requests, abort one, adopt one of another program.\n\n"
    "Example: ledgerstone signing request list"
)
app.command("list")(command(list_))
for function in (show, abort, adopt):
    app.command()(command(function))
