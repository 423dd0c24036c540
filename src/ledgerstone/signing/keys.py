"""The keys of the store, byte for byte: a prefix, then parts that `:` separates.

Numbers are big-endian, so that keys sort as the numbers do. Ids are of any length, so an id that
holds the separator would make keys that can be read in two ways, and a scan of request `a` find
the records of request `a:b`: such ids are refused, as are empty and over-long ones.

Keys that begin with `own:` are Ledgerstone's additions to the documented table. They lie in the
default family, which other programs read by the one key `cfg:app`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import ClassVar, Protocol

import msgspec

from ledgerstone.errors import BadInput, KeyAmbiguous, Malformed
from ledgerstone.signing.values import EventHash, GroupId, Hash32, PeerId, RequestId, SessionId

SEPARATOR = b":"
REQUEST_ID_BYTES_MAX = 128
PEER_ID_BYTES_MAX = 256
HASH_BYTES = 32
NANOS_PER_DAY = 24 * 60 * 60 * 1_000_000_000

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


class Family(StrEnum):
    """A column family, by its name in the database."""

    DEFAULT = "default"
    """The configuration (`cfg:app`), Ledgerstone's own keys, rows of before there were families."""
    GROUP = "group"
    EVENT = "event"
    REQUEST = "request"
    """Requests (`req:`) and archived requests (`archive:req:`)."""
    PROPOSAL = "proposal"
    REQUEST_INPUT = "request_input"
    SIGNER_ACK = "signer_ack"
    PARTIAL_SIG = "partial_sig"
    VOLUME = "volume"
    """Daily volumes: numbers that the original adds up by merge operands."""
    SEEN = "seen"


class _Part(Protocol):
    """How one part of a key is written; `size` is None for an id, which ends at a separator."""

    @property
    def size(self) -> int | None: ...
    def write(self, value: object) -> bytes: ...
    def read(self, data: bytes) -> object: ...


