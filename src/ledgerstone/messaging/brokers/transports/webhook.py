"""Webhooks: each message is posted to a URL and signed by Standard Webhooks 1.0.

The responses, and the answers that they become:

    2xx                      DELIVERED
    410                      UNDELIVERABLE `gone`; nothing is posted to the URL any more
    3xx                      REFUSED `redirect`: the URL must be corrected; redirects are not
    followed any other status         REFUSED `http_<status>`, with the pause of `Retry-After` no
    response in time      UNKNOWN `timeout` connection lost          UNKNOWN `broken` no connection
    TargetDown

Messages of one partition are posted one after the other. The first one that is not delivered holds
the others of its partition (UNKNOWN `held`). Partitions are posted concurrently. In the mode
`competing` no message holds another.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from urllib.parse import SplitResult, quote, unquote, urlsplit

from ledgerstone.errors import BadInput, TargetDown
from ledgerstone.messaging import cloudevents
from ledgerstone.messaging.brokers.event_loop import LoopClosed, LoopThread
from ledgerstone.messaging.brokers.tls import client_context
from ledgerstone.messaging.brokers.transport import (
    DELIVERED,
    PAUSE_SECONDS_MAX,
    Answer,
    Heard,
    SendResult,
)
from ledgerstone.messaging.brokers.webhooks.addresses import AddressScope, reach_of
from ledgerstone.messaging.brokers.webhooks.posting import (
    Connection,
    ConnectionBroken,
    Endpoint,
    Response,
    Unreachable,
    Unsendable,
    opened,
)
from ledgerstone.messaging.brokers.webhooks.signatures import signature, signers
from ledgerstone.messaging.message import Message
from ledgerstone.settings.messaging import DestinationSettings

SLOW_SECONDS = 1.0
"""A partition whose last post took longer is slow."""
SHARES = (1.0, 0.75, 0.5)
"""The shares of the connections, at least one each: all partitions, those that are not known to be
quick, and those that are slow."""
KNOWN_MAX = 10_000
"""Partitions whose pace is remembered."""
REQUEST_SECONDS_MAX = 20.0
REASON_CHARS_MAX = 300

GONE = Answer(
    SendResult.UNDELIVERABLE, "gone", "the receiver answered 410: it wants no more messages"
)
BUSY = Answer(
    SendResult.REFUSED, "busy", "all connections to it wait for slow answers", counts=False
)
HELD = Answer(SendResult.UNKNOWN, "held", "a message before it in its partition is not delivered")

# Headers of the connection, and headers that this transport sets.
_NOT_THE_PUBLISHERS = re.compile(
    r"host|content-(length|type)|transfer-encoding|connection|keep-alive|te|trailer|upgrade|expect"
    r"|proxy-.*|user-agent|authorization|ce-.*|webhook-.*"
)
_PORTS = {"https": 443, "http": 80}
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


class WebhookTransport:
    """Posts messages to one URL; see `Transport` for the contract.

    - A 410 is remembered as long as this object lives, also after `close`: every later message is
      answered `gone` without a request.
    - A pause that the receiver asks for (`Retry-After`) applies to the partition of the message.
    - User and password of the URL become Basic authentication.
    - Plain `http` needs the setting `private_addresses` and a private address.
    - Slow and unknown partitions leave connections free for those that are known to be quick.
    """

    def __init__(
        self,
        name: str,
        settings: DestinationSettings,
        source: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._target = _Target(name, settings, source)
        self._ordered = settings.mode == "ordered"
        self._connections = settings.connections_max
        self._pace = _Pace(monotonic)
        self._lock = threading.Lock()
        self._session: _Session | None = None

    def send(
        self, messages: Sequence[Message], *, seconds_max: float, heard: Heard | None = None
    ) -> list[Answer]:
        if self._target.gone or not messages:
            return [GONE] * len(messages)
        batch = _PostBatch(messages, self._pace, ordered=self._ordered, heard=heard)
        session = self._opened()
        try:
            session.thread.run(session.carry(batch, seconds_max))
        except LoopClosed:
            batch.late = Answer(SendResult.UNKNOWN, "closed", "the transport was closed meanwhile")
        if not batch.posted and batch.trouble is not None:
            raise TargetDown(self._name, batch.trouble)
        return batch.answered()

    def close(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.thread.close(session.end())

    def _opened(self) -> _Session:
        with self._lock:
            if self._session is None:
                self._session = _Session(self._name, self._target, self._connections)
            return self._session


class _Target:
    """The URL, its endpoint, and the requests to it."""

    def __init__(self, name: str, settings: DestinationSettings, source: str) -> None:
        self.gone = False
        self._structured = settings.format == "structured"
        self._source = source
        self._signing = signers(settings.secrets, destination=name)
        parts = urlsplit(settings.url)
        self.place = _place(name, parts, settings)
        path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
        query = quote(parts.query, safe="/%:@!$&'()*+,;=~-._?")
        self.path = (f"{path}?{query}" if query else path).encode()
        self._fixed = [
            (b"Host", _host_header(self.place, parts.scheme)),
            (b"User-Agent", f"ledgerstone/{version('ledgerstone')}".encode()),
        ]
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            encoded = base64.b64encode(pair.encode())
            self._fixed.append((b"Authorization", b"Basic " + encoded))

    def request(self, message: Message) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """The headers and the body of one attempt to post the message."""
        headers = [
            (name, value)
            for name, value in message.headers.items()
            if not _NOT_THE_PUBLISHERS.fullmatch(name.lower())
        ]
        if self._structured:
            body = cloudevents.structured(message, self._source)
            headers.append(("Content-Type", cloudevents.STRUCTURED))
        else:
            body = message.raw
            headers.append(("Content-Type", message.content_type))
            found = cloudevents.headers(message, self._source)
            # The HTTP binding uses Content-Type instead.
            del found["ce-datacontenttype"]
            headers += found.items()
        now = int(time.time())
        headers += [("webhook-id", message.id), ("webhook-timestamp", str(now))]
        if self._signing:
            signed = signature(self._signing, message.id, now, body)
            headers.append(("webhook-signature", signed))
        headers.append(("Content-Length", str(len(body))))
        # A publisher's header with non-ASCII characters is sent as UTF-8.
        encoded = [(name.encode(), value.strip().encode()) for name, value in headers]
        return [*self._fixed, *encoded], body


def _place(name: str, parts: SplitResult, settings: DestinationSettings) -> Endpoint:
    try:
        host = (parts.hostname or "").rstrip(".")
        # A host name with non-ASCII letters is looked up in its IDNA spelling.
        host = host if ":" in host else host.encode("idna").decode()
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, UnicodeError):
        host, port = "", 0
    if not host:
        # Do not show the URL, which may contain a password.
        message = f"the URL of the destination {name} has no host or port"
        raise BadInput(message, hint="write https://example.org/path")
    allowed = {AddressScope.PUBLIC}
    if settings.private_addresses:
        allowed.add(AddressScope.PRIVATE)
    if parts.scheme == "http":
        allowed.discard(AddressScope.PUBLIC)
    if not allowed:
        message = f"the destination {name} would be posted to without TLS"
        raise BadInput(message, hint="use https, or private_addresses within a private network")
    if _is_address(host) and reach_of(host) not in allowed:
        message = f"the address {host} of the destination {name} is not allowed"
        raise BadInput(message, hint="private_addresses allows private networks")
    tls = None
    if parts.scheme == "https":
        tls = client_context(name, settings, ssl.SSLContext)
        tls.set_alpn_protocols(["http/1.1"])
    return Endpoint(host=host, port=port, allowed=frozenset(allowed), tls=tls)


def _is_address(host: str) -> bool:
    return ":" in host or re.fullmatch(r"[0-9.]+", host) is not None


def _host_header(place: Endpoint, scheme: str) -> bytes:
    whole = str(place)
    return whole.removesuffix(f":{_PORTS[scheme]}").encode()


class _Pace:
    """Remembers which partitions are slow."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._slow: dict[str, bool] = {}

    def of(self, message: Message) -> int:
        """0: the partition is quick; 1: not known; 2: slow."""
        slow = self._slow.get(message.partition)
        return 1 if slow is None else 2 * slow

    @contextmanager
    def measured(self, message: Message) -> Iterator[None]:
        """Measures one post. Messages without a partition have nothing in common."""
        begun = self._monotonic()
        try:
            yield
        finally:
            self._slow.pop(message.partition, None)
            if message.partition:
                self._slow[message.partition] = self._monotonic() - begun > SLOW_SECONDS
                if len(self._slow) > KNOWN_MAX:
                    del self._slow[next(iter(self._slow))]


