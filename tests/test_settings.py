"""Settings: where they come from, what is refused, and that the reference documents are true."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from shutil import copy
from typing import Any

import msgspec
import pytest

from ledgerstone import errors, settings
from ledgerstone.errors import LedgerstoneError, SettingsError
from ledgerstone.jobs.room import JOBS
from ledgerstone.settings import EngineSettings, Settings
from ledgerstone.settings.registered import remember
from ledgerstone.store.sql.batch import ROWS_MAX
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX

ROOT = Path(__file__).resolve().parents[1]
PASSWORD = "hunter2"


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(
    toml: str | None = None, environ: Mapping[str, str] | None = None, **overrides: Any
) -> Settings:
    if toml is not None:
        Path("ledgerstone.toml").write_text(toml, encoding="utf-8")
    return Settings.load(environ=environ or {}, **overrides)


def problems(
    toml: str | None = None, environ: Mapping[str, str] | None = None, **overrides: Any
) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(toml, environ, **overrides)
    return caught.value.problems


def schema() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every setting with its JSON schema, read by msgspec and not by the code under test."""
    definitions = msgspec.json.schema(Settings)["$defs"]
    for name, field in definitions["Settings"]["properties"].items():
        if section := re.search(r"(\w+)Settings'", str(field)):
            for leaf, inner in definitions[f"{section[1]}Settings"]["properties"].items():
                yield f"{name}.{leaf}", inner
        else:
            yield name, field


SCHEMA = dict(schema())


def numeric(field: dict[str, Any]) -> dict[str, Any] | None:
    kinds = field.get("anyOf", [field])
    return next((kind for kind in kinds if kind.get("type") in {"integer", "number"}), None)


NUMERIC = {key: kind for key, field in SCHEMA.items() if (kind := numeric(field))}
# What must be set beside a setting at its bound, so that the rule between the two is kept.
BESIDE: dict[str, dict[str, Any]] = {
    "engine.heartbeat_seconds": {"lease_seconds": 86_400},
    "engine.poll_seconds_min": {"poll_seconds_max": 3600},
    "engine.poll_seconds_max": {"poll_seconds_min": 0.001},
}


remember(JOBS)
EXAMPLES: dict[str, Any] = {
    "rooms": ["jobs"],
    "url": "postgresql://db/shop",
    "store.schema": "shop",
    "messaging.outbox_table": "outbox",
    "messaging.failed_table": "failed",
    "messaging.deduplication_table": "handled",
    "messaging.time_zone": "Europe/Berlin",
    "messaging.auto_setup": False,
    "messaging.source": "/shop",
    "messaging.destinations": {"broker": {"url": "amqp://broker", "mode": "competing"}},
    "messaging.routes": {"order.*": ["broker", "local"]},
    "messaging.subscriptions": {"orders": {"url": "amqp://broker", "queue": "orders"}},
    "messaging.exchanges": {"events": {"type": "fanout"}},
    "messaging.queues": {"orders": {"bindings": {"events": ["order.#"]}}},
    "blobs.folder": "files",
    "blobs.upload_token": "token-of-sixteen-characters",
    "blobs.upload_host": "::1",
    "protocols.enabled": False,
    "protocols.retention": {"groups": {"keep_days": 30.0, "snapshot_days": 7.0}},
    "blobs.enabled": False,
    "protocols.folders": ["protocols/chat"],
    "signing.data_dir": "data",
    "signing.rocksdb_library": "librocksdb.so.9",
}


def example(key: str) -> Any:
    """A value of the setting that is allowed and not its default."""
    if key in EXAMPLES:
        return EXAMPLES[key]
    if key in NUMERIC:
        return NUMERIC[key]["minimum"]
    return next(each for each in SCHEMA[key].get("enum", [True]) if each != SCHEMA[key]["default"])


def text_of(value: Any) -> str:
    """The value as the environment holds it."""
    return msgspec.json.encode(value).decode() if isinstance(value, dict | list) else str(value)


