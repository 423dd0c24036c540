"""`ledgerstone signing ack`, `sign`, `finalize`, `expire` and `audit`: how a request goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ledgerstone.console import output
from ledgerstone.console.call import EXIT_REFUSED, Call, flag
from ledgerstone.console.output import Text
from ledgerstone.errors import BadInput, NotAMember, NotFound, SignatureInvalid
from ledgerstone.signing.cli import views
from ledgerstone.signing.cli.documents import bytes_of
from ledgerstone.signing.cli.opening import DataOption, reading_of, signing_of
from ledgerstone.signing.cli.private_key import KeyFileOption, private_key
from ledgerstone.signing.cli.requests import PeerOption, RequestArgument
from ledgerstone.signing.cli.steps import Steps
from ledgerstone.signing.values import (
    PartialSigRecord,
    PeerId,
    RequestId,
    SignerAckRecord,
    TransactionId,
)

if TYPE_CHECKING:
    from ledgerstone.signing.groups import Roster
    from ledgerstone.signing.signing import Signing

SIGNATURE_BYTES = 64


def ack(
    call: Call,
    *,
    request_id: RequestArgument,
    peer: PeerOption,
    accept: Annotated[bool, flag("--accept", help="Vote for it.")] = False,
    reject: Annotated[bool, flag("--reject", help="Vote against it.")] = False,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why, for the record.")
    ] = None,
    data: DataOption = None,
) -> None:
    """Vote on a request in the name of a member; a vote is final.

    Example: ledgerstone signing ack REQUEST --peer bob --accept
    """
    if accept is reject:
        raise typer.BadParameter("say either --accept or --reject")
    wanted = RequestId(request_id)
    with signing_of(call, data) as signing:
        vote = SignerAckRecord(
            signer_peer_id=PeerId(peer),
            accept=accept,
            reason=reason,
            timestamp_nanos=signing.clock(),
        )
        counted = signing.insert_signer_ack(wanted, vote)
        votes = signing.audit_request(wanted).votes
    facts = {
        "request_id": request_id,
        "peer": peer,
        "accept": accept,
        "stored": counted.stored,
        "state": counted.decision.status,
        "reason": getattr(counted.decision, "reason", None),
        "votes": votes,
    }
    output.show(facts, views.voted(peer, counted, votes, accept=accept), json=call.json)


def sign(
    call: Call,
    *,
    request_id: RequestArgument,
    key_file: KeyFileOption = None,
    peer: Annotated[
        str | None,
        typer.Option("--peer", metavar="PEER", help="The member; otherwise that of the key."),
    ] = None,
    only: Annotated[
        list[int] | None,
        typer.Option("--input", metavar="N", min=0, help="Only this input; again for more."),
    ] = None,
    signature: Annotated[
        list[str] | None,
        typer.Option(
            "--signature",
            metavar="N=HEX",
            help="A signature for input N that was made elsewhere; needs --peer and no key.",
        ),
    ] = None,
    data: DataOption = None,
) -> None:
    """Sign the inputs of an approved request with the key of a member.

    Each signature is verified before it is stored. A second one is not stored.

    Example: ledgerstone signing sign REQUEST --key-file bob.key
    """
    made_elsewhere = _signatures(signature or [])
    if made_elsewhere and (key_file is not None or only or peer is None):
        raise typer.BadParameter("--signature goes with --peer, and with no key and no --input")
    wanted = RequestId(request_id)
    secret = None if made_elsewhere else private_key(key_file)
    with signing_of(call, data) as signing:
        member, records = _records(
            signing, wanted, secret=secret, peer=peer, only=only, made_elsewhere=made_elsewhere
        )
        answers = {each.input_index: signing.insert_partial_sig(wanted, each) for each in records}
        missing = signing.missing_signatures(wanted)
    facts = {
        "request_id": request_id,
        "peer": member,
        "inputs": answers,
        "ready": missing is None,
        "missing": missing or {},
    }
    output.show(facts, views.signed(member, answers, missing), json=call.json)


def _signatures(given: list[str]) -> dict[int, bytes]:
    found = {}
    for each in given:
        index, equals, text = each.partition("=")
        if not equals or not index.isdecimal():
            raise BadInput(f"a signature is N=HEX, not {each!r:.80}", hint="as in 0=5d6c…")
        found[int(index)] = bytes_of(text, f"the signature for input {index}", SIGNATURE_BYTES)
    return found


def _records(
    signing: Signing,
    request_id: RequestId,
    *,
    secret: bytes | None,
    peer: str | None,
    only: list[int] | None,
    made_elsewhere: dict[int, bytes],
) -> tuple[PeerId, list[PartialSigRecord]]:
    """The member that signs, and its signatures, which the store verifies."""
    from ledgerstone.signing import schnorr
    from ledgerstone.signing.groups import member_key, roster

    report = signing.audit_request(request_id)
    if report.group is None:
        raise NotFound(f"there is no group of the request {request_id!r}")
    members = roster(report.group)
    member = PeerId(peer or "") if secret is None else _owner(members, secret, peer)
    made = dict(made_elsewhere)
    if secret is not None:
        hashes = {each.input_index: each.signing_hash for each in report.inputs}
        for index in only or hashes:
            if index not in hashes:
                raise NotFound(f"there is no input {index} of the request {request_id!r}")
            made[index] = schnorr.sign(secret, hashes[index])
    records = [
        PartialSigRecord(
            signer_peer_id=member,
            input_index=index,
            pubkey=member_key(members, member),
            signature=each,
            timestamp_nanos=signing.clock(),
        )
        for index, each in made.items()
    ]
    return member, records


def _owner(members: Roster, secret: bytes, peer: str | None) -> PeerId:
    """The member whose key it is; NotAMember if it is nobody's, or not the named peer's."""
    from ledgerstone.signing import schnorr

    try:
        key = schnorr.public_key(secret)
    except SignatureInvalid as error:
        raise BadInput(f"there is no such private key: {error.message}") from error
    owner = next((name for name, each in members.items() if each == key), None)
    if owner is None:
        raise NotAMember("the private key is that of no member of the group")
    if peer is not None and peer != owner:
        raise NotAMember(f"the private key is not that of {peer!r}")
    return owner


def finalize(
    call: Call,
    *,
    request_id: RequestArgument,
    transaction: Annotated[
        str, typer.Argument(metavar="TX", help="The id of the sent transaction, in hex.")
    ],
    blue_score: Annotated[
        int | None,
        typer.Option("--blue-score", metavar="N", min=0, help="Where it was accepted, if known."),
    ] = None,
    data: DataOption = None,
) -> None:
    """Record the transaction that was sent; its amount counts for today.

    The same call again changes nothing, and may add the blue score.

    Example: ledgerstone signing finalize REQUEST TX --blue-score 123456
    """
    wanted = RequestId(request_id)
    final = TransactionId(bytes_of(transaction, "a transaction id"))
    with signing_of(call, data) as signing:
        stored = signing.update_request_final_tx(wanted, final)
        if blue_score is not None:
            signing.update_request_final_tx_score(wanted, blue_score)
        request = signing.get_request(wanted)
        today = signing.volume_today()
    facts = {**views.request_facts(request), "stored": stored, "volume_today_sompi": today}
    output.show(facts, views.finalized(request, stored, today), json=call.json)


def expire(call: Call, data: DataOption = None) -> None:
    """Expire every request whose time has run out.

    A worker does the same all the time. A request with all its signatures stays.

    Example: ledgerstone signing expire
    """
    expired: list[RequestId] = []
    wrong: dict[str, str] = {}
    with signing_of(call, data) as signing, Steps("Requests", "expired", json=call.json) as steps:

        def step(after: bytes | None) -> tuple[int, bytes | None]:
            done = signing.expire_requests(after=after)
            expired.extend(done.expired)
            wrong.update({name: str(error) for name, error in done.errors.items()})
            return len(done.expired), done.after

        steps.through(step)
    output.show(
        {"expired": expired, "errors": wrong},
        views.swept(f"{len(expired):,} expired", expired, wrong),
        json=call.json,
    )
    if wrong:
        raise typer.Exit(EXIT_REFUSED)


def audit(call: Call, request_id: RequestArgument, data: DataOption = None) -> None:
    """Report everything that is stored of a request, with its trail.

    Example: ledgerstone signing audit REQUEST
    """
    with reading_of(call, data) as signing:
        report = signing.audit_request(RequestId(request_id))
    if call.json:
        output.show_json(msgspec.json.decode(report.as_json()))
    else:
        # Hashes stay whole: the terminal breaks lines where it has to.
        output.console().print(Text(report.as_text()), soft_wrap=True)
