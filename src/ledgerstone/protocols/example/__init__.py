"""An example protocol: groups, invites, keys, messages that wait for keys, and files.

    group ──▶ member (its creator) ──▶ invite ──▶ join ──▶ member ──▶ message, file
                                └────▶ key ──────────────────────────▶ message

Events may come in any order: each waits for what it builds on. Everything is kept for each local
identity (`received_by`) by itself.
"""

from __future__ import annotations

import secrets
from base64 import b64decode
from pathlib import Path
from typing import Any

from ledgerstone.errors import BadInput, NotFound
from ledgerstone.protocols.connection import Projecting, Reading
from ledgerstone.protocols.events import Envelope, encode
from ledgerstone.protocols.protocol import Protocol
from ledgerstone.protocols.results import BlobAppendSlice, Blocked, OutgoingEnqueue, Result

protocol = Protocol("groups", folder=Path(__file__).parent)
"""What `ledgerstone` loads."""

PAGE = 50
NONCE_BYTES = 16


def _require(db: Projecting, kind: str, table: str, event: Envelope, key: str) -> None:
    """The event waits until this key of this kind has come for the same identity."""
    known = f"SELECT 1 FROM {table} WHERE id = :id AND received_by = :by"  # noqa: S608 - own names
    if not db.exists(known, id=key, by=event.received_by):
        raise Blocked((kind, f"{event.received_by}/{key}"))


def _require_member(db: Projecting, event: Envelope, user: str) -> None:
    group = event.data["group"]
    known = (
        "SELECT 1 FROM chat_member"
        " WHERE group_id = :group AND user_id = :user AND received_by = :by"
    )
    if not db.exists(known, group=group, user=user, by=event.received_by):
        raise Blocked(("member", f"{event.received_by}/{group}/{user}"))


def _add_member(db: Projecting, event: Envelope, group: str, user: str) -> None:
    db.insert("chat_member", group_id=group, user_id=user, received_by=event.received_by)
    db.unblock("member", f"{event.received_by}/{group}/{user}")


@protocol.projector("group")
def group(db: Projecting, event: Envelope) -> None:
    """A group is there, and its creator is in it."""
    data = event.data
    db.insert("chat_group", id=data["id"], received_by=event.received_by, name=data["name"])
    _add_member(db, event, data["id"], data["by"])


@protocol.projector("invite")
def invite(db: Projecting, event: Envelope) -> None:
    """A member lets somebody in."""
    data = event.data
    _require_member(db, event, data["by"])
    row = {"id": data["id"], "received_by": event.received_by, "group_id": data["group"]}
    db.insert("chat_invite", **row)
    db.unblock("invite", f"{event.received_by}/{data['id']}")


@protocol.projector("join")
def join(db: Projecting, event: Envelope) -> None:
    """Somebody comes in by an invite."""
    data = event.data
    _require(db, "invite", "chat_invite", event, data["invite"])
    _add_member(db, event, data["group"], data["by"])


@protocol.projector("key")
def key(db: Projecting, event: Envelope) -> None:
    """A key with which messages of the group can be read."""
    data = event.data
    _require_member(db, event, data["by"])
    row = {"id": data["id"], "received_by": event.received_by, "group_id": data["group"]}
    db.insert("chat_key", **row)
    db.unblock("key", f"{event.received_by}/{data['id']}")


@protocol.projector("message")
def message(db: Projecting, event: Envelope) -> None:
    """Words of a member, which can be read with their key."""
    data = event.data
    _require_member(db, event, data["by"])
    _require(db, "key", "chat_key", event, data["key"])
    db.insert(
        "chat_message",
        event_id=event.event_id,
        received_by=event.received_by,
        group_id=data["group"],
        author=data["by"],
        words=data["words"],
        sent_at_ms=event.created_at_ms,
    )


@protocol.projector("file")
def file(db: Projecting, event: Envelope) -> None:
    """A file that a member shares; its content travels in slices."""
    data = event.data
    _require_member(db, event, data["by"])
    db.insert(
        "chat_file",
        file_id=data["file_id"],
        received_by=event.received_by,
        group_id=data["group"],
        name=data["name"],
        total_size=data["total_size"],
    )