def toml_of(value: Any) -> str:
    """The value as the file holds it, in one line."""
    if isinstance(value, dict):
        inner = ", ".join(f'"{name}" = {toml_of(each)}' for name, each in value.items())
        return f"{{ {inner} }}"
    return msgspec.json.encode(value).decode()


def holds(loaded: Any, value: Any) -> bool:
    """Whether what was loaded is the value; of a table, has at least what the value has."""
    if not isinstance(value, dict):
        return bool(loaded == value)
    found = msgspec.to_builtins(loaded)
    return found.keys() == value.keys() and all(
        found[name] | inner == found[name] if isinstance(inner, dict) else found[name] == inner
        for name, inner in value.items()
    )


def environment_name(key: str) -> str:
    return f"LEDGERSTONE_{key.replace('.', '_').upper()}"


def inside(section: str, values: dict[str, Any]) -> dict[str, Any]:
    return {section: values} if section else values


def value_of(loaded: Settings, key: str) -> object:
    section, _, name = key.rpartition(".")
    return getattr(getattr(loaded, section) if section else loaded, name)


def test_defaults() -> None:
    """Without file, environment and overrides the defaults hold, and they keep their own bounds."""
    loaded = load()

    assert loaded == Settings()
    assert msgspec.convert(msgspec.to_builtins(loaded), Settings) == loaded


def test_precedence() -> None:
    """Overrides win over the environment, it over the file, and the file over the defaults."""
    toml = "[engine]\nconcurrency = 2\nbatch_max = 2\ncrashes_max = 2\n"
    environ = {"LEDGERSTONE_ENGINE_CONCURRENCY": "3", "LEDGERSTONE_ENGINE_BATCH_MAX": "3"}

    engine = load(toml, environ, engine={"concurrency": 4}).engine

    assert (engine.concurrency, engine.batch_max, engine.crashes_max) == (4, 3, 2)
    assert engine.unsettled_max == EngineSettings().unsettled_max


def test_a_batch_is_one_statement() -> None:
    """No more is asked for than a claim can answer: it would seem that nothing else is due."""
    assert SCHEMA["engine.batch_max"]["maximum"] == ROWS_MAX


