"""What all commands share: help, options, errors, exit codes, colours."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer

from ledgerstone import __version__
from ledgerstone.cli.program import COMMANDS as PLACES
from ledgerstone.cli.program import SUMMARIES, app
from ledgerstone.testing.server import free_port
from ledgerstone.testing.waiting import WAIT_SECONDS_MAX
from tests.cli.program import COLUMNS, Program

ON_A_DATABASE = ("up", "status", "doctor", "migrate", "demo", "queues", "schedules")
GROUPS = ("jobs", "outbox", "inbox", "failed", "messaging", "signing")
COMMANDS = (*ON_A_DATABASE, "work", *GROUPS)
PASSWORD = "hunter2"
ESCAPE = "\x1b["


def test_alone_it_shows_its_help(program: Program) -> None:
    """`ledgerstone` alone shows the help with every command, and that is no error."""
    ended = program.run()

    assert ended.code == 0
    assert "Exit codes" in ended.out
    assert all(f"│ {name} " in ended.out for name in COMMANDS)


def test_the_list_says_what_each_help_says() -> None:
    """The list of commands says the first sentence of the help of each."""
    group: Any = typer.main.get_command(app)
    context = typer.Context(group)
    helps = {name: group.get_command(context, name).help for name in PLACES}

    said = {name: " ".join(words.partition("\n\n")[0].split()) for name, words in helps.items()}
    assert said == SUMMARIES


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_everything_has_a_help(name: str) -> None:
    """Every command and every option of it has a help text."""
    group: Any = typer.main.get_command(app)
    command = group.get_command(typer.Context(group), name) if name else group

    assert command.help
    assert [option.name for option in command.params if not option.help] == []


@pytest.mark.parametrize("name", GROUPS)
def test_every_command_of_a_group_has_a_help(name: str) -> None:
    """What it does, an example, and every option; the example is one of this command."""
    group: Any = typer.main.get_command(app)
    commands = group.get_command(typer.Context(group), name).commands

    for inner, command in commands.items():
        assert f"Example: ledgerstone {name} {inner}" in command.help
        assert [option.name for option in command.params if not option.help] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_fits_a_narrow_terminal(program: Program, name: str) -> None:
    """The help of a command fits into 80 columns and cuts no word off."""
    ended = program.run(name, "--help")

    assert ended.code == 0
    assert max(map(len, ended.out.splitlines())) <= COLUMNS
    assert "…" not in ended.out


def test_it_says_its_version(program: Program) -> None:
    """--version prints the version, with --json as JSON."""
    assert program.run("--version").out == f"ledgerstone {__version__}\n"
    assert program.run("--json", "--version").json == {"version": __version__}


def test_shared_options_stand_anywhere(program: Program) -> None:
    """The options of every command may stand before it or after it."""
    before = program.run("--json", "--url", "sqlite:///a.db", "migrate", "--check")
    after = program.run("migrate", "--check", "--url", "sqlite:///a.db", "--json")

    program.run("migrate", "--url", "sqlite:///a.db")
    done = program.run("--url", "sqlite:///a.db", "migrate", "--check")

    assert before.json == after.json
    assert before.code == after.code == 3
    assert done.code == 0


def test_wrong_usage_is_exit_2(program: Program) -> None:
    """An unknown command or option, or two that do not go together, is exit 2."""
    assert program.run("bogus").code == 2
    assert program.run("status", "--bogus").code == 2
    assert program.run("status", "--watch", "--json").code == 2
    assert program.run("migrate", "--sql", "--check").code == 2
    assert program.run("migrate", "--since", "0001").code == 2


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_a_server_out_of_reach_is_exit_4(program: Program, scheme: str) -> None:
    """A database that cannot be reached: an error and a hint, no traceback, exit 4, no password."""
    url = f"{scheme}://someone:{PASSWORD}@127.0.0.1:{free_port()}/there"

    plain = program.run("--url", url, "status")
    machine = program.run("--url", url, "migrate", "--json")

    assert (plain.code, machine.code) == (4, 4)
    assert plain.out == ""
    assert plain.err.startswith("error: ")
    assert "\nhint: check that the database is running and reachable\n" in plain.err
    assert "Traceback" not in plain.err
    assert machine.json["error"]["code"] == "store_unavailable"
    assert machine.json["error"]["retryable"] is True
    assert set(machine.json["error"]) == {"code", "message", "hint", "retryable"}
    assert machine.err == ""
    assert PASSWORD not in plain.err + machine.out


def test_verbose_shows_where_an_error_arose(program: Program) -> None:
    """-v adds the traceback, still without the password."""
    url = f"postgresql://someone:{PASSWORD}@127.0.0.1:{free_port()}/there"

    ended = program.run("--url", url, "-v", "status")

    assert ended.code == 4
    assert "Traceback" in ended.err
    assert "error: " in ended.err
    assert PASSWORD not in ended.err


@pytest.mark.parametrize("name", ON_A_DATABASE)
def test_an_unknown_scheme_is_refused(program: Program, name: str) -> None:
    """A database of another kind is refused and the allowed kinds told; exit 1, no password."""
    ended = program.run("--url", f"oracle://someone:{PASSWORD}@there/db", name)

    assert ended.code == 1
    # Tables fold long lines.
    said = " ".join((ended.out + ended.err).split())
    assert "oracle://… is not allowed" in said
    assert "postgresql" in said
    assert PASSWORD not in said


def test_all_problems_of_the_settings_are_shown(program: Program) -> None:
    """Every problem of a settings file is shown at once, and nothing of a secret value."""
    (program.folder / "ledgerstone.toml").write_text(
        f'url = "oracle://someone:{PASSWORD}@there"\n'
        "[engine]\nconcurency = 3\nlease_seconds = 0\n[log]\nlevel = 'LOUD'\n"
    )

    plain = program.run("status")
    machine = program.run("status", "--json")

    words = ("url: oracle://…", "engine.concurency: unknown", "engine.lease_seconds: 0", "LOUD")
    assert (plain.code, machine.code) == (1, 1)
    assert all(word in plain.err for word in words)
    assert all(word in machine.json["error"]["message"] for word in words)
    assert machine.json["error"]["code"] == "settings"
    assert PASSWORD not in plain.err + machine.out


def test_broken_toml_is_told_with_its_place(program: Program) -> None:
    """A file that is no TOML is refused with line and column, wherever --config says it is."""
    (program.folder / "other.toml").write_text("[engine\n")

    ended = program.run("--config", "other.toml", "status")

    assert ended.code == 1
    assert "other.toml: not TOML" in ended.err
    assert "line 1" in ended.err


def test_a_settings_file_that_is_not_there_is_an_error(program: Program) -> None:
    """A file that --config names must exist."""
    ended = program.run("--config", "nowhere.toml", "status")

    assert ended.code == 1
    assert ended.err.startswith("error: nowhere.toml: ")


@pytest.mark.slow
def test_a_missing_driver_is_told(program: Program) -> None:
    """Where the driver is not installed, the error says what to install."""
    program.hide("psycopg")

    ended = program.run("--url", "postgresql://there/db", "status")

    assert ended.code == 1
    assert "error: the driver psycopg is not installed\n" in ended.err
    assert "ledgerstone[postgres]" in ended.err


def test_a_pipe_gets_no_colours(program: Program) -> None:
    """What is not a terminal gets no escape sequences."""
    program.run("migrate")

    for arguments in (["status"], ["doctor"], ["--help"], ["status", "--url", "oracle://"]):
        ended = program.run(*arguments)
        assert ESCAPE not in ended.out + ended.err


def test_no_color_is_respected(program: Program) -> None:
    """A terminal gets colours, unless NO_COLOR is set."""
    program.run("migrate")

    with program.show("doctor") as coloured:
        coloured.ended()
    with program.show("doctor", NO_COLOR="1") as plain:
        plain.ended()

    assert f"{ESCAPE}32mok" in coloured.said
    assert f"{ESCAPE}32m" not in plain.said


def imported(program: Program, *arguments: str) -> set[str]:
    """The packages that a call of the command imports."""
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ledgerstone", *arguments],
        cwd=program.folder,
        env=program.environment,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=True,
    )
    lines = [line.rpartition("|")[2].strip() for line in ended.stderr.splitlines() if "|" in line]
    return {name for line in lines for name in (line, line.partition(".")[0])}


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["jobs", "list"], ["status"], ["queues"], ["failed", "show"], ["outbox", "list"]],
    ids=" ".join,
)
def test_little_is_imported(program: Program, arguments: list[str]) -> None:
    """A command on SQLite imports no driver of a server, no broker, and no part of a worker's."""
    program.run("migrate")

    packages = imported(program, *arguments)

    assert "sqlalchemy" in packages
    needless = {"alembic", "h11", "multiprocessing", "nats", "pika", "psycopg", "pymysql", "pytest"}
    assert packages & needless == set()
    assert not any(name.startswith("ledgerstone.testing") for name in packages)


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_less_is_imported_without_a_database(program: Program, argument: str) -> None:
    """What needs no database imports neither SQLAlchemy nor the ledger."""
    packages = imported(program, argument)

    assert packages & {"sqlalchemy", "ledgerstone.ledger", "ledgerstone.engine"} == set()
