"""NATS JetStream: publishes each message to a subject; a stream confirms that it stored it.

The id is sent as `Nats-Msg-Id`, by which the stream detects duplicates within its duplicate window.
All messages of a call are published over one connection before the answers are awaited.

    stored, or a duplicate            DELIVERED
    no stream has the subject         UNDELIVERABLE `unroutable`
    larger than the limit             UNDELIVERABLE `too_large`
    the stream refuses it             REFUSED `jetstream_<its code>`
    a subscriber, but no stream       REFUSED `no_stream`
    the user may not publish there    REFUSED `not_allowed`
    no answer in time                 UNKNOWN `timeout`
    connection lost                   UNKNOWN `lost`
    no connection, no JetStream       TargetDown

A server answers "no responders" also while a stream elects its leader, and answers nothing if
another client subscribes to the subject. So an unconfirmed subject is looked up in the list of
streams.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import ssl
import threading
from collections.abc import Coroutine, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from ledgerstone.errors import BadInput, TargetDown
from ledgerstone.messaging import cloudevents
from ledgerstone.messaging.brokers.event_loop import LoopClosed, LoopThread
from ledgerstone.messaging.brokers.tls import client_context
from ledgerstone.messaging.brokers.transport import DELIVERED, Answer, Heard, SendResult
from ledgerstone.messaging.message import Message
from ledgerstone.settings.messaging import DestinationSettings

CLOSE_SECONDS_MAX = 1.0
PING_SECONDS = 5
PINGS_UNANSWERED_MAX = 2
LOOK_SECONDS = 2.0
LOOKS_MAX = 100
PORT = 4222

_PREFIX = re.compile(r"([^\s.*>]+\.)*[^\s.*>]*")
_TOO_LARGE = 10054
_NO_RESPONDERS = "503"
_FORBIDDEN = re.compile(r'permissions violation for publish to "([^"]*)"')
_LIST_STREAMS = "$JS.API.STREAM.NAMES"
_HEADER_LINES = len("NATS/1.0\r\n\r\n")
_HEADER_MARKS = len(": \r\n")

_LOST = Answer(SendResult.UNKNOWN, "lost", "the connection was lost before it was confirmed")


class _Refusal(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Ack(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    error: _Refusal | None = None


class _Streams(msgspec.Struct):
    total: int = 0
    error: _Refusal | None = None


class _Unreachable(Exception):
    """No connection could be made: nothing was sent."""


class _WatchedContext(ssl.SSLContext):
    """An SSL context that notes its use: the client would also continue without TLS."""

    used = False

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        self.used = True
        return super().wrap_bio(*arguments, **named)


class NatsTransport:
    """Publishes messages to JetStream; see `Transport` for the contract.

    - The URL may name several servers of a cluster, separated by commas.
    - `tls://` never continues without TLS; `nats://` uses TLS if the server requires it.
    - User and password of the URL are sent as such, a user alone as a token.
    - An operator creates the stream: nothing is declared here.
    - No wait has a limit of its own: connecting and lookups share the time of the call.
    """

    def __init__(self, name: str, settings: DestinationSettings, source: str) -> None:
        self._name = name
        self._settings = settings
        self._source = source
        self._servers = _Servers(name, settings)
        if not _PREFIX.fullmatch(settings.subject_prefix):
            message = f"subject_prefix of the destination {name} is not a valid prefix"
            raise BadInput(message, hint="write words, each with a dot behind it: shop.events.")
        # Raises now if a file cannot be used.
        client_context(name, settings, _WatchedContext)
        self._lock = threading.Lock()
        self._session: _Session | None = None

    def send(
        self, messages: Sequence[Message], *, seconds_max: float, heard: Heard | None = None
    ) -> list[Answer]:
        if not messages:
            return []
        publications = [self._publication(message) for message in messages]
        session = self._opened()
        try:
            session.thread.run(session.carry(publications, seconds_max))
        except LoopClosed:
            pass
        except _Unreachable as error:
            raise TargetDown(self._name, str(error)) from error
        return [publication.answer or _LOST for publication in publications]

    def close(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.thread.close(session.end())

    def _opened(self) -> _Session:
        with self._lock:
            if self._session is None:
                self._session = _Session(self._name, self._servers)
            return self._session

    def _publication(self, message: Message) -> _Publish:
        headers = {
            name: value
            for name, value in message.headers.items()
            if not name.lower().startswith(("nats-", "ce-"))
        }
        if self._settings.format == "structured":
            body = cloudevents.structured(message, self._source)
            headers["Content-Type"] = cloudevents.STRUCTURED
        else:
            body = message.raw
            headers["Content-Type"] = message.content_type
            headers |= cloudevents.headers(message, self._source)
        headers["Nats-Msg-Id"] = message.id
        return _Publish(self._settings.subject_prefix + message.name, headers, body)


class _Publish:
    """One message to publish, and its answer."""

    def __init__(self, subject: str, headers: dict[str, str], body: bytes) -> None:
        self.subject = subject
        self.headers = headers
        self.body = body
        self.answer: Answer | None = None
        self.unheard = False
        """Whether the server answered that nobody subscribes to the subject."""
        self.settled = asyncio.Event()

    @property
    def size(self) -> int:
        """The bytes that count against `max_payload` of the server."""
        lines = (
            len(name.encode()) + len(value.strip().encode()) + _HEADER_MARKS
            for name, value in self.headers.items()
        )
        return len(self.body) + _HEADER_LINES + sum(lines)

    def settle(self, answer: Answer) -> None:
        self.answer = self.answer or answer
        self.settled.set()


class _Servers:
    """The servers and the credentials."""

    def __init__(self, name: str, settings: DestinationSettings) -> None:
        self._name = name
        self._settings = settings
        scheme, _, rest = settings.url.partition("://")
        self._tls = scheme == "tls"
        parts = [urlsplit(f"{scheme}://{one.rpartition('://')[2]}") for one in rest.split(",")]
        try:
            hosts = [(part.hostname or "", part.port or PORT) for part in parts]
        except ValueError:
            hosts = [("", 0)]
        if not all(host for host, _ in hosts):
            # Do not show the URL, which may contain a password.
            message = f"the URL of the destination {name} has no host or port"
            raise BadInput(message, hint="write nats://one.example.org:4222,two.example.org:4222")
        self._urls = [f"{scheme}://{_bracketed(host)}:{port}" for host, port in hosts]
        self._where = ", ".join(f"{_bracketed(host)}:{port}" for host, port in hosts)
        known = next((part for part in parts if part.username is not None), None)
        self._user = unquote(known.username or "") if known else None
        self._password = unquote(known.password) if known and known.password else None

    async def connect(self, session: _Session, seconds_max: float) -> Client:
        """Connects a client. Raises _Unreachable with the reason.

        The caller ends it after `seconds_max`; each server gets its share of that time.
        """
        client = Client()
        context = client_context(self._name, self._settings, _WatchedContext)
        heard: list[Exception] = []
        # The type declares whole seconds, but the client accepts floats.
        share: Any = seconds_max / len(self._urls)

        async def failed(error: Exception) -> None:
            heard.append(error)
            session.overheard(error)

        try:
            await client.connect(
                self._urls,
                connect_timeout=share,
                name=f"ledgerstone-{self._name}",
                error_cb=failed,
                closed_cb=session.lost,
                # The next send connects again; a reconnect would hide the loss from the caller.
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                ping_interval=PING_SECONDS,
                max_outstanding_pings=PINGS_UNANSWERED_MAX,
                tls=context,
                **self._credentials(context),
            )
            self._demand_tls(context)
        except BaseException as error:
            # Errors while closing, such as a reset, are not the reason.
            why = heard[-1] if heard and isinstance(error, NatsError) else error
            await _closed(client)
            if not isinstance(error, TimeoutError | OSError | NatsError):
                raise
            raise _Unreachable(f"{self._where} cannot be used: {_words(why)}") from error
        return client

    def _credentials(self, context: _WatchedContext) -> dict[str, Any]:
        if self._user is None:
            return {}

        def told(value: str) -> Any:
            def tell() -> str:
                # Called when the credentials are about to be sent: not before TLS is active.
                self._demand_tls(context)
                return value

            return tell

        if self._password is None:
            return {"token": told(self._user)}
        return {"user": told(self._user), "password": told(self._password)}

    def _demand_tls(self, context: _WatchedContext) -> None:
        if self._tls and not context.used:
            raise ConnectionError("the server does not offer TLS")


class _Session:
    """The connection and its event loop, from the first send to `close`."""

    def __init__(self, name: str, servers: _Servers) -> None:
        self._servers = servers
        self._connecting = asyncio.Lock()
        self._client: Client | None = None
        self._inbox = ""
        self._numbers = itertools.count()
        self._under_way: dict[str, _Publish] = {}
        self._complaint = ""
        self._may_not_look = asyncio.Event()
        self.thread = LoopThread(f"ledgerstone-nats-{name}")

    async def carry(self, publications: Sequence[_Publish], seconds_max: float) -> None:
        """Publishes the messages and waits for the answers, for at most `seconds_max`."""
        tokens: list[str] = []
        limit = asyncio.timeout(seconds_max)
        try:
            async with limit:
                client = await self._connected(seconds_max)
                await self._publish(client, publications, tokens)
                await self._listen(client, publications, limit)
        except TimeoutError:
            if not limit.expired():
                raise
            if not tokens:
                raise _Unreachable(f"no connection within {seconds_max:g} s") from None
        finally:
            for token in tokens:
                self._under_way.pop(token, None)
        answers = [publication.answer for publication in publications]
        if answers[0] is not None and all(_without_jetstream(answer) for answer in answers):
            raise _Unreachable(answers[0].reason)
        said = f"; the server said: {self._complaint}" if self._complaint else ""
        late = Answer(SendResult.UNKNOWN, "timeout", f"no answer came in time{said}")
        for publication in publications:
            publication.settle(late)

    async def _connected(self, seconds_max: float) -> Client:
        async with self._connecting:
            if self._client is None or not self._client.is_connected:
                self._complaint = ""
                self._may_not_look.clear()
                self._client = client = await self._servers.connect(self, seconds_max)
                self._inbox = client.new_inbox()
                try:
                    await client.subscribe(f"{self._inbox}.*", cb=self._answered)
                except (NatsError, OSError) as error:
                    await _closed(client)
                    raise _Unreachable(f"the connection was lost: {_words(error)}") from error
            return self._client

    async def _publish(
        self, client: Client, publications: Sequence[_Publish], tokens: list[str]
    ) -> None:
        for publication in publications:
            if publication.size > client.max_payload:
                # The server would close the connection, and with it the messages of others.
                why = f"it has {publication.size} bytes, and the server allows {client.max_payload}"
                publication.settle(Answer(SendResult.UNDELIVERABLE, "too_large", why))
                continue
            token = str(next(self._numbers))
            tokens.append(token)
            self._under_way[token] = publication
            reply = f"{self._inbox}.{token}"
            try:
                await client.publish(
                    publication.subject, publication.body, reply, publication.headers
                )
            except (NatsError, OSError, ValueError) as error:
                if client.is_connected:
                    why = f"it cannot be sent by NATS: {_words(error)}"
                    publication.settle(Answer(SendResult.UNDELIVERABLE, "unsendable", why))
                else:
                    publication.settle(_LOST)

    async def _listen(
        self, client: Client, publications: Sequence[_Publish], limit: asyncio.Timeout
    ) -> None:
        """Waits for the answers; looks up subjects that stay without one."""
        try:
            async with asyncio.timeout(min(LOOK_SECONDS, _left(limit) / 2)):
                await _all_settled(publications)
        except TimeoutError:
            pass
        open_ones = [
            publication
            for publication in publications
            if not publication.settled.is_set() or publication.unheard
        ]
        subjects = dict.fromkeys(publication.subject for publication in open_ones)
        for subject in itertools.islice(subjects, LOOKS_MAX):
            # The other half of the time is left for messages that are still unanswered.
            answer = await self._looked_up(client, subject, _left(limit) / 2)
            for publication in open_ones:
                if publication.subject == subject and publication.unheard:
                    publication.settle(answer)
                elif publication.subject == subject and answer.code == "unroutable":
                    # A stream of another account could still confirm it.
                    why = f"{answer.reason}, and the subscriber does not confirm"
                    publication.settle(Answer(SendResult.REFUSED, "no_stream", why))
        await _all_settled([publication for publication in publications if not publication.unheard])

    async def _looked_up(self, client: Client, subject: str, seconds_max: float) -> Answer:
        """The answer for a subject that nobody confirmed, after a lookup of its stream."""
        question = msgspec.json.encode({"subject": subject})
        try:
            asked = client.request(_LIST_STREAMS, question, timeout=seconds_max)
            said = await self._unless_forbidden(asked)
            streams = msgspec.json.decode(said.data, type=_Streams)
        except NoRespondersError:
            return Answer(SendResult.UNKNOWN, "no_jetstream", "the server does not run JetStream")
        except (NatsError, TimeoutError, msgspec.DecodeError):
            why = f"nobody answers on {subject}, and the streams could not be listed"
            return Answer(SendResult.REFUSED, "no_responders", why)
        if streams.error is not None:
            # JetStream is disabled for this account, or its cluster has no leader now.
            return Answer(SendResult.UNKNOWN, "no_jetstream", streams.error.description)
        if streams.total:
            why = f"the stream of {subject} does not answer now"
            return Answer(SendResult.UNKNOWN, "no_leader", why)
        return Answer(
            SendResult.UNDELIVERABLE, "unroutable", f"no stream has the subject {subject}"
        )

    async def _unless_forbidden(self, asked: Coroutine[Any, Any, Msg]) -> Msg:
        """Awaits an answer. Raises TimeoutError if none can come, because the user may not ask."""
        answering = asyncio.ensure_future(asked)
        forbidden = asyncio.ensure_future(self._may_not_look.wait())
        try:
            await asyncio.wait([answering, forbidden], return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise TimeoutError
            return answering.result()
        finally:
            answering.cancel()
            forbidden.cancel()

    async def _answered(self, msg: Msg) -> None:
        publication = self._under_way.get(msg.subject.rpartition(".")[2])
        if publication is None:
            return
        if msg.headers and msg.headers.get("Status") == _NO_RESPONDERS:
            publication.unheard = True
            publication.settled.set()
            return
        try:
            ack = msgspec.json.decode(msg.data, type=_Ack)
        except msgspec.DecodeError:
            # Another subscriber has answered; only the answer of the stream counts.
            return
        if ack.error is not None:
            publication.settle(_refused(ack.error))
        elif ack.stream and ack.seq:
            publication.settle(DELIVERED)

    def overheard(self, error: Exception) -> None:
        """Takes an asynchronous error of the server, such as a permissions violation."""
        self._complaint = _words(error)
        if found := _FORBIDDEN.search(self._complaint):
            # The server spells the subject in lowercase.
            if found[1] == _LIST_STREAMS.lower():
                self._may_not_look.set()
            answer = Answer(SendResult.REFUSED, "not_allowed", self._complaint)
            for publication in list(self._under_way.values()):
                if publication.subject.lower() == found[1]:
                    publication.settle(answer)

    async def lost(self) -> None:
        """Takes the loss of the connection: no answer comes any more."""
        for publication in list(self._under_way.values()):
            publication.settle(_LOST)

    async def end(self) -> None:
        if self._client is not None:
            await _closed(self._client)


def _without_jetstream(answer: Answer | None) -> bool:
    return answer is not None and answer.code == "no_jetstream"


def _refused(error: _Refusal) -> Answer:
    if error.err_code == _TOO_LARGE:
        return Answer(SendResult.UNDELIVERABLE, "too_large", error.description)
    return Answer(
        SendResult.REFUSED, f"jetstream_{error.err_code or error.code}", error.description
    )


def _left(limit: asyncio.Timeout) -> float:
    """The seconds that are left until the limit."""
    return max(0.0, (limit.when() or 0.0) - asyncio.get_running_loop().time())


async def _all_settled(publications: Sequence[_Publish]) -> None:
    for publication in publications:
        await publication.settled.wait()


async def _closed(client: Client) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS_MAX):
            await client.close()
    except (TimeoutError, OSError, NatsError):
        pass


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _words(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    return str(error).removeprefix("nats: ") or type(error).__name__