def test_process_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `environ` the environment of the process is read."""
    monkeypatch.setenv("LEDGERSTONE_ENGINE_CONCURRENCY", "7")

    loaded = Settings.load()

    assert loaded.engine.concurrency == 7


def test_config_name() -> None:
    """`LEDGERSTONE_CONFIG` names the file that is read in place of `ledgerstone.toml`."""
    Path("other.toml").write_text("[engine]\nconcurrency = 5\n", encoding="utf-8")
    environ = {"LEDGERSTONE_CONFIG": "other.toml"}

    loaded = load("[engine]\nconcurrency = 6\nbatch_max = 6\n", environ)

    assert (loaded.engine.concurrency, loaded.engine.batch_max) == (5, EngineSettings().batch_max)


def test_path_wins_over_config_name() -> None:
    """A path given in the call is read even where `LEDGERSTONE_CONFIG` names another file."""
    Path("mine.toml").write_text("[engine]\nconcurrency = 5\n", encoding="utf-8")
    environ = {"LEDGERSTONE_CONFIG": "missing.toml"}

    loaded = Settings.load(Path("mine.toml"), environ)

    assert loaded.engine.concurrency == 5


def test_named_file_missing() -> None:
    """A file that was named must exist; the default file need not."""
    with pytest.raises(SettingsError) as caught:
        Settings.load(Path("missing.toml"), {})

    assert caught.value.problems == [
        "missing.toml: No such file or directory; allowed: a file that can be read"
    ]
    assert problems(environ={"LEDGERSTONE_CONFIG": "gone.toml"}) == [
        (
            "environment LEDGERSTONE_CONFIG: gone.toml: No such file or directory;"
            " allowed: a file that can be read"
        )
    ]


@pytest.mark.parametrize("key", SCHEMA)
def test_every_setting_from_every_source(key: str) -> None:
    """Each setting can be given in the file, in the environment and in the call."""
    section, _, name = key.rpartition(".")
    value, beside = example(key), BESIDE.get(key, {})
    written = {name: value, **beside}
    lines = [f"{each} = {toml_of(written[each])}" for each in written]
    environ = {
        environment_name(f"{section}.{each}" if section else each): text_of(written[each])
        for each in written
    }

    from_call = load(**inside(section, written))
    from_environment = load(environ=environ)
    from_file = load("\n".join([f"[{section}]" if section else "", *lines]))

    assert holds(value_of(from_call, key), value)
    assert from_call == from_environment == from_file
    assert from_call != Settings()


def test_all_problems_together() -> None:
    """All problems of all sources are raised as one error, each with its place and what is allowed.

    So are the comparisons between settings that were accepted one by one.
    """
    toml = """
    colour = "red"
    log = 3
    [engine]
    lease_seconds = 0
    concurency = 4
    poll_seconds_min = 2
    """
    environ = {
        "LEDGERSTONE_URL": "oracle://db/shop",
        "LEDGERSTONE_STORE_CACHE_KIB": "lots",
        "LEDGERSTONE_ENGINE_LEESE_SECONDS": "5",
    }

    found = problems(toml, environ, engine={"crashes_max": True})

    assert [problem.split("; ")[0] for problem in found] == [
        "ledgerstone.toml: colour: unknown",
        "ledgerstone.toml: log: 3 is not allowed",
        "ledgerstone.toml: engine.lease_seconds: 0 is not allowed",
        "ledgerstone.toml: engine.concurency: unknown",
        "environment LEDGERSTONE_ENGINE_LEESE_SECONDS: unknown",
        'environment LEDGERSTONE_STORE_CACHE_KIB: "lots" is not allowed',
        "environment LEDGERSTONE_URL: oracle://… is not allowed",
        "argument engine.crashes_max: true is not allowed",
        (
            "engine.poll_seconds_min 2 (ledgerstone.toml: engine.poll_seconds_min) does not go with"
            " engine.poll_seconds_max 1 (default)"
        ),
    ]
    assert all(re.search(r"; (allowed: .|the nearest known name is .)", each) for each in found)


def test_problem_of_a_replaced_value() -> None:
    """A wrong value is a problem also where a later source replaces it."""
    found = problems("[engine]\nconcurrency = 0\n", engine={"concurrency": 4})

    assert found == [
        (
            "ledgerstone.toml: engine.concurrency: 0 is not allowed;"
            " allowed: a whole number from 1 to 10000"
        )
    ]


def test_every_number_is_bounded() -> None:
    """Every number has a least and a greatest value, and every setting one sentence about it."""
    for field in NUMERIC.values():
        assert {"minimum", "maximum"} <= field.keys()
    for key, field in SCHEMA.items():
        assert re.fullmatch(r"[A-Z].*[^.]\.", field["description"]), key
        assert ". " not in field["description"], key


@pytest.mark.parametrize("key", NUMERIC)
def test_bounds(key: str) -> None:
    """Both bounds of every number are allowed; beyond them, and what is no number, is refused."""
    section, _, name = key.rpartition(".")
    low, high = NUMERIC[key]["minimum"], NUMERIC[key]["maximum"]
    whole = NUMERIC[key]["type"] == "integer"
    step = 1 if whole else 0.0005
    beyond = [low - step, high + step, float("nan"), float("inf"), -(10**400), 10**400]
    wrong = [str(low), True, [low], {"a": low}, *([low + 0.5, float(low)] if whole else [])]

    for value in (low, high):
        loaded = load(**inside(section, {**BESIDE.get(key, {}), name: value}))
        assert value_of(loaded, key) == value
    for refused in (*beyond, *wrong):
        found = problems(**inside(section, {name: refused}))
        assert len(found) == 1
        assert found[0].startswith(f"argument {key}: ")
        kind = "a whole number" if whole else "a number"
        assert f"allowed: {kind} from {low:.15g} to {high:.15g}" in found[0]


@pytest.mark.parametrize("key", [key for key, field in SCHEMA.items() if "enum" in field])
def test_choices(key: str) -> None:
    """A choice takes the words that are declared for it, and its problem lists them all."""
    section, _, name = key.rpartition(".")
    words = SCHEMA[key]["enum"]

    for word in words:
        assert value_of(load(**inside(section, {name: word})), key) == word
    (found,) = problems(**inside(section, {name: "perhaps"}))
    assert found.startswith(f'argument {key}: "perhaps" is not allowed; allowed: ')
    assert all(f'"{word}"' in found for word in words)


@pytest.mark.parametrize(
    ("engine", "allowed"),
    [
        ({"heartbeat_seconds": 14.9}, True),
        ({"heartbeat_seconds": 15}, False),
        ({"heartbeat_seconds": 20}, False),
        ({"heartbeat_seconds": 20, "lease_seconds": 60}, True),
        ({"heartbeat_seconds": 5, "lease_seconds": 10}, False),
        ({"heartbeat_seconds": None, "lease_seconds": 1}, True),
        ({"poll_seconds_min": 1.0}, True),
        ({"poll_seconds_min": 1.1}, False),
        ({"poll_seconds_max": 0.01}, True),
        ({"poll_seconds_max": 0.005}, False),
    ],
)
def test_rules_between_settings(engine: dict[str, object], allowed: bool) -> None:
    """A heartbeat comes more than twice in a lease; the shortest poll is at most the longest."""
    if allowed:
        load(engine=engine)
        return

    (found,) = problems(engine=engine)

    assert all(f"argument engine.{name}" in found for name in engine)


def test_rule_names_both_origins() -> None:
    """A problem between two settings says where each of them came from."""
    toml = "[engine]\nlease_seconds = 10\n"

    found = problems(toml, {"LEDGERSTONE_ENGINE_HEARTBEAT_SECONDS": "6"})

    assert found == [
        (
            "engine.heartbeat_seconds 6 (environment LEDGERSTONE_ENGINE_HEARTBEAT_SECONDS) does not"
            " go with engine.lease_seconds 10 (ledgerstone.toml: engine.lease_seconds);"
            " allowed: less than half of engine.lease_seconds"
        )
    ]


def test_rule_waits_for_good_values() -> None:
    """A refused value is not compared with others: one mistake gives one problem."""
    found = problems(engine={"lease_seconds": "60", "heartbeat_seconds": 20})

    assert len(found) == 1


def test_rule_takes_the_last_value() -> None:
    """A good value that replaces a refused one is compared like any other."""
    environ = {"LEDGERSTONE_ENGINE_LEASE_SECONDS": "10"}

    found = problems("[engine]\nlease_seconds = 0\n", environ, engine={"heartbeat_seconds": 6})

    assert [problem.split(" ")[0] for problem in found] == [
        "ledgerstone.toml:",
        "engine.heartbeat_seconds",
    ]


def test_heartbeat_default() -> None:
    """Where no heartbeat is set, it comes three times in a lease."""
    assert load(engine={"lease_seconds": 60}).engine.heartbeat_every_seconds == 20
    assert load(engine={"heartbeat_seconds": 4}).engine.heartbeat_every_seconds == 4


@pytest.mark.parametrize(
    ("toml", "key", "nearest"),
    [
        ("[engine]\nlease_second = 3", "engine.lease_second", "engine.lease_seconds"),
        ("lease_seconds = 3", "lease_seconds", "engine.lease_seconds"),
        ("[engine]\nnotify = 'off'", "engine.notify", "store.notify"),
        ("[engin]\nconcurrency = 3", "engin", "engine"),
        ("uri = 'sqlite://'", "uri", "url"),
        ("[log.json]\nindent = 3\n[log.levels]", "log.levels", "log.level"),
    ],
)
def test_unknown_keys(toml: str, key: str, nearest: str) -> None:
    """A key that is not known is a problem, and the nearest known one is suggested."""
    found = problems(toml)

    assert f"ledgerstone.toml: {key}: unknown; the nearest known name is {nearest}" in found


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("LEDGERSTONE_LEASE_SECONDS", "LEDGERSTONE_ENGINE_LEASE_SECONDS"),
        ("LEDGERSTONE_URI", "LEDGERSTONE_URL"),
        ("LEDGERSTONE_CONFIGS", "LEDGERSTONE_CONFIG"),
    ],
)
def test_unknown_environment_names(name: str, nearest: str) -> None:
    """A LEDGERSTONE_* name that is not known is a problem, with the nearest known one suggested."""
    found = problems(environ={name: PASSWORD, "OTHER_NAME": "is none of ours"})

    assert found == [f"environment {name}: unknown; the nearest known name is {nearest}"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"url 3", "not TOML: .*line 1, column 5"),
        (b"\n\nurl = nope\n", "not TOML: .*line 3, column 7"),
        (b"[engine]\nconcurrency = [1,", r"not TOML: .*line 2, column 18, the end"),
        (b"url = 1\nurl = 2", "not TOML: .*line 2, column 8"),
        (b"url = 1\n# \xff", "not UTF-8 .*line 2, column 3"),
        (b"a = " + b"[" * 30_000, "nested too deeply"),
        (b"# " + b"a" * 70_000, "too large; allowed: at most 65536 bytes"),
    ],
)
def test_broken_file(content: bytes, problem: str) -> None:
    """A file that is no TOML gives one problem, which says at which line and column."""
    Path("ledgerstone.toml").write_bytes(content)

    (found,) = problems()

    assert found.startswith("ledgerstone.toml: ")
    assert re.search(problem, found)
    assert "; allowed: " in found


def test_unreadable_file() -> None:
    """A file that is there but cannot be read gives one problem, beside those of other sources."""
    Path("ledgerstone.toml").mkdir()

    found = problems(environ={"LEDGERSTONE_LOG_JSON": "maybe"})

    assert found == [
        "ledgerstone.toml: Is a directory; allowed: a file that can be read",
        'environment LEDGERSTONE_LOG_JSON: "maybe" is not allowed; allowed: true or false',
    ]


def test_byte_order_mark() -> None:
    """A file that an editor began with a byte order mark is read like any other."""
    assert load("\ufeff[log]\njson = true\n").log.json


def test_huge_number() -> None:
    """A number that Python would not print is refused like any other."""
    (found,) = problems("[engine]\nconcurrency = 0x" + "f" * 20_000)

    assert found.startswith("ledgerstone.toml: engine.concurrency: a huge number is not allowed")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        *[("log.json", text, True) for text in ("true", "1", "yes", "on", "TRUE", " On ")],
        *[("log.json", text, False) for text in ("false", "0", "no", "off", "False", "NO")],
        ("engine.concurrency", "12", 12),
        ("engine.concurrency", " 12\n", 12),
        ("engine.lease_seconds", "12", 12.0),
        ("engine.lease_seconds", "12.5", 12.5),
        ("engine.lease_seconds", "1e2", 100.0),
        ("engine.heartbeat_seconds", "2.5", 2.5),
        ("engine.heartbeat_seconds", "none", None),
        ("engine.heartbeat_seconds", "None", None),
        ("store.notify", "off", "off"),
        ("url", "mysql://db/shop", "mysql://db/shop"),
    ],
)
def test_environment_text(key: str, text: str, value: object) -> None:
    """Text of the environment is read as the setting's type says; `none` leaves it open."""
    toml = "[engine]\nheartbeat_seconds = 3\n"
    environ = {environment_name(key): text}

    found = value_of(load(toml, environ), key)

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        *[("log.json", text) for text in ("", "2", "maybe", "none", "y", "\udcff")],
        *[("engine.concurrency", text) for text in ("", "1.5", "1e2", "ten", "none", "true")],
        *[("engine.lease_seconds", text) for text in ("", "nan", "inf", "30s", "none", "\udcff")],
        *[("engine.heartbeat_seconds", text) for text in ("", "null", "0", "-1")],
        *[("log.level", text) for text in ("", "info", "none", "\udcff")],
        ("engine.concurrency", "9" * 5000),
        ("url", ""),
        ("url", "\udcff"),
    ],
)
def test_environment_text_refused(key: str, text: str) -> None:
    """Text that does not fit the setting's type, an empty one too, is a problem under its name."""
    name = environment_name(key)

    (found,) = problems(environ={name: text})

    assert found.startswith(f"environment {name}: ")
    assert " is not allowed; allowed: " in found
    assert len(found) < 500


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///shop.db",
        "sqlite:////srv/shop.db",
        "sqlite:///file:shop.db?mode=ro&uri=true",
        "postgresql://db/shop",
        "postgresql:///shop",
        "postgresql+psycopg://app:hunter2@db:5432/shop?sslmode=require",
        "postgresql://app:hun/ter2@db/shop",
        "postgresql://app:hunter2@[::1]:5432/shop",
        "mysql://app@db/shop",
        "mysql://app@tenant:hunter2@db/shop",
        "mysql+pymysql://db",
        "mysql+mysqldb://db/shop",
        "mariadb://db/shop",
        "mariadb+pymysql://db/shop",
        "mariadb+mysqldb://db/shop",
    ],
)
def test_url(url: str) -> None:
    """A URL of each supported database and driver is taken as it is."""
    assert load(url=url).url == url


