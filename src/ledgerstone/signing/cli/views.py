"""Signing as people see it: tables that fit 80 columns, and the same facts for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Group, RenderableType

from ledgerstone.console import output
from ledgerstone.console.output import Text
from ledgerstone.signing.hexadecimal import in_hex
from ledgerstone.signing.kaspa import Network, format_kas
from ledgerstone.signing.one_line import one_line
from ledgerstone.signing.policy import REASON_KEY
from ledgerstone.signing.states import FINISHED, Status
from ledgerstone.signing.values import (
    EventHash,
    GroupConfig,
    GroupId,
    PeerId,
    SigningEvent,
    SigningRequest,
    Stored,
)

if TYPE_CHECKING:
    from ledgerstone.signing.life.acks import CountedVote
    from ledgerstone.signing.life.audit import AuditReport
    from ledgerstone.signing.life.proposals import Review
    from ledgerstone.signing.quorum import Votes
    from ledgerstone.signing.read.requests import RequestStanding
    from ledgerstone.signing.upkeep import DiskUsage, Health, Statistics

NANOS_PER_SECOND = 1_000_000_000
NAMES_SHOWN_MAX = 20
KIB = 1024
STYLES = {
    Status.PENDING: "cyan",
    Status.APPROVED: "bold blue",
    Status.FINALIZED: "green",
    Status.REJECTED: "bold red",
    Status.EXPIRED: "yellow",
    Status.ABORTED: "yellow",
}
PEER_ENTRY = "peer:"


def nanos_of(moment: datetime) -> int:
    """Nanoseconds since 1970; a moment before is 0."""
    return max(0, int(moment.timestamp())) * NANOS_PER_SECOND


def moment_of(nanos: int) -> datetime:
    """The moment of nanoseconds since 1970, to the second."""
    return datetime.fromtimestamp(nanos // NANOS_PER_SECOND, UTC)


def day_of(nanos: int) -> str:
    """The UTC day of a moment."""
    return f"{moment_of(nanos):%Y-%m-%d}"


def size(count: int) -> str:
    """Bytes, in the unit that is worth saying."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < KIB:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= KIB
    return f"{amount:.1f} GiB"


def kas(sompi: int | None) -> str:
    """An amount in KAS."""
    return "no limit" if sompi is None else f"{format_kas(sompi)} KAS"


def groups(found: Mapping[GroupId, GroupConfig]) -> RenderableType:
    """Groups: an id a line, which can be copied, and below it what it is."""
    lines: list[RenderableType] = [Text("Groups", "bold")]
    for group_id, config in found.items():
        name = config.group_metadata.group_name
        quorum = f"{config.threshold_m} of {config.threshold_n} sign"
        limit = config.policy.max_daily_volume_sompi
        daily = None if limit is None else f"at most {kas(limit)} a day"
        below = ", ".join(filter(None, [one_line(name or ""), quorum, daily]))
        lines += [Text(group_id.hex()), Text(f"  {below}", "dim")]
    return Group(*lines)


def group(group_id: GroupId, config: GroupConfig) -> RenderableType:
    """One group, its policy and its members."""
    policy = config.policy
    allowed = "\n".join(map(one_line, policy.allowed_destinations)) or "every address"
    known = {network.value: network.name.lower() for network in Network}
    rows: dict[str, RenderableType] = {
        "group": Text(group_id.hex(), "bold"),
        "name": Text(one_line(config.group_metadata.group_name or "")),
        "network": known.get(config.network_id, str(config.network_id)),
        "signs": f"{config.threshold_m} of {config.threshold_n}",
        "time": f"{config.session_timeout_seconds:,} s for a request",
        "pays to": Text(allowed),
        "at least": kas(policy.min_amount_sompi),
        "at most": kas(policy.max_amount_sompi),
        "a day": kas(policy.max_daily_volume_sompi),
        "reason": "required" if policy.require_reason else "not required",
    }
    extra = config.group_metadata.extra
    named = {extra[name]: name[len(PEER_ENTRY) :] for name in extra if name.startswith(PEER_ENTRY)}
    table = output.table("Members", "peer", "public key")
    for key in config.member_pubkeys:
        name = named.get(key.hex(), output.short(key.hex()))
        table.add_row(Text(one_line(name)), key.hex())
    return Group(output.pairs(rows), "", table)


def events(found: Mapping[EventHash, SigningEvent]) -> RenderableType:
    """Events: a hash a line, which can be copied, and below it what it pays."""
    lines: list[RenderableType] = [Text("Events", "bold")]
    for event_hash, each in found.items():
        short = f"{each.destination_address.partition(':')[0]}:"
        short += output.short(each.destination_address)
        below = f"{kas(each.amount_sompi)} to {one_line(short)} for {one_line(each.event_id)}"
        lines += [Text(event_hash.hex()), Text(f"  {below}", "dim")]
    return Group(*lines)


