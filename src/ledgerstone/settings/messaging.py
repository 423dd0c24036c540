"""The section of the settings that belongs to messaging: tables, destinations, subscriptions."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

TABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*\Z"
_TABLE = {
    "allowed": "letters, digits and _, not beginning with a digit, at most 64 of them"
    " (63 on PostgreSQL)"
}
LOCAL = "local"
BACKOFF_MULTIPLIER = 2.0
"""Each pause after a refusal is so many times as long as the one before."""
_SCHEMES = r"^(local:|(amqps?|nats|tls|https?)://.+)\Z"
_SCHEMES_ALLOWED = (
    "local: or a URL that begins with amqp://, amqps://, https://, http://, nats:// or tls://"
)

_TableName = Annotated[str, Meta(pattern=TABLE_PATTERN, max_length=64)]


class _Masked(msgspec.Struct, frozen=True, kw_only=True):
    """Shown without what is secret: the password of its URL, and what signs."""

    def __rich_repr__(self) -> list[tuple[str, object]]:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        fields["url"] = masked(fields["url"])
        if "secrets" in fields:
            fields["secrets"] = ["***"] * len(fields["secrets"])
        return list(fields.items())

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({fields})"


class _Reached(_Masked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The kind of place at the other end of a URL, perhaps behind TLS."""

    ca_file: Annotated[
        str | None, Meta(description="TLS: the authorities to trust; none means the system's.")
    ] = None
    certificate_file: Annotated[
        str | None, Meta(description="TLS: the certificate that this side shows.")
    ] = None
    key_file: Annotated[str | None, Meta(description="TLS: the key of that certificate.")] = None


def masked(url: str) -> str:
    """The URL as it may be logged: `***` where the password stands."""
    without = re.sub(r"^([^:]*://[^:/]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    return re.sub(r"(?i)([?&][^=&]*(?:pass|pwd|secret)[^=&]*=)[^&]*", r"\1***", without)


class DestinationSettings(_Reached, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where messages are carried to, and how."""

    url: Annotated[
        str,
        Meta(
            pattern=_SCHEMES,
            extra={"allowed": _SCHEMES_ALLOWED, "secret": True},
            description="The kind and the address: the consumers of this ledger (local:), RabbitMQ,"
            " a webhook, NATS JetStream.",
        ),
    ] = "local:"
    mode: Annotated[
        Literal["ordered", "competing"],
        Meta(description="Whether messages of one partition leave in commit order, or any do."),
    ] = "ordered"
    on_failure: Annotated[
        Literal["block", "park", "skip"],
        Meta(
            description="A message that is refused again and again: try it for ever, set it aside"
            " and let its partition wait for you, or set it aside and go on."
        ),
    ] = "block"
    max_attempts: Annotated[
        int,
        Meta(ge=1, le=1000, description="Refusals after which park and skip set a message aside."),
    ] = 10
    batch_max: Annotated[
        int, Meta(ge=1, le=10_000, description="Messages that are under way at once.")
    ] = 1000
    in_flight_per_partition: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000,
            description="Messages of one partition that are under way at once; with more than one,"
            " those behind a refused message may arrive before it.",
        ),
    ] = 1
    in_flight_bytes_max: Annotated[
        int,
        Meta(
            ge=65_536,
            le=68_719_476_736,
            description="Bytes of messages that a relay has in memory at once; a message that is"
            " larger is carried alone.",
        ),
    ] = 67_108_864
    send_seconds_max: Annotated[
        float, Meta(ge=0.1, le=3600, description="How long a destination may take to confirm.")
    ] = 30.0
    backoff_seconds: Annotated[
        float, Meta(ge=0.01, le=86_400, description="The pause after the first refusal.")
    ] = 1.0
    backoff_seconds_max: Annotated[
        float,
        Meta(ge=0.01, le=604_800, description="The longest pause; each is twice the one before."),
    ] = 300.0
    format: Annotated[
        Literal["binary", "structured"],
        Meta(description="CloudEvents as headers and body, or as one JSON document."),
    ] = "binary"
    exchange: Annotated[
        str, Meta(max_length=255, description="AMQP: the exchange that is published to.")
    ] = "events"
    routing_key: Annotated[
        Annotated[str, Meta(max_length=255)] | None,
        Meta(description="AMQP: the routing key; none means the name of the message."),
    ] = None
    subject_prefix: Annotated[
        str, Meta(max_length=200, description="NATS: what precedes the name of the message.")
    ] = ""
    secrets: Annotated[
        list[str],
        Meta(
            description="Webhook: secrets that sign (whsec_… or whsk_…); each adds a signature, so"
            " that one can be changed for another."
        ),
    ] = []
    connections_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1000,
            description="Webhook: connections that a relay has to the URL at once. Partitions that"
            " are not known to answer within a second hold at most three quarters of them.",
        ),
    ] = 32
    private_addresses: Annotated[
        bool, Meta(description="Webhook: whether it may lie in a private network.")
    ] = False


class SubscriptionSettings(_Reached, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where messages are received from."""

    url: Annotated[
        str,
        Meta(
            pattern=r"^amqps?://.+\Z",
            extra={"allowed": "amqp://… or amqps://…", "secret": True},
            description="The broker.",
        ),
    ]
    queue: Annotated[
        str, Meta(min_length=1, max_length=255, description="The queue that is consumed.")
    ]
    prefetch: Annotated[
        int, Meta(ge=1, le=65_535, description="Messages that may be on their way to handlers.")
    ] = 100
    concurrency: Annotated[
        int, Meta(ge=1, le=1000, description="Handlers that run at once in a process.")
    ] = 8
    timeout_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=86_400)] | None,
        Meta(
            description="How long the consumers of one message may take together; a message that"
            " takes longer has failed. Without it they take as long as they take."
        ),
    ] = None
    crashes_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="Deaths of a process, while it handled a message that had come again,"
            " after which that is put into the failed table.",
        ),
    ] = 3


class ExchangeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An exchange of RabbitMQ that is declared."""

    type: Annotated[
        Literal["direct", "fanout", "topic", "headers"], Meta(description="How it routes.")
    ] = "topic"
    durable: Annotated[bool, Meta(description="Whether it outlives a restart.")] = True
    arguments: Annotated[
        dict[str, str | int | bool], Meta(description="Further arguments of the broker.")
    ] = {}


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A queue of RabbitMQ that is declared, and what is bound to it."""

    type: Annotated[
        Literal["quorum", "classic", "stream"],
        Meta(description="The kind of queue; quorum queues are replicated."),
    ] = "quorum"
    durable: Annotated[bool, Meta(description="Whether it outlives a restart.")] = True
    one_consumer: Annotated[
        bool,
        Meta(description="One consumer at a time, the next when it goes: order over processes."),
    ] = False
    bindings: Annotated[
        dict[str, list[str]],
        Meta(description="By the name of an exchange, the routing keys that lead here."),
    ] = {}
    arguments: Annotated[
        dict[str, str | int | bool], Meta(description="Further arguments of the broker.")
    ] = {}


class MessagingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How messages are kept, carried and received."""

    outbox_table: Annotated[
        _TableName, Meta(extra=_TABLE, description="The table of messages to be carried.")
    ] = "messenger_outbox"
    failed_table: Annotated[
        _TableName, Meta(extra=_TABLE, description="The table of messages that failed.")
    ] = "messenger_messages"
    deduplication_table: Annotated[
        _TableName, Meta(extra=_TABLE, description="The table of messages that were handled.")
    ] = "message_broker_deduplication"
    time_zone: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=64,
            description="The time zone of the moments in the outbox and the failed table: that of"
            " PHP, where Symfony Messenger writes into them.",
        ),
    ] = "UTC"
    auto_setup: Annotated[
        bool, Meta(description="Whether the first use makes the outbox and the failed table.")
    ] = True
    source: Annotated[
        str,
        Meta(min_length=1, max_length=255, description="The publisher, as CloudEvents `source`."),
    ] = "ledgerstone"
    body_bytes_max: Annotated[
        int,
        Meta(ge=1024, le=268_435_456, description="The largest body of a message."),
    ] = 1_048_576
    destinations: Annotated[
        dict[str, DestinationSettings],
        Meta(description="Where messages are carried to, by name; `local` is always there."),
    ] = {}
    routes: Annotated[
        dict[str, list[str]],
        Meta(
            description="By a pattern of names (`order.*`), the destinations of a message; all that"
            " match count, and what matches none goes to `local`."
        ),
    ] = {}
    subscriptions: Annotated[
        dict[str, SubscriptionSettings],
        Meta(description="Where messages are received from, by name."),
    ] = {}
    exchanges: Annotated[
        dict[str, ExchangeSettings],
        Meta(description="Exchanges that `ledgerstone messaging topology` declares."),
    ] = {}
    queues: Annotated[
        dict[str, QueueSettings],
        Meta(description="Queues that `ledgerstone messaging topology` declares."),
    ] = {}
    keep_delivered_days: Annotated[
        float,
        Meta(
            ge=0,
            le=36_500,
            description="How long delivered messages are kept; 0 removes them at once.",
        ),
    ] = 7.0
    keep_receipts_days: Annotated[
        float,
        Meta(ge=0, le=36_500, description="How long it is remembered that one was handled."),
    ] = 30.0
    keep_keys_days: Annotated[
        float,
        Meta(ge=0, le=36_500, description="How long the key of a message is remembered."),
    ] = 365.0
    keep_record_days: Annotated[
        float,
        Meta(
            ge=0,
            le=36_500,
            description="How long it is on record what people and trouble did to messages.",
        ),
    ] = 365.0
    redelivery_days_max: Annotated[
        float,
        Meta(
            ge=0,
            le=36_500,
            description="How late a message can still arrive again; receipts are kept for longer.",
        ),
    ] = 7.0
    retries_max: Annotated[
        int,
        Meta(ge=0, le=1000, description="Times a handler is tried again before a message failed."),
    ] = 3
    retry_seconds: Annotated[
        float,
        Meta(ge=0, le=86_400, description="The pause after the first failure of a handler."),
    ] = 1.0
    retry_factor: Annotated[
        float, Meta(ge=1, le=100, description="How much longer each further pause is.")
    ] = 2.0
    sweep_seconds: Annotated[
        float,
        Meta(
            ge=0.1,
            le=3600,
            description="How often rows that others wrote into the outbox are looked for.",
        ),
    ] = 1.0
