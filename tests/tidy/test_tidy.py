"""Style as law: what STYLE would ask in a review, asked by a test, of every file of the house.

A rule is a function over one file; its docstring is the clause, its `fix` what to do. `BREACHES`
holds snippets that each rule must find, `FINE` snippets that it must leave alone, so that a rule
which went blind is noticed. Patterns are spelled so that this file does not match itself.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Parsing the whole house takes longer than all the rules together: one process does it.
pytestmark = pytest.mark.xdist_group("tidy")

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
PROBLEMS_SHOWN_MAX = 40

SLEEPING = frozenset({"time.sleep", "asyncio.sleep", "anyio.sleep", "sleep"})

SLEEPS: dict[str, str] = {
    "tests/chores/work.py::brief": "a handler that takes a millisecond",
    "tests/chores/work.py::gated": "a handler in another process that a file lets go on",
    "tests/chores/work.py::endless": "a handler that ends only when it is interrupted",
    "tests/contract/engine/running.py::awaited": "a handler that awaits until it is canceled",
}
"""Where a test may sleep ("path::function"), and why nothing else would do."""

SKIPS: dict[str, str] = {
    "server not installed": "`make test` installs every server; a bare pytest may run without",
}
"""How a skip's reason must begin (up to a colon), and why it is a real limit."""

STARTED_BY_PATH: dict[str, str] = {}
"""Modules that nothing imports by name, and what runs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One text file, by its path from the top folder."""

    path: str
    text: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def tree(self) -> ast.Module:
        return parsed(self.text)

    @property
    def nodes(self) -> list[Placed]:
        return placed(self.text)


Placed = tuple[str, ast.AST]
"""A node, and the name of the function that it stands in."""


@cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def placed(text: str) -> list[Placed]:
    """Every node of a module; kept, since every rule asks for them."""
    found: list[Placed] = []
    unvisited: list[Placed] = [("<module>", parsed(text))]
    while unvisited:
        function, node = unvisited.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        found.append((function, node))
        unvisited += [(function, child) for child in ast.iter_child_nodes(node)]
    return found