def event(event_hash: EventHash, found: SigningEvent) -> RenderableType:
    """One event."""
    source = found.event_source
    facts = ", ".join(str(fact) for fact in msgspec.structs.astuple(source))
    rows: dict[str, RenderableType] = {
        "event": Text(event_hash.hex(), "bold"),
        "id": Text(one_line(found.event_id)),
        "source": Text(one_line(f"{type(source).__name__} {facts}")),
        "pays": kas(found.amount_sompi),
        "to": Text(one_line(found.destination_address)),
        "path": Text(one_line(found.derivation_path or f"index {found.derivation_index}")),
    }
    if found.timestamp_nanos:
        rows["time"] = f"{moment_of(found.timestamp_nanos):%Y-%m-%d %H:%M:%S} UTC"
    # Set apart: the source chooses the names, and may choose one of those above.
    metadata = {f"  {one_line(name)}": one_line(value) for name, value in found.metadata.items()}
    if metadata:
        rows |= {"metadata": "", **{name: Text(value) for name, value in metadata.items()}}
    return output.pairs(rows)


def state(request: SigningRequest) -> Text:
    """Where a request stands, in its colour."""
    status = request.decision.status
    return Text(status.value, STYLES[status])


def request_facts(request: SigningRequest) -> dict[str, object]:
    """A request for programs: its fields with bytes in hex, and its state in one word."""
    fields = in_hex(request)
    assert isinstance(fields, dict)
    return {**fields, "state": request.decision.status}


def listed_facts(found: RequestStanding) -> dict[str, object]:
    """A request of a list, for programs."""
    return {
        **request_facts(found.request),
        "group_id": None if found.group_id is None else found.group_id.hex(),
        "votes": found.votes,
        "missing": found.missing,
        "ready": found.ready,
        "seconds_left": found.seconds_left,
    }


def requests(found: Iterable[RequestStanding]) -> RenderableType:
    """Requests, one a line: members that accept, signatures that are missing, the time."""
    table = output.table("Requests", "request", "state", "accept", "to sign", "time left")
    for each in found:
        votes = each.votes
        to_sign = "ready" if each.ready else f"{sum(each.missing.values()):,}"
        table.add_row(
            Text(one_line(each.request.request_id), "bold"),
            state(each.request),
            "" if votes is None else f"{votes.accepts} of {votes.threshold}",
            to_sign if each.ready or each.missing else "",
            "" if each.seconds_left is None else _left(each.seconds_left),
        )
    return table


def _left(seconds: int) -> str:
    lasts = output.lasting(abs(seconds) * 1000)
    return lasts if seconds > 0 else f"{lasts} ago"


def standing_facts(report: AuditReport, review: Review | None) -> dict[str, object]:
    """Where a request stands, for programs."""
    return {
        "request": request_facts(report.request),
        "group_id": None if report.context is None else report.context.group_id.hex(),
        "event": None if report.event is None else in_hex(report.event),
        "votes": report.votes,
        "acks": report.acks,
        "missing": report.missing,
        "ready": bool(report.inputs) and report.missing == {},
        "review": None if review is None else {"ok": not review.reason, **_review(review)},
    }


def _review(review: Review) -> dict[str, object]:
    return {"mismatches": review.mismatches, "findings": review.policy.findings}


def standing(report: AuditReport, review: Review | None) -> RenderableType:
    """Where a request stands: what it pays, the quorum, the signatures, the policy."""
    request = report.request
    reason = getattr(request.decision, "reason", "")
    now = datetime.now(UTC)
    rows: dict[str, RenderableType] = {
        "request": Text(one_line(request.request_id), "bold"),
        "state": Text.assemble(state(request), f"  {one_line(reason)}" if reason else ""),
        "coordinator": Text(one_line(request.coordinator_peer_id)),
    }
    if request.decision.status not in FINISHED:
        rows["expires"] = output.moment(moment_of(request.expires_at_nanos), now) or ""
    if report.context is not None:
        rows["group"] = Text(report.context.group_id.hex())
    if report.event is not None:
        rows["pays"] = kas(report.event.amount_sompi)
        rows["to"] = Text(one_line(report.event.destination_address))
        rows["reason"] = Text(one_line(report.event.metadata.get(REASON_KEY, "")))
    if request.final_tx_id is not None:
        rows["transaction"] = request.final_tx_id.hex()
    if report.votes is not None:
        rows["votes"] = _votes(report.votes)
    for ack in report.acks:
        vote = ("accepts", "green") if ack.accept else ("rejects", "red")
        why = f": {one_line(ack.reason)}" if ack.reason else ""
        rows[f"  {one_line(ack.signer_peer_id)}"] = Text.assemble(vote, why)
    rows["inputs"] = _inputs(len(report.inputs), report.missing)
    parts: list[RenderableType] = [output.pairs(rows)]
    if review is not None:
        parts += ["", _findings(review)]
    return Group(*parts)


def _votes(votes: Votes) -> str:
    return (
        f"{votes.accepts} accept, {votes.rejects} reject;"
        f" {votes.threshold} of {votes.members} must accept"
    )


