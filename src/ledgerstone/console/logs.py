"""Where log messages go while a command runs: to stderr, as text or as JSON.

While the jobs of an application run, its own loggers are heard as well: their messages go the same
way, unless the application has set up logging itself.
"""

from __future__ import annotations

import logging
import sys
import warnings
from functools import partial

import msgspec

from ledgerstone import log_context
from ledgerstone.console.output import visible

ROOT = "ledgerstone"
LIBRARIES = ("alembic", "asyncio", "nats", "pika", "psycopg", "sqlalchemy")
"""Our loggers: shown from warnings on, unless the application says otherwise."""


def to_stderr(
    *, level: str, json: bool = False, application: bool = False, process: str | None = None
) -> None:
    """From now on messages of at least this level are written to stderr.

    `process`: which of several processes this one is; every line says so.

    `application`: also those of other loggers, if the application has given the root logger no
    handler, and those of handlers in processes of their own.
    """
    handler = _Stderr()
    handler.setFormatter(_Json(process) if json else _Text(process))
    logger = logging.getLogger(ROOT)
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level)
    warnings.formatwarning = _warned
    root = logging.getLogger()
    if application and all(isinstance(each, _Stderr) for each in root.handlers):
        _hear_application(root, handler, level)
        # Not above: most commands run no handlers.
        from ledgerstone.engine.executors import processes

        processes.at_start = partial(
            to_stderr, level=level, json=json, application=True, process=process
        )


def _hear_application(root: logging.Logger, handler: logging.Handler, level: str) -> None:
    for name in LIBRARIES:
        library = logging.getLogger(name)
        if library.level == logging.NOTSET:
            library.setLevel(logging.WARNING)
    root.handlers[:] = [handler]
    if root.level in {logging.NOTSET, logging.WARNING}:
        # WARNING is what Python begins with.
        root.setLevel(level)


class _Stderr(logging.Handler):
    """Asks for `sys.stderr` each time: a live screen puts its own there, to write above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - a message whose arguments do not fit ends no job
            self.handleError(record)
            return
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


class _Text(logging.Formatter):
    """The message, and in brackets what it belongs to; a traceback follows as it is.

    A message of ours is one line, also where a driver said something in several.
    """

    def __init__(self, process: str | None) -> None:
        which = f"{process} (%(process)d) " if process else ""
        super().__init__(f"%(asctime)s %(levelname)-7s {which}%(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its name there
        if record.name.partition(".")[0] == ROOT:
            record.message = " ".join(record.message.split())
        line = super().formatMessage(record)
        ids = log_context.current()
        # Our own messages already name the item that they belong to.
        if not ids or record.name.partition(".")[0] == ROOT:
            return line
        return f"{line} [{', '.join(f'{name}={value}' for name, value in ids.items())}]"

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


class _Json(logging.Formatter):
    """One JSON object per line, with what the message belongs to."""

    def __init__(self, process: str | None) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at_ms": round(record.created * 1000),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **({"process": self._process, "pid": record.process} if self._process else {}),
            **log_context.current(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["traceback"] = record.exc_text
        return msgspec.json.encode(line).decode()


def _warned(message: Warning | str, *_: object, **__: object) -> str:
    return f"warning: {message}\n"