@pytest.mark.parametrize(
    "url",
    [
        "oracle://app:hunter2@db/shop",
        "postgres://app:hunter2@db/shop",
        "postgresql+asyncpg://app:hunter2@db/shop",
        "mysql+psycopg://app:hunter2@db/shop",
        "sqlite://hunter2.db",
        "sqlite:hunter2.db",
        "hunter2",
        "app:hunter2@db/shop",
        "app:hunter2@oracle://db",
        "host=db password=hunter2",
        "postgresql:/app:hunter2@db/shop",
        "postgresql://app:p@hunter2@db/shop",
        "postgresql://app:x@db:hunter2/shop",
        "postgresql://app:hunter2@db/shop\n",
        "oracle://db/shop?password=hunter2",
        ["postgresql://app:hunter2@db/shop"],
        {"password": "hunter2"},
        b"hunter2",
    ],
)
def test_password_never_in_a_problem(url: object) -> None:
    """A problem with the URL shows no more of it than its scheme."""
    (found,) = problems(url=url)

    assert found.startswith("argument url: ")
    assert "allowed: sqlite:///file" in found
    assert PASSWORD not in found


def test_password_in_the_wrong_place() -> None:
    """A URL or password that was given under another or an unknown name is not shown either."""
    url = f"postgresql://app:{PASSWORD}@db/shop"
    toml = f"""
    database = "{url}"
    log = "{url}"
    [store]
    password = "{PASSWORD}"
    notify = "{url}"
    [engine.concurrency]
    password = "{PASSWORD}"
    """

    found = problems(toml, {"LEDGERSTONE_LOG_LEVEL": url, "LEDGERSTONE_PASSWORD": PASSWORD})

    assert len(found) == 7
    assert PASSWORD not in "".join(found)


