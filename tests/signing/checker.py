"""Reads the promises of signing off the files, and shares no code with what it checks.

Rows are read through the bare binding; keys and the few fields that matter are decoded here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ledgerstone.signing.rocksdb import Database

PENDING, APPROVED, REJECTED, EXPIRED, FINALIZED, ABORTED = range(6)
ENDS = {"rejected": REJECTED, "expired": EXPIRED, "finalized": FINALIZED, "aborted": ABORTED}
Rows = dict[bytes, bytes]


class Request(NamedTuple):
    """The fields of a stored request that matter."""

    event_hash: bytes
    decision: int
    final_tx_id: bytes | None


class Files(NamedTuple):
    """All rows, by family, and the active and archived requests by their ids."""

    active: dict[bytes, Request]
    archived: dict[bytes, Request]

    default: Rows
    event: Rows
    request: Rows
    proposal: Rows
    request_input: Rows
    signer_ack: Rows
    partial_sig: Rows
    volume: Rows

    @property
    def requests(self) -> dict[bytes, Request]:
        """The active and the archived ones."""
        return self.active | self.archived


def read(folder: Path) -> Files:
    """All rows of a store that no process has open."""
    with Database(folder, {}, read_only=True) as database:
        families = {name: dict(database.scan(name)) for name in Files._fields[2:]}
    active, archived = (
        {
            key.removeprefix(prefix): request(value)
            for key, value in families["request"].items()
            if key.startswith(prefix)
        }
        for prefix in (b"req:", b"archive:req:")
    )
    return Files(active, archived, **families)


def problems(folder: Path, acknowledged: Iterable[str], *, threshold: int) -> list[str]:
    """Every promise that does not hold; `acknowledged` are the lines of `crash_signers`."""
    files = read(folder)
    return [
        *_lost(files, acknowledged),
        *_archive(files),
        *_orphans(files),
        *_volumes(files),
        *_unsigned(files, threshold),
        *_trails(files),
    ]


def _lost(files: Files, acknowledged: Iterable[str]) -> Iterable[str]:
    for line in acknowledged:
        act, name, *rest = line.split()
        if not _is_there(files, act, name.encode(), *rest):
            yield f"lost: {line}"


def _is_there(files: Files, act: str, name: bytes, peer: str = "", index: str = "0") -> bool:
    found = files.requests.get(name)
    by = peer.encode()
    match act:
        case "proposed":
            return found is not None and b"proposal:" + name in files.proposal
        case "voted":
            return b"req_ack:%b:%b" % (name, by) in files.signer_ack
        case "signed":
            number = int(index).to_bytes(4, "big")
            return b"req_sig:%b:%b:%b" % (name, by, number) in files.partial_sig
        case "archived":
            return name in files.archived
        case _:
            return found is not None and found.decision == ENDS[act]


def _archive(files: Files) -> Iterable[str]:
    for name, found in files.archived.items():
        if name in files.active:
            yield f"{name!r} is active and archived"
        if found.decision in {PENDING, APPROVED}:
            yield f"{name!r} was archived before its end"


def _orphans(files: Files) -> Iterable[str]:
    requests = files.requests
    for name, found in requests.items():
        if b"evt:" + found.event_hash not in files.event:
            yield f"{name!r} has no event"
        if b"proposal:" + name not in files.proposal:
            yield f"{name!r} has no proposal"
    for family in (files.proposal, files.request_input, files.signer_ack, files.partial_sig):
        for key in family:
            if key.split(b":")[1] not in requests:
                yield f"{key!r} has no request"


def _volumes(files: Files) -> Iterable[str]:
    requests = files.requests.values()
    amounts = {key[4:]: amount(value) for key, value in files.event.items()}
    paid = sum(amounts[each.event_hash] for each in requests if each.decision == FINALIZED)
    held = sum(amounts[each.event_hash] for each in requests if each.decision == APPROVED)
    volume = sum(int.from_bytes(value, "big") for value in files.volume.values())
    reserved = int.from_bytes(files.default.get(b"own:reserved", b""), "big")
    if volume != paid:
        yield f"the volume is {volume}, finalized requests pay {paid}"
    if reserved != held:
        yield f"reserved is {reserved}, approved requests hold {held}"
    paid_events = Counter(each.event_hash for each in requests if each.decision == FINALIZED)
    for event, times in paid_events.items():
        if times > 1:
            yield f"the event {event.hex()} was paid {times} times"


def _unsigned(files: Files, threshold: int) -> Iterable[str]:
    signed = Counter((key.split(b":")[1], key[-4:]) for key in files.partial_sig)
    inputs: dict[bytes, list[int]] = {}
    for key in files.request_input:
        name = key.split(b":")[1]
        inputs.setdefault(name, []).append(signed[name, key[-4:]])
    for name, found in files.requests.items():
        if found.decision != FINALIZED:
            continue
        own = inputs.get(name, [0])
        if found.final_tx_id is None or min(own) < threshold:
            yield f"{name!r} is finalized with signatures {own}"


def _trails(files: Files) -> Iterable[str]:
    prefix = b"own:trail:"
    trails: dict[bytes, list[int]] = {}
    for key in files.default:
        if key.startswith(prefix):
            name, number = key.removeprefix(prefix)[:-5], int.from_bytes(key[-4:], "big")
            trails.setdefault(name, []).append(number)
    for name in files.requests:
        numbers = trails.get(name, [])
        if numbers != [*range(len(numbers))] or not numbers:
            yield f"the trail of {name!r} has the entries {numbers}"


def request(value: bytes) -> Request:
    """The fields of a SigningRequest: fixed integers, little-endian, strings with their length."""
    at = _behind_text(value, 0) + 32
    event_hash, at = value[at : at + 32], at + 32
    at = _behind_text(value, at) + 64
    decision, at = int.from_bytes(value[at : at + 4], "little"), at + 4
    if decision in {REJECTED, ABORTED}:
        at = _behind_text(value, at)
    at += 8
    final = value[at + 1 : at + 33] if value[at] else None
    return Request(event_hash, decision, final)


def amount(value: bytes) -> int:
    """The amount of a SigningEvent whose source is an operator."""
    at = _behind_text(value, 0) + 4
    at = _behind_text(value, at)
    at = _behind_text(value, at)
    at += 5 if value[at] else 1
    at = _behind_text(value, at)
    return int.from_bytes(value[at : at + 8], "little")


def _behind_text(value: bytes, at: int) -> int:
    return at + 8 + int.from_bytes(value[at : at + 8], "little")