class _Id(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    bytes_max: int
    size: None = None

    def write(self, value: object) -> bytes:
        if not isinstance(value, str):
            raise BadInput(f"a {self.what} is text, not {value!r:.80}")
        try:
            encoded = value.encode()
        except UnicodeEncodeError as error:
            raise KeyAmbiguous(f"{value!r:.80} holds half of a surrogate pair") from error
        self._check(value, encoded)
        return encoded

    def read(self, data: bytes) -> str:
        try:
            value = data.decode()
        except UnicodeDecodeError as error:
            raise Malformed(f"a {self.what} that is no UTF-8: {data!r:.80}") from error
        self._check(value, data)
        return value

    def _check(self, value: str, encoded: bytes) -> None:
        if not 0 < len(encoded) <= self.bytes_max:
            raise KeyAmbiguous(
                f"a {self.what} has 1 to {self.bytes_max} bytes, this one {len(encoded)}"
            )
        if SEPARATOR in encoded or _CONTROL.search(value):
            raise KeyAmbiguous(f"a {self.what} holds no `:` and no control character: {value!r}")


class _Hash(msgspec.Struct, frozen=True, kw_only=True):
    size: int = HASH_BYTES

    def write(self, value: object) -> bytes:
        if type(value) is not bytes or len(value) != HASH_BYTES:
            raise BadInput(f"a hash in a key has {HASH_BYTES} bytes, not {value!r:.80}")
        return value

    def read(self, data: bytes) -> bytes:
        return data


class _Number(msgspec.Struct, frozen=True, kw_only=True):
    size: int

    def write(self, value: object) -> bytes:
        if type(value) is not int or not 0 <= value < 1 << 8 * self.size:
            raise BadInput(f"a number in a key has {self.size} bytes, not {value!r:.80}")
        return value.to_bytes(self.size, "big")

    def read(self, data: bytes) -> int:
        return int.from_bytes(data, "big")


_REQUEST_ID = _Id(what="request id", bytes_max=REQUEST_ID_BYTES_MAX)
_PEER_ID = _Id(what="peer id", bytes_max=PEER_ID_BYTES_MAX)
_HASH = _Hash()
_U32 = _Number(size=4)
_U64 = _Number(size=8)


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key; its class says in which family, with which prefix and parts."""

    family: ClassVar[Family]
    prefix: ClassVar[bytes]
    parts: ClassVar[tuple[_Part, ...]] = ()

    def encode(self) -> bytes:
        """The bytes; KeyAmbiguous or BadInput if a part does not fit."""
        values = msgspec.structs.astuple(self)
        written = [part.write(value) for part, value in zip(self.parts, values, strict=True)]
        return self.prefix + SEPARATOR.join(written)


class AppConfigKey(Key, frozen=True, kw_only=True):
    """The configuration of the service."""

    family = Family.DEFAULT
    prefix = b"cfg:app"


class GroupKey(Key, frozen=True, kw_only=True):
    """A GroupConfig."""

    family = Family.GROUP
    prefix = b"grp:"
    parts = (_HASH,)
    group_id: GroupId


class EventKey(Key, frozen=True, kw_only=True):
    """A SigningEvent."""

    family = Family.EVENT
    prefix = b"evt:"
    parts = (_HASH,)
    event_hash: EventHash


class RequestKey(Key, frozen=True, kw_only=True):
    """A SigningRequest."""

    family = Family.REQUEST
    prefix = b"req:"
    parts = (_REQUEST_ID,)
    request_id: RequestId


class ArchivedRequestKey(Key, frozen=True, kw_only=True):
    """A SigningRequest that is no longer active."""

    family = Family.REQUEST
    prefix = b"archive:req:"
    parts = (_REQUEST_ID,)
    request_id: RequestId


class ProposalKey(Key, frozen=True, kw_only=True):
    """A StoredProposal."""

    family = Family.PROPOSAL
    prefix = b"proposal:"
    parts = (_REQUEST_ID,)
    request_id: RequestId


class InputKey(Key, frozen=True, kw_only=True):
    """A RequestInput."""

    family = Family.REQUEST_INPUT
    prefix = b"req_input:"
    parts = (_REQUEST_ID, _U32)
    request_id: RequestId
    input_index: int


class AckKey(Key, frozen=True, kw_only=True):
    """A SignerAckRecord."""

    family = Family.SIGNER_ACK
    prefix = b"req_ack:"
    parts = (_REQUEST_ID, _PEER_ID)
    request_id: RequestId
    peer_id: PeerId


class SignatureKey(Key, frozen=True, kw_only=True):
    """A PartialSigRecord."""

    family = Family.PARTIAL_SIG
    prefix = b"req_sig:"
    parts = (_REQUEST_ID, _PEER_ID, _U32)
    request_id: RequestId
    peer_id: PeerId
    input_index: int


class VolumeKey(Key, frozen=True, kw_only=True):
    """The sompi that were paid on one UTC day."""

    family = Family.VOLUME
    prefix = b"vol:"
    parts = (_U64,)
    day_start_nanos: int


class SeenKey(Key, frozen=True, kw_only=True):
    """When a peer's message was first seen."""

    family = Family.SEEN
    prefix = b"seen:"
    parts = (_PEER_ID, _HASH, _U64)
    peer_id: PeerId
    session_id: SessionId
    seq_no: int


class ContextKey(Key, frozen=True, kw_only=True):
    """The RequestContext of a request."""

    family = Family.DEFAULT
    prefix = b"own:req:"
    parts = (_REQUEST_ID,)
    request_id: RequestId


class EventUseKey(Key, frozen=True, kw_only=True):
    """The id of the one request that an event has."""

    family = Family.DEFAULT
    prefix = b"own:evt:"
    parts = (_HASH,)
    event_hash: EventHash


class EventIdKey(Key, frozen=True, kw_only=True):
    """The hash of the event to which a source gave an id."""

    family = Family.DEFAULT
    prefix = b"own:src:"
    parts = (_HASH,)
    source_hash: Hash32


class TrailKey(Key, frozen=True, kw_only=True):
    """One entry of the trail of a request."""

    family = Family.DEFAULT
    prefix = b"own:trail:"
    parts = (_REQUEST_ID, _U32)
    request_id: RequestId
    number: int


class ReservedKey(Key, frozen=True, kw_only=True):
    """The sompi of all approved requests that are not finished."""

    family = Family.DEFAULT
    prefix = b"own:reserved"


class DueKey(Key, frozen=True, kw_only=True):
    """A request that is not finished, in the order in which requests expire."""

    family = Family.DEFAULT
    prefix = b"own:due:"
    parts = (_U64, _REQUEST_ID)
    expires_at_nanos: int
    request_id: RequestId


class OutgoingKey(Key, frozen=True, kw_only=True):
    """A FinishedRequest that is to be published, in the order in which they finished."""

    family = Family.DEFAULT
    prefix = b"own:out:"
    parts = (_U64, _REQUEST_ID)
    at_nanos: int
    request_id: RequestId


class StoreIdKey(Key, frozen=True, kw_only=True):
    """The random id of this store."""

    family = Family.DEFAULT
    prefix = b"own:store"


KINDS: tuple[type[Key], ...] = (
    AppConfigKey,
    GroupKey,
    EventKey,
    RequestKey,
    ArchivedRequestKey,
    ProposalKey,
    InputKey,
    AckKey,
    SignatureKey,
    VolumeKey,
    SeenKey,
    ContextKey,
    EventUseKey,
    EventIdKey,
    TrailKey,
    ReservedKey,
    DueKey,
    OutgoingKey,
    StoreIdKey,
)
"""Every kind; no prefix is the beginning of another one."""

RequestChild = InputKey | AckKey | SignatureKey | TrailKey
"""The kinds of which a request has several rows."""


def request_prefix(kind: type[RequestChild], request_id: RequestId) -> bytes:
    """The prefix of all keys of this kind of one request, and of no other key."""
    return kind.prefix + _REQUEST_ID.write(request_id) + SEPARATOR


def parse(key: bytes) -> Key:
    """The key that the bytes are; Malformed or KeyAmbiguous if they are none."""
    kind = kind_of(key)
    if kind is None:
        raise Malformed(f"a key with an unknown prefix: {key!r:.80}")
    values: list[object] = []
    rest = key[len(kind.prefix) :]
    for number, part in enumerate(kind.parts):
        last = number == len(kind.parts) - 1
        size = _size(part, rest, last=last)
        values.append(part.read(rest[:size]))
        if not last and rest[size : size + 1] != SEPARATOR:
            raise Malformed(f"a key without a separator behind a part: {key!r:.80}")
        rest = rest[size if last else size + 1 :]
    if rest:
        raise Malformed(f"a key that is too long: {key!r:.80}")
    return kind(**dict(zip(kind.__struct_fields__, values, strict=True)))


def _size(part: _Part, rest: bytes, *, last: bool) -> int:
    if part.size is None:
        end = len(rest) if last else rest.find(SEPARATOR)
        return len(rest) if end < 0 else end
    if len(rest) < part.size:
        raise Malformed(f"a key that ends within a part of {part.size} bytes")
    return part.size


def kind_of(key: bytes) -> type[Key] | None:
    """The kind whose prefix the bytes begin with, also if the rest is malformed."""
    return next((kind for kind in KINDS if key.startswith(kind.prefix)), None)


def check_request_id(request_id: str) -> RequestId:
    """KeyAmbiguous unless the text can be a request id."""
    _REQUEST_ID.write(request_id)
    return RequestId(request_id)


def check_peer_id(peer_id: str) -> PeerId:
    """KeyAmbiguous unless the text can be a peer id."""
    _PEER_ID.write(peer_id)
    return PeerId(peer_id)


def day_start_nanos(now_nanos: int) -> int:
    """The beginning of the UTC day that a moment lies in."""
    return now_nanos - now_nanos % NANOS_PER_DAY
