"""A plain client of a broker, for tests that look and arrange, however busy the machine is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika

from ledgerstone.ids import new_id
from ledgerstone.testing.servers import PrivateRabbitMQ
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX


def connected(url: str) -> Any:
    """A connection; as a context manager it is closed at the end."""
    patient = pika.URLParameters(url)
    patient.socket_timeout = patient.stack_timeout = WAIT_SECONDS_MAX
    patient.blocked_connection_timeout = WAIT_SECONDS_MAX
    return pika.BlockingConnection(patient)


@contextmanager
def virtual_host(rabbit: PrivateRabbitMQ) -> Iterator[str]:
    """The name of an empty virtual host, which goes at the end with everything in it."""
    name = f"house-{new_id()}"
    host, everything, by = f'<<"{name}">>', '<<".*">>', '<<"tests">>'
    rabbit.evaluate(f"rabbit_vhost:add({host}, {by})")
    permissions = f'<<"guest">>, {host}, {everything}, {everything}, {everything}, {by}'
    rabbit.evaluate(f"rabbit_auth_backend_internal:set_permissions({permissions})")
    yield name
    rabbit.evaluate(f"rabbit_vhost:delete({host}, {by})")
