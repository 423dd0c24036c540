"""Put known errors into the code, one at a time, and report the ones that no test notices.

    python -m tools.mutants                 every error of tests/mutants
    python -m tools.mutants token lanes     those with one of these words in their name or file

Each error is an entry of a file under tests/mutants:

    [[mutant]]
    name = "rescue-keeps-the-token"         unique, says what is wrong
    promise = 3                             the promise of ARCHITECTURE.md that it breaks
    file = "jobs/source.py"                 below src/ledgerstone
    find = '''…'''                          stands there exactly once
    replace = '''…'''
    tests = ["tests/contract/test_jobs.py"] what to run: paths, test ids, -k expressions

The tests run against a copy of the tree, so that the working tree is never changed. Before the
first error they run once against an unchanged copy: they must pass there, or nothing is proved.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.harness.shared_servers import ADDRESS, SharedServers
from tools.runs import Runs

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "mutants"
PACKAGE = Path("src/ledgerstone")
ENVIRONMENT = {"TESTS_WAIT_SECONDS_MAX": "60"}
"""A test that notices an error by waiting in vain need not wait for minutes."""
COPIED = ("src", "tests", "tools", "bench", "docs")
OWN_SERVERS = ("store/dialects", "migrations/", "tables.py", "schema.py")
"""Errors in such files reach into the databases that other runs copy theirs from."""
OPTIONS = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider")
JOBS = 2 * (os.cpu_count() or 1)
"""Some of the tests that notice an error wait for what never comes."""
FAILED = 1


class Mutant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One known error."""

    name: str
    promise: int
    file: str
    find: str
    replace: str
    tests: list[str]

    def mistake(self) -> str | None:
        """Why this entry proves nothing, if it does not."""
        path = ROOT / PACKAGE / self.file
        if not path.is_file():
            return f"there is no file {PACKAGE / self.file}"
        text = path.read_text(encoding="utf-8")
        found = text.count(self.find)
        if found != 1:
            return f"`find` stands {found} times in {self.file}, not once"
        if self.find == self.replace:
            return "`replace` changes nothing"
        if not self.tests:
            return "`tests` is empty"
        return self._error_of_syntax(text) if path.suffix == ".py" else None

    def _error_of_syntax(self, text: str) -> str | None:
        try:
            compile(text.replace(self.find, self.replace), self.file, "exec")
        except SyntaxError as error:
            return f"with `replace`, line {error.lineno} is no Python: {error.msg}"
        return None


class Result(StrEnum):
    """What the tests said of an error."""

    NOTICED = "noticed"
    HUNG = "noticed, by a test that never ended"
    MISSED = "NOT NOTICED"
    BROKEN = "THE TESTS COULD NOT RUN"


class Verdict(NamedTuple):
    """An error, and what the tests said of it."""

    mutant: Mutant
    result: Result
    seconds: float
    output: str


def listed(folder: Path = LIST) -> list[Mutant]:
    """Every error of the list; ValueError if an entry is wrong."""
    mutants = []
    for path in sorted(folder.glob("*.toml")):
        try:
            entries = tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", [])
            mutants += msgspec.convert(entries, list[Mutant])
        except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
            message = f"{path.name}: {error}"
            raise ValueError(message) from None
    names = [mutant.name for mutant in mutants]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        message = f"two errors have the name {twice[0]!r}"
        raise ValueError(message)
    return mutants


