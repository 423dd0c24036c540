"""`ledgerstone signing seen`: which messages of peers were received before."""

from __future__ import annotations

from typing import Annotated

import typer

from ledgerstone.console import moments, output
from ledgerstone.console.call import EXIT_REFUSED, Call, command
from ledgerstone.console.groups import group as command_group
from ledgerstone.console.output import Text
from ledgerstone.errors import MessageReplayed
from ledgerstone.signing.cli import views
from ledgerstone.signing.cli.documents import bytes_of
from ledgerstone.signing.cli.opening import DataOption, signing_of
from ledgerstone.signing.cli.steps import Steps
from ledgerstone.signing.cli.views import nanos_of
from ledgerstone.signing.values import PeerId, SessionId


def mark(
    call: Call,
    *,
    peer: Annotated[str, typer.Argument(metavar="PEER", help="The peer that sent it.")],
    session: Annotated[
        str, typer.Argument(metavar="SESSION", help="Its session id, 64 hex digits.")
    ],
    counter: Annotated[
        int, typer.Argument(metavar="N", min=0, help="Its number since the peer's start.")
    ],
    epoch: Annotated[
        int, typer.Option("--epoch", metavar="E", min=0, help="How often the peer had started.")
    ] = 0,
    data: DataOption = None,
) -> None:
    """Mark a message as received; one that was received before is refused.

    Example: ledgerstone signing seen mark bob SESSION 17 --epoch 3
    """
    session_id = SessionId(bytes_of(session, "a session id"))
    with signing_of(call, data) as signing:
        from ledgerstone.signing.envelope import sequence_number

        number = sequence_number(epoch=epoch, counter=counter)
        if not signing.mark_seen_message(PeerId(peer), session_id, number):
            message = f"message {counter} of {peer!r} in epoch {epoch} was received before"
            raise MessageReplayed(message, hint="drop it; a peer that restarted raises its epoch")
    facts = {"peer": peer, "session_id": session_id.hex(), "epoch": epoch, "counter": counter}
    words = Text.assemble(f"message {counter} of {peer}", ("  new", "green"))
    output.show({**facts, "new": True}, words, json=call.json)


def forget(
    call: Call,
    *,
    before: Annotated[
        str | None,
        typer.Option(
            "--before", metavar="TIME", help="What was seen before, as 2027-01-31T08:00:00Z or 2d."
        ),
    ] = None,
    data: DataOption = None,
) -> None:
    """Forget messages that are too old to be accepted again, in bounded steps.

    Example: ledgerstone signing seen forget
    """
    moment = moments.given_or_ago("--before", before)
    limit = None if moment is None else nanos_of(moment)
    forgotten = 0
    wrong: dict[str, str] = {}
    with signing_of(call, data) as signing, Steps("Messages", "forgotten", json=call.json) as steps:

        def step(after: bytes | None) -> tuple[int, bytes | None]:
            nonlocal forgotten
            done = signing.cleanup_seen_messages(limit, after=after)
            forgotten += done.deleted
            wrong.update({key: str(error) for key, error in done.errors.items()})
            return done.deleted, done.after

        steps.through(step)
    output.show(
        {"forgotten": forgotten, "errors": wrong},
        views.swept(f"{forgotten:,} forgotten", (), wrong),
        json=call.json,
    )
    if wrong:
        raise typer.Exit(EXIT_REFUSED)


app = command_group(
    "Mark messages of peers as received, and forget old ones.\n\n"
    "Example: ledgerstone signing seen mark bob SESSION 17"
)
for function in (mark, forget):
    app.command()(command(function))
