"""Where log messages go while a command runs: to stderr, as text or as JSON."""

from __future__ import annotations

import logging
import sys
import warnings

import msgspec

from ledgerstone.cli.output import visible

ROOT = "ledgerstone"


def to_stderr(*, level: str, json: bool = False) -> None:
    """From now on messages of at least this level are written to stderr."""
    handler = _Stderr()
    handler.setFormatter(_Json() if json else _Text(_TEXT))
    logger = logging.getLogger(ROOT)
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level)
    warnings.formatwarning = _warned


_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class _Stderr(logging.Handler):
    """Asks for `sys.stderr` each time: a live screen puts its own there, to write above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(self.format(record) + "\n")
        sys.stderr.flush()


class _Text(logging.Formatter):
    """One line, also where a driver said something in several; a traceback follows as it is."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its name there
        record.message = " ".join(record.message.split())
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


class _Json(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at_ms": round(record.created * 1000),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def _warned(message: Warning | str, *_: object, **__: object) -> str:
    return f"warning: {message}\n"
