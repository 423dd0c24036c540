"""Ledger and Transaction: open by URL, begin, join."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, overload
from uuid import UUID
from weakref import WeakSet

import msgspec

from ledgerstone import failpoints
from ledgerstone.async_transaction import AsyncTransaction
from ledgerstone.blobs.blobs import Blobs
from ledgerstone.blobs.room import BLOBS
from ledgerstone.blobs.store import BlobStore
from ledgerstone.engine.backoff import Backoff, BackoffPolicy, meant
from ledgerstone.engine.duties import Duty
from ledgerstone.engine.source import Source, Work
from ledgerstone.engine.store_duties import StoreDuties
from ledgerstone.engine.worker import Worker
from ledgerstone.errors import BadInput, CommitUnknown, KeyConflict, StoreUnavailable
from ledgerstone.jobs import Jobs, JobSource, Limit
from ledgerstone.jobs.accepting import NO_ORG
from ledgerstone.jobs.room import JOBS
from ledgerstone.jobs.schedules.cron import Misfire
from ledgerstone.jobs.schedules.schedules import NewSchedule, Schedules
from ledgerstone.jobs.tables import DEFAULT_QUEUE, MAX_ATTEMPTS
from ledgerstone.messaging import CompetingRelay, Failed, Inbox, OrderedRelay, Outbox
from ledgerstone.messaging.inbox.deliveries import Deliveries
from ledgerstone.messaging.outbox.publishing import Accepted, NewMessage
from ledgerstone.messaging.relay.relays import deliveries_of, relay_of
from ledgerstone.messaging.room import MESSAGING
from ledgerstone.protocols import BlobAppendSlice, Protocol, Protocols, Running, running
from ledgerstone.protocols.room import PROTOCOLS
from ledgerstone.room import Calls, Room, Rooms
from ledgerstone.settings import Settings
from ledgerstone.settings.messaging import LOCAL
from ledgerstone.settings.registered import rooms_of
from ledgerstone.signing.room import SIGNING
from ledgerstone.store.async_calls import RunInTransaction
from ledgerstone.store.clock import Clock
from ledgerstone.store.connections.commit_hooks import CommitHooks
from ledgerstone.store.connections.joins import DriverConnection, Joiner
from ledgerstone.store.database import Database
from ledgerstone.store.schema import revisions
from ledgerstone.store.transaction import Transaction as StoreTransaction

if TYPE_CHECKING:
    from types import TracebackType

    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

    from ledgerstone.signing.duty_store import Access
    from ledgerstone.signing.relay import Announcement
    from ledgerstone.signing.signing import Signing
    from ledgerstone.store.connections.joined import JoinedConnection
    from ledgerstone.store.connections.pool import PooledConnection

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
ErrorType = type[BaseException]
RELAY_STEPS_MAX = 1000
RELAY_TURN_STEPS_MAX = 4
"""Steps of one turn of a duty: publish and confirm, twice."""
SHIPPED: tuple[Room[Any, Any], ...] = (JOBS, MESSAGING, PROTOCOLS, SIGNING, BLOBS)
"""The rooms that every ledger has."""


class Transaction(StoreTransaction):
    """One transaction, ours or the caller's, with the calls of the rooms.

    - `connection` is the SQLAlchemy connection, for statements of the caller.
    - A joined transaction belongs to the caller, who commits, rolls back and closes it. After that
      it is refused: join the next one.
    """

    def __init__(
        self,
        database: Database[Any],
        connection: PooledConnection | JoinedConnection,
        *,
        rooms: Rooms,
        joined: bool = False,
        ending: CommitHooks | None = None,
    ) -> None:
        super().__init__(database, connection, joined=joined, ending=ending)
        self.rooms = rooms

    def room(self, room: Room[Calls, Any]) -> Calls:
        """The calls of `room` in this transaction; BadInput if the ledger does not have it."""
        return room.calls(self, self.rooms.state(room))

    @property
    def jobs(self) -> Jobs:
        """Jobs: enqueue, look at, cancel and retry them."""
        return self.room(JOBS)

    @property
    def schedules(self) -> Schedules:
        """Schedules: jobs at the times of a cron expression."""
        return Schedules(self, self.rooms.state(JOBS).kinds)

    @property
    def outbox(self) -> Outbox:
        """The outbox: publish messages, and look at what waits for delivery."""
        return self.room(MESSAGING)

    @property
    def inbox(self) -> Inbox:
        """The inbox: the receipts of handled messages."""
        return Inbox(self, self.rooms.state(MESSAGING))

    @property
    def failed(self) -> Failed:
        """Failed messages: look at, retry and remove them."""
        return Failed(self, self.rooms.state(MESSAGING))

    @property
    def blobs(self) -> Blobs:
        """Files in slices; `ledger.blobs` stores and reads whole files."""
        return self.room(BLOBS)

    @property
    def protocols(self) -> Protocols:
        """Protocols: their events, and what waits in them."""
        return self.room(PROTOCOLS)

    def awaited(self, carry: RunInTransaction[Transaction]) -> AsyncTransaction:
        """The same transaction for an event loop; `carry` runs its calls outside of the loop."""
        return AsyncTransaction(carry)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing: the caller ends a joined transaction."""