class _PostBatch:
    """The messages of one call in lanes that are posted in order, and their answers."""

    def __init__(
        self,
        messages: Sequence[Message],
        pace: _Pace,
        *,
        ordered: bool,
        heard: Heard | None = None,
    ) -> None:
        self.messages = messages
        self.pace = pace
        self._heard = heard
        self.answers: list[Answer | None] = [None] * len(messages)
        lanes: dict[str | int, deque[int]] = {}
        for index, message in enumerate(messages):
            lanes.setdefault(message.partition if ordered else index, deque()).append(index)
        self.lanes: list[deque[deque[int]]] = [deque() for _ in SHARES]
        """The lanes that wait, by the pace of their partition."""
        self.count = len(lanes)
        for lane in lanes.values():
            self.add(lane)
        self.posted: set[str] = set()
        """The ids of messages whose request was written."""
        self.trouble: str | None = None
        """Why there is no connection."""
        self.late = Answer(SendResult.UNKNOWN, "timeout", "no response came in time")

    def add(self, lane: deque[int]) -> None:
        self.lanes[self.pace.of(self.messages[lane[0]])].append(lane)

    def next(self) -> int | None:
        """The pace of the lane that is next; None if no lane waits."""
        return next((pace for pace, lanes in enumerate(self.lanes) if lanes), None)

    def settle(self, index: int, answer: Answer) -> None:
        self.answers[index] = answer
        if self._heard is not None:
            self._heard(index, answer)

    def settle_rest(self, answer: Answer, lane: deque[int]) -> None:
        while lane:
            self.settle(lane.popleft(), answer)

    def settle_all(self, answer: Answer) -> None:
        for lanes in self.lanes:
            while lanes:
                self.settle_rest(answer, lanes.popleft())

    def answered(self) -> list[Answer]:
        return [answer if answer is not None else self.late for answer in self.answers]


