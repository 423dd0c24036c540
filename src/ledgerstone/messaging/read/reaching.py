"""Whether a destination or subscription can be reached, without sending a message."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from ledgerstone.errors import TargetDown
from ledgerstone.messaging.brokers.amqp import topology
from ledgerstone.settings import DestinationSettings, SubscriptionSettings
from ledgerstone.settings.messaging import masked

CONNECT_SECONDS_MAX = 5.0
SERVERS_MAX = 10
Endpoint = DestinationSettings | SubscriptionSettings

_PORTS = {"https": 443, "http": 80, "nats": 4222, "tls": 4222}
_HINT = "check that it runs and can be reached, and check its url; messages wait meanwhile"


def reached(name: str, place: Endpoint) -> str:
    """Describes the place if it can be reached. Raises TargetDown after some seconds otherwise.

    RabbitMQ must accept the login and have the exchange or queue, else NotFound. Other places must
    accept a connection; nothing is sent to them.
    """
    if place.url.startswith("amqp"):
        return _let_in(name, place)
    troubles = []
    # The URL of a NATS cluster names several servers; one is enough.
    for host, port in _servers(place):
        trouble = _trouble(host, port)
        if trouble is None:
            return f"{host}:{port} accepts connections"
        troubles.append(trouble)
    raise TargetDown(name, "; ".join(troubles), hint=_HINT)


def _let_in(name: str, place: Endpoint) -> str:
    try:
        topology.check(name, place)
    except TargetDown as down:
        raise TargetDown(name, down.message, hint=_HINT) from down
    return f"{masked(place.url)} accepts the login"


def _servers(place: Endpoint) -> list[tuple[str, int]]:
    """Hosts and ports. The URL of a webhook has one host, and may have commas in its path."""
    scheme, _, rest = place.url.partition("://")
    urls = rest.split(",") if scheme in {"nats", "tls"} else [rest]
    parts = [urlsplit(f"{scheme}://{each}") for each in urls[:SERVERS_MAX]]
    return [(each.hostname or "", each.port or _PORTS[scheme]) for each in parts]


def _trouble(host: str, port: int) -> str | None:
    """Why it accepts no connection; None if it does."""
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS_MAX).close()
    except (OSError, UnicodeError) as error:
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return f"{host}:{port} accepts no connection: {words}"
    return None