@protocol.command("group.create")
def create_group(db: Reading, *, group: str, name: str, by: str) -> Result:
    """A group with its first key."""
    made = {"id": group, "name": name, "by": by}
    first = {"id": f"{group}-1", "group": group, "by": by}
    return _told(db, by, [("group", made), ("key", first)], key=first["id"])


@protocol.command("invite.create")
def create_invite(db: Reading, *, group: str, invite: str, by: str) -> Result:
    """An invite to a group."""
    return _told(db, by, [("invite", {"id": invite, "group": group, "by": by})], invite=invite)


@protocol.command("join")
def join_group(db: Reading, *, group: str, invite: str, by: str) -> Result:
    """Come in by an invite."""
    return _told(db, by, [("join", {"group": group, "invite": invite, "by": by})])


@protocol.command("message.create")
def create_message(db: Reading, *, group: str, words: str, by: str) -> Result:
    """Say something, with the newest key of the group; the sender sees it at once.

    The nonce tells the same words, said twice, from an event that arrives twice.
    """
    newest = (
        "SELECT id FROM chat_key WHERE group_id = :group AND received_by = :by ORDER BY id DESC"
    )
    found = db.one(newest, group=group, by=by)
    key = found[0] if found else f"{group}-1"
    nonce = secrets.token_hex(NONCE_BYTES)
    data = {"group": group, "key": key, "by": by, "words": words, "nonce": nonce}
    return _told(db, by, [("message", data)])


@protocol.command("message.list")
def list_messages(
    db: Reading, *, group: str, by: str, cursor: str | None = None, back: bool = False
) -> Result:
    """A page of messages, the newest first."""
    page = db.page(
        "chat_message",
        ("author", "words", "sent_at_ms", "event_id"),
        order=("sent_at_ms", "event_id"),
        where={"received_by": by, "group_id": group},
        limit=PAGE,
        cursor=cursor,
        back=back,
    )
    messages = [{"author": row[0], "words": row[1], "sent_at_ms": row[2]} for row in page.rows]
    return Result(answer={"messages": messages, "next": page.next, "previous": page.previous})


@protocol.command("file.begin")
def begin_file(
    db: Reading, *, group: str, file_id: str, name: str, total_size: int, by: str
) -> Result:
    """Share a file; it is named by its SHA-256, and its slices follow in any order."""
    data = {"group": group, "by": by, "file_id": file_id, "name": name, "total_size": total_size}
    return _told(db, by, [("file", data)])


@protocol.command("file.slice")
def add_slice(
    db: Reading, *, file_id: str, slice_no: int, offset: int, data: str, by: str
) -> Result:
    """A slice of a file that was shared, in base64; the last one completes the file."""
    size = "SELECT total_size FROM chat_file WHERE file_id = :file AND received_by = :by"
    found = db.one(size, file=file_id, by=by)
    if found is None:
        raise NotFound(f"nobody has shared the file {file_id} with {by}", hint="call file.begin")
    try:
        content = b64decode(data, validate=True)
    except ValueError as error:
        raise BadInput(f"the slice is no base64: {error}") from error
    return Result(intents=[BlobAppendSlice(file_id, slice_no, offset, content, found[0])])


@protocol.job("key.issue", every_seconds=60)
def issue_keys(db: Reading) -> Result:
    """A key for each group of ours that has none."""
    lacking = (
        "SELECT g.id, g.received_by FROM chat_group g"
        " JOIN chat_member m"
        " ON m.group_id = g.id AND m.received_by = g.received_by AND m.user_id = g.received_by"
        " LEFT JOIN chat_key k ON k.group_id = g.id AND k.received_by = g.received_by"
        " WHERE k.id IS NULL"
    )
    return Result(
        envelopes=[
            Envelope(
                type="key", data={"id": f"{group}-1", "group": group, "by": by}, received_by=by
            )
            for group, by in db.rows(lacking)
        ]
    )


def _told(db: Reading, by: str, events: list[tuple[str, dict[str, Any]]], **answer: str) -> Result:
    """Events of ours: kept for ourselves at once, and sent to everyone."""
    made = [Envelope(type=kind, data=data, created_at_ms=db.now_ms) for kind, data in events]
    return Result(
        envelopes=[
            Envelope(
                type=each.type, data=each.data, received_by=by, created_at_ms=each.created_at_ms
            )
            for each in made
        ],
        intents=[OutgoingEnqueue(encode(each), "everyone") for each in made],
        answer=answer,
    )
