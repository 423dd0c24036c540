"""Statements of a transaction of ours on PostgreSQL, sent together.

    hold ──▶ held ──an answer is read, or commit──▶ BEGIN · held … · COMMIT ──one trip──▶ answers

A trip to the server costs more than most statements. One whose answer nobody waits for is held
until another one's answer is read, or until the commit, and goes with it, in order. Nothing is ever
half done: after one that fails the server skips all that came with it, the COMMIT too. A
transaction that is a single trip needs no BEGIN and no COMMIT: to the server a trip is one.

Between two trips the connection is as the driver knows it: whoever uses it then notices nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, MutableMapping, Sequence
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any

from psycopg import Error, errors, generators, pq
from psycopg.adapt import Transformer

from ledgerstone.errors import StoreBusy
from ledgerstone.store.connections import block_end as ended
from ledgerstone.store.connections.faults import commit_unknown, refused

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.pq.abc import PGconn, PGresult

BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED"
HELD_MAX = 16
"""Statements that are held; the last of them takes the others along to the server."""
HELD_BYTES_MAX = 1_048_576
"""What the parameters of held statements may be together; a larger one does not wait."""
PREPARED_MAX = 500
"""Statements that the server prepares for one connection; further ones it does not."""
_LIBRARY_SURE = 170000
_TRIPS_COMMIT = pq.version() >= _LIBRARY_SURE
"""Older libraries of the driver may lose count if the commit at the end of a trip is refused."""
_NAMES = "ledgerstone_prepared"
_NO_SUCH_STATEMENT = "26000"
_DIVISION_BY_ZERO = "22012"
_numbers = count()
"""No name is used twice: one that was forgotten here may not be at the server."""

Noted = Callable[[int, float, float], None]
"""Told of a statement: its rows, its share of the seconds of its trip, and all of them."""


class PipelineAnswer:
    """What the server says to one statement; asking for it sends what is held."""

    __slots__ = ("_pipeline", "noted", "otherwise", "parameters", "result", "text")

    def __init__(
        self,
        pipeline: Pipeline,
        text: bytes,
        parameters: Sequence[bytes | None] | None,
        noted: Noted | None,
    ) -> None:
        self._pipeline = pipeline
        self.text = text
        self.parameters = parameters
        self.noted = noted
        self.otherwise: Exception | None = None
        """What is raised in place of the server's error, if the statement is to change a row."""
        self.result: PGresult | None = None

    def rows(self) -> list[Any]:
        """Its rows, as the driver gives them."""
        result = self._arrived()
        loader = Transformer(self._pipeline.driver)
        loader.set_pgresult(result)
        return loader.load_rows(0, result.ntuples, tuple)

    def count(self) -> int:
        """How many rows it answered or changed."""
        return _count(self._arrived())

    def _arrived(self) -> PGresult:
        if self.result is None:
            self._pipeline.flush()
        if self.result is None:
            message = "it was never sent: the transaction is over, or undone up to a savepoint"
            raise AssertionError(message)
        return self.result