def test_password_in_a_broken_file() -> None:
    """A file that is no TOML is not shown where it breaks."""
    (found,) = problems(f"url = postgresql://app:{PASSWORD}@db/shop")

    assert PASSWORD not in found


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("sqlite:///shop.db", "sqlite:///shop.db"),
        ("mysql://app@db:3306/shop", "mysql://app@db:3306/shop"),
        ("mysql://app:hunter2@db:3306/shop", "mysql://app:***@db:3306/shop"),
        ("mysql://:hunter2@db/shop", "mysql://:***@db/shop"),
        ("mysql://app:hun/ter2@db/shop", "mysql://app:***@db/shop"),
        ("mysql://app@tenant:hunter2@db/shop", "mysql://app@tenant:***@db/shop"),
        ("mysql://db/shop?password=hunter2&a=b", "mysql://db/shop?password=***&a=b"),
        ("mysql://db/shop?a=b&sslPassword=hunter2", "mysql://db/shop?a=b&sslPassword=***"),
    ],
)
def test_password_masked(url: str, masked: str) -> None:
    """What is printed of settings has `***` in place of the password; the URL itself has it."""
    loaded = load(url=url)

    assert loaded.url == url
    assert loaded.url_masked == masked
    assert repr(loaded).startswith(f"Settings(url='{masked}', rooms=[], store=StoreSettings(")
    assert PASSWORD not in f"{loaded} {loaded.__rich_repr__()}"


