"""The ordered relay: sends the messages of one destination, each partition in its order.

A claim is a lane with its first messages. One handler call sends several lanes, each at its own
pace (`sending`), and each lane is settled by itself:

    lane a   1 2 3      confirmed  1 2 3     settled up to 3
    lane b   1 2        refused    1         due again after a pause
    lane c   1 2        confirmed  1         the lease was lost: nothing is settled

Only messages that are confirmed without a gap are marked, under the token of the lane. A lane waits
for its own messages only, and no message of a lane overtakes a refused one (unless the setting
allows more than one in flight per partition).
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
from ledgerstone.items.settle import SettleResult, remainder
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
"""A call takes a third of the messages in flight: one call reads, one sends, one settles."""
CALLS_MAX = 16
"""Concurrent calls."""
LONG_CALLS_MAX = 240
"""Additional calls for those whose lanes are slow. Each is a thread that waits for an answer."""
AHEAD_MAX = 50
"""Messages of one lane that are read at once."""
ROOM_SECONDS = 0.1
"""The pause of a lane whose first message does not fit into the free memory."""
PAUSE_SECONDS_MIN = 0.1
"""The pause after no answer came, so that the relay does not retry in a busy loop."""


class OrderedRelay:
    """The source of work for one destination in the mode `ordered`.

    - Lanes are claimed in the order of their due time. One relay holds a lane at a time.
    - An unreachable destination does not count as an attempt of a message.
    - A refused message holds its lane; after the last attempt the policy of the destination
      decides.
    - `handling`: consumers run inside this relay, take their time, and can crash it. Each lane has
      a handler of its own then, and a lane is parked after too many crashes.
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
        """The periodic work for this destination; one of its relays does it."""
        return [
            sweeping.duty(self._registry, self.queue),
            rechecking.duty(self._registry, self.queue),
        ]

    @property
    def batches(self) -> Batches | None:
        """How lanes are batched; None where each lane runs handlers."""
        if self._handling:
            return None
        most = self._destination.batch_max
        return Batches(CALLS_MAX, LONG_CALLS_MAX, max(1, most // CALLS_PER_BATCH), most)

    def close(self) -> None:
        """Closes connections and threads. A later send opens new ones."""
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
            # More lanes are due: wake the next call, or another relay.
            tx.wake(self.channel)
        until = self._monotonic() + ask.lease_seconds
        return [
            self._claimed(each, until)
            for each in self._read(tx, [HeldLane.of(each) for each in taken])
        ]

    def _claimed(self, each: LaneProgress, until: float) -> LaneClaim:
        each.until = until
        held = each.held
        # A relay that only sends is not crashed by a message.
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
        # A locked lane is settled later and needs its messages then.
        tx.after_commit(partial(_give_back, [each for _, each in every if each.held not in busy]))
        if any(s.done_to is None and s.until_ms is None and s.delay_seconds == 0 for s in settled):
            tx.wake(self.channel)
        if self._starved:
            # Memory may be free now.
            self._starved = False
            tx.wake(self.channel)
        refused = self._refused(tx, outcomes, [by_lane[each.lane] for each in lost])
        return NotSettled(refused, [outcome for outcome, each in every if each.held in busy])

    def extend(
        self, tx: Transaction, claims: Sequence[Claim], lease_seconds: float
    ) -> NotSettled[Claim]:
        left = remainder(
            claims, [SettleResult(each) for each in lanes.extend.run(tx, claims, lease_seconds)]
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
        """Reads the messages of each lane; settles lanes that have nothing to send now."""
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
        # Its first message does not fit into the free memory.
        self._starved = True
        return Settlement(
            lane=one.held,
            attempts=one.held.attempts,
            answered=False,
            delay_seconds=ROOM_SECONDS,
        )

    def _carry(self, claim: Batch | LaneClaim) -> None:
        """Sends the lanes of a batch, and settles each when it is done."""
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
            # With one lane in the call, its silence says nothing about the destination.
            down_if_silent=not alone,
            through=lambda each: self._through(batch, each),
        ).run()

    def _through(self, batch: Batch, claim: LaneClaim) -> None:
        answer = claim.lane.answer
        if answer is not None and answer.result is not Sent.UNKNOWN:
            self.counters.refused += 1
        claim.lane.forget()
        batch.settle(Outcome(claim, OutcomeKind.DONE))

    def _settlement(self, outcome: Outcome, each: LaneProgress) -> Settlement:
        held = each.held
        if each.stopped is not None:
            if each.answer is None or each.answer.result is Sent.UNKNOWN:
                return self._undone(outcome, each)
            return self._refusal(each, each.answer)
        if each.malformed is not None:
            answer = Answer(Sent.UNDELIVERABLE, "malformed", each.malformed.reason)
            return self._refusal(each, answer)
        if each.until_ms is not None:
            return Settlement(lane=held, until_ms=each.until_ms)
        # Other programs may have added rows without telling the lane: only the end of the index is
        # certain.
        ended = each.exhausted or place_of(each.messages[-1]) == held.last_id
        return Settlement(lane=held, done_to=held.last_id if ended else None)

    def _undone(self, outcome: Outcome, each: LaneProgress) -> Settlement:
        """The settlement after an outage or an interruption: no attempt is counted."""
        failure, delay = outcome.failure, outcome.delay_seconds or 0.0
        code = reason = None
        if each.answer is not None:
            code, reason = each.answer.code or TargetDown.code, each.answer.reason
            delay = max(delay, answer_pause(each.answer), PAUSE_SECONDS_MIN)
        elif failure is not None and failure.code != Interrupted.code:
            code, reason = failure.code, failure.message
            if outcome.verdict is not OutcomeKind.RETURNED:
                # A failure of the relay itself: pause, so that it is not retried in a busy loop.
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
        """The settlement after the first undelivered message was refused: a pause or the policy."""
        destination = self._destination
        attempts = each.attempts + answer.counts
        given_up = is_given_up(answer, destination, attempts, parks=True)
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
        """Records a parked lane; moves a skipped message to the failed table."""
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
        """Counts settled messages after the commit, so that a retried transaction counts once."""
        for settlement in settled:
            each = by_lane[settlement.lane]
            if not each.counted:
                each.counted = True
                self.counters.delivered += each.confirmed
                self.counters.skipped += settlement.aside is RecordKind.SKIPPED
                self.counters.parked += settlement.aside is RecordKind.PARKED

    def _skip(self, tx: Transaction, each: LaneProgress, settlement: Settlement) -> None:
        """Moves the message to the failed table, so that its partition continues."""
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
        """Records the outcomes whose lane was lost, with what they had delivered."""
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
    """The pause that the destination asked for, at most PAUSE_SECONDS_MAX."""
    return min(answer.retry_after_seconds or 0.0, PAUSE_SECONDS_MAX)


def _lane(claim: Claim) -> LaneProgress:
    assert isinstance(claim, LaneClaim)
    return claim.lane
