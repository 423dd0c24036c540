"""Eight threads at one event, one message, one day, one request: one winner, right totals."""

from __future__ import annotations

from collections import Counter

import pytest

from ledgerstone.errors import EventReplayed, KeyConflict, VoteChanged
from ledgerstone.signing.values import (
    Approved,
    Finalized,
    PeerId,
    Rejected,
    RequestId,
    SessionId,
    SigningEvent,
    Stored,
)
from tests.harness.sizes import sized
from tests.signing.people import KAS, payment
from tests.signing.racing import THREADS, race
from tests.signing.world import World, Worlds

pytestmark = pytest.mark.torture

ROUNDS = sized(3, full=100)
SESSION = SessionId(b"s" * 32)


def test_one_event(worlds: Worlds) -> None:
    """One thread stores it, the others are told that it is there."""
    world = worlds()
    for number in range(ROUNDS):
        told: list[Stored] = []

        race(lambda _, n=number, told=told: told.append(world.event(payment(n)).stored))  # type: ignore[misc]

        assert Counter(told) == {Stored.NEW: 1, Stored.SAME: THREADS - 1}


def test_one_id_for_several_events(worlds: Worlds) -> None:
    """Of eight events with one id, one is accepted."""
    world = worlds()
    told: list[object] = []

    def insert(thread: int) -> None:
        try:
            told.append(world.event(payment(1, timestamp_nanos=thread)).stored)
        except EventReplayed:
            told.append(EventReplayed)

    race(insert)

    assert Counter(told) == {Stored.NEW: 1, EventReplayed: THREADS - 1}


def test_one_event_for_several_requests(worlds: Worlds) -> None:
    """Of eight requests for one event, one begins."""
    world = worlds()
    for number in range(ROUNDS):
        event = payment(number)
        world.event(event)
        told: list[object] = []

        def begin(
            thread: int,
            number: int = number,
            event: SigningEvent = event,
            told: list[object] = told,
        ) -> None:
            try:
                told.append(world.request(world.new_request(f"r{number}-{thread}", event)))
            except EventReplayed:
                told.append(EventReplayed)

        race(begin)

        assert Counter(told) == {Stored.NEW: 1, EventReplayed: THREADS - 1}


def test_one_id_for_several_requests(worlds: Worlds) -> None:
    """Of eight requests with one id, for different events, one begins."""
    world = worlds()
    for number in range(ROUNDS):
        events = [payment(number * THREADS + thread) for thread in range(THREADS)]
        for event in events:
            world.event(event)
        told: list[object] = []

        def begin(
            thread: int,
            number: int = number,
            events: list[SigningEvent] = events,
            told: list[object] = told,
        ) -> None:
            try:
                told.append(world.request(world.new_request(f"r{number}", events[thread])))
            except KeyConflict:
                told.append(KeyConflict)

        race(begin)

        assert Counter(told) == {Stored.NEW: 1, KeyConflict: THREADS - 1}


def test_one_message(worlds: Worlds) -> None:
    """Exactly one thread sees a message for the first time."""
    world = worlds()
    for number in range(ROUNDS):
        told: list[bool] = []

        def mark(_: int, number: int = number, told: list[bool] = told) -> None:
            told.append(world.signing.mark_seen_message(PeerId("p"), SESSION, number))

        race(mark)

        assert Counter(told) == {True: 1, False: THREADS - 1}


def test_one_day(worlds: Worlds) -> None:
    """Of eight requests that would exceed the limit together, as many are approved as fit."""
    world = worlds(max_daily_volume_sompi=45 * KAS)
    names = [world.propose(f"r{n}", payment(n)) for n in range(THREADS)]
    for name in names:
        world.vote(name, 1)

    race(lambda thread: world.vote(names[thread], 2))
    decisions = [world.decision(name) for name in names]
    approved = [name for name, found in zip(names, decisions, strict=True) if found == Approved()]
    reserved = world.signing.reserved_volume()
    sign_all(world, approved)
    race(lambda thread: world.finalize(approved[thread % len(approved)]))

    assert len(approved) == 4
    assert sum(isinstance(found, Rejected) for found in decisions) == THREADS - 4
    assert reserved == 40 * KAS
    assert world.signing.volume_today() == 40 * KAS
    assert world.signing.reserved_volume() == 0


def sign_all(world: World, names: list[RequestId]) -> None:
    """Two members sign both inputs of each request."""
    for name in names:
        for number, index in ((1, 0), (1, 1), (2, 0), (2, 1)):
            world.sign(name, number, index)


def test_one_finalise(worlds: Worlds) -> None:
    """One thread finalizes; the same transaction is the same, and is counted once."""
    world = worlds()
    for round_ in range(ROUNDS):
        name = world.signed(f"r{round_}", payment(round_))
        told: list[Stored] = []

        race(lambda _, name=name, told=told: told.append(world.finalize(name)))  # type: ignore[misc]

        assert Counter(told) == {Stored.NEW: 1, Stored.SAME: THREADS - 1}
        assert world.signing.volume_today() == 10 * KAS * (round_ + 1)


def test_several_final_transactions(worlds: Worlds) -> None:
    """Of eight transactions for one request, one finalizes it."""
    world = worlds()
    name = world.signed()
    told: list[object] = []

    def finalize(thread: int) -> None:
        try:
            told.append(world.finalize(name, bytes([thread]) * 32))
        except KeyConflict:
            told.append(KeyConflict)

    race(finalize)

    assert Counter(told) == {Stored.NEW: 1, KeyConflict: THREADS - 1}
    assert world.decision(name) == Finalized()
    assert world.signing.volume_today() == 10 * KAS


def test_votes_of_all_members(worlds: Worlds) -> None:
    """Every vote counts once, the request is approved once, and the trail has no gap."""
    world = worlds(4, THREADS)
    name = world.propose()

    race(lambda thread: world.vote(name, thread + 1))
    report = world.signing.audit_request(name)

    assert report.request.decision == Approved()
    assert len(report.acks) == THREADS
    assert report.context is not None
    assert report.context.entries == len(report.trail) == 1 + THREADS + 1
    assert world.signing.reserved_volume() == 10 * KAS


def test_two_votes_of_one_member(worlds: Worlds) -> None:
    """The first vote stands, and every attempt to change it is on record."""
    world = worlds()
    name = world.propose()
    told: list[object] = []

    def vote(thread: int) -> None:
        try:
            told.append(world.vote(name, 1, accept=thread % 2 == 0).stored)
        except VoteChanged:
            told.append(VoteChanged)

    race(vote)
    report = world.signing.audit_request(name)

    half = THREADS // 2
    assert Counter(told) == {Stored.NEW: 1, Stored.SAME: half - 1, VoteChanged: half}
    assert len(report.acks) == 1
    assert len(report.trail) == 1 + 1 + half