def test_settings_are_values() -> None:
    """Settings cannot be changed once they are loaded."""
    loaded = load()

    with pytest.raises(AttributeError):
        loaded.url = "sqlite://"  # type: ignore[misc]


def run_reference(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "tools" / "reference.py"), *arguments]
    path = {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        command, env=path, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX, check=False
    )


@pytest.mark.slow
def test_reference_documents() -> None:
    """The reference documents in the repository are what the code says."""
    done = run_reference(ROOT, "--check")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_reference_check_fails(tmp_path: Path) -> None:
    """The check names each document that is missing or differs, and writes none of them."""
    (tmp_path / "tools").mkdir()
    copy(ROOT / "tools" / "reference.py", tmp_path / "tools")
    document = tmp_path / "docs" / "reference" / "settings.md"

    missing = run_reference(tmp_path, "--check")
    existed = document.exists()
    written = run_reference(tmp_path)
    document.write_text("other", encoding="utf-8")
    differing = run_reference(tmp_path, "--check")

    assert (missing.returncode, written.returncode, differing.returncode) == (1, 0, 1)
    assert not existed
    assert len(missing.stdout.splitlines()) == len(list(document.parent.iterdir()))
    assert differing.stdout.startswith("docs/reference/settings.md: out of date")


def test_settings_document() -> None:
    """The settings document is the generated one and has a row for every setting."""
    document = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")

    assert document == settings.reference()
    for key in SCHEMA:
        assert f"| `{environment_name(key)}` |" in document
    assert document.count("| `LEDGERSTONE_") == len(SCHEMA)


