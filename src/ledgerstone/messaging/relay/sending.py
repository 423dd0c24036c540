"""Sending: the lanes of one batch are sent, each at its own pace.

    lane a   1 2 3      send 1   a1 b1 c1     a1 and c1 are answered, b1 is slow
    lane b   1 2        send 2   a2 c2        while send 1 still waits for b1
    lane c   1 2        send 3   a3           c is done: it is settled

A lane has a limited number of messages in flight, and continues when they are answered. Lanes that
are ready at the same time share a send. Each send has a thread, so a send that waits for an answer
does not delay other lanes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from ledgerstone import cancellation
from ledgerstone.engine.source import Claim
from ledgerstone.errors import LedgerstoneError, TargetDown
from ledgerstone.failpoints import hit
from ledgerstone.messaging.brokers.transport import Answer, SendResult, Transport
from ledgerstone.messaging.message import Message
from ledgerstone.messaging.relay.delivery_marks import Malformed
from ledgerstone.messaging.relay.lanes import HeldLane
from ledgerstone.messaging.relay.memory_budget import Share

GATHER_SECONDS = 0.01
"""How long answered lanes wait for others that can share the next send."""
LOOK_SECONDS = 0.1
"""How often a batch that waits for answers checks whether it has to stop."""
CLOSE_SECONDS_MAX = 2.0
"""How long `close` waits for the threads of unfinished sends."""
IDLE_SECONDS = 10.0
"""An idle thread ends after this time."""


FORGET_BYTES_MIN = 4096
"""A settled lane that holds fewer bytes keeps them: releasing them would cost more."""


class LaneProgress(msgspec.Struct, eq=False):
    """A claimed lane: its messages, and how far they were delivered."""

    held: HeldLane
    messages: list[Message]
    exhausted: bool
    """Whether the lane has no more undelivered rows."""
    until: float = 0.0
    """When the lease expires, by the monotonic clock of this process."""
    confirmed: int = 0
    answer: Answer | None = None
    """The answer that stopped the lane, if it stopped before its end."""
    malformed: Malformed | None = None
    """A row after `messages` that cannot be parsed."""
    until_ms: int | None = None
    """When the first undelivered message may be sent, if it is delayed."""
    counted: bool = False
    share: Share | None = None
    """The bytes of the memory budget that the lane holds."""

    def forget(self, *, settled: bool = False) -> None:
        """Drops all bodies but that of the first undelivered message, which may be set aside."""
        if self.share is None:
            return
        if self.share.taken >= FORGET_BYTES_MIN:
            # The batch refers to its lanes until the slowest one is done.
            kept = -1 if settled else self.confirmed
            self.messages = [
                message if i == kept else msgspec.structs.replace(message, raw=b"", headers={})
                for i, message in enumerate(self.messages)
            ]
            self.share.shrink(sum(len(message.raw) for message in self.messages))
        if settled:
            self.share.shrink(0)

    @property
    def stopped(self) -> Message | None:
        """The first undelivered message, if it could be parsed."""
        return self.messages[self.confirmed] if self.confirmed < len(self.messages) else None

    @property
    def attempts(self) -> int:
        """How many times the first undelivered message was refused before."""
        return self.held.attempts if self.confirmed == 0 else 0


class LaneClaim(Claim, frozen=True):
    """The claim of a lane."""

    carried: Any = None

    @property
    def lane(self) -> LaneProgress:
        assert isinstance(self.carried, LaneProgress)
        return self.carried


class _LaneSend:
    """The messages of one lane in one send, and their answers."""

    __slots__ = ("answers", "claim", "left", "messages")

    def __init__(self, claim: LaneClaim, messages: Sequence[Message]) -> None:
        self.claim = claim
        self.messages = messages
        self.answers: list[Answer | None] = [None] * len(messages)
        self.left = len(messages)


class _Send:
    """One call of the transport."""

    def __init__(self, lane_sends: Sequence[_LaneSend]) -> None:
        self.places = [
            (lane_send, i) for lane_send in lane_sends for i in range(len(lane_send.messages))
        ]
        self.messages = [lane_send.messages[i] for lane_send, i in self.places]
        self.error: BaseException | None = None
        self.over = False


class BatchSender:
    """Sends the lanes of one batch.

    - Calls `through` for each lane as soon as it is done or stopped.
    - `down_if_silent`: raises TargetDown at the end if the destination answered nothing at all.
    - If the handler has to stop, or a send fails, nothing more is sent. The batch waits for the
      answers of messages in flight, so that delivered messages are marked.
    """

    def __init__(
        self,
        transport: Transport,
        claims: Sequence[LaneClaim],
        *,
        name: str,
        per_lane: int,
        seconds_max: float,
        threads: SendThreads,
        monotonic: Callable[[], float],
        down_if_silent: bool,
        through: Callable[[LaneClaim], None],
    ) -> None:
        self._transport = transport
        self._name = name
        self._per_lane = per_lane
        self._seconds_max = seconds_max
        self._threads = threads
        self._monotonic = monotonic
        self._through = through
        self._news = threading.Condition()
        self._landed: list[_LaneSend] = []
        self._landed_at = 0.0
        self._returned: list[_Send] = []
        self._sends = 0
        self._ready = list(claims)
        self._silent: list[LaneClaim] = []
        """Lanes without an answer, while the destination has answered nothing."""
        self._heard = not down_if_silent
        self._error: BaseException | None = None

    def run(self) -> None:
        """Sends until every lane is done or stopped."""
        while True:
            self._look()
            lane_sends = self._next_sends()
            if lane_sends:
                self._start(lane_sends)
            elif not self._sends:
                break
            self._take_in()
        if self._error is not None:
            raise self._error
        if self._silent:
            reason = self._silent[0].lane.answer
            words = (reason.reason if reason is not None else "") or "no answer came"
            raise TargetDown(self._name, f"{self._name}: {words}")

    def _look(self) -> None:
        """Notices that the handler has to stop."""
        if self._error is None:
            try:
                cancellation.check()
            except LedgerstoneError as reason:
                self._error = reason

    def _next_sends(self) -> list[_LaneSend]:
        """The next messages of each lane that is ready; ends lanes that have none."""
        ready, self._ready = self._ready, []
        lane_sends = []
        for claim in ready:
            lane = claim.lane
            messages = lane.messages[lane.confirmed : lane.confirmed + self._per_lane]
            held = not lane.held.lost and self._monotonic() < lane.until
            if self._error is not None:
                # The error that ends the batch decides about its remaining messages.
                continue
            if messages and held and lane.answer is None:
                lane_sends.append(_LaneSend(claim, messages))
            else:
                self._end(claim)
        return lane_sends

    def _end(self, claim: LaneClaim) -> None:
        answer = claim.lane.answer
        if answer is not None and answer.result is SendResult.UNKNOWN and not self._heard:
            self._silent.append(claim)
            return
        self._through(claim)

    def _start(self, lane_sends: Sequence[_LaneSend]) -> None:
        send = _Send(lane_sends)
        if len(lane_sends) == 1 and self._sends == 0 and not self._ready:
            # No other lane waits, so no other thread is needed.
            self._carry_out(send)
            self._sends += 1
            return
        self._sends += 1
        self._threads.start(partial(self._carry_out, send))

    def _carry_out(self, send: _Send) -> None:
        """One call of the transport, in any thread."""
        try:
            hit("relay.sending")
            answers = self._transport.send(
                send.messages, seconds_max=self._seconds_max, heard=partial(self._hear, send)
            )
            hit("relay.sent")
            for index, answer in enumerate(answers):
                self._hear(send, index, answer)
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits for it
            send.error = error
        with self._news:
            # A later answer could be for a lane that is settled already.
            send.over = True
            self._returned.append(send)
            self._news.notify()

    def _hear(self, send: _Send, index: int, answer: Answer) -> None:
        lane_send, i = send.places[index]
        with self._news:
            if lane_send.answers[i] is not None or send.over:
                return
            lane_send.answers[i] = answer
            lane_send.left -= 1
            if lane_send.left == 0:
                self._landed.append(lane_send)
                if len(self._landed) == 1:
                    self._landed_at = time.monotonic()
                    self._news.notify()

    def _take_in(self) -> None:
        """Waits for answers, and lets answered lanes continue."""
        with self._news:
            self._await_news()
            landed, self._landed = self._landed, []
            returned, self._returned = self._returned, []
        self._sends -= len(returned)
        for lane_send in landed:
            self._end_send(lane_send)
        for send in returned:
            if send.error is not None:
                self._fail(send, send.error)

    def _await_news(self) -> None:
        while not self._returned:
            if not self._landed:
                if not self._news.wait(LOOK_SECONDS):
                    return
                continue
            left = self._landed_at + GATHER_SECONDS - time.monotonic()
            if left <= 0:
                return
            self._news.wait(left)

    def _end_send(self, lane_send: _LaneSend) -> None:
        self._note(lane_send)
        self._ready.append(lane_send.claim)

    def _note(self, lane_send: _LaneSend) -> None:
        """Notes how far the lane was confirmed, and the answer that stopped it."""
        lane = lane_send.claim.lane
        for answer in lane_send.answers:
            if answer is None or lane.answer is not None:
                # Messages after a gap are sent again.
                break
            if answer.result is SendResult.DELIVERED:
                lane.confirmed += 1
            else:
                lane.answer = answer
            if answer.result is not SendResult.UNKNOWN and not self._heard:
                self._heard = True
                silent, self._silent = self._silent, []
                for claim in silent:
                    self._through(claim)

    def _fail(self, send: _Send, error: BaseException) -> None:
        """Ends the lanes of a send that raised; an outage in mid-batch is not an error."""
        lane_sends = {id(lane_send): lane_send for lane_send, _ in send.places if lane_send.left}
        for lane_send in lane_sends.values():
            self._note(lane_send)
        if isinstance(error, TargetDown) and self._heard:
            for lane_send in lane_sends.values():
                # Not changed: the next send finds out whether the destination is down.
                self._through(lane_send.claim)
        elif self._error is None:
            self._error = error


class SendThreads:
    """A pool of threads: created on demand, reused, and ended when idle."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads: set[threading.Thread] = set()
        self._closed = False

    def start(self, work: Callable[[], None]) -> None:
        """Runs the function in an idle thread, or in a new one."""
        with self._lock:
            self._closed = False
            thread: threading.Thread | None = None
            if self._idle == 0:
                thread = threading.Thread(target=self._turn, name=self._name, daemon=True)
                self._threads.add(thread)
            else:
                self._idle -= 1
        self._work.put(work)
        if thread is not None:
            thread.start()

    def close(self) -> None:
        """Ends idle threads now, and the others after their send."""
        with self._lock:
            self._closed = True
            threads = list(self._threads)
            for _ in range(self._idle):
                self._work.put(None)
            self._idle = 0
        until = time.monotonic() + CLOSE_SECONDS_MAX
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _turn(self) -> None:
        try:
            while (work := self._next()) is not None:
                work()
                # Drop the reference, so that an idle thread keeps no message in memory.
                del work
                with self._lock:
                    if self._closed:
                        return
                    self._idle += 1
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _next(self) -> Callable[[], None] | None:
        """The next function of this thread; None if the thread ends."""
        try:
            return self._work.get(timeout=IDLE_SECONDS)
        except Empty:
            with self._lock:
                if self._idle > 0:
                    self._idle -= 1
                    return None
            # `start` has chosen this thread between the two.
            return self._work.get()
