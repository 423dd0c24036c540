"""Asks `pytest_forks.py` for runs of pytest, from any thread."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self

SECONDS_MAX = 600.0
"""How long one run may take."""
PROGRAM = Path(__file__).with_name("pytest_forks.py")
IMPORTED = (
    *("pytest", "_pytest.terminal", "_pytest.unittest", "_pytest.junitxml", "psutil"),
    *("sqlalchemy", "sqlalchemy.ext.asyncio", "sqlalchemy.orm", "alembic.command"),
    *("sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql.psycopg"),
    *("sqlalchemy.dialects.mysql.pymysql", "psycopg", "pymysql", "pysqlite3.dbapi2"),
    *("pika", "nats", "h11", "msgspec", "typer", "rich.console", "rich.table", "rich.progress"),
    *("cronsim", "uuid_utils", "cryptography.x509", "asyncio", "concurrent.futures"),
)
"""No plugin of pytest, which pytest imports in a way of its own, and nothing of the tree."""


class Runs:
    """Runs of pytest in trees; as a context manager it and all runs are gone at the end."""

    def __init__(self, modules: Sequence[str] = IMPORTED) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C is for this process, which ends it.
            start_new_session=True,
        )
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._answers: dict[int, SimpleQueue[dict[str, int]]] = {}
        self._hearing = threading.Thread(target=self._hear, name="runs", daemon=True)
        self._hearing.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        with suppress(BrokenPipeError):
            self._asked.close()
        self._process.wait()
        self._hearing.join()

    def run(
        self,
        tree: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        seconds_max: float = SECONDS_MAX,
    ) -> tuple[int | None, str]:
        """`pytest ARGUMENTS` in the tree: its exit code, None if it had no end, and its output."""
        with tempfile.NamedTemporaryFile("r", suffix=".log", errors="replace") as output:
            answers: SimpleQueue[dict[str, int]] = SimpleQueue()
            self._ask(
                answers,
                tree=str(tree),
                arguments=list(arguments),
                environment=dict(environment),
                output=output.name,
            )
            process = answers.get()["process"]
            code: int | None = None
            try:
                code = answers.get(timeout=seconds_max)["code"]
            except Empty:
                with suppress(ProcessLookupError):
                    os.killpg(process, signal.SIGKILL)
                answers.get()
            return code, output.read()

    @property
    def _asked(self) -> Any:
        assert self._process.stdin is not None
        return self._process.stdin

    def _ask(self, answers: SimpleQueue[dict[str, int]], **request: object) -> None:
        with self._lock:
            number = next(self._numbers)
            self._answers[number] = answers
            self._asked.write(json.dumps(request | {"number": number}).encode() + b"\n")
            self._asked.flush()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                answer = json.loads(line)
                self._answers[answer["number"]].put(answer)
