"""The audit report as text for people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, assert_never

import msgspec

from ledgerstone.signing.kaspa import format_kas
from ledgerstone.signing.life.trail import Created, Happened, Moved, Signed, Voted, VoteRefused
from ledgerstone.signing.one_line import one_line
from ledgerstone.signing.values import SignerAckRecord, SigningEvent

if TYPE_CHECKING:
    from ledgerstone.signing.life.audit import AuditReport

NANOS_PER_SECOND = 1_000_000_000


def report_lines(report: AuditReport) -> Iterator[str]:
    """The report, a fact a line."""
    request = report.request
    decision = request.decision
    reason = getattr(decision, "reason", "")
    yield f"request      {one_line(request.request_id)}"
    yield f"state        {decision.status.value}{f': {one_line(reason)}' if reason else ''}"
    yield f"coordinator  {one_line(request.coordinator_peer_id)}"
    yield f"expires      {_moment(request.expires_at_nanos)}"
    if request.final_tx_id is not None:
        score = request.final_tx_accepted_blue_score
        accepted = "" if score is None else f", accepted at blue score {score}"
        yield f"transaction  {request.final_tx_id.hex()}{accepted}"
    yield from _group_lines(report)
    yield from _event_lines(request.event_hash.hex(), report.event)
    proposal = report.proposal
    size = "missing" if proposal is None else f"{len(proposal.kpsbt_blob)} bytes"
    yield f"proposal     {size}"
    yield from _input_lines(report)
    yield from _vote_lines(report)
    yield from _trail_lines(report)


def _group_lines(report: AuditReport) -> Iterator[str]:
    if report.context is None:
        yield "group        unknown: another program stored the request"
        return
    group = report.group
    threshold = "missing" if group is None else f"{group.threshold_m} of {group.threshold_n}"
    yield f"group        {report.context.group_id.hex()} ({threshold})"
    if report.context.reserved_sompi:
        yield f"reserved     {format_kas(report.context.reserved_sompi)} KAS"


def _event_lines(event_hash: str, event: SigningEvent | None) -> Iterator[str]:
    if event is None:
        yield f"event        {event_hash} (missing)"
        return
    source = type(event.event_source).__name__
    facts = ", ".join(one_line(str(fact)) for fact in msgspec.structs.astuple(event.event_source))
    yield f"event        {event_hash}"
    yield f"  id         {one_line(event.event_id)}, {source} {facts}"
    amount, destination = format_kas(event.amount_sompi), one_line(event.destination_address)
    yield f"  pays       {amount} KAS to {destination}"
    for name, value in event.metadata.items():
        yield f"  metadata   {one_line(name)}: {one_line(value)}"


def _input_lines(report: AuditReport) -> Iterator[str]:
    yield f"inputs       {len(report.inputs)}"
    for each in report.inputs:
        signers = [s.signer_peer_id for s in report.signatures if s.input_index == each.input_index]
        signed = ", ".join(map(one_line, signers)) or "nobody"
        missing = (report.missing or {}).get(each.input_index, 0)
        needs = f", {missing} missing" if missing else ""
        place = f"{each.utxo_tx_id.hex()}:{each.utxo_output_index}"
        yield f"  {each.input_index}: {place}, {format_kas(each.utxo_value)} KAS"
        yield f"     signed by {signed}{needs}"


def _vote_lines(report: AuditReport) -> Iterator[str]:
    votes = report.votes
    if votes is None:
        yield f"votes        {len(report.acks)}"
    else:
        counted = f"{votes.accepts} accept, {votes.rejects} reject"
        yield f"votes        {counted}, {votes.threshold} of {votes.members} needed"
    for ack in report.acks:
        yield f"  {_vote(ack)}"
    if report.context is not None and report.context.refusals:
        yield f"  {report.context.refusals} refused, because the member had voted otherwise"


def _vote(ack: SignerAckRecord) -> str:
    reason = f": {one_line(ack.reason)}" if ack.reason else ""
    return f"{one_line(ack.signer_peer_id)} {'accepts' if ack.accept else 'rejects'}{reason}"


def _trail_lines(report: AuditReport) -> Iterator[str]:
    yield f"trail        {len(report.trail)}"
    for entry in report.trail:
        actor = one_line(entry.actor) or "service"
        detail = f": {one_line(entry.detail)}" if entry.detail else ""
        yield f"  {_moment(entry.at_nanos)}  {actor}  {_happened(entry.happened)}{detail}"


def _happened(happened: Happened) -> str:
    match happened:
        case Created():
            return "created"
        case Moved(before=before, after=after):
            return f"{one_line(before)} to {one_line(after)}"
        case Voted(accept=accept):
            return "accepts" if accept else "rejects"
        case VoteRefused(accept=accept):
            return f"tried to change its vote to {'accept' if accept else 'reject'}"
        case Signed(input_index=index):
            return f"signed input {index}"
        case never:
            assert_never(never)


def _moment(nanos: int) -> str:
    seconds, rest = divmod(nanos, NANOS_PER_SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"