def main() -> None:
    """Try the errors; exit status 1 if one of them is not noticed."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", help="only errors with one of these in name or file")
    parser.add_argument("--jobs", type=int, default=JOBS, help="how many at once")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    try:
        chosen = [mutant for mutant in listed() if _is_chosen(mutant, arguments.words)]
    except ValueError as error:
        sys.exit(f"mutants: {error}")
    if mistakes := [f"{m.name}: {said}" for m in chosen if (said := m.mistake())]:
        sys.exit("mutants: the list is out of date\n" + "\n".join(mistakes))
    if not chosen:
        sys.exit("mutants: no error has one of these words in its name or file")
    servers = SharedServers()
    try:
        with _tree() as tree, Runs() as runs:
            _require_sound(runs, tree, chosen, arguments.jobs, console)
            verdicts = _tried(runs, tree, chosen, arguments.jobs, console)
    finally:
        servers.stop()
    _say(verdicts, console, as_json=arguments.json)
    sys.exit(any(each.result in {Result.MISSED, Result.BROKEN} for each in verdicts))


def _is_chosen(mutant: Mutant, words: list[str]) -> bool:
    return not words or any(word in mutant.name or word in mutant.file for word in words)


def _require_sound(
    runs: Runs, tree: Path, mutants: list[Mutant], jobs: int, console: Console
) -> None:
    """The tests pass while nothing is wrong, or nothing can be learned from them."""
    wanted = merged({tuple(mutant.tests) for mutant in mutants})
    with Progress(console=console) as progress, ThreadPoolExecutor(jobs) as threads:
        task = progress.add_task("without an error", total=len(wanted))
        running = {threads.submit(_run, runs, tree, tests, own=False): tests for tests in wanted}
        for done in as_completed(running):
            result, output = done.result()
            progress.advance(task)
            if result is not Result.MISSED:
                threads.shutdown(cancel_futures=True)
                words = " ".join(running[done])
                sys.exit(f"mutants: without any error, {words} fails:\n{output}")


def merged(selections: Iterable[tuple[str, ...]]) -> list[list[str]]:
    """Fewer runs of pytest that run all of these tests, and perhaps others of the same files."""
    wanted: dict[tuple[str, str | None], set[str | None]] = {}
    for selection in selections:
        parser = argparse.ArgumentParser()
        parser.add_argument("paths", nargs="+")
        parser.add_argument("-k")
        parser.add_argument("-m")
        given = parser.parse_args(selection)
        for path in given.paths:
            file, *names = path.split("::")
            by_name = " and ".join(name.partition("[")[0] for name in names) or None
            asked = " and ".join(f"({each})" for each in (by_name, given.k) if each) or None
            wanted.setdefault((file, given.m), set()).add(asked)
    runs = []
    for (file, marks), expressions in sorted(wanted.items(), key=str):
        run = [file] if marks is None else [file, "-m", marks]
        if None not in expressions:
            run += ["-k", " or ".join(sorted(each for each in expressions if each))]
        runs.append(run)
    return runs


def _tried(
    runs: Runs, tree: Path, mutants: list[Mutant], jobs: int, console: Console
) -> list[Verdict]:
    with Progress(console=console) as progress, ThreadPoolExecutor(jobs) as threads:
        task = progress.add_task("with one error", total=len(mutants))
        verdicts = []
        for done in as_completed([threads.submit(_try, runs, tree, mutant) for mutant in mutants]):
            verdict = done.result()
            verdicts.append(verdict)
            progress.advance(task)
            if verdict.result in {Result.MISSED, Result.BROKEN}:
                progress.console.print(f"{verdict.mutant.name}: {verdict.result}", style="red")
    return sorted(verdicts, key=lambda each: (each.mutant.file, each.mutant.name))


def _try(runs: Runs, sound: Path, mutant: Mutant) -> Verdict:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"{sound.name}-", dir=sound.parent) as folder:
        tree = Path(folder) / "tree"
        # The same files, and what was compiled of them: only the one with the error is another.
        shutil.copytree(sound, tree, copy_function=os.link)
        path = tree / PACKAGE / mutant.file
        text = path.read_text(encoding="utf-8")
        path.unlink()
        path.write_text(text.replace(mutant.find, mutant.replace), encoding="utf-8")
        own = any(part in mutant.file for part in OWN_SERVERS)
        result, output = _run(runs, tree, mutant.tests, own=own)
    return Verdict(mutant, result, time.monotonic() - began, output)


@contextmanager
def _tree() -> Iterator[Path]:
    """A copy of what the tests need, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="ledgerstone-mutants-") as folder:
        tree = Path(folder)
        for name in COPIED:
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        for file in (*ROOT.glob("*.toml"), *ROOT.glob("*.md"), ROOT / "Makefile"):
            shutil.copy(file, tree)
        yield tree


def _run(runs: Runs, tree: Path, tests: Iterable[str], *, own: bool) -> tuple[Result, str]:
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(tree / "src")}
    if own:
        environment.pop(ADDRESS)
    code, output = runs.run(tree, [*OPTIONS, *tests], environment)
    if code is None:
        return Result.HUNG, output
    if code == 0:
        return Result.MISSED, output
    # An error while tests are collected is one: the code does not import any more.
    return (Result.NOTICED if code == FAILED else Result.BROKEN), output


def _say(verdicts: list[Verdict], console: Console, *, as_json: bool) -> None:
    noticed = sum(each.result in {Result.NOTICED, Result.HUNG} for each in verdicts)
    if as_json:
        rows = [
            {
                "name": each.mutant.name,
                "file": each.mutant.file,
                "promise": each.mutant.promise,
                "result": each.result.name.lower(),
                "seconds": round(each.seconds, 1),
            }
            for each in verdicts
        ]
        print(json.dumps({"noticed": noticed, "of": len(verdicts), "errors": rows}, indent=2))
        return
    table = Table("file", "error", "promise", "result", "seconds")
    for each in verdicts:
        good = each.result in {Result.NOTICED, Result.HUNG}
        table.add_row(
            each.mutant.file,
            each.mutant.name,
            str(each.mutant.promise),
            each.result.value,
            f"{each.seconds:.1f}",
            style=None if good else "red",
        )
    console.print(table)
    for each in verdicts:
        if each.result is Result.BROKEN:
            console.print(f"{each.mutant.name}:\n{each.output}", markup=False, highlight=False)
    print(f"{noticed} of {len(verdicts)} errors were noticed")


if __name__ == "__main__":
    main()
