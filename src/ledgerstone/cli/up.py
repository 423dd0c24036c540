"""`ledgerstone up`: everything in one process, until it is told to stop.

The first Ctrl-C or SIGTERM: no more is claimed, handlers finish within the grace period, the rest
is returned with its attempt refunded. The second: everything is returned at once.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from sqlalchemy import make_url

from ledgerstone.blobs.tus.server import UploadServer, upload_server
from ledgerstone.console import logs, output
from ledgerstone.console.application import ledger_of
from ledgerstone.console.call import Call
from ledgerstone.console.serving import serve
from ledgerstone.ledger import Ledger
from ledgerstone.messaging.cli.carrying import (
    destinations_of,
    ready_to_carry,
    relays_of,
)
from ledgerstone.settings import Settings
from ledgerstone.signing.folder import store_folder

SAMPLE = "ledgerstone.sample:ledger"
TRY = (
    f'-A {SAMPLE} jobs enqueue greeting.send --args \'{{"name": "Ada"}}\'',
    f"-A {SAMPLE} outbox publish order.placed '{{\"order\": 7}}'",
    f"-A {SAMPLE} status",
)
"""Commands for a second terminal, while the sample application runs."""


def up(call: Call) -> None:
    """Run everything in one process: the jobs and consumers of your code, schedules and relays.

    -A names your code. Without it, messages are carried to every destination of the settings, and
    schedules and retention are looked after: no handler runs. A store of signing is looked after,
    too, every `signing.work_seconds`. With `blobs.upload_token` uploads are taken by HTTP (tus).
    Where neither code nor a database is named, a sample application runs on a file of its own.

    Example: ledgerstone up -A shop:ledger
    """
    sample = _is_sample(call)
    if sample:
        call = msgspec.structs.replace(call, application=SAMPLE)
    with ledger_of(call, make=True, tell=False) as ledger:
        log = ledger.settings.log
        level = "DEBUG" if call.verbose else log.level
        logs.to_stderr(level=level, json=log.json, application=True)
        destinations = destinations_of(ledger)
        ready_to_carry(ledger, destinations)
        relays = relays_of(ledger, destinations)
        served = sorted({kind.queue for kind in ledger.kinds.all().values()})
        jobs = [ledger.job_source(queue) for queue in served]
        try:
            with _uploads(ledger) as uploads:
                facts = serve(
                    ledger,
                    [*jobs, *relays],
                    json=call.json,
                    intro=_intro(call, sample),
                    stores=ledger.store_duties(),
                    uploads=uploads,
                )
        finally:
            for relay in relays:
                relay.transport.close()
    if call.json:
        output.show_json(facts)


@contextmanager
def _uploads(ledger: Ledger) -> Iterator[UploadServer | None]:
    """What takes uploads, where the settings want it."""
    blobs, grace = ledger.settings.blobs, ledger.settings.engine.grace_seconds
    server = upload_server(ledger.blobs, grace_seconds=grace) if blobs.enabled else None
    if server is None:
        yield None
        return
    with server:
        yield server


def _is_sample(call: Call) -> bool:
    """Whether nothing was named that could be run, and nothing of the user's lies at the default.

    The items of a user are never handled by code that is not theirs, and no payment of theirs is
    published into the database of the sample.
    """
    if not (call.application is None and call.url is None and call.config is None):
        return False
    settings, default = call.settings(), Settings()
    if (settings.url, settings.messaging) != (default.url, default.messaging):
        return False
    if store_folder(settings.signing).exists():
        return False
    return not Path(make_url(default.url).database or "").exists()


def _intro(call: Call, sample: bool) -> Sequence[str]:
    """The facts that are printed when it has begun."""
    if sample:
        return (
            f"no application and no database is named: this is the sample {SAMPLE}",
            "try in a second terminal:",
            *(f"{_program()} {words}" for words in TRY),
        )
    if call.application is None:
        return ("no handler runs here: name your code, as in `ledgerstone up -A shop:ledger`",)
    return ()


def _program() -> str:
    """How this program is called from another terminal."""
    if shutil.which("ledgerstone"):
        return "ledgerstone"
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m ledgerstone"
    return shlex.quote(str(started))
