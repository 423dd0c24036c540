"""The sample application: what `ledgerstone up` runs where no application and no database is named.

A job, a schedule and a consumer, on a file of its own. From a second terminal in the same folder:

    ledgerstone -A ledgerstone.sample:ledger jobs enqueue greeting.send --args '{"name": "Ada"}'
    ledgerstone -A ledgerstone.sample:ledger outbox publish order.placed '{"order": 7}'
    ledgerstone -A ledgerstone.sample:ledger status
"""

from __future__ import annotations

import logging

from ledgerstone.jobs import Job
from ledgerstone.ledger import Ledger, Transaction
from ledgerstone.messaging import Message
from ledgerstone.settings import Settings

URL = "sqlite:///.ledgerstone/sample.db"

_log = logging.getLogger("sample")

ledger = Ledger(settings=Settings.load(url=URL))


@ledger.job("greeting.send", max_attempts=3)
def send_greeting(job: Job, name: str) -> str:
    """Says hello; the greeting is the result of the job."""
    greeting = f"hello, {name}"
    _log.info("%s (attempt %d)", greeting, job.attempt)
    return greeting


@ledger.job("clock.tick")
def tick() -> None:
    """Runs once a minute."""
    _log.info("another minute has passed")


@ledger.consumer("order.*")
def reserve_stock(tx: Transaction, message: Message) -> None:
    """Reserves stock for an order, and has its customer greeted: one transaction."""
    _log.info("%s: %s", message.name, message.raw.decode())
    tx.jobs.enqueue(send_greeting, {"name": "customer"}, key=f"greeting-{message.id}")


ledger.schedule("every-minute", "* * * * *", job=tick)