ERRORS = [
    error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, LedgerstoneError)
]


def test_error_codes() -> None:
    """Every error has a code of its own, which no other error has."""
    codes = [vars(error).get("code") for error in ERRORS]

    assert None not in codes
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z][a-z_]*", str(code)) for code in codes)


@pytest.mark.parametrize("error", ERRORS)
def test_error_docstrings(error: type[LedgerstoneError]) -> None:
    """Every error says what its caller should do."""
    assert re.fullmatch(r"[A-Z`].*\.", error.__doc__ or "", flags=re.DOTALL)


def test_error_tree_drawn() -> None:
    """The tree drawn in the module is the tree of the classes, and the document is in its order."""
    drawn = re.findall(r"^([ │]*)[├└]── (\w+)", errors.__doc__ or "", flags=re.MULTILINE)
    document = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")

    branch = ["LedgerstoneError"]
    for indent, name in drawn:
        branch[len(indent) // 4 :] = [name]
        assert getattr(errors, branch[-2]) in getattr(errors, name).__bases__

    listed = re.findall(r"^\| `(\w+)` \|", document, flags=re.MULTILINE)
    assert listed == ["LedgerstoneError", *[name for _, name in drawn]]
    assert sorted(listed) == sorted(error.__name__ for error in ERRORS)