class Pipeline:
    """What is held for one transaction of ours, on one connection of the driver.

    - `hold` keeps a statement; without `holding` it is sent at once.
    - `flush` sends what is held; `commit` sends it with the commit. What the server refuses is
      raised there, as the error that it would have been.
    - `drop` forgets what is held.
    - A transaction that it has begun and that somebody else has ended is an error at the next trip.
    - `ends`: the next trip is to be the last, and the commit goes with it. If another one follows
      all the same, it is a transaction of its own.
    """

    def __init__(
        self, driver: Connection[Any], info: MutableMapping[Any, Any], *, prepares: bool
    ) -> None:
        self.driver = driver
        self.holding = True
        self.ends = False
        self._begun = False
        self._held: list[PipelineAnswer] = []
        self._bytes = 0
        self._names: dict[bytes, bytes] | None = info.setdefault(_NAMES, {}) if prepares else None

    def hold(
        self,
        text: bytes,
        parameters: Sequence[bytes | None] | None = None,
        noted: Noted | None = None,
    ) -> PipelineAnswer:
        """Keep a statement; it may have been sent already when this returns."""
        answer = PipelineAnswer(self, text, parameters, noted)
        self._held.append(answer)
        self._bytes += sum(map(len, filter(None, parameters or ())))
        full = len(self._held) >= HELD_MAX or self._bytes >= HELD_BYTES_MAX
        if full or not self.holding:
            self.flush()
        return answer

    def hold_to_commit(
        self,
        text: bytes,
        parameters: Sequence[bytes | None] | None,
        noted: Noted,
        *,
        otherwise: Exception,
    ) -> None:
        """Keep a statement that is to change a row, also without `holding`, until the next trip.

        If it changes none, the trip fails with `otherwise`, and with the trip the commit in it.
        """
        checked = b"WITH changed AS (%b RETURNING 1) SELECT 1 / count(*) FROM changed" % text
        answer = PipelineAnswer(self, checked, parameters, noted)
        answer.otherwise = otherwise
        self._held.append(answer)

    def flush(self) -> None:
        """Send what is held and wait for the answers."""
        if self._held:
            self._travel(ends=self.ends)

    def commit(self) -> None:
        """Send what is held and commit; a transaction in which nothing was done is none."""
        if self._held or self._begun or self._in_transaction:
            self._travel(ends=True)

    def drop(self) -> None:
        """Forget what is held: it is not to happen."""
        self._held, self._bytes = [], 0

    def _travel(self, *, ends: bool) -> None:
        held = self._held
        self.drop()
        self.ends = False
        framed = self._framed(held, ends=ends)
        began = perf_counter()
        try:
            self._exchange(framed)
        except Exception as error:
            raise (commit_unknown(error) if ends else None) or refused(error) from error
        self._begun = not ends
        if ends:
            # By us, and not behind our back.
            watched: Any = self.driver
            watched.watch_open()
        seconds = perf_counter() - began
        for answer in held:
            if answer.noted is not None and answer.result is not None:
                answer.noted(_count(answer.result), seconds / len(held), seconds)

    def _framed(self, held: list[PipelineAnswer], *, ends: bool) -> list[PipelineAnswer]:
        """With what begins and what ends the transaction, where that has to be said."""
        begun = self._in_transaction
        if self._begun and not begun:
            raise ended.over()
        # What nobody notes is a command, and some commands must be told that it has begun.
        told = begun or not ends or any(answer.noted is None for answer in held)
        if not told and _TRIPS_COMMIT:
            return held
        first = [] if begun else [PipelineAnswer(self, BEGIN, None, None)]
        last = [PipelineAnswer(self, b"COMMIT", None, None)] if ends else []
        return [*first, *held, *last]

    @property
    def _in_transaction(self) -> bool:
        return self.driver.pgconn.transaction_status != pq.TransactionStatus.IDLE

    def _exchange(self, sent: list[PipelineAnswer]) -> None:
        driver, pgconn = self.driver, self.driver.pgconn
        answered: list[PipelineAnswer | bytes] = []
        with driver.lock:
            pgconn.enter_pipeline_mode()
            try:
                for answer in sent:
                    answered += self._queued(pgconn, answer)
                pgconn.pipeline_sync()
                results = driver.wait(_results(pgconn))
            finally:
                self._leave_pipeline_mode()
        for to, result in zip(answered, results, strict=False):
            good = result.status in _GOOD
            if isinstance(to, PipelineAnswer):
                to.result = result if good else None
            elif not good and self._names is not None:
                del self._names[to]
        # Also what is no statement's answer: the commit at the end of a trip may be refused.
        for number, result in enumerate(results):
            if result.status not in _GOOD:
                last = number >= len(answered)
                raise self._error(result, None if last else answered[number])
        if len(results) <= len(answered):
            message = "the server did not answer everything"
            raise errors.OperationalError(message)

    def _leave_pipeline_mode(self) -> None:
        try:
            self.driver.pgconn.exit_pipeline_mode()
        except Error:
            # Something is still on its way, and nobody will wait for it.
            self.driver.close()

    def _queued(self, pgconn: PGconn, answer: PipelineAnswer) -> list[PipelineAnswer | bytes]:
        """Hand it to the driver; who is to be told of the results, a text if it is prepared."""
        text, names = answer.text, self._names
        told: list[PipelineAnswer | bytes] = [answer]
        # Without anybody to note it, it is no statement that comes again.
        if names is None or answer.noted is None:
            pgconn.send_query_params(text, answer.parameters)
            return told
        name = names.get(text)
        if name is None and len(names) < PREPARED_MAX:
            name = names[text] = b"ledgerstone_%d" % next(_numbers)
            pgconn.send_prepare(name, text)
            told = [text, answer]
        if name is None:
            pgconn.send_query_params(text, answer.parameters)
        else:
            pgconn.send_query_prepared(name, answer.parameters)
        return told

    def _error(self, failed: PGresult, to: PipelineAnswer | bytes | None) -> Exception:
        error = errors.error_from_result(failed, encoding=self.driver.info.encoding)
        otherwise = to.otherwise if isinstance(to, PipelineAnswer) else None
        if otherwise is not None and error.sqlstate == _DIVISION_BY_ZERO:
            return otherwise
        if error.sqlstate == _NO_SUCH_STATEMENT and self._names:
            self._names.clear()
            message = "the server was told to forget what it had prepared"
            return StoreBusy(message, hint="run the transaction again")
        return error


_GOOD = {
    pq.ExecStatus.COMMAND_OK,
    pq.ExecStatus.TUPLES_OK,
    pq.ExecStatus.EMPTY_QUERY,
    pq.ExecStatus.PIPELINE_SYNC,
}


def _results(pgconn: PGconn) -> Generator[Any, Any, list[PGresult]]:
    """What the server answers, one result for each that was queued and one for the end."""
    yield from generators.send(pgconn)
    results: list[PGresult] = []
    while True:
        found = yield from generators.fetch_many(pgconn)
        results += found
        if not found or found[-1].status == pq.ExecStatus.PIPELINE_SYNC:
            return results


def _count(result: PGresult) -> int:
    if result.status == pq.ExecStatus.TUPLES_OK:
        return result.ntuples
    return result.command_tuples or 0
