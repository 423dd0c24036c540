"""The job contract, first part: what is accepted, what is refused, and what is kept of it.

The other parts: `job_keys` (batches), `job_columns` (the documented tables), `job_moves` (the state
machine and its history), `job_running` (handlers), `job_inside`, `job_awaited` and
`job_interrupted` (what they can do with their job, plain and async), `job_operating` (what people
do), `job_order` (who is next), `job_histories` (random histories) and `job_crashes` (workers that
die).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
import pytest

from ledgerstone.errors import BadInput, KeyConflict, TooLarge
from ledgerstone.ids import new_id
from ledgerstone.jobs import Accepted, Limit, NewJob, Status
from ledgerstone.jobs.accepting import DELAY_SECONDS_MAX, NO_ORG
from ledgerstone.jobs.handlers.kinds import ATTEMPTS_LIMIT, PRIORITY_MAX
from ledgerstone.jobs.jobs import ENQUEUE_MAX, listed
from ledgerstone.jobs.states import Gate
from ledgerstone.ledger import Ledger
from ledgerstone.settings import Settings
from ledgerstone.testing.clock import ManualClock
from ledgerstone.testing.fixtures import Home
from tests.contract.jobs.examples import (
    enqueue,
    history_of,
    kept,
    nothing,
    standing,
    statement,
    tick,
)
from tests.harness.joinable import Guest, guest_on, url_for
from tests.harness.ledgers import undone
from tests.harness.own_table import notes_kept, tables
from tests.harness.threads import together

RACERS = 10
TRIES = 100
"""What each racer enqueues: together a thousand."""
ZONE = timezone(timedelta(hours=5, minutes=30))

BAD_PAYLOADS: dict[str, Any] = {
    "wrong type": {"order": "seven"},
    "missing": {},
    "unknown": {"order": 7, "colour": "red"},
    "null": {"order": None},
    "a list": [7],
    "an empty list": [],
    "a text": "order",
    "an empty text": "",
    "a number": 7,
    "nought": 0,
    "NaN": {"order": 7, "weight": float("nan")},
    "infinity": {"order": 7, "weight": float("inf")},
    "NUL": {"order": 7, "words": "a\0b"},
    "half a character": {"order": 7, "words": "\ud83d"},
    "no JSON": {"order": 7, "words": object()},
}
BAD_OPTIONS: dict[str, dict[str, Any]] = {
    "no queue": {"queue": ""},
    "a long queue": {"queue": "q" * 101},
    "a queue with NUL": {"queue": "a\0b"},
    "a queue that ends in a space": {"queue": "a "},
    "no key": {"key": ""},
    "a long key": {"key": "k" * 256},
    "a key with half a character": {"key": "\udc00"},
    "no UUID": {"org": "acme"},
    "no organisation": {"org": ""},
    "a high priority": {"priority": PRIORITY_MAX + 1},
    "a low priority": {"priority": -PRIORITY_MAX - 1},
    "a priority in words": {"priority": "high"},
    "half a priority": {"priority": 1.5},
    "a truth as a priority": {"priority": True},
    "no attempt": {"max_attempts": 0},
    "attempts in words": {"max_attempts": "five"},
    "many attempts": {"max_attempts": ATTEMPTS_LIMIT + 1},
    "a moment without a zone": {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001 - that is the case
    "a moment too far away": {"run_at": datetime(9999, 1, 1, tzinfo=UTC)},
    "no delay": {"delay_seconds": None},
    "a delay that is over": {"delay_seconds": -1},
    "a delay without an end": {"delay_seconds": float("inf")},
    "a delay that is no number": {"delay_seconds": float("nan")},
    "a long delay": {"delay_seconds": DELAY_SECONDS_MAX + 1},
    "a moment and a delay": {"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay_seconds": 5},
    "a long requester": {"requested_by": "w" * 256},
    "a long correlation": {"correlation_id": "c" * 256},
    "a long trace": {"trace_context": "t" * 513},
}


class AcceptingContract:
    """What `enqueue` promises. Fixtures: `ledger`, `clock`."""

    def test_one_is_accepted(self, ledger: Ledger, clock: ManualClock) -> None:
        """A job is kept as it was given, queued, with its first event."""
        with ledger.transaction() as tx:
            enqueued = tx.jobs.enqueue("mail.send", {"to": "ada", "copies": [1, 2.5, None]})

        row = standing(ledger, enqueued.id)
        (event,) = history_of(ledger, enqueued.id)
        assert (enqueued.accepted, enqueued.created) == (Accepted.CREATED, True)
        assert (row.type, row.payload) == ("mail.send", {"to": "ada", "copies": [1, 2.5, None]})
        assert (row.status, row.attempt, row.max_attempts) == (Status.QUEUED, 0, 5)
        assert (row.queue, row.priority, row.org_id) == ("default", 0, NO_ORG)
        assert (row.key, row.started_at, row.finished_at) == (None, None, None)
        moment = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
        assert (row.created_at, row.updated_at, row.run_at) == (moment, moment, moment)
        assert (event.prev_status, event.next_status, event.ts) == (None, "queued", moment)

    def test_everything_given_is_kept(self, ledger: Ledger, clock: ManualClock) -> None:
        """Key, organisation, queue, priority and who asked are kept, to the full length."""
        org = UUID(new_id())
        given = {
            "key": "ключ-" + "🗝" * 250,
            "queue": "q" + "ü" * 99,
            "priority": -7,
            "max_attempts": 2,
            "requested_by": "ø" * 255,
            "correlation_id": "c" * 255,
            "trace_context": "t" * 512,
        }

        job_id = enqueue(ledger, "t" * 100, {"n": 1}, org=org, **given)

        row = standing(ledger, job_id)
        assert {name: getattr(row, name) for name in given} == given
        assert row.org_id == str(org)
        (event,) = history_of(ledger, job_id)
        assert event.detail == {"by": given["requested_by"], "correlation_id": "c" * 255}
        for option, told in (("requested_by", "by"), ("correlation_id", "correlation_id")):
            (event,) = history_of(ledger, enqueue(ledger, "a", **{option: "me"}))
            assert event.detail == {told: "me"}

    def test_what_the_kind_says_and_what_the_call_says(
        self, ledger: Ledger, clock: ManualClock
    ) -> None:
        """What a call leaves out comes from the kind; what it gives goes before it, also nought."""
        ledger.kinds.add("kind", nothing, queue="slow", priority=5, max_attempts=9)

        plain = standing(ledger, enqueue(ledger, nothing))
        given = standing(ledger, enqueue(ledger, "kind", queue="fast", priority=0, max_attempts=1))

        assert (plain.type, plain.queue, plain.priority, plain.max_attempts) == (
            "kind",
            "slow",
            5,
            9,
        )
        assert (given.queue, given.priority, given.max_attempts) == ("fast", 0, 1)

    def test_when_it_is_due(self, ledger: Ledger, clock: ManualClock) -> None:
        """A moment or a delay puts a job off to the millisecond; one in the past is due now."""
        now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
        due, past = now + timedelta(seconds=90.25), now - timedelta(days=1)

        at = standing(ledger, enqueue(ledger, "later", run_at=due.astimezone(ZONE)))
        delayed = standing(ledger, enqueue(ledger, "later", delay_seconds=90.25))
        over = standing(ledger, enqueue(ledger, "later", run_at=past))

        assert (at.run_at, at.gate) == (due, Gate.SCHEDULED)
        assert (delayed.run_at, delayed.gate) == (due, Gate.SCHEDULED)
        assert (over.run_at, over.gate) == (past, Gate.OPEN)

    def test_moments_of_long_ago(self, ledger: Ledger, clock: ManualClock) -> None:
        """A moment before 1970 is due now; one beyond all calendars, by anybody, can be read."""
        first = datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))
        odd = enqueue(ledger, "later")
        statement(ledger, "UPDATE job SET run_at_ms = :ms", ms=10**18)

        old = standing(ledger, enqueue(ledger, "later", run_at=first))

        assert (old.run_at, old.gate) == (datetime(1970, 1, 1, tzinfo=UTC), Gate.OPEN)
        assert standing(ledger, odd).run_at == datetime.max.replace(tzinfo=UTC)

    def test_the_clock_that_bounds(self, home: Home) -> None:
        """How far away a moment may be goes by the ledger's clock, not by this machine's."""
        years = timedelta(seconds=DELAY_SECONDS_MAX)
        start = datetime(1985, 1, 1, tzinfo=UTC)
        clock = ManualClock(round(start.timestamp() * 1000))
        settings = Settings.load(url=home.url, environ={})

        with Ledger(home.url, settings=settings, clock=clock) as ledger:
            ledger.migrate()
            job_id = enqueue(ledger, "later", run_at=start + years)
            refused = _refused(ledger, "later", {}, run_at=start + years + timedelta(days=1))

            assert standing(ledger, job_id).run_at == start + years
        assert refused

    def test_a_key_that_was_added_by_hand(self, ledger: Ledger, clock: ManualClock) -> None:
        """A job that somebody added to the table has its key like one that was accepted here."""
        added = [("hand", '{"n": 1.0}', NO_ORG), ("bare", None, NO_ORG), ("new", None, new_id())]
        for key, payload, org in added:
            statement(
                ledger,
                "INSERT INTO job (id, org_id, type, idempotency_key, payload) "
                "VALUES (:id, :org, 'a', :key, :payload)",
                id=new_id(),
                org=org,
                key=key,
                payload=payload,
            )
        calls = [("hand", {"n": 1}), ("bare", {}), ("bare", {"n": 1}), ("new", {}), (None, {})]
        many = [NewJob(type="a", key=key, payload=payload) for key, payload in calls]

        answers = ledger.run(lambda tx: tx.jobs.enqueue_many(many))
        again = ledger.run(lambda tx: tx.jobs.enqueue_many(many[:4]))

        words = ["existing", "existing", "conflict", "created", "created"]
        assert [answer.accepted.value for answer in answers] == words
        assert [answer.accepted.value for answer in again] == [*words[:3], "existing"]
        assert [answer.id for answer in again] == [answer.id for answer in answers[:4]]
        assert standing(ledger, answers[0].id).key == "hand"
        assert kept(ledger) == (5, 2, 3)
        with pytest.raises(KeyConflict), ledger.transaction() as tx:
            tx.jobs.enqueue("b", {"n": 1}, key="hand")

    def test_many_with_an_answer_for_each(self, ledger: Ledger, clock: ManualClock) -> None:
        """Each row of a batch is created, existing or a conflict, also against its own twins."""
        first = enqueue(ledger, "a", {"n": 1}, key="one")
        batch = [
            NewJob(type="a", payload={"n": 1}, key="one"),
            NewJob(type="a", payload={"n": 2}, key="one"),
            NewJob(type="a", payload={"n": 3}),
            NewJob(type="a", payload={"n": 4}, key="two"),
            NewJob(type="a", payload={"n": 4}, key="two"),
            NewJob(type="a", payload={"n": 5}, key="two"),
            NewJob(type="a", payload={"n": 3}),
        ]

        with ledger.transaction() as tx:
            answers = tx.jobs.enqueue_many(batch)

        assert [a.accepted.value for a in answers] == [
            "existing",
            "conflict",
            "created",
            "created",
            "existing",
            "conflict",
            "created",
        ]
        assert [a.id for a in answers[:2]] == [first, first]
        assert {a.id for a in answers[3:6]} == {answers[3].id}
        assert kept(ledger) == (4, 4, 2)

    def test_many_more_than_one_statement_takes(self, ledger: Ledger, clock: ManualClock) -> None:
        """A batch of thousands is accepted as one, its answers in the order of its rows."""
        batch = [NewJob(type="a", payload={"n": n}, key=f"k{n % 2300}") for n in range(2500)]

        with ledger.transaction() as tx:
            answers = tx.jobs.enqueue_many(batch)
            nobody = tx.jobs.enqueue_many([])

        accepted = [a.accepted for a in answers]
        assert accepted == [Accepted.CREATED] * 2300 + [Accepted.CONFLICT] * 200
        assert [a.id for a in answers[2300:]] == [a.id for a in answers[:200]]
        assert nobody == []
        assert kept(ledger) == (2300, 2300, 2300)
        assert standing(ledger, answers[1234].id).payload == {"n": 1234}

    def test_more_than_one_call_accepts(self, ledger: Ledger, clock: ManualClock) -> None:
        """Beyond `ENQUEUE_MAX` a call is refused before anything is looked at or written."""
        odd = NewJob(type="a", key="")
        read = itertools.count()

        for batch in ([odd] * (ENQUEUE_MAX + 1), (odd for _ in read)):
            with ledger.transaction() as tx, pytest.raises(BadInput, match="several calls"):
                tx.jobs.enqueue_many(batch)

        assert len(listed([odd] * ENQUEUE_MAX)) == ENQUEUE_MAX
        assert next(read) == ENQUEUE_MAX + 1
        assert kept(ledger) == (0, 0, 0)

    def test_many_by_a_generator(self, ledger: Ledger, clock: ManualClock) -> None:
        """What is given one by one is accepted like a list, its answers in the same order."""
        with ledger.transaction() as tx:
            answers = tx.jobs.enqueue_many(NewJob(type="a", payload={"n": n}) for n in range(3))

        payloads = [standing(ledger, answer.id).payload for answer in answers]
        assert payloads == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert kept(ledger) == (3, 3, 0)

    def test_what_is_no_list_of_jobs(self, ledger: Ledger, clock: ManualClock) -> None:
        """One job, nothing, or something else in place of many is refused, with what to give."""
        job = NewJob(type="a")
        odd: list[Any] = [None, job, 7, "mail", {"type": "a"}, [job, None], [job, {"type": "a"}]]

        for given in odd:
            with ledger.transaction() as tx, pytest.raises(BadInput, match="enqueue_many"):
                tx.jobs.enqueue_many(given)

        assert kept(ledger) == (0, 0, 0)

    def test_alike_in_one_call(self, ledger: Ledger, clock: ManualClock) -> None:
        """Of many in one call each is checked, and limited, by its own kind and arguments."""

        def served(customer: str) -> None:
            raise AssertionError(customer)

        ledger.kinds.add("served", served, limit=Limit(key=lambda customer: customer))
        ledger.kinds.add("plain", nothing)
        given = [("served", "ada"), ("served", "bob"), ("other", "bob"), ("served", "bob")]
        batch = [NewJob(type=name, payload={"customer": who}) for name, who in given]
        misfits: list[dict[str, Any]] = [{"customer": 7}, {"customer": "bob", "colour": "red"}]

        answers = ledger.run(lambda tx: tx.jobs.enqueue_many(batch))
        for bad in (
            *(NewJob(type="served", payload=payload) for payload in misfits),
            NewJob(type="plain", payload={"customer": "bob"}),
        ):
            with pytest.raises(BadInput), ledger.transaction() as tx:
                tx.jobs.enqueue_many([*batch, bad])

        keys = [standing(ledger, answer.id).limit_key for answer in answers]
        assert keys == ["ada", "bob", None, "bob"]
        assert kept(ledger) == (4, 4, 0)

    def test_a_malformed_one_refuses_its_batch(self, ledger: Ledger, clock: ManualClock) -> None:
        """If one of many cannot be accepted, none is."""
        batch = [NewJob(type="a", key="fine"), NewJob(type="a", key="")]

        with pytest.raises(BadInput), ledger.transaction() as tx:
            tx.jobs.enqueue_many(batch)

        assert kept(ledger) == (0, 0, 0)

    def test_same_key_same_content(self, ledger: Ledger, clock: ManualClock) -> None:
        """A key with the same content answers the job there is, in whatever order it is written."""
        first = enqueue(ledger, "a", {"x": 1, "y": [2]}, key="k", priority=1)

        with ledger.transaction() as tx:
            again = tx.jobs.enqueue("a", {"y": [2], "x": 1}, key="k", priority=3, queue="other")

        assert (again.id, again.accepted, again.created) == (first, Accepted.EXISTING, False)
        assert kept(ledger) == (1, 1, 1)
        assert standing(ledger, first).priority == 1

    def test_same_key_other_content(self, ledger: Ledger, clock: ManualClock) -> None:
        """A key with another payload or another type is a conflict that names the job."""
        first = enqueue(ledger, "a", {"x": 1}, key="k")
        others: list[tuple[str, dict[str, int]]] = [("a", {"x": 2}), ("b", {"x": 1}), ("a", {})]

        for other in others:
            with pytest.raises(KeyConflict, match=first):
                enqueue(ledger, *other, key="k")

        assert kept(ledger) == (1, 1, 1)

    def test_a_key_belongs_to_its_organisation(self, ledger: Ledger, clock: ManualClock) -> None:
        """The same key of two organisations is two keys, however their ids are written."""
        org, another = UUID(new_id()), new_id()
        first = enqueue(ledger, "a", {"x": 1}, key="k", org=org)

        other = enqueue(ledger, "a", {"x": 2}, key="k", org=another)
        same = enqueue(ledger, "a", {"x": 1}, key="k", org=str(org).upper())
        again = enqueue(ledger, "a", {"x": 2}, key="k", org=another)

        assert other != first
        assert (same, again) == (first, other)

    def test_keys_are_told_apart(self, ledger: Ledger, clock: ManualClock) -> None:
        """Keys that differ in case, accents or a space in front are different keys everywhere."""
        keys = ["key", "KEY", "kéy", " key", "key\t", "ke\u0301y"]

        ids = {enqueue(ledger, "a", {"k": key}, key=key) for key in keys}

        assert len(ids) == len(keys)

    def test_a_key_is_remembered(self, ledger: Ledger, clock: ManualClock) -> None:
        """A finished job keeps its key: the same content answers it, other content is refused."""
        ledger.kinds.add("nothing", nothing)
        first = enqueue(ledger, "nothing", key="k")
        tick(ledger)
        assert standing(ledger, first).status is Status.SUCCEEDED

        again = enqueue(ledger, "nothing", key="k")

        assert again == first
        with pytest.raises(KeyConflict):
            enqueue(ledger, "another", key="k")

    def test_a_rolled_back_key_is_free(self, ledger: Ledger, clock: ManualClock) -> None:
        """What a transaction that is undone has accepted leaves nothing, its key is free again."""
        with undone(ledger) as tx:
            lost = tx.jobs.enqueue("a", {"x": 1}, key="k")
        nothing_kept = kept(ledger)

        found = enqueue(ledger, "a", {"x": 2}, key="k")

        assert nothing_kept == (0, 0, 0)
        assert found != lost.id

    def test_payloads_that_do_not_fit(self, ledger: Ledger, clock: ManualClock) -> None:
        """What the function could not be called with is refused before anything is written."""

        @ledger.job("order.ship")
        def ship(order: int, words: str = "", weight: float = 0.0) -> None:
            raise AssertionError((order, words, weight))

        accepted = [
            case
            for case, payload in BAD_PAYLOADS.items()
            if not _refused(ledger, ship, payload, key="k")
        ]

        assert accepted == []
        assert kept(ledger) == (0, 0, 0)

    def test_payloads_that_are_no_arguments(self, ledger: Ledger, clock: ManualClock) -> None:
        """Arguments are given by name, also where none are needed or the type is not known here."""
        ledger.kinds.add("nothing", nothing)

        accepted = [
            (job, payload)
            for job in ("nothing", "elsewhere")
            for payload in ([], [1], "", "a", 0, 1, False, ())
            if not _refused(ledger, job, payload)
        ]

        assert accepted == []
        assert kept(ledger) == (0, 0, 0)

    def test_payloads_that_are_too_large(self, ledger: Ledger, clock: ManualClock) -> None:
        """A payload above the limit of a body is refused, by its size; one below it is kept."""
        bytes_max = ledger.settings.store.body_bytes_max
        words = "ü" * (bytes_max // 2 - 20)

        job_id = enqueue(ledger, "a", {"words": words})
        with pytest.raises(TooLarge, match=str(bytes_max)):
            enqueue(ledger, "a", {"words": words + "ü" * 20})

        assert standing(ledger, job_id).payload == {"words": words}
        assert kept(ledger) == (1, 1, 0)

    def test_options_that_are_refused(self, ledger: Ledger, clock: ManualClock) -> None:
        """A bad queue, key, organisation, bound or moment is refused, and nothing is written."""
        accepted = [
            case
            for case, options in BAD_OPTIONS.items()
            if not _refused(ledger, "a", {}, **options)
        ]

        assert accepted == []
        assert kept(ledger) == (0, 0, 0)

    def test_values_of_another_type(self, ledger: Ledger, clock: ManualClock) -> None:
        """What is of another type than asked for is refused by its name, and nothing is written."""
        for field, value in {
            "key": 7,
            "queue": b"q",
            "requested_by": ["me"],
            "correlation_id": 1.5,
            "trace_context": {},
            "run_at": "tomorrow",
            "delay_seconds": "x",
            "org": ["acme"],
            "type": ["a"],
            "priority": True,
            "max_attempts": 5.0,
        }.items():
            # Beside one that is all right, and where it is a number even equal.
            good = NewJob(type="a", priority=1, max_attempts=5)
            bad = msgspec.structs.replace(good, **{field: value})
            with pytest.raises(BadInput, match=field), ledger.transaction() as tx:
                tx.jobs.enqueue_many([good, bad])

        with ledger.reading() as tx:
            assert tx.jobs.find().rows == []
            with pytest.raises(BadInput, match="dead_letter"):
                tx.jobs.find(status="nonsense")

    def test_functions_that_are_no_jobs(self, ledger: Ledger, clock: ManualClock) -> None:
        """A function that is no job is refused; a type that another process knows is accepted."""
        with pytest.raises(BadInput, match=r"@ledger\.job"):
            enqueue(ledger, nothing)
        with pytest.raises(BadInput):
            enqueue(ledger, "")

        assert standing(ledger, enqueue(ledger, "elsewhere")).status is Status.QUEUED

    def test_a_race_for_one_key(self, ledger: Ledger) -> None:
        """A thousand enqueues of one key by ten at once are one job; other content is refused."""

        def race(number: int) -> list[str]:
            answers = []
            for turn in range(TRIES):
                payload = {"n": 0 if turn % 2 else number}
                answers.append(_tried(ledger, "race", payload))
            return answers

        answers = together(*[partial(race, number) for number in range(RACERS)])

        told = [answer for racer in answers for answer in racer]
        assert len(told) == RACERS * TRIES
        assert told.count("created") == 1
        assert kept(ledger) == (1, 1, 1)
        with ledger.reading() as tx:
            (row,) = tx.jobs.find(key="race").rows
        winner = row.payload["n"]
        assert isinstance(winner, int)
        assert told.count("conflict") == _others(winner)
        assert told.count("existing") == RACERS * TRIES - 1 - _others(winner)


def _refused(ledger: Ledger, job: Any, payload: Any, **options: Any) -> bool:
    try:
        enqueue(ledger, job, payload, **options)
    except BadInput:
        return True
    return False


def _tried(ledger: Ledger, key: str, payload: dict[str, int]) -> str:
    try:
        accepted = ledger.run(lambda tx: tx.jobs.enqueue("a", payload, key=key)).accepted
    except KeyConflict:
        return "conflict"
    return accepted.value


def _others(winner: int) -> int:
    """How many of the race brought another number than the winner's."""
    halves = TRIES // 2
    same = halves * RACERS + halves if winner == 0 else halves
    return RACERS * TRIES - same


