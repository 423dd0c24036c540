"""The pipeline: statements of a transaction of ours on PostgreSQL, sent in few round trips.

    hold ──▶ held ──a result is read, or commit──▶ BEGIN · held … · COMMIT ──▶ results

A round trip costs more than most statements. A statement whose result nobody reads yet is held
until the result of another one is read, or until the commit, and is sent with it, in order. After a
statement that fails, the server skips the rest of the round trip, also the COMMIT. A transaction
that is a single round trip needs neither BEGIN nor COMMIT: the server treats it as one.

Between two round trips the connection is in the driver's normal state and can be used as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any

from psycopg import Error, errors, generators, pq
from psycopg.adapt import Transformer

from ledgerstone.errors import StoreBusy
from ledgerstone.store.connections import block_end
from ledgerstone.store.connections.faults import commit_unknown, refused
from ledgerstone.store.dialects.postgres.wire import wired

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.pq.abc import PGconn, PGresult

BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED"
HELD_MAX = 16
"""The most statements that are held; the last one triggers the round trip."""
HELD_BYTES_MAX = 1_048_576
"""The most bytes of parameters that are held; then the statements are sent."""
PREPARED_MAX = 500
"""The most prepared statements of one connection; further ones are not prepared."""
_LIBRARY_SURE = 170000
_TRIPS_COMMIT = pq.version() >= _LIBRARY_SURE
"""Older versions of libpq lose the order of results if the implicit commit of a trip fails."""
_NAMES = "ledgerstone_prepared"
_NO_SUCH_STATEMENT = "26000"
_DIVISION_BY_ZERO = "22012"
_numbers = count()
"""A name is never reused: the server may still have a statement that was forgotten here."""

Noted = Callable[[int, float, float], None]
"""Called with the rows of a statement, its share of the time of a round trip, and all of it."""


class PipelineAnswer:
    """The result of one statement; reading it sends the held statements."""

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
        """The error for a statement that has to change a row and changes none."""
        self.result: PGresult | None = None

    def rows(self) -> list[Any]:
        """Its rows, with the values that the driver makes."""
        result = self._arrived()
        loader = Transformer(self._pipeline.driver)
        loader.set_pgresult(result)
        return loader.load_rows(0, result.ntuples, tuple)

    def count(self) -> int:
        """How many rows it returned or changed."""
        return _count(self._arrived())

    def _arrived(self) -> PGresult:
        if self.result is None:
            self._pipeline.flush()
        if self.result is None:
            message = "it was never sent: the transaction is over, or undone up to a savepoint"
            raise AssertionError(message)
        return self.result


class Pipeline:
    """The held statements of one transaction of ours, on one connection of the driver.

    - `hold` holds a statement; if `holding` is false, it is sent at once.
    - `flush` sends the held statements, `commit` sends them with the commit. An error of a held
      statement is raised there.
    - `drop` forgets the held statements.
    - If other code has ended the transaction, the next round trip raises an error.
    - `ends`: the next round trip includes the commit; one after it is a transaction of its own.
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
        """Hold a statement; it may have been sent when this returns."""
        answer = PipelineAnswer(self, text, parameters, noted)
        self._held.append(answer)
        self._bytes += sum(map(len, filter(None, parameters or ())))
        full = len(self._held) >= HELD_MAX or self._bytes >= HELD_BYTES_MAX
        if full or not self.holding:
            self.flush()
        return answer

    def hold_statement(
        self, text: str, values: Mapping[str, Any], noted: Noted
    ) -> PipelineAnswer | None:
        """As `hold`, for a named statement; None if only the driver can write its values."""
        sent = wired(text, values)
        return self.hold(*sent, noted) if sent is not None else None

    def hold_to_commit(
        self, text: str, values: Mapping[str, Any], noted: Noted, *, otherwise: Exception
    ) -> bool:
        """Keep a statement that has to change a row until the next round trip.

        If it changes no row, the round trip fails with `otherwise`, and with it the commit in it.
        False if only the driver can write its values: then it is not kept.
        """
        sent = wired(text, values)
        if sent is None:
            return False
        checked = b"WITH changed AS (%b RETURNING 1) SELECT 1 / count(*) FROM changed" % sent[0]
        answer = PipelineAnswer(self, checked, sent[1], noted)
        answer.otherwise = otherwise
        self._held.append(answer)
        return True

    def flush(self) -> None:
        """Send the held statements and read their results."""
        if self._held:
            self._travel(ends=self.ends)

    def commit(self) -> None:
        """Send the held statements and commit; without statements there is no round trip."""
        if self._held or self._begun or self._in_transaction:
            self._travel(ends=True)

    def drop(self) -> None:
        """Forget the held statements."""
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
            # This end is ours, so the connection must not report it.
            watched: Any = self.driver
            watched.watch_open()
        seconds = perf_counter() - began
        for answer in held:
            if answer.noted is not None and answer.result is not None:
                answer.noted(_count(answer.result), seconds / len(held), seconds)

    def _framed(self, held: list[PipelineAnswer], *, ends: bool) -> list[PipelineAnswer]:
        """The statements with BEGIN and COMMIT where they are needed."""
        begun = self._in_transaction
        if self._begun and not begun:
            raise block_end.over()
        # A statement without `noted` is a command; some, such as SAVEPOINT, need a BEGIN.
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
        # Also the result of the implicit commit at the end, which may fail.
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
            # Results are still to come that nobody will read.
            self.driver.close()

    def _queued(self, pgconn: PGconn, answer: PipelineAnswer) -> list[PipelineAnswer | bytes]:
        """Queue a statement; returns what its results are for: a text for its PREPARE, itself."""
        text, names = answer.text, self._names
        told: list[PipelineAnswer | bytes] = [answer]
        # A command is not repeated, so it is not prepared.
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
    """The results: one for each queued message and one for the sync."""
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
