"""Which structure the value of each kind of key encodes."""

from __future__ import annotations

import msgspec

from ledgerstone.signing import keys
from ledgerstone.signing.life.event_use import EventLink, EventUse
from ledgerstone.signing.life.outgoing import FinishedRequest
from ledgerstone.signing.life.trail import RequestContext, TrailEntry
from ledgerstone.signing.values import (
    GroupConfig,
    PartialSigRecord,
    RequestInput,
    SignerAckRecord,
    SigningEvent,
    SigningRequest,
    StoredProposal,
)

RECORDS: dict[type[keys.Key], type[msgspec.Struct]] = {
    keys.GroupKey: GroupConfig,
    keys.EventKey: SigningEvent,
    keys.RequestKey: SigningRequest,
    keys.ArchivedRequestKey: SigningRequest,
    keys.ProposalKey: StoredProposal,
    keys.InputKey: RequestInput,
    keys.AckKey: SignerAckRecord,
    keys.SignatureKey: PartialSigRecord,
    keys.ContextKey: RequestContext,
    keys.EventUseKey: EventUse,
    keys.EventIdKey: EventLink,
    keys.TrailKey: TrailEntry,
    keys.OutgoingKey: FinishedRequest,
}
"""The values of other kinds are numbers, empty, or JSON."""