@pytest.mark.filterwarnings("ignore:SQLite .* has the WAL-reset bug:RuntimeWarning")
class JoinedJobsContract:
    """Jobs in the user's own transaction. Fixtures: `home`."""

    @pytest.fixture(params=["session", "async-session", "driver"])
    def name(self, request: pytest.FixtureRequest) -> str:
        """Ways to hold a transaction."""
        return str(request.param)

    @pytest.fixture
    def ledger(self, home: Home, name: str) -> Iterator[Ledger]:
        """A ledger that the guest can join."""
        url = url_for(name, home)
        with Ledger(url, settings=Settings.load(url=url, environ={})) as ledger:
            ledger.migrate()
            tables.create_all(ledger.database.engine)
            yield ledger

    @pytest.fixture
    def guest(self, name: str, ledger: Ledger, home: Home) -> Iterator[Guest]:
        """A program with a transaction of its own on the same database."""
        with guest_on(name, home.url) as guest:
            guest.begin()
            yield guest

    def test_a_commit_keeps_both(self, ledger: Ledger, guest: Guest) -> None:
        """The user's rows and the job are seen together, and not before the user commits."""
        guest.execute("INSERT INTO note (name, count) VALUES ('mine', 0)")
        job = guest.joined(ledger, lambda tx: tx.jobs.enqueue("a", {"x": 1}, key="k"))
        again = guest.joined(ledger, lambda tx: tx.jobs.enqueue("a", {"x": 1}, key="k"))
        before = (notes_kept(ledger), kept(ledger))

        guest.commit()

        assert before == ([], (0, 0, 0))
        assert (again.id, again.accepted) == (job.id, Accepted.EXISTING)
        assert notes_kept(ledger) == ["mine"]
        assert kept(ledger) == (1, 1, 1)

    def test_a_rollback_keeps_neither(self, ledger: Ledger, guest: Guest) -> None:
        """When the user rolls back, neither their rows nor the jobs are there, nor a key."""
        guest.execute("INSERT INTO note (name, count) VALUES ('mine', 0)")
        guest.joined(ledger, lambda tx: tx.jobs.enqueue("a", {"x": 1}, key="k"))

        guest.rollback()

        assert notes_kept(ledger) == []
        assert kept(ledger) == (0, 0, 0)
        assert enqueue(ledger, "a", {"x": 2}, key="k")

    def test_a_refusal_leaves_the_transaction_usable(self, ledger: Ledger, guest: Guest) -> None:
        """A conflict or a bad payload does not spoil what the user does in their transaction."""
        guest.joined(ledger, lambda tx: tx.jobs.enqueue("a", {"x": 1}, key="k"))

        with pytest.raises(KeyConflict):
            guest.joined(ledger, lambda tx: tx.jobs.enqueue("a", {"x": 2}, key="k"))
        with pytest.raises(BadInput):
            guest.joined(ledger, lambda tx: tx.jobs.enqueue("a", {"x": float("nan")}))
        guest.execute("INSERT INTO note (name, count) VALUES ('after', 0)")
        guest.commit()

        assert notes_kept(ledger) == ["after"]
        assert kept(ledger) == (1, 1, 1)