class Ledger:
    """A ledger on one database.

    - `transaction()` is a transaction of our own, committed at the end of its block.
    - `join(x)` joins a transaction of the caller: what is written in it commits with it.
    - `run(work)` calls a function in a transaction and retries it.
    - `worker(*sources)` makes the worker that runs jobs, relays and duties.

    Parameters:
    - `url` names the database: sqlite:///FILE, postgresql://… or mysql://…; by default that of the
      settings.
    - `settings` are by default those of the environment and of `ledgerstone.toml`.
    - `clock` replaces the database's clock in tests.
    - `rooms` are rooms of your own; those that the setting `rooms` names come after them.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
        rooms: Sequence[Room[Any, Any]] = (),
    ) -> None:
        if settings is None:
            overrides = {"url": url} if url else {}
            settings = Settings.load(None, None, with_rooms=rooms, **overrides)
        elif url is not None:
            settings = msgspec.structs.replace(settings, url=url)
        self.rooms = rooms_for(settings, rooms)
        # The names of the rooms, for code that gets the settings without the ledger.
        others = [room.name for room in self.rooms if room not in SHIPPED]
        self.settings = msgspec.structs.replace(settings, rooms=others)
        self.kinds = self.rooms.state(JOBS).kinds
        self.registry = self.rooms.state(MESSAGING)
        self.database: Database[Transaction] = opened_database(self.settings, self.rooms, clock)
        if settings.protocols.enabled and settings.blobs.enabled:
            self.rooms.state(PROTOCOLS).keep_slice = _keep_slice
        self._joiner = Joiner(self.database)
        self._carriers: WeakSet[OrderedRelay | CompetingRelay] = WeakSet()
        self._deliveries: WeakSet[Deliveries] = WeakSet()
        self._checked = False
        if self._migrates_itself:
            self._ready()

    def __repr__(self) -> str:
        return f"Ledger({self.database.url.render_as_string(hide_password=True)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def transaction(self) -> AbstractContextManager[Transaction]:
        """A transaction that commits at the end of the block, or rolls back if the block raises."""
        self._ready()
        return self.database.transaction()

    def reading(self) -> AbstractContextManager[Transaction]:
        """A transaction that only reads."""
        self._ready()
        return self.database.reading()

    def run(self, work: Callable[[Transaction], T]) -> T:
        """Run `work(tx)` in a transaction and return its result.

        - The whole function is retried after a deadlock or serialization failure, and once after a
          connection was lost before the commit was sent.
        - CommitUnknown is not retried: the transaction may have been committed.
        """
        self._ready()
        begun = False

        def noted(tx: Transaction) -> T:
            nonlocal begun
            begun = True
            return work(tx)

        try:
            return self.database.run(noted)
        except StoreUnavailable as error:
            # Without a connection, a retry would only wait for the same timeout.
            if isinstance(error, CommitUnknown) or not begun:
                raise
        return self.database.run(work)

    @overload
    def join(
        self, joined: AsyncConnection | AsyncSession | async_scoped_session[AsyncSession]
    ) -> AsyncTransaction: ...

    @overload
    def join(
        self, joined: Connection | Session | scoped_session[Session] | DriverConnection
    ) -> Transaction: ...

    def join(self, joined: object) -> Transaction | AsyncTransaction:
        """Join the caller's transaction: what is written commits or rolls back with it.

        - `joined` is a SQLAlchemy connection or session, sync or async, a Django connection inside
          `atomic`, or a connection of psycopg, sqlite3 or PyMySQL.
        - The result for an async object is an AsyncTransaction, whose calls are awaited.
        - NotInTransaction if each statement would commit by itself, or at a use after the caller
          has ended the transaction; WrongDatabase if the connection is to another database.
        """
        # Not by type: SQLAlchemy's ORM and its asyncio extension may not be loaded.
        if hasattr(joined, "registry") and callable(joined):
            # A scoped session, sync or async: the session of this thread or task.
            joined = joined()
        if hasattr(joined, "run_sync"):
            return AsyncTransaction(self._joining(cast("AsyncSession", joined)))
        return self._joined(joined)

    def _joining(self, bridge: AsyncSession) -> RunInTransaction[Transaction]:
        """Join at the first call, which may wait for the database, and stay in that transaction."""
        tx: Transaction | None = None

        def inside(sync: object, work: Callable[[Transaction], T]) -> T:
            nonlocal tx
            if tx is None:
                tx = self._joined(sync)
            return work(tx)

        return lambda work: bridge.run_sync(inside, work)

    @property
    def blobs(self) -> BlobStore:
        """Files, stored and read in transactions of their own."""
        self._ready()
        return BlobStore(self.database, self.rooms.state(BLOBS))

    def migrate(self) -> revisions.Schema:
        """Apply the pending migrations; returns the state of the schema before them."""
        before = revisions.migrate(self.database)
        if self.settings.messaging.auto_setup:
            self.registry.setup.apply(self.database)
        self._checked = True
        return before

    def job(
        self,
        name: str,
        *,
        queue: str = DEFAULT_QUEUE,
        max_attempts: int = MAX_ATTEMPTS,
        priority: int = 0,
        backoff: Backoff | BackoffPolicy | str | None = None,
        timeout: timedelta | float | None = None,
        timeout_seconds: float | None = None,
        retry_on: ErrorType | Iterable[ErrorType] | None = None,
        give_up_on: ErrorType | Iterable[ErrorType] = (),
        limit: Limit | None = None,
        process: bool = False,
    ) -> Callable[[F], F]:
        """Declare a type of job: the decorated function, sync or async, runs the jobs of this name.

        The arguments of a job are checked against the annotations of the function when the job is
        enqueued and when it runs. A first parameter with the name `job` gets the job itself: a
        `Job`, or an `AsyncJob` for an async function. A function that no worker could run raises
        BadInput here.

        - `name`: the type, kept in each job.
        - `queue`: the queue of its jobs; workers and limits are per queue.
        - `max_attempts`: how many attempts begin before the job becomes a dead letter.
        - `priority`: a higher one is claimed first.
        - `backoff`: the pause before the next attempt: a Backoff, or a policy: "none", "fixed",
          "exp".
        - `timeout`: a timedelta, or `timeout_seconds` in its place. An attempt that runs longer is
          told to stop and has failed.
        - `retry_on`: retry only after exceptions of these types; after others the job is a dead
          letter at once. Temporary errors of Ledgerstone are always retried.
        - `give_up_on`: after exceptions of these types the job is a dead letter at once; it wins
          over `retry_on`.
        - `limit`: how many jobs with the same limit key run at once.
        - `process`: run each job in a child process, which a timeout kills, and whose crash harms
          no other job.
        """
        given: object = name
        if not isinstance(given, str):
            message = f"the name of a job is text, not {given!r}"
            raise BadInput(message, hint='give it one: @ledger.job("mail.send")')

        if timeout is not None and timeout_seconds is not None:
            message = f"the job {name} has a timeout and timeout_seconds"
            raise BadInput(message, hint="give one of them")
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        waits = meant(name, backoff)

        def decorate(call: F) -> F:
            self.kinds.add(
                name,
                call,
                queue=queue,
                max_attempts=max_attempts,
                priority=priority,
                backoff=waits,
                timeout_seconds=timeout_seconds if seconds is None else seconds,
                retry_on=retry_on,
                give_up_on=give_up_on,
                limit=limit,
                process=process,
            )
            return call

        return decorate

    def schedule(
        self,
        name: str,
        cron: str,
        *,
        job: str | Callable[..., object],
        payload: Mapping[str, object] | None = None,
        time_zone: str = "UTC",
        misfire: str | Misfire = Misfire.ONCE,
        org: str | UUID = NO_ORG,
        queue: str | None = None,
        priority: int | None = None,
    ) -> None:
        """Declare that a job is enqueued at the moments of a cron expression.

        - The parameters are those of `tx.schedules.put`.
        - Each worker of this ledger puts the schedule when it is made; the same content changes
          nothing.
        - A schedule that is no longer declared stays in the database until
          `ledgerstone schedules remove NAME`.
        """
        self.rooms.state(JOBS).declared.add(
            NewSchedule(
                name=name,
                job=job,
                cron=cron,
                payload=payload or {},
                time_zone=time_zone,
                misfire=misfire,
                org=org,
                queue=queue,
                priority=priority,
            )
        )

    def job_source(self, queue: str = DEFAULT_QUEUE) -> JobSource:
        """The source of the jobs of `queue`, for `worker`."""
        crashes_max = self.settings.engine.crashes_max
        return JobSource(queue, self.kinds, self.database, crashes_max=crashes_max)

    def consumer(
        self, pattern: str, *, name: str | None = None, ordered: bool = False
    ) -> Callable[[F], F]:
        """Make a function, `f(tx, message)`, a consumer.

        - `pattern` selects messages by their name.
        - `name` is stored in its receipts; a name keeps them when the function is moved.
        - `ordered` handles the messages of a partition one after the other.

        Each consumer handles a message once: its receipt and its writes through `tx` commit
        together.
        """

        def decorate(call: F) -> F:
            self.registry.consumers.add(pattern, call, name=name, ordered=ordered)
            return call

        return decorate

    def relay_source(self, destination: str = LOCAL) -> OrderedRelay | CompetingRelay:
        """The relay that delivers messages to `destination`, for `worker`."""
        made = relay_of(destination, self.registry, self.database)
        self._carriers.add(made)
        return made

    def deliveries(self, subscription: str) -> Deliveries:
        """The deliveries of `subscription` to the consumers of this process, for `worker`."""
        self._ready()
        made = deliveries_of(subscription, self.registry, self.database)
        self._deliveries.add(made)
        return made

    def protocol(self, protocol: Protocol | Path | str) -> Running:
        """Run a protocol on this ledger; its tables are created or migrated.

        `protocol` is a Protocol, the path of its folder, or the name of one that runs already.
        """
        self._ready()
        registry = self.rooms.state(PROTOCOLS)
        return running(protocol, registry, self.database, self.settings)

    def signing_duties(self, signing: Signing) -> StoreDuties[Access]:
        """The duties of a `signing` store that this process has open, for `worker(stores=…)`.

        They expire requests, forget seen messages, and archive, delete and publish as the settings
        say. Close the store after the worker has stopped.
        """
        from ledgerstone.signing.duties import duties
        from ledgerstone.signing.duty_store import OpenStore

        store = OpenStore(signing, monotonic=self.database.clock.monotonic)
        return duties(store, self._relay_turn)

    def store_duties(self) -> list[StoreDuties[Any]]:
        """The duties of the stores of the settings, for `worker(stores=…)`.

        That is the store of signing, unless `signing.work_seconds` is none. Each turn opens the
        store and closes it; a store that another process has open is tried again at the next turn.
        """
        settings = self.settings.signing
        if settings.work_seconds is None:
            return []
        # Not at the top: it loads RocksDB.
        from ledgerstone.signing.duties import duties
        from ledgerstone.signing.duty_store import StoreOnDemand

        store = StoreOnDemand(
            settings,
            every_seconds=settings.work_seconds,
            monotonic=self.database.clock.monotonic,
        )
        return [duties(store, self._relay_turn)]

    def relay_signing(self, signing: Signing, *, steps_max: int = RELAY_STEPS_MAX) -> int:
        """Publish the pending messages of a `signing` store; returns how many were new.

        At most `steps_max` steps; the next call publishes the rest.
        """
        published = 0
        for _ in range(steps_max):
            if not signing.list_outgoing(rows_max=1):
                break
            published += signing.relay(
                lambda announcements: self.run(lambda tx: _announce(tx, announcements))
            )
        return published

    def _relay_turn(self, signing: Signing) -> int:
        return self.relay_signing(signing, steps_max=RELAY_TURN_STEPS_MAX)

    def worker(
        self,
        *sources: Source | Work,
        duties: Sequence[Duty] = (),
        stores: Sequence[StoreDuties[Any]] = (),
    ) -> Worker:
        """A worker for this process.

        - `sources` are what it claims from; by default the queues of all declared jobs, the
          messages for the declared consumers, and the sources of the other rooms.
        - `duties` run beside the duties of the rooms.
        - `stores` are duties on other stores than the database, such as `signing_duties`.
        """
        self._ready()
        opened = [(room, self.rooms.opened(room, self.database)) for room in self.rooms]
        if not sources:
            sources = tuple(each for room, at in opened for each in room.sources(at))
        for room, at in opened:
            room.begin(at)
        stored = [each for each in sources if not isinstance(each, Work)]
        own = [duty for room, at in opened for duty in room.duties(at, stored)]
        return Worker(
            self.database,
            sources,
            self.settings.engine,
            duties=[*own, *duties],
            stores=stores,
        )

    def close(self) -> None:
        """Close the connections to the database and to brokers."""
        for deliveries in list(self._deliveries):
            deliveries.close()
        for carrier in list(self._carriers):
            carrier.close()
        self.database.close()

    @property
    def _migrates_itself(self) -> bool:
        policy = self.settings.store.auto_migrate
        return policy == "always" or (policy == "embedded" and self.database.dialect.embedded)

    def _joined(self, joined: object) -> Transaction:
        self._ready()
        connection = self._joiner.connection_of(joined)
        return Transaction(
            self.database,
            connection,
            rooms=self.rooms,
            joined=True,
            ending=self._joiner.hooks_of(connection.connection),
        )

    def _ready(self) -> None:
        """Check once that the schema has the revision of this version; migrate if allowed."""
        if self._checked:
            return
        with self.database.reading() as tx:
            names = self.database.namespace
            schema = revisions.look(tx.connection, names, self.database.rooms)
            if schema.up_to_date or not self._migrates_itself:
                revisions.check(schema, self.database.url)
        if not schema.up_to_date:
            self.migrate()
        self._checked = True


def rooms_for(settings: Settings, rooms: Sequence[Room[Any, Any]] = ()) -> Rooms:
    """The shipped rooms, `rooms`, and the rooms that the settings name."""
    given = {room.name for room in rooms}
    named = cast(
        "list[Room[Any, Any]]", rooms_of(name for name in settings.rooms if name not in given)
    )
    found = Rooms([*SHIPPED, *rooms, *named], settings)
    failpoints.check()
    return found


def opened_database(
    settings: Settings, rooms: Rooms, clock: Clock | None = None
) -> Database[Transaction]:
    """The database of the settings; its transactions have these rooms."""
    wrap = partial(Transaction, rooms=rooms)
    return Database(settings.url, settings.store, wrap=wrap, clock=clock, rooms=rooms.stored)


def _keep_slice(tx: StoreTransaction, wish: BlobAppendSlice) -> None:
    """Store a slice of a file for a command of a protocol."""
    assert isinstance(tx, Transaction)
    place = (wish.file_id, wish.slice_no, wish.offset)
    tx.blobs.add_slice(*place, wish.data, total_size=wish.total_size)


def _announce(tx: StoreTransaction, announcements: Sequence[Announcement]) -> list[bool]:
    """Publish messages of signing; returns for each whether the outbox had it before."""
    assert isinstance(tx, Transaction)
    new = [
        NewMessage(name=each.name, body=each.body, partition=each.partition, key=each.key)
        for each in announcements
    ]
    published = tx.outbox.publish_many(new)
    for each, message in zip(published, new, strict=True):
        if each.accepted is Accepted.CONFLICT:
            raise KeyConflict(f"the key {message.key!r} was used before with other content")
    return [each.accepted is Accepted.EXISTING for each in published]
