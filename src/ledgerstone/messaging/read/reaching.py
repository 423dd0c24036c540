"""Whether a destination or a subscription can be reached from here, asked without a message."""

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
_HINT = "check that it is running and reachable, and its url; messages wait for it meanwhile"


def reached(name: str, place: Endpoint) -> str:
    """What it is, if it can be reached; TargetDown if not, after some seconds at the latest.

    RabbitMQ has to let us in and to have the exchange or queue (NotFound if it has not); others
    have to take a connection: they are told nothing.
    """
    if place.url.startswith("amqp"):
        return _let_in(name, place)
    troubles = []
    # A cluster of NATS is named by several servers; one is enough.
    for host, port in _servers(place):
        trouble = _trouble(host, port)
        if trouble is None:
            return f"{host}:{port} takes connections"
        troubles.append(trouble)
    raise TargetDown(name, "; ".join(troubles), hint=_HINT)


def _let_in(name: str, place: Endpoint) -> str:
    try:
        topology.check(name, place)
    except TargetDown as down:
        raise TargetDown(name, down.message, hint=_HINT) from down
    return f"{masked(place.url)} lets us in"


def _servers(place: Endpoint) -> list[tuple[str, int]]:
    """Hosts and ports; of a webhook there is one, and commas may stand in its path."""
    scheme, _, rest = place.url.partition("://")
    urls = rest.split(",") if scheme in {"nats", "tls"} else [rest]
    parts = [urlsplit(f"{scheme}://{each}") for each in urls[:SERVERS_MAX]]
    return [(each.hostname or "", each.port or _PORTS[scheme]) for each in parts]


def _trouble(host: str, port: int) -> str | None:
    """Why it takes no connection; None if it does."""
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS_MAX).close()
    except (OSError, UnicodeError) as error:
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return f"{host}:{port} takes no connection: {words}"
    return None
