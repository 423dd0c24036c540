"""Settings: `ledgerstone.toml` and the environment, checked once, all problems reported together.

Each setting is declared here and nowhere else: its default, its bounds and its description are read
from the classes below by the loader, by the problems it reports and by the reference document.
"""

from __future__ import annotations

import difflib
import json
import operator
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, inspect

from ledgerstone import failpoints
from ledgerstone.errors import SettingsError

FILE_NAME = "ledgerstone.toml"
FILE_BYTES_MAX = 65_536
ENVIRONMENT_PREFIX = "LEDGERSTONE_"
ENVIRONMENT_CONFIG = "LEDGERSTONE_CONFIG"
SHOWN_CHARS_MAX = 60
_ENVIRONMENT_OTHERS = {ENVIRONMENT_CONFIG, failpoints.VARIABLE}

# What SQLAlchemy reads, but a password with a raw "@" is refused instead of half understood.
_URL_PATTERN = (
    r"^(sqlite://([/?].*)?"
    r"|(postgresql(\+psycopg)?|(mysql|mariadb)(\+(pymysql|mysqldb))?)://"
    r"([^:/]*(:[^@]*)?@)?(\[[^/?]+\]|[^/:?@]*)(:[0-9]{1,5})?([/?].*)?)\Z"
)
_URL_ALLOWED = (
    "sqlite:///file (a fourth slash makes the path absolute) or"
    " scheme://user:password@host:port/database, special characters of the password"
    " percent-encoded, with scheme postgresql, postgresql+psycopg, mysql, mysql+pymysql,"
    " mysql+mysqldb, mariadb, mariadb+pymysql or mariadb+mysqldb"
)


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the database is used."""

    sqlite_synchronous: Annotated[
        Literal["NORMAL", "FULL"],
        Meta(description="FULL keeps all commits through a power cut; NORMAL may lose the last."),
    ] = "NORMAL"
    busy_timeout_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="How long SQLite waits for another writer.")
    ] = 30.0
    cache_kib: Annotated[
        int, Meta(ge=64, le=16_777_216, description="SQLite's page cache, for each connection.")
    ] = 20_000
    connect_timeout_seconds: Annotated[
        int, Meta(ge=1, le=300, description="How long opening a connection to a server may take.")
    ] = 10
    lock_timeout_seconds: Annotated[
        int, Meta(ge=1, le=3600, description="How long a statement waits for a lock on a server.")
    ] = 30
    transaction_idle_seconds_max: Annotated[
        int,
        Meta(
            ge=1,
            le=86_400,
            description="A transaction that stands still for longer is ended (PostgreSQL, MariaDB; "
            "a worker's own: after a lease).",
        ),
    ] = 86_400
    pool_size_max: Annotated[
        int, Meta(ge=1, le=1000, description="Connections that one process may hold open.")
    ] = 10
    slow_statement_ms: Annotated[
        float,
        Meta(ge=0, le=600_000, description="A statement that takes longer is logged as slow."),
    ] = 50.0
    prepared_statements: Annotated[
        Literal["auto", "on", "off"],
        Meta(description="Whether the server prepares statements; off suits poolers that cannot."),
    ] = "auto"
    notify: Annotated[
        Literal["auto", "off"],
        Meta(description="Whether PostgreSQL's LISTEN/NOTIFY wakes workers between polls."),
    ] = "auto"
    auto_migrate: Annotated[
        Literal["embedded", "always", "never"],
        Meta(description="When opening also migrates; embedded means on SQLite only."),
    ] = "embedded"
    body_bytes_max: Annotated[
        int,
        Meta(ge=1024, le=268_435_456, description="The largest body of an item that is accepted."),
    ] = 1_048_576
    transaction_tries_max: Annotated[
        int,
        Meta(ge=1, le=100, description="Tries of a transaction that meets deadlocks or conflicts."),
    ] = 5


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How work is claimed, run and settled."""

    concurrency: Annotated[
        int,
        Meta(ge=1, le=10_000, description="Handlers of one source that a process runs at once."),
    ] = 10
    batch_max: Annotated[
        int, Meta(ge=1, le=5000, description="Items claimed or settled in one transaction.")
    ] = 500
    claim_ahead_ms: Annotated[
        float, Meta(ge=0, le=10_000, description="How far claiming runs ahead of the handlers.")
    ] = 50.0
    flush_ms: Annotated[
        float,
        Meta(ge=0, le=1000, description="How long an outcome waits for others to settle with."),
    ] = 2.0
    lease_seconds: Annotated[
        float, Meta(ge=1, le=86_400, description="How long a claim holds without a heartbeat.")
    ] = 30.0
    heartbeat_seconds: Annotated[
        Annotated[float, Meta(ge=0.1, le=28_800)] | None,
        Meta(description="How often leases are extended; none means a third of the lease."),
    ] = None
    poll_seconds_min: Annotated[
        float,
        Meta(ge=0.001, le=60, description="The pause between looks for work, while there is some."),
    ] = 0.01
    poll_seconds_max: Annotated[
        float,
        Meta(
            ge=0.001, le=3600, description="The pause between looks for work, after long idleness."
        ),
    ] = 1.0
    grace_seconds: Annotated[
        float,
        Meta(ge=0, le=3600, description="How long handlers may finish when the process stops."),
    ] = 20.0
    rescue_seconds: Annotated[
        float, Meta(ge=0.1, le=3600, description="How often claims of dead workers are looked for.")
    ] = 10.0
    crashes_max: Annotated[
        int, Meta(ge=1, le=100, description="Deaths of its worker after which an item is given up.")
    ] = 3
    breaker_failures: Annotated[
        int,
        Meta(ge=1, le=1000, description="Failures in a row after which a target counts as down."),
    ] = 5
    breaker_cooldown_seconds: Annotated[
        float, Meta(ge=0.1, le=3600, description="How long a target that is down is left alone.")
    ] = 10.0
    unsettled_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Outcomes waiting to be settled at which claiming pauses.",
        ),
    ] = 2000

    @property
    def heartbeat_every_seconds(self) -> float:
        """The pause between two heartbeats, also where `heartbeat_seconds` was left open."""
        if self.heartbeat_seconds is None:
            return self.lease_seconds / 3
        return self.heartbeat_seconds


class JobSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How long jobs are kept."""

    keep_days: Annotated[
        float,
        Meta(ge=0, le=36_500, description="How long a job that is over is kept with its history."),
    ] = 30.0
    keep_dead_letters_days: Annotated[
        float,
        Meta(ge=0, le=36_500, description="How long a dead letter is kept, to be looked at."),
    ] = 90.0
    keep_keys_days: Annotated[
        float,
        Meta(
            ge=0,
            le=36_500,
            description="How long the key of a job is remembered, also when the job is gone.",
        ),
    ] = 365.0


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is written to the log."""

    level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"],
        Meta(description="The least severe message that is written."),
    ] = "INFO"
    json: Annotated[
        bool, Meta(description="Whether each message is written as one JSON object per line.")
    ] = False


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set, with its defaults.

    - `load` is the edge and checks; building an instance by hand does not.
    - The password in `url` does not appear in `repr`.
    """

    url: Annotated[
        str,
        Meta(
            pattern=_URL_PATTERN,
            extra={"allowed": _URL_ALLOWED, "secret": True},
            description="The database that keeps everything.",
        ),
    ] = "sqlite:///.ledgerstone/ledgerstone.db"
    store: StoreSettings = StoreSettings()
    engine: EngineSettings = EngineSettings()
    jobs: JobSettings = JobSettings()
    log: LogSettings = LogSettings()

    @classmethod
    def load(
        cls,
        path: Path | None = None,
        environ: Mapping[str, str] | None = None,
        **overrides: object,
    ) -> Settings:
        """Settings from overrides, before environment, before file, before defaults.

        - `path` and `$LEDGERSTONE_CONFIG` name a file that must exist; without them
          `ledgerstone.toml` in the working directory is read if it is there.
        - Overrides have the shape of the file: `load(url=..., engine={"concurrency": 4})`.
        - A wrong value is a problem also where a later source replaces it.
        - All problems of all sources are raised together, as one `SettingsError`.
        """
        environ = os.environ if environ is None else environ
        reading = _Reading()
        reading.take_file(path, environ)
        reading.take_environment(environ)
        reading.take_tree("argument ", overrides)
        reading.compare()
        if reading.problems:
            raise SettingsError(reading.problems)
        return msgspec.convert(reading.tree(), cls)

    @property
    def url_masked(self) -> str:
        """The URL as it may be logged: `***` where the password stands."""
        masked = re.sub(r"^([^:]*://[^:]*):.*@", r"\1:***@", self.url, flags=re.DOTALL)
        return re.sub(r"(?i)([?&][^=&]*(?:pass|pwd|secret)[^=&]*=)[^&]*", r"\1***", masked)

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("url", self.url_masked), *super().__rich_repr__()[1:]]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"Settings({fields})"


def reference() -> str:
    """The reference document, in Markdown."""
    parts = [_REFERENCE_HEAD]
    for section, rows in groupby(_known().values(), key=lambda setting: setting.section):
        title = f"`[{section}]`" if section else "Top of the file"
        parts.append(f"## {title}\n\n{_table(rows)}")
    return "\n".join(parts)


_REFERENCE_HEAD = f"""\
# Settings