def _inputs(count: int, missing: Mapping[int, int] | None) -> str:
    if not missing:
        return f"{count}, all signed" if count and missing is not None else f"{count}"
    needs = ", ".join(f"{index} needs {needed}" for index, needed in missing.items())
    return f"{count}; signatures are missing: {needs}"


def _findings(review: Review) -> RenderableType:
    table = output.table("Review", "check", "", "found")
    for mismatch in review.mismatches:
        table.add_row(mismatch, Text("wrong", "bold red"), "")
    for finding in review.policy.findings:
        verdict = Text("ok", "green") if finding.passed else Text("refused", "bold red")
        table.add_row(finding.check.value, verdict, Text(one_line(finding.detail)))
    return table


def voted(peer: str, counted: CountedVote, votes: Votes | None, *, accept: bool) -> RenderableType:
    """The effect of a vote."""
    verb = "accepts" if accept else "rejects"
    again = " (counted before)" if counted.stored is Stored.SAME else ""
    status = counted.decision.status
    reason = getattr(counted.decision, "reason", "")
    counters = f", {_votes(votes)}" if votes is not None else ""
    return Text.assemble(
        f"{peer} {verb}{again}: ",
        (status.value, STYLES[status]),
        f" ({one_line(reason)})" if reason else "",
        (counters, "dim"),
    )


def signed(
    peer: PeerId, answers: Mapping[int, Stored], missing: Mapping[int, int] | None
) -> RenderableType:
    """The signatures that were made, and those that are missing."""
    new = [str(index) for index, stored in answers.items() if stored is Stored.NEW]
    old = [str(index) for index, stored in answers.items() if stored is Stored.SAME]
    parts = [f"signed {_named(new)}"] if new else []
    parts += [f"had signed {_named(old)} before"] if old else []
    rest = ("; ready to be sent", "green")
    if missing is not None:
        needs = ", ".join(f"input {index} needs {count}" for index, count in missing.items())
        rest = (f"; {needs}", "yellow")
    return Text.assemble(f"{peer} {', '.join(parts) or 'signed nothing'}", rest)


def _named(indexes: list[str]) -> str:
    return f"input{'s' if len(indexes) > 1 else ''} {', '.join(indexes)}"


def finalized(request: SigningRequest, stored: Stored, today: int) -> RenderableType:
    """The effect of finalizing."""
    again = " before, by the same transaction" if stored is Stored.SAME else ""
    score = request.final_tx_accepted_blue_score
    return Text.assemble(
        request.request_id,
        (f"  finalized{again}", "green"),
        (f", {format_kas(today)} KAS today", "dim"),
        "" if score is None else (f", blue score {score}", "dim"),
    )


def swept(told: str, names: Iterable[str], wrong: Mapping[str, str]) -> RenderableType:
    """The effect of a sweep: a count, some names, and what was wrong with others."""
    listed = list(names)
    lines: list[RenderableType] = [Text(told)]
    lines += [Text(f"  {one_line(name)}", "dim") for name in listed[:NAMES_SHOWN_MAX]]
    if len(listed) > NAMES_SHOWN_MAX:
        lines.append(Text(f"  and {len(listed) - NAMES_SHOWN_MAX:,} more; --json names all", "dim"))
    lines += [Text(one_line(f"{name}: {why}"), "bold red") for name, why in wrong.items()]
    return Group(*lines)


def volume(by_day: Mapping[str, int], reserved: int) -> RenderableType:
    """The amount that was paid on each day."""
    table = output.table("Volume", "UTC day", "KAS", numbers=("KAS",))
    for day, sompi in by_day.items():
        table.add_row(day, Text(format_kas(sompi), "" if sompi else "dim"))
    return Group(table, "", f"reserved by approved requests: {format_kas(reserved)} KAS")


def health(folder: Path, found: Health) -> RenderableType:
    """How the store is."""
    rows: dict[str, RenderableType] = {
        "folder": Text(str(folder)),
        "state": Text("ok", "green") if found.ok else Text("problem", "bold red"),
        "free on disk": size(found.free_bytes),
    }
    problems = [Text(f"problem: {problem}", "bold red") for problem in found.problems]
    return Group(output.pairs(rows), *problems)


def statistics(found: Statistics, usage: DiskUsage, *, full: bool) -> RenderableType:
    """Rows and bytes by family."""
    numbers = ("rows, about", "in files", "in memory")
    table = output.table("Families", "family", *numbers, numbers=numbers)
    for name, each in found.families.items():
        memory = size(each.memory_bytes)
        table.add_row(name, f"{each.rows_estimate:,}", size(each.file_bytes), memory)
    total = f"{size(usage.total_bytes)} on disk, {size(usage.log_bytes)} of it the log"
    busy = f"{found.running_compactions} compactions run, {size(found.cache_bytes)} in the cache"
    own: list[RenderableType] = ["", Text(found.text)] if full else []
    return Group(table, "", total, busy, *own)
