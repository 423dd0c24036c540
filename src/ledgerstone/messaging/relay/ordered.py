"""The ordered relay: carries messages to one destination, partition by partition in their order.

A claim is a lane, and the first messages of it. The lanes of one call are carried together, each at
its own pace (`carrying`), and each is settled by itself:

    lane a   1 2 3      confirmed  1 2 3     settled to 3
    lane b   1 2        refused    1         again after a pause
    lane c   1 2        confirmed  1         its lease was lost: settled by none

Only what was confirmed without a gap is marked, under the token of the lane. So a lane is held up
by its own messages and by no others, and a message that is refused is overtaken by none of its lane
(unless more than one may be under way).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

from ledgerstone.engine.backoff import Backoff
from ledgerstone.engine.duties import Duty
from ledgerstone.engine.source import (
    Ask,
    Batch,
    Batches,
    Claim,
    Failure,
    Handler,
    NotSettled,
    Outcome,
    OutcomeKind,
)
from ledgerstone.errors import Interrupted, TargetDown
from ledgerstone.failpoints import hit
from ledgerstone.items.settle import Settled, remainder
from ledgerstone.messaging.brokers.transport import PAUSE_SECONDS_MAX, Answer, Transport
from ledgerstone.messaging.brokers.transport import SendResult as Sent
from ledgerstone.messaging.failed import failed
from ledgerstone.messaging.outbox.publishing import channel_of
from ledgerstone.messaging.record import Entry, record
from ledgerstone.messaging.relay import lanes
from ledgerstone.messaging.relay import recheck as rechecking
from ledgerstone.messaging.relay import sweep as sweeping
from ledgerstone.messaging.relay.delivery_marks import (
    DeliveryMarks,
    Malformed,
    RelayCounters,
    is_given_up,
    is_paused,
    place_of,
    read_row,
    refusal_pause,
)
from ledgerstone.messaging.relay.heads import Head, Heads
from ledgerstone.messaging.relay.lanes import HeldLane, Settlement
from ledgerstone.messaging.relay.memory_budget import Budget
from ledgerstone.messaging.relay.sending import BatchSender, LaneClaim, LaneProgress, SendThreads
from ledgerstone.messaging.states import LaneState, RecordKind
from ledgerstone.messaging.symfony.time_zone import moment_in
from ledgerstone.settings import DestinationSettings
from ledgerstone.settings.messaging import BACKOFF_MULTIPLIER
from ledgerstone.store.sql.batch import ROWS_MAX

if TYPE_CHECKING:
    from ledgerstone.messaging.registry import MessagingRegistry
    from ledgerstone.store.transaction import Transaction

_log = logging.getLogger("ledgerstone.messaging")

CALLS_PER_BATCH = 3
"""A call takes a third of what may be under way: one is read, one is sent, one is settled."""
CALLS_MAX = 16
"""Calls at once."""
LONG_CALLS_MAX = 240
"""Further calls, in place of those whose lanes take their time: each is a thread that waits."""
AHEAD_MAX = 50
"""Messages of one lane that are read at once."""
ROOM_SECONDS = 0.1
"""How long a lane waits whose first message is larger than what is left of the memory."""
PAUSE_SECONDS_MIN = 0.1
"""After no answer, so that asking again is no loop without a rest."""


class OrderedRelay:
    """Messages for one destination, as a source of work.

    - Lanes are claimed in the order in which they became due; each is held by one relay.
    - A destination that is out of reach costs no message an attempt.
    - A message that is refused holds its lane; after a while the destination's policy decides.
    - `handling`: the code of consumers runs in here, takes its time, and may be what kills a relay.
      Each lane has a handler of its own then, and one whose relays died too often waits for people.
    """

    def __init__(
        self,
        queue: str,
        destination: DestinationSettings,
        transport: Transport,
        registry: MessagingRegistry,
        *,
        origin: Callable[[], str],
        handling: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = channel_of(queue)
        self.channel = channel_of(queue)
        self.queue = queue
        self.counters = RelayCounters()
        self.transport = transport
        self._destination = destination
        self._registry = registry
        self._origin = origin
        self._handling = handling
        self._monotonic = monotonic
        self._heads = Heads(registry.shared)
        self.budget = Budget(destination.in_flight_bytes_max)
        self._starved = False
        self._marks = DeliveryMarks(registry)
        self._backoff = Backoff(
            seconds=destination.backoff_seconds,
            multiplier=BACKOFF_MULTIPLIER,
            seconds_max=destination.backoff_seconds_max,
        )
        self._threads = SendThreads(f"ledgerstone-send-{queue}")

    @property
    def duties(self) -> list[Duty]:
        """What has to be done for this destination every so often, by one of its relays."""
        return [
            sweeping.duty(self._registry, self.queue),
            rechecking.duty(self._registry, self.queue),
        ]

    @property
    def batches(self) -> Batches | None:
        """Lanes are handled many at once, except where handlers run."""
        if self._handling:
            return None
        most = self._destination.batch_max
        return Batches(CALLS_MAX, LONG_CALLS_MAX, max(1, most // CALLS_PER_BATCH), most)

    def close(self) -> None:
        """Let go of connections and threads; what is sent later makes new ones."""
        self.transport.close()
        self._threads.close()

    def handler(self, claim: Claim) -> Handler:
        return Handler(self._carry)

    def claim(self, tx: Transaction, ask: Ask) -> Sequence[Claim]:
        if self.queue in ask.avoid:
            return ()
        if self.budget.is_low:
            self._starved = True
            return ()
        self._registry.setup.ensure(tx, self._registry.shared.outbox)
        if is_paused(tx, self.queue):
            return ()
        limit = min(ask.limit, self._destination.batch_max)
        taken = lanes.claim.run(tx, msgspec.structs.replace(ask, limit=limit), queue=self.queue)
        if not taken:
            return ()
        if len(taken) == min(limit, ROWS_MAX):
            # More is due: for the next call, or for another relay.
            tx.wake(self.channel)
        until = self._monotonic() + ask.lease_seconds
        return [
            self._claimed(each, until)
            for each in self._read(tx, [HeldLane.of(each) for each in taken])
        ]

    def _claimed(self, each: LaneProgress, until: float) -> LaneClaim:
        each.until = until
        held = each.held
        # What is only carried kills nobody.
        crashes = held.crashes if self._handling else 0
        return LaneClaim(held.id, 1, held.token, target=self.queue, crashes=crashes, carried=each)

    def settle(
        self, tx: Transaction, outcomes: Sequence[Outcome], *, waits: bool = False
    ) -> NotSettled[Outcome]:
        every = [(outcome, _lane(outcome.claim)) for outcome in outcomes]
        by_lane = {each.held: each for _, each in every}
        settlements = [self._settlement(outcome, each) for outcome, each in every]
        settled, lost, locked = lanes.settle(tx, settlements)
        kept = [by_lane[each.lane] for each in settled]
        places = [place_of(message) for each in kept for message in each.messages[: each.confirmed]]
        self._marks.delivered(tx, places)
        for settlement in settled:
            self._put_aside(tx, by_lane[settlement.lane], settlement)
        hit("relay.marked")
        self._count(settled, by_lane)
        busy = {each.lane for each in locked}
        # What was locked is settled later, and needs its messages then.
        tx.after_commit(partial(_give_back, [each for _, each in every if each.held not in busy]))
        if any(s.done_to is None and s.until_ms is None and s.delay_seconds == 0 for s in settled):
            tx.wake(self.channel)
        if self._starved:
            # There may be room now.
            self._starved = False
            tx.wake(self.channel)
        refused = self._refused(tx, outcomes, [by_lane[each.lane] for each in lost])
        return NotSettled(refused, [outcome for outcome, each in every if each.held in busy])

    def extend(
        self, tx: Transaction, claims: Sequence[Claim], lease_seconds: float
    ) -> NotSettled[Claim]:
        left = remainder(
            claims, [Settled(each) for each in lanes.extend.run(tx, claims, lease_seconds)]
        )
        until = self._monotonic() + lease_seconds
        waiting = set(map(id, left.locked))
        for claim in claims:
            if id(claim) not in waiting:
                _lane(claim).until = until
        for claim in left.lost:
            _lane(claim).held.lost = True
        return left

    def rescue(self, tx: Transaction, *, limit: int, crashes_max: int) -> int:
        guilty_after = crashes_max if self._handling else None
        return lanes.rescue(tx, self.queue, limit=limit, crashes_max=guilty_after)

    def _read(self, tx: Transaction, held: Sequence[HeldLane]) -> list[LaneProgress]:
        """What is to leave of each lane; lanes of which nothing leaves now are let go at once."""
        each = max(1, min(AHEAD_MAX, self._destination.batch_max // len(held)))
        found = self._heads.read(tx, self.queue, held, each=each, budget=self.budget)
        carried = [self._carried(one, found[one.id]) for one in held]
        idle = [one for one in carried if not one.messages and one.malformed is None]
        if idle:
            lanes.settle(tx, [self._idle(one) for one in idle])
        return [one for one in carried if one.messages or one.malformed is not None]

    def _carried(self, held: HeldLane, head: Head) -> LaneProgress:
        made = LaneProgress(held, [], exhausted=head.exhausted, share=head.share)
        outbox = self._registry.shared.outbox
        origin = f"{self._origin()}:{outbox.name}"
        for place, body, headers, created_at, waits, available_at, _ in head.rows:
            if waits:
                made.until_ms = round(moment_in(outbox, available_at).timestamp() * 1000)
                made.exhausted = False
                break
            published_at = moment_in(outbox, created_at)
            message = read_row(place, body, headers, held.partition, published_at, origin=origin)
            if isinstance(message, Malformed):
                made.malformed = message
                made.exhausted = False
                break
            attempt = held.attempts if not made.messages else 0
            made.messages.append(msgspec.structs.replace(message, attempt=attempt))
        return made

    def _idle(self, one: LaneProgress) -> Settlement:
        if one.until_ms is not None:
            return Settlement(lane=one.held, until_ms=one.until_ms)
        if one.exhausted:
            return Settlement(lane=one.held, done_to=one.held.last_id)
        # There was no room for its first message.
        self._starved = True
        return Settlement(
            lane=one.held,
            attempts=one.held.attempts,
            answered=False,
            delay_seconds=ROOM_SECONDS,
        )

    def _carry(self, claim: Batch | LaneClaim) -> None:
        """Send the lanes of a batch, or one by itself, and settle each when it is through."""
        batch = claim if isinstance(claim, Batch) else Batch.of([claim])
        claims = [item for item in batch.items if isinstance(item, LaneClaim)]
        alone = self._handling and len(claims) == 1
        BatchSender(
            self.transport,
            claims,
            name=self.queue,
            per_lane=self._destination.in_flight_per_partition,
            seconds_max=self._destination.send_seconds_max,
            threads=self._threads,
            monotonic=self._monotonic,
            # Where each lane has its own handler, one of them says nothing about the others.
            down_if_silent=not alone,
            through=lambda each: self._through(batch, each),
        ).run()

    def _through(self, batch: Batch, claim: LaneClaim) -> None:
        answer = claim.lane.answer
        if answer is not None and answer.verdict is not Sent.UNKNOWN:
            self.counters.refused += 1
        claim.lane.forget()
        batch.settle(Outcome(claim, OutcomeKind.DONE))

    def _settlement(self, outcome: Outcome, each: LaneProgress) -> Settlement:
        held = each.held
        if each.stopped is not None:
            if each.answer is None or each.answer.verdict is Sent.UNKNOWN:
                return self._undone(outcome, each)
            return self._refusal(each, each.answer)
        if each.malformed is not None:
            answer = Answer(Sent.UNDELIVERABLE, "malformed", each.malformed.reason)
            return self._refusal(each, answer)
        if each.until_ms is not None:
            return Settlement(lane=held, until_ms=each.until_ms)
        # Others may have written behind it and told nobody: then it is only certain at the end.
        ended = each.exhausted or place_of(each.messages[-1]) == held.last_id
        return Settlement(lane=held, done_to=held.last_id if ended else None)

    def _undone(self, outcome: Outcome, each: LaneProgress) -> Settlement:
        """Not the message's doing: it is as it was."""
        failure, delay = outcome.failure, outcome.delay_seconds or 0.0
        code = reason = None
        if each.answer is not None:
            code, reason = each.answer.code or TargetDown.code, each.answer.reason
            delay = max(delay, answer_pause(each.answer), PAUSE_SECONDS_MIN)
        elif failure is not None and failure.code != Interrupted.code:
            code, reason = failure.code, failure.message
            if outcome.verdict is not OutcomeKind.RETURNED:
                # A fault of what carries: no reason to try again and again without a rest.
                delay = max(delay, self._destination.backoff_seconds)
        return Settlement(
            lane=each.held,
            attempts=each.attempts,
            answered=each.confirmed > 0,
            delay_seconds=delay,
            code=code,
            reason=reason,
        )

    def _refusal(self, each: LaneProgress, answer: Answer) -> Settlement:
        """The first message that is left was refused: again later, or the policy."""
        destination = self._destination
        attempts = each.attempts + answer.counts
        given_up = is_given_up(answer, destination, attempts)
        delay = 0.0
        state, aside = LaneState.OPEN, None
        if given_up and destination.on_failure == "skip":
            attempts, aside = 0, RecordKind.SKIPPED
        elif given_up:
            state, aside = LaneState.PARKED, RecordKind.PARKED
        else:
            delay = refusal_pause(answer, self._backoff, attempts, exact=self._handling)
        return Settlement(
            lane=each.held,
            attempts=attempts,
            delay_seconds=delay,
            state=state,
            aside=aside,
            code=answer.code,
            reason=answer.reason,
        )

    def _put_aside(self, tx: Transaction, each: LaneProgress, settlement: Settlement) -> None:
        """Record a lane that was parked; move what was given up to the failed table."""
        if settlement.aside is RecordKind.SKIPPED:
            self._skip(tx, each, settlement)
        elif settlement.aside is RecordKind.PARKED:
            entry = Entry(
                what=RecordKind.PARKED,
                queue=self.queue,
                partition=each.held.partition,
                message_id=each.stopped.id if each.stopped is not None else None,
                code=settlement.code,
                reason=settlement.reason,
            )
            record(tx, [entry])
            tx.after_commit(partial(_log_parked, entry))

    def _count(
        self, settled: Sequence[Settlement], by_lane: Mapping[HeldLane, LaneProgress]
    ) -> None:
        """Count what was settled, once: a transaction that met another one is run again."""
        for settlement in settled:
            each = by_lane[settlement.lane]
            if not each.counted:
                each.counted = True
                self.counters.delivered += each.confirmed
                self.counters.skipped += settlement.aside is RecordKind.SKIPPED
                self.counters.parked += settlement.aside is RecordKind.PARKED

    def _skip(self, tx: Transaction, each: LaneProgress, settlement: Settlement) -> None:
        """Into the failed table, and out of the way of those behind it."""
        stopped, malformed = each.stopped, each.malformed
        assert stopped is not None or malformed is not None
        item = stopped if stopped is not None else cast("Malformed", malformed).raw
        place = place_of(stopped) if stopped is not None else cast("Malformed", malformed).place
        failed.put(
            tx,
            self._registry,
            item,
            consumer=None,
            failure=Failure(settlement.code or "", settlement.reason or ""),
            attempts=each.attempts + 1,
            origin=self.queue,
            what=RecordKind.SKIPPED,
        )
        self._marks.removed(tx, [place])

    def _refused(
        self, tx: Transaction, outcomes: Sequence[Outcome], lost: Sequence[LaneProgress]
    ) -> Sequence[Outcome]:
        """Those whose lane was lost; what of them was delivered is on record."""
        if not lost:
            return ()
        entries = [
            Entry(
                what=RecordKind.REFUSED,
                queue=self.queue,
                partition=each.held.partition,
                message_id=each.messages[0].id if each.messages else None,
                reason=f"claim {each.held.token} settled too late: {each.confirmed} confirmed",
            )
            for each in lost
        ]
        record(tx, entries)
        gone = {each.held for each in lost}
        return [
            outcome
            for outcome in outcomes
            if _lane(outcome.claim).held in gone and outcome.verdict is not OutcomeKind.RETURNED
        ]


def _give_back(settled: Sequence[LaneProgress]) -> None:
    for each in settled:
        each.forget(settled=True)


def _log_parked(entry: Entry) -> None:
    _log.error(
        "message %s for %s was refused for the last time: %s: %s; its partition %r is parked",
        *(entry.message_id, entry.queue, entry.code, entry.reason, entry.partition),
    )


def answer_pause(answer: Answer) -> float:
    """How long the destination wants to be left alone."""
    return min(answer.retry_after_seconds or 0.0, PAUSE_SECONDS_MAX)


def _lane(claim: Claim) -> LaneProgress:
    assert isinstance(claim, LaneClaim)
    return claim.lane