<!-- Generated by tools/reference.py from ledgerstone/settings.py. Change it there. -->

A setting is taken from the first of these that has it: arguments of `Settings.load`, the
environment, the file, the default. The file is the one that `{ENVIRONMENT_CONFIG}` names, or
`{FILE_NAME}` in the working directory if it is there; it holds at most {FILE_BYTES_MAX} bytes.

In the environment, truth is written true, yes, on or 1, and false, no, off or 0; none is written
none. In the file, none is written by leaving the setting out. A name or value that is not listed
here is refused, and all problems are reported together.
"""


def _table(rows: Iterable[_Setting]) -> str:
    lines = [
        "| Name | Default | Allowed | Environment | Description |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        rules = [f"; {rule.words} `{rule.right}`" for rule in _RULES if rule.left == row.key]
        lines.append(
            f"| `{row.name}` | `{_written(row.default)}` | {row.allowed}{''.join(rules)}"
            f" | `{row.environment_name}` | {row.description} |"
        )
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """One setting, as its declaration says."""

    section: str
    name: str
    kind: inspect.Type
    default: object
    allowed: str
    description: str
    secret: bool

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def environment_name(self) -> str:
        return ENVIRONMENT_PREFIX + self.key.replace(".", "_").upper()


@cache
def _known() -> dict[str, _Setting]:
    return {setting.key: setting for setting in _declared("", inspect.type_info(Settings))}


def _declared(section: str, struct: inspect.Type) -> Iterator[_Setting]:
    assert isinstance(struct, inspect.StructType)
    for field in struct.fields:
        if isinstance(field.type, inspect.StructType):
            yield from _declared(field.name, field.type)
            continue
        assert isinstance(field.type, inspect.Metadata)
        kind, extra = field.type.type, field.type.extra or {}
        yield _Setting(
            section=section,
            name=field.name,
            kind=kind,
            default=field.default,
            allowed=extra.get("allowed") or _allowed(kind),
            description=(field.type.extra_json_schema or {})["description"],
            secret=extra.get("secret", False),
        )


def _allowed(kind: inspect.Type) -> str:
    match kind:
        case inspect.IntType(ge=low, le=high):
            return f"a whole number from {_written(low)} to {_written(high)}"
        case inspect.FloatType(ge=low, le=high):
            return f"a number from {_written(low)} to {_written(high)}"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values=values):
            return " or ".join(_written(value) for value in values)
        case inspect.UnionType(types=kinds):
            return ", or ".join(_allowed(kind) for kind in kinds)
        case inspect.NoneType():
            return "none"
        case _:
            raise TypeError(f"a setting cannot be of type {kind}")


def _written(value: object) -> str:
    """The value as one would write it in the file."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value)
        case float():
            return repr(value).removesuffix(".0")
        case _:
            return repr(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """A bound of one setting that another one gives."""

    left: str
    right: str
    words: str
    holds: Callable[[float, float], bool]


_RULES = (
    _Rule(
        left="engine.heartbeat_seconds",
        right="engine.lease_seconds",
        words="less than half of",
        holds=lambda heartbeat, lease: heartbeat < lease / 2,
    ),
    _Rule(
        left="engine.poll_seconds_min",
        right="engine.poll_seconds_max",
        words="at most",
        holds=operator.le,
    ),
)


class _Reading:
    """What the sources gave so far, later over earlier, and everything that was wrong with it."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.values = {key: setting.default for key, setting in _known().items()}
        self.origins = dict.fromkeys(_known(), "default")
        self.refused: set[str] = set()

    def take_file(self, path: Path | None, environ: Mapping[str, str]) -> None:
        named, where = path is not None, f"{path or FILE_NAME}: "
        if path is None and ENVIRONMENT_CONFIG in environ:
            path = Path(environ[ENVIRONMENT_CONFIG])
            named, where = True, f"environment {ENVIRONMENT_CONFIG}: {path}: "
        try:
            tree = _parse(_read(path or Path(FILE_NAME)))
        except OSError as error:
            if named or not isinstance(error, FileNotFoundError):
                reason = error.strerror or str(error)
                self.problems.append(f"{where}{reason}; allowed: a file that can be read")
        except ValueError as error:
            self.problems.append(f"{where}{error}")
        else:
            self.take_tree(f"{path or FILE_NAME}: ", tree)

    def take_environment(self, environ: Mapping[str, str]) -> None:
        known = {setting.environment_name: setting for setting in _known().values()}
        for name in sorted(environ):
            if not name.startswith(ENVIRONMENT_PREFIX) or name in _ENVIRONMENT_OTHERS:
                continue
            if name in known:
                value = _parsed(environ[name].strip(), known[name].kind)
                self._take(f"environment {name}", known[name], value)
            else:
                self._refuse_name(f"environment {name}", name, [*known, ENVIRONMENT_CONFIG])

    def take_tree(self, origin: str, tree: Mapping[str, object]) -> None:
        sections = {setting.section for setting in _known().values()} - {""}
        for key, value in _leaves(tree, sections):
            where = f"{origin}{key}"
            if key in _known():
                self._take(where, _known()[key], value)
            elif key in sections:
                self.problems.append(f"{where}: {_shown(value)} is not allowed; allowed: a table")
            else:
                self._refuse_name(where, key, [*_known(), *sections])

    def _take(self, where: str, setting: _Setting, value: object) -> None:
        alone = {setting.name: value}
        try:
            msgspec.convert({setting.section: alone} if setting.section else alone, Settings)
        # The environment may hold bytes that are no text; they arrive as lone surrogates.
        except (msgspec.ValidationError, UnicodeEncodeError):
            shown = _shown_secret(value) if setting.secret else _shown(value)
            self.problems.append(f"{where}: {shown} is not allowed; allowed: {setting.allowed}")
            self.refused.add(setting.key)
        else:
            self.values[setting.key] = value
            self.origins[setting.key] = where
            self.refused.discard(setting.key)

    def _refuse_name(self, where: str, name: str, known: Iterable[str]) -> None:
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        self.problems.append(f"{where}: unknown; the nearest known name is {nearest[0]}")

    def compare(self) -> None:
        for rule in _RULES:
            left, right = self.values[rule.left], self.values[rule.right]
            # A refused value has its problem already, and what it was meant to be is unknown.
            if {rule.left, rule.right} & self.refused or left is None:
                continue
            assert isinstance(left, int | float)
            assert isinstance(right, int | float)
            if not rule.holds(left, right):
                self.problems.append(
                    f"{rule.left} {_written(left)} ({self.origins[rule.left]}) does not go with"
                    f" {rule.right} {_written(right)} ({self.origins[rule.right]});"
                    f" allowed: {rule.words} {rule.right}"
                )

    def tree(self) -> dict[str, object]:
        tree: dict[str, object] = {}
        sections: dict[str, dict[str, object]] = {"": tree}
        for key, setting in _known().items():
            if setting.section not in sections:
                tree[setting.section] = sections[setting.section] = {}
            sections[setting.section][setting.name] = self.values[key]
        return tree


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"too large; allowed: at most {FILE_BYTES_MAX} bytes")
    return content


def _parse(content: bytes) -> dict[str, object]:
    """The file's tree; a ValueError says where it is broken."""
    try:
        text = content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode()
        raise ValueError(f"not UTF-8 (at {_place(before)}); allowed: TOML in UTF-8") from None
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply; allowed: one level of tables") from None
    except ValueError as error:
        # At the end of the text the parser gives no line and column.
        reason = str(error).replace("at end of document", f"at {_place(text)}, the end")
        raise ValueError(f"not TOML: {reason}; allowed: TOML 1.0") from None


def _place(before: str) -> str:
    line = before.count("\n") + 1
    column = len(before) - (before.rfind("\n") + 1) + 1
    return f"line {line}, column {column}"


def _leaves(tree: Mapping[str, object], sections: set[str]) -> Iterator[tuple[str, object]]:
    for name, value in tree.items():
        if name in sections and isinstance(value, Mapping):
            for leaf, inner in value.items():
                yield f"{name}.{leaf}", inner
        else:
            yield name, value


_TRUTHS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def _parsed(text: str, kind: inspect.Type) -> object:
    """The text as a value of the kind, or as it is when it is none: the check then refuses it."""
    try:
        match kind:
            case inspect.BoolType():
                return _TRUTHS.get(text.lower(), text)
            case inspect.IntType():
                return int(text)
            case inspect.FloatType():
                return float(text)
            case inspect.UnionType(types=(inner, inspect.NoneType())):
                return None if text.lower() == "none" else _parsed(text, inner)
            case _:
                return text
    except ValueError:
        return text


def _shown(value: object) -> str:
    """The value as a problem may show it: short, and of a URL no more than its scheme."""
    match value:
        case Mapping():
            return "a table"
        case list() | tuple():
            return "an array"
        # Python refuses to print a whole number of several thousand digits.
        case int() if abs(value) > sys.maxsize:
            return "a huge number"
        case str() if "://" in value:
            return _shown_secret(value)
        case _:
            text = _written(value)
            return text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "…"


def _shown_secret(value: object) -> str:
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://", value) if isinstance(value, str) else None
    return f"{scheme[0]}…" if scheme else "what was given"
