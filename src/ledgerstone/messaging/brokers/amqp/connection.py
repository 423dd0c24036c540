"""One connection to RabbitMQ with one channel, driven by the thread that runs it.

pika connects, negotiates TLS, keeps the heartbeat and reads. Published messages are encoded here
and written to the transport of pika as bytes, after everything that was written before
(docs/decisions/pika.md says what that saves).
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pika
from pika.adapters.select_connection import IOLoop
from pika.adapters.utils.selector_ioloop_adapter import SelectorIOServicesAdapter
from pika.exceptions import ChannelClosedByBroker, ConnectionClosed

from ledgerstone.errors import BadInput
from ledgerstone.messaging.brokers.amqp.frames import CLOSE
from ledgerstone.settings.messaging import DestinationSettings, SubscriptionSettings

HEARTBEAT_SECONDS = 15
CLOSE_SECONDS_MAX = 2.0
CAUSES_MAX = 10

# pika logs every failed attempt with a traceback; here the caller is told instead.
_pika_log = logging.getLogger("pika")
if _pika_log.level == logging.NOTSET:
    _pika_log.setLevel(logging.CRITICAL)


class Ending(msgspec.Struct, frozen=True):
    """Why a connection ended; `code` is the code of the broker, 0 if it gave none."""

    reason: str
    code: int = 0


class AmqpConnection:
    """A connection to the broker of a destination or subscription.

    - `run` connects, calls `opened` with the channel, and returns why the connection ended.
    - A channel that the broker closes ends the connection too, with the code of the channel.
    - `call` runs a function on the thread of `run`; it does nothing after the end.
    - `cut` ends the connection at once, `close` closes channel and connection; from any thread.
    - `drop` ends it without closing the channel: everything written before arrives, and the broker
      requeues all unacknowledged messages at once, in their order. pika's own close cancels the
      consumers first, so that another consumer receives later messages before these are requeued.
    - `write`, `frame_bytes_max` and `blocked` must be used on the thread of `run`.
    """

    def __init__(
        self,
        name: str,
        settings: DestinationSettings | SubscriptionSettings,
        *,
        opened: Callable[[Any], None],
        unblocked: Callable[[], None] = lambda: None,
    ) -> None:
        self._parameters = parameters(name, settings)
        self._opened = opened
        self._unblocked = unblocked
        self._lock = threading.Lock()
        self._loop = IOLoop()
        self._services = _Services(self._loop)
        self._connection: Any = None
        self._ending: Ending | None = None
        self._over = False
        self.blocked = False

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame that both sides accept."""
        return int(self._connection.params.frame_max)

    def run(self, *, seconds_max: float) -> Ending:
        """Connects within `seconds_max` and serves the connection until it ends."""
        self._parameters.socket_timeout = seconds_max
        self._parameters.stack_timeout = seconds_max
        try:
            self._connection = pika.SelectConnection(
                self._parameters,
                on_open_callback=self._on_open,
                on_open_error_callback=self._on_end,
                on_close_callback=self._on_end,
                custom_ioloop=self._services,
            )
            self._connection.add_on_connection_blocked_callback(self._on_blocked)
            self._connection.add_on_connection_unblocked_callback(self._on_unblocked)
            self._loop.start()
        except Exception as error:  # noqa: BLE001 - the caller gets the reason
            # pika raises various errors when a connection is cut while it is being opened.
            self._ending = self._ending or Ending(told(error))
        finally:
            with self._lock:
                self._over = True
            self._loop.close()
        return self._ending or Ending("the connection ended")

    def call(self, do: Callable[[], None]) -> None:
        with self._lock:
            if not self._over:
                self._loop.add_callback_threadsafe(lambda: self._guarded(do))

    def cut(self, reason: str) -> None:
        self.call(lambda: self._end(Ending(reason)))

    def close(self) -> None:
        self.call(self._leave)

    def drop(self) -> None:
        self.call(self._drop)

    def write(self, frames: bytes) -> None:
        transport = self._services.transport
        if transport is not None and not self._connection.is_closed:
            # A memoryview: pika keeps the rest of a partial write without copying it.
            transport.write(memoryview(frames))

    def _on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        channel.add_on_close_callback(self._on_channel_closed)
        self._opened(channel)

    def _on_channel_closed(self, _: Any, reason: BaseException) -> None:
        if isinstance(reason, ChannelClosedByBroker):
            self._ending = self._ending or Ending(told(reason), reason.reply_code)
            self._leave()

    def _on_blocked(self, *_: Any) -> None:
        self.blocked = True

    def _on_unblocked(self, *_: Any) -> None:
        self.blocked = False
        self._unblocked()

    def _on_end(self, _: Any, error: BaseException) -> None:
        code = error.reply_code if isinstance(error, ConnectionClosed) else 0
        self._ending = self._ending or Ending(told(error), code)
        self._loop.stop()

    def _guarded(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 - it would end the loop and leak the socket
            self._end(Ending(told(error)))

    def _leave(self) -> None:
        if self._connection.is_closed:
            return
        if not self._connection.is_open:
            self._ending = self._ending or Ending("closed before it was open")
        if not self._connection.is_closing:
            self._connection.close()
        self._services.call_later(CLOSE_SECONDS_MAX, self._abort)

    def _drop(self) -> None:
        if not self._connection.is_open:
            self._leave()
            return
        self._ending = self._ending or Ending("dropped")
        # The broker answers after it has processed everything that was written before.
        self._connection.callbacks.add(0, pika.spec.Connection.CloseOk, lambda _: self._abort())
        self.write(CLOSE)
        self._services.call_later(CLOSE_SECONDS_MAX, self._abort)

    def _end(self, ending: Ending) -> None:
        self._ending = self._ending or ending
        self._abort()

    def _abort(self) -> None:
        if self._connection.is_closed:
            return
        if not self._connection.is_closing:
            # pika needs an ending of its own before its transport may be closed.
            self._connection.close()
        if self._services.transport is not None:
            self._services.transport.abort()


class _Services(SelectorIOServicesAdapter):  # type: ignore[misc] # pika carries no types
    """The I/O services of pika, with access to the transport of the connection."""

    transport: Any = None

    def create_streaming_connection(
        self,
        protocol_factory: Any,
        sock: Any,
        on_done: Any,
        ssl_context: Any = None,
        server_hostname: Any = None,
    ) -> Any:
        def done(made: Any) -> None:
            if not isinstance(made, BaseException):
                self.transport = made[0]
            on_done(made)

        return super().create_streaming_connection(
            protocol_factory, sock, done, ssl_context, server_hostname
        )


def parameters(name: str, settings: DestinationSettings | SubscriptionSettings) -> Any:
    """The connection parameters of the settings. Raises BadInput if they are invalid."""
    try:
        made = pika.URLParameters(settings.url)
    except Exception:  # noqa: BLE001 - the error may quote a part of the password
        hint = "write amqp://user:password@host:5672/vhost, with special characters as %23"
        raise BadInput(f"the url of {name} cannot be parsed", hint=hint) from None
    made.connection_attempts = 1
    made.client_properties = {"connection_name": f"ledgerstone {name}"}
    if "heartbeat=" not in urlsplit(settings.url).query:
        made.heartbeat = HEARTBEAT_SECONDS
    if urlsplit(settings.url).scheme == "amqps":
        made.ssl_options = pika.SSLOptions(_tls(name, settings), made.host)
    return made


def _tls(name: str, settings: DestinationSettings | SubscriptionSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
        if settings.certificate_file is not None:
            context.load_cert_chain(settings.certificate_file, settings.key_file)
    except OSError as error:
        hint = "check ca_file, certificate_file and key_file"
        raise BadInput(f"the certificates of {name} cannot be read: {error}", hint=hint) from error
    return context


def told(error: BaseException) -> str:
    """The cause of an error in words: pika wraps the errors of others."""
    for _ in range(CAUSES_MAX):
        wrapped = getattr(error, "exception", None)
        inner = getattr(error, "exceptions", None) or (*error.args, wrapped)
        causes = [cause for cause in inner if isinstance(cause, BaseException)]
        if not causes:
            break
        error = causes[-1]
    if isinstance(error, ConnectionClosed | ChannelClosedByBroker):
        return f"{error.reply_code} {error.reply_text}"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