class _Session:
    """The connections and their event loop, from the first send to `close`."""

    def __init__(self, name: str, target: _Target, connections: int) -> None:
        self._target = target
        self._connections = connections
        self._places = [asyncio.Semaphore(max(1, int(connections * each))) for each in SHARES]
        self._idle: list[Connection] = []
        self._answered = 0
        self.thread = LoopThread(f"ledgerstone-webhook-{name}")

    async def carry(self, batch: _PostBatch, seconds_max: float) -> None:
        """Posts the messages that can be posted within `seconds_max`."""
        count = min(batch.count, self._connections)
        before = self._answered
        try:
            async with asyncio.timeout(seconds_max), asyncio.TaskGroup() as group:
                for _ in range(count):
                    group.create_task(self._work(batch))
        except TimeoutError:
            if self._answered > before:
                # The receiver is not down: these lanes got no connection.
                batch.settle_all(BUSY)
            return
        if batch.trouble is not None:
            batch.late = Answer(SendResult.UNKNOWN, "unreachable", batch.trouble)

    async def _work(self, batch: _PostBatch) -> None:
        """Posts lane after lane, until none is left or no connection can be made."""
        while (pace := batch.next()) is not None:
            # Acquired for each lane, so that other calls get their turn in between.
            async with AsyncExitStack() as places:
                for each in reversed(self._places[: pace + 1]):
                    await places.enter_async_context(each)
                if not batch.lanes[pace]:
                    continue
                lane = batch.lanes[pace].popleft()
                if batch.pace.of(batch.messages[lane[0]]) > pace:
                    # Its partition has turned out to be slow meanwhile.
                    batch.add(lane)
                    continue
                try:
                    await self._lane(batch, lane)
                except Unreachable as error:
                    batch.trouble = str(error)
                    # Another worker that has a connection takes the lane.
                    batch.lanes[pace].appendleft(lane)
                    return

    async def _lane(self, batch: _PostBatch, lane: deque[int]) -> None:
        while lane:
            message = batch.messages[lane[0]]
            with batch.pace.measured(message):
                answer = await self._post(batch, message)
            batch.settle(lane.popleft(), answer)
            if self._target.gone:
                batch.settle_rest(GONE, lane)
                batch.settle_all(GONE)
            elif answer.result is not SendResult.DELIVERED:
                batch.settle_rest(HELD, lane)

    async def _post(self, batch: _PostBatch, message: Message) -> Answer:
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                return self._answer_to(await self._response(batch, message))
        except TimeoutError:
            why = f"no response came within {REQUEST_SECONDS_MAX:g} s"
            # A receiver that hangs on one message may accept others.
            posted = message.id in batch.posted
            return Answer(SendResult.REFUSED if posted else SendResult.UNKNOWN, "timeout", why)
        except ConnectionBroken as error:
            # Without any byte of a response the receiver may be shutting down.
            result = SendResult.REFUSED if error.heard else SendResult.UNKNOWN
            return Answer(result, "broken", str(error))
        except Unsendable as error:
            why = f"it cannot be sent by HTTP: {error}"
            return Answer(SendResult.UNDELIVERABLE, "unsendable", why)

    async def _response(self, batch: _PostBatch, message: Message) -> Response:
        headers, body = self._target.request(message)
        while True:
            connection = await self._taken(batch)
            used = connection.used
            try:
                connection.write(self._target.path, headers, body)
                batch.posted.add(message.id)
                return await connection.response()
            except ConnectionBroken as broken:
                # The receiver may have closed an idle connection just now. Nothing was received, so
                # the request is sent again on another; used connections run out, so the loop ends.
                if broken.heard or not used:
                    raise
            finally:
                if connection.fresh:
                    self._idle.append(connection)
                else:
                    connection.close()

    async def _taken(self, batch: _PostBatch) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.fresh:
                return connection
            connection.close()
        if batch.trouble is not None:
            raise Unreachable(batch.trouble)
        try:
            return await opened(self._target.place)
        except asyncio.CancelledError:
            batch.trouble = f"{self._target.place} accepted no connection in time"
            raise

    def _answer_to(self, response: Response) -> Answer:
        self._answered += 1
        status = response.status
        if 200 <= status < 300:  # noqa: PLR2004 - the class of statuses that means success
            return DELIVERED
        if status == 410:  # noqa: PLR2004 - Gone
            self._target.gone = True
            return GONE
        said = _CONTROLS.sub(" ", response.text).strip()[:REASON_CHARS_MAX]
        reason = f"the receiver answered {status}: {said}" if said else f"it answered {status}"
        after = _seconds(response.headers.get("retry-after"))
        code = "redirect" if 300 <= status < 400 else f"http_{status}"  # noqa: PLR2004 - as above
        return Answer(SendResult.REFUSED, code, reason, after)

    async def end(self) -> None:
        while self._idle:
            self._idle.pop().close()


def _seconds(retry_after: str | None) -> float | None:
    """The pause of the header `Retry-After`, a number or a date; None if it cannot be parsed."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    if text.isascii() and text.isdecimal():
        # A longer number exceeds the longest pause anyway.
        return min(float(text[:10]), PAUSE_SECONDS_MAX)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    pause = (moment - datetime.now(UTC)).total_seconds()
    return min(max(pause, 0.0), PAUSE_SECONDS_MAX)