Problem = tuple[int, str]
Find = Callable[[File], Iterator[Problem]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What must not be found, in which files, and how to mend it."""

    find: Find
    applies: Callable[[File], bool]
    fix: str

    @property
    def name(self) -> str:
        return self.find.__name__

    def problems(self, file: File) -> list[str]:
        found = self.find(file) if self.applies(file) else iter(())
        return [f"{file.path}:{line}: {what}" for line, what in found]


RULES: dict[str, Rule] = {}


def rule(*, applies: Callable[[File], bool], fix: str) -> Callable[[Find], Find]:
    """Enter the function below into RULES."""

    def enter(find: Find) -> Find:
        RULES[find.__name__] = Rule(find=find, applies=applies, fix=fix)
        return find

    return enter


def functions(file: File) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for _, node in file.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def anything(_: File) -> bool:
    return True


def python(file: File) -> bool:
    return file.path.endswith(".py")


def source(file: File) -> bool:
    return python(file) and file.path.startswith("src/")


def tested(file: File) -> bool:
    return python(file) and file.path.startswith(("tests/", "src/ledgerstone/testing/"))


def markdown(file: File) -> bool:
    return file.path.endswith(".md")


def lock_file(file: File) -> bool:
    return any(
        fnmatch(file.name, name) for name in ("*constraints*.txt", "*requirements*", "*lock*")
    )


def commented(file: File) -> bool:
    return file.name == "Makefile" or file.path.endswith((".py", ".toml", ".sh", ".yml", "/run"))


@rule(applies=source, fix="give a noun of it a module of its own")
def modules_fit_in_a_head(file: File) -> Iterator[Problem]:
    """No module of src is longer than 600 lines."""
    lines = file.text.count("\n")
    if lines > MODULE_LINES_MAX:
        yield MODULE_LINES_MAX, f"{lines} lines, at most {MODULE_LINES_MAX}"


@rule(applies=python, fix="split it into steps that have names")
def functions_fit_on_a_screen(file: File) -> Iterator[Problem]:
    """No function is longer than 70 lines."""
    for node in functions(file):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield node.lineno, f"{node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}"


@rule(applies=python, fix="name the file after the noun that lives in it")
def files_are_named_after_nouns(file: File) -> Iterator[Problem]:
    """No module is called base, utils, helpers, common or manager."""
    if file.name in {"base.py", "utils.py", "helpers.py", "common.py", "manager.py"}:
        yield 1, f"{file.name} says nothing"


@rule(
    applies=lambda file: source(file) and not file.path.startswith("src/ledgerstone/store/"),
    fix="ask for a capability, or put the difference into src/ledgerstone/store",
)
def dialects_stay_in_the_store(file: File) -> Iterator[Problem]:
    """Outside the store nobody asks a database for its name."""
    for _, node in file.nodes:
        match node:
            case ast.Attribute(value=owner, attr="name") if _is_dialect(owner):
                yield node.lineno, "asks for the name of a dialect"
            case ast.Compare(left=left, comparators=rights):
                if any(map(_is_dialect, [left, *rights])):
                    yield node.lineno, "compares a dialect"
            case ast.If(test=test) | ast.IfExp(test=test) | ast.Match(subject=test):
                if _is_dialect(test):
                    yield test.lineno, "branches on a dialect"
            case ast.Call(func=ast.Name(id="isinstance"), args=[value, *_]) if _is_dialect(value):
                yield node.lineno, "asks for the class of a dialect"
            case _:
                pass


def _is_dialect(node: ast.expr) -> bool:
    names = {"dialect", "dialect_name"}
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in names
        case _:
            return False


@rule(
    applies=lambda file: source(file) or tested(file),
    fix="say in one sentence at its top what the module is for",
)
def modules_say_what_they_are_for(file: File) -> Iterator[Problem]:
    """Every module of src and of the tests has a docstring."""
    if ast.get_docstring(file.tree) is None:
        yield 1, "no module docstring"


@rule(applies=tested, fix="write the clause that it proves as its docstring")
def tests_say_what_they_prove(file: File) -> Iterator[Problem]:
    """Every test function has a docstring."""
    for node in functions(file):
        if node.name.startswith("test_") and ast.get_docstring(node) is None:
            yield node.lineno, f"{node.name} has no docstring"


@rule(
    applies=lambda file: python(file) and file.path.startswith("tests/"),
    fix="inject a clock, call tick() or wait for a signal; if none can serve, enter it in SLEEPS",
)
def tests_do_not_sleep(file: File) -> Iterator[Problem]:
    """No test sleeps, except those in the table with their reason."""
    for function, call in _calls(file):
        dotted = ast.unparse(call.func)
        # Sleeping for 0 only gives the loop a turn.
        sleeps = dotted in SLEEPING and ast.unparse(call) != f"{dotted}(0)"
        if sleeps and f"{file.path}::{function}" not in SLEEPS:
            yield call.lineno, f"{dotted} in {function}"


@rule(
    applies=tested, fix="mark its tests with pytest.mark.torture, so that `make torture` runs them"
)
def sizes_belong_to_the_torture(file: File) -> Iterator[Problem]:
    """A file that gives a test two sizes has a test that `make torture` runs."""
    calls = [call for _, call in _calls(file) if ast.unparse(call.func) == "sized"]
    if calls and "mark.torture" not in file.text:
        yield calls[0].lineno, "a size that nothing runs in full"


def _calls(file: File) -> Iterator[tuple[str, ast.Call]]:
    """Every call, with the name of the function that it stands in."""
    for function, node in file.nodes:
        if isinstance(node, ast.Call):
            yield function, node


@rule(applies=python, fix="run the real part: a private server, a real process, a file in tmp_path")
def nothing_is_mocked(file: File) -> Iterator[Problem]:
    """No file imports a mock."""
    for _, node in file.nodes:
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=module, names=names):
                modules = [f"{module}.{alias.name}" for alias in names]
            case _:
                continue
        if any(re.match(r"(unittest\.)?mock\b|pytest_mock\b", module) for module in modules):
            yield node.lineno, "imports a mock"


@rule(applies=anything, fix="do it now, or write it into the tracker and delete the words")
def nothing_is_left_unfinished(file: File) -> Iterator[Problem]:
    """No file carries a note to do something later."""
    yield from _matches(file, r"\b(?:TO[D]O|FIX[M]E|X[X]X)\b")


@rule(applies=anything, fix="write it relative to the top folder, or take it from a setting")
def no_path_of_one_machine(file: File) -> Iterator[Problem]:
    """No file holds a path that exists on its author's machine only."""
    yield from _matches(file, r"(?<![\w.:/-])/(?:home|root|Users|work)/(?=\w)")


@rule(applies=lock_file, fix="keep name, version and hash; compile without index options")
def lock_files_hold_no_address(file: File) -> Iterator[Problem]:
    """A lock file holds names, versions and hashes, and no address of anything."""
    yield from _matches(
        file, r"\w+://|@ |^\s*(?:-i|-f|--index-url|--extra-index-url|--find-links)\b"
    )


@rule(applies=anything, fix="leave it out: where packages come from is the reader's own setting")
def no_registry_is_named(file: File) -> Iterator[Problem]:
    """No file names the host of a package registry."""
    hosts = (
        r"pypi[.]org|pythonhosted[.]org|npmjs[.](?:org|com)|crates[.]io|rubygems[.]org|docker[.]io"
    )
    yield from _matches(file, rf"(?i)\b(?:{hosts})\b")


@rule(applies=commented, fix="delete it: a name or a module of its own divides better")
def comments_are_sentences(file: File) -> Iterator[Problem]:
    """No comment is a banner or a ruler."""
    yield from _matches(file, r"^\s*#[ \t]*(?:[-=*#~_+]{3,}|\S.*[-=*#~_+]{4,}\s*$)")


def _matches(file: File, pattern: str) -> Iterator[Problem]:
    for number, line in enumerate(file.text.splitlines(), start=1):
        found = re.search(pattern, line)
        if found:
            yield number, found.group().strip()


@rule(
    applies=tested,
    fix="run it, or begin its reason with a key of SKIPS (a colon and the details may follow)",
)
def skips_have_a_named_reason(file: File) -> Iterator[Problem]:
    """No test is skipped or expected to fail but for a reason in the table."""
    for _, call in _calls(file):
        dotted = ast.unparse(call.func)
        if re.fullmatch(r"pytest\.(mark\.)?(skip|skipif|xfail|importorskip)", dotted):
            reason = _reason(call, positional=dotted in {"pytest.skip", "pytest.xfail"})
            if reason.partition(":")[0] not in SKIPS:
                yield call.lineno, f"{dotted} with the reason {reason!r}"


def _reason(call: ast.Call, *, positional: bool) -> str:
    """The constant beginning of a skip's reason, or nothing."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "reason"]
    given += call.args[:1] if positional else []
    match given:
        case [ast.Constant(value=str(text)), *_]:
            return text
        case [ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]), *_]:
            return text
        case _:
            return ""


@rule(applies=markdown, fix="one line with a single # names the page; sections begin with ##")
def pages_have_one_title(file: File) -> Iterator[Problem]:
    """A page has exactly one title."""
    titles = [heading for heading in _headings(file.text) if heading.startswith("# ")]
    if len(titles) != 1:
        yield 1, f"{len(titles)} titles"


@rule(
    applies=lambda file: markdown(file) and file.path.startswith("docs/decisions/"),
    fix="tell it under ## Context, ## Choice and ## Given up",
)
def decisions_say_what_was_given_up(file: File) -> Iterator[Problem]:
    """A decision has its context, its choice, and what was given up."""
    missing = {"## Context", "## Choice", "## Given up"} - set(_headings(file.text))
    if missing:
        yield 1, f"without {', '.join(sorted(missing))}"


def _headings(text: str) -> list[str]:
    """The headings of a page; what looks like one inside a code block is none."""
    outside = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#{1,6} .*?(?=\s*$)", outside, flags=re.MULTILINE)


def house() -> list[File]:
    """Every file that belongs to the repository and is text."""
    files = []
    for path in listed_by_git(ROOT) or listed_by_walk(ROOT):
        try:
            files.append(File(path=path, text=(ROOT / path).read_text(encoding="utf-8")))
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
    return files


def listed_by_git(root: Path) -> list[str]:
    """What is tracked, or new and not ignored; nothing where git or its folder is not there."""
    command = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        return []
    return sorted(filter(None, done.stdout.split("\0"))) if done.returncode == 0 else []


def listed_by_walk(root: Path) -> list[str]:
    """The same from an unpacked archive: everything that .gitignore does not name."""
    ignored = [".git", *(line.rstrip("/") for line in (root / ".gitignore").read_text().split())]

    def kept(names: list[str]) -> list[str]:
        return [name for name in names if not any(fnmatch(name, pattern) for pattern in ignored)]

    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = kept(subfolders)
        found += [(Path(folder) / name).relative_to(root).as_posix() for name in kept(names)]
    return sorted(found)


def unreached(files: list[File]) -> list[str]:
    """Modules of src that nothing imports, names or starts."""
    reached = set(STARTED_BY_PATH)
    for file in files:
        if python(file):
            reached |= _named_by(file) - {_module(file)}
        elif file.name in {"pyproject.toml", "Makefile"}:
            reached |= set(re.findall(r"\bledgerstone(?:\.\w+)+", file.text))
    # Reaching a module reaches the packages that it lies in.
    reached |= {name[: dot.start()] for name in reached for dot in re.finditer(r"\.", name)}
    ways_in = re.compile(r"/__main__\.py$|/migrations/")
    sources = [file for file in files if source(file) and not ways_in.search(file.path)]
    return [file.path for file in sources if _module(file) not in reached | {"ledgerstone"}]


def _named_by(file: File) -> set[str]:
    """The modules that a file imports, or names in a string."""
    named: set[str] = set()
    package = _module(file) if file.name == "__init__.py" else _module(file).rpartition(".")[0]
    for _, node in file.nodes:
        match node:
            case ast.Import(names=names):
                named |= {alias.name for alias in names}
            case ast.ImportFrom(module=module, names=names, level=level):
                above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
                origin = ".".join(filter(None, [*above, module]))
                named |= {origin} | {f"{origin}.{alias.name}" for alias in names}
            case ast.Constant(value=str(text)) if re.fullmatch(r"ledgerstone[\w.]+(:\w+)?", text):
                named.add(text.partition(":")[0])
            case _:
                pass
    return named


def _module(file: File) -> str:
    return (
        file.path.removeprefix("src/")
        .removesuffix(".py")
        .removesuffix("/__init__")
        .replace("/", ".")
    )


HOUSE = house()


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_the_house_keeps_its_rules(name: str) -> None:
    """Every file of the repository keeps the clause in the rule's docstring."""
    checked = RULES[name]

    problems = [problem for file in HOUSE for problem in checked.problems(file)]

    assert not problems, told(problems, clause=str(checked.find.__doc__), fix=checked.fix)


def test_every_module_is_reached() -> None:
    """Every module of src is imported by something, or is an entry point."""
    problems = unreached(HOUSE)

    clause = "Every module of src is imported by something, or is an entry point."
    assert not problems, told(problems, clause=clause, fix="delete it, or use it")


def told(problems: list[str], *, clause: str, fix: str) -> str:
    shown = "\n".join(problems[:PROBLEMS_SHOWN_MAX])
    return f"{clause}\n{shown}\n({len(problems)} in all)\nTo mend: {fix}."


def test_the_tables_hold_nothing_stale() -> None:
    """An exception that nothing needs any more is removed from its table."""
    texts = {file.path: file.text for file in HOUSE}
    elsewhere = "\n".join(text for path, text in texts.items() if path != "tests/tidy/test_tidy.py")

    stale_sleeps = [key for key in SLEEPS if "sleep" not in texts.get(key.partition("::")[0], "")]
    stale_skips = [reason for reason in SKIPS if reason not in elsewhere]
    stale_modules = [
        name for name in STARTED_BY_PATH if name.replace(".", "/") not in str(texts.keys())
    ]

    assert stale_sleeps + stale_skips + stale_modules == []


SRC = "src/ledgerstone/jobs/queue.py"
TEST = "tests/jobs/test_queue.py"
NOTE = "docs/jobs.md"
PAGE = "docs/decisions/brush.md"

BREACHES: list[tuple[str, str, str]] = [
    ("modules_fit_in_a_head", SRC, "a = 1\n" * 601),
    ("functions_fit_on_a_screen", SRC, "def long():\n" + "    a = 1\n" * 70),
    ("functions_fit_on_a_screen", TEST, "async def long():\n" + "    a = 1\n" * 70),
    ("files_are_named_after_nouns", "src/ledgerstone/jobs/utils.py", ""),
    ("files_are_named_after_nouns", "tests/helpers.py", ""),
    ("dialects_stay_in_the_store", SRC, "if engine.dialect.name == 'sqlite': pass\n"),
    ("dialects_stay_in_the_store", SRC, "name = connection.dialect.name\n"),
    ("dialects_stay_in_the_store", SRC, "a = 1 if dialect == 'mysql' else 2\n"),
    ("dialects_stay_in_the_store", SRC, "if dialect in ('mysql', 'mariadb'): pass\n"),
    ("dialects_stay_in_the_store", SRC, "match self.dialect:\n    case _: pass\n"),
    ("dialects_stay_in_the_store", SRC, "isinstance(self.dialect, MySQL)\n"),
    ("modules_say_what_they_are_for", SRC, "a = 1\n"),
    ("modules_say_what_they_are_for", TEST, "a = 1\n"),
    ("tests_say_what_they_prove", TEST, "def test_a(): pass\n"),
    ("tests_say_what_they_prove", TEST, "class A:\n    async def test_a(self): pass\n"),
    ("tests_say_what_they_prove", "src/ledgerstone/testing/suite.py", "def test_a(): pass\n"),
    ("tests_do_not_sleep", TEST, "def test_a():\n    time.sleep(1)\n"),
    ("tests_do_not_sleep", TEST, "async def test_a():\n    await asyncio.sleep(0.1)\n"),
    ("tests_do_not_sleep", TEST, "from time import sleep\nsleep(1)\n"),
    ("sizes_belong_to_the_torture", TEST, "MANY = sized(1, full=9)\n"),
    ("nothing_is_mocked", TEST, "import unittest.mock\n"),
    ("nothing_is_mocked", TEST, "from unittest import mock\n"),
    ("nothing_is_mocked", TEST, "from unittest.mock import MagicMock\n"),
    ("nothing_is_left_unfinished", SRC, "# todo: later\n".upper()),
    ("nothing_is_left_unfinished", "Makefile", "# fixme\n".upper()),
    ("nothing_is_left_unfinished", NOTE, "xxx\n".upper()),
    ("no_path_of_one_machine", NOTE, "see /HOME/ann/notes\n".lower()),
    ("no_path_of_one_machine", SRC, "open('/ROOT/x')\n".lower()),
    ("lock_files_hold_no_address", "constraints.txt", "--index-url somewhere\n"),
    ("lock_files_hold_no_address", "constraints.txt", "a @ file:///a.whl\n"),
    ("lock_files_hold_no_address", "requirements-dev.txt", "# from https://example.org\n"),
    ("no_registry_is_named", NOTE, "see pypi(dot)org/project/a\n".replace("(dot)", ".")),
    ("no_registry_is_named", "x.lock", "files.pythonhosted(dot)org\n".replace("(dot)", ".")),
    ("comments_are_sentences", SRC, "# --------\n"),
    ("comments_are_sentences", SRC, "    # ==== helpers ====\n"),
    ("comments_are_sentences", "Makefile", "########\n"),
    ("comments_are_sentences", "pyproject.toml", "# tools -----\n"),
    ("skips_have_a_named_reason", TEST, "pytest.skip('because')\n"),
    ("skips_have_a_named_reason", TEST, "pytest.skip(str(error))\n"),
    ("skips_have_a_named_reason", TEST, "pytest.importorskip('django')\n"),
    ("skips_have_a_named_reason", TEST, "@pytest.mark.skipif(A, reason='slow')\ndef a(): pass\n"),
    ("skips_have_a_named_reason", TEST, "@pytest.mark.xfail()\ndef a(): pass\n"),
    ("pages_have_one_title", NOTE, "## Jobs\n"),
    ("pages_have_one_title", NOTE, "# Jobs\n# More jobs\n"),
    ("decisions_say_what_was_given_up", PAGE, "# Brush\n## Context\n## Choice\n"),
]

FINE: list[tuple[str, str, str]] = [
    ("modules_fit_in_a_head", SRC, "a = 1\n" * 600),
    ("functions_fit_on_a_screen", SRC, "def long():\n" + "    a = 1\n" * 69),
    ("files_are_named_after_nouns", "src/ledgerstone/jobs/queue.py", ""),
    ("dialects_stay_in_the_store", SRC, "a = 1 if database.dialect.one_writer else 2\n"),
    ("dialects_stay_in_the_store", "src/ledgerstone/store/a.py", "a = engine.dialect.name\n"),
    ("modules_say_what_they_are_for", SRC, '"""Queues."""\n'),
    ("tests_say_what_they_prove", TEST, 'def test_a():\n    """A is a."""\ndef helper(): pass\n'),
    ("tests_do_not_sleep", TEST, "async def test_a():\n    await asyncio.sleep(0)\n"),
    ("tests_do_not_sleep", SRC, "time.sleep(1)\n"),
    ("sizes_belong_to_the_torture", TEST, "A = sized(1, full=9)\npytest.mark.torture(test)\n"),
    ("nothing_is_mocked", TEST, "import mockingbird\nfrom unittest import TestCase\n"),
    ("nothing_is_left_unfinished", NOTE, "todo\n"),
    ("no_path_of_one_machine", NOTE, "GET /jobs/work/1 and /var/lib/a and src/HOME/a\n".lower()),
    ("lock_files_hold_no_address", "constraints.txt", "a==1 \\\n    --hash=sha256:00\n"),
    ("lock_files_hold_no_address", NOTE, "https://example.org\n"),
    ("no_registry_is_named", NOTE, "a package index\n"),
    ("comments_are_sentences", SRC, "#!/usr/bin/env python3\n# A - b, c == d.\na = '# ----'\n"),
    ("skips_have_a_named_reason", TEST, "pytest.skip(f'server not installed: {name}')\n"),
    ("pages_have_one_title", NOTE, "# Jobs\n```sh\n# a comment\n```\n## More\n"),
    ("decisions_say_what_was_given_up", PAGE, "# B\n## Context\n## Choice\n## Given up\n"),
]


@pytest.mark.parametrize(("name", "path", "text"), BREACHES, ids=map(str, range(len(BREACHES))))
def test_a_breach_is_found(name: str, path: str, text: str) -> None:
    """A rule finds each snippet that breaks it."""
    assert RULES[name].problems(File(path=path, text=text))


@pytest.mark.parametrize(("name", "path", "text"), FINE, ids=map(str, range(len(FINE))))
def test_what_is_fine_is_left_alone(name: str, path: str, text: str) -> None:
    """A rule does not complain of the snippet that is nearest to breaking it."""
    assert RULES[name].problems(File(path=path, text=text)) == []


@pytest.mark.parametrize("snippets", [BREACHES, FINE], ids=["breaches", "fine"])
def test_every_rule_is_tried(snippets: list[tuple[str, str, str]]) -> None:
    """No rule is without a snippet that breaks it and one that does not."""
    assert set(RULES) == {name for name, _, _ in snippets}


def test_an_unreached_module_is_found() -> None:
    """A module that nothing imports is told; one imported, relatively or by a string, is not."""
    files = [
        File(path="src/ledgerstone/__init__.py", text=""),
        File(path="src/ledgerstone/jobs/__init__.py", text="from . import queue\n"),
        File(path="src/ledgerstone/jobs/queue.py", text="from ..store.sql.pages import page\n"),
        File(path="src/ledgerstone/jobs/dead.py", text="import ledgerstone.jobs.dead\n"),
        File(path="src/ledgerstone/store/__init__.py", text=""),
        File(path="src/ledgerstone/store/sql/pages.py", text=""),
        File(path="src/ledgerstone/store/migrations/env.py", text=""),
        File(path="src/ledgerstone/child.py", text=""),
        File(path="src/ledgerstone/cli.py", text=""),
        File(
            path="tests/test_jobs.py",
            text="from ledgerstone.jobs import queue\nrun('ledgerstone.child')\n",
        ),
        File(path="pyproject.toml", text='ledgerstone = "ledgerstone.cli:main"\n'),
    ]

    assert unreached(files) == ["src/ledgerstone/jobs/dead.py"]


def test_an_unpacked_archive_is_walked(tmp_path: Path) -> None:
    """Without git the files are found all the same, and what .gitignore names is not."""
    for name in (".gitignore", "a.py", "b/c.md", "b/d.pyc", ".venv/e.py", ".git/f", "b/.venv/g.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(".venv/\n*.py[co]\n" if name == ".gitignore" else "")

    assert listed_by_walk(tmp_path) == [".gitignore", "a.py", "b/c.md"]
