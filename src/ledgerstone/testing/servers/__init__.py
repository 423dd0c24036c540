"""The private servers: PostgreSQL, MariaDB, RabbitMQ, NATS and PgBouncer."""

from ledgerstone.testing.servers.mariadb import PrivateMariaDB
from ledgerstone.testing.servers.nats import PrivateNats
from ledgerstone.testing.servers.pgbouncer import PrivatePgBouncer
from ledgerstone.testing.servers.postgres import PrivatePostgres
from ledgerstone.testing.servers.rabbitmq import PrivateRabbitMQ

__all__ = [
    "PrivateMariaDB",
    "PrivateNats",
    "PrivatePgBouncer",
    "PrivatePostgres",
    "PrivateRabbitMQ",
]
