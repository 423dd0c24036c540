"""No import cycle: no module of src imports, through others, itself.

Imports inside functions count as those at the top do. Imports for type checkers alone do not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
Modules = Mapping[str, str]
"""The text of each module, by its dotted name; a package by its own."""


@pytest.mark.slow
def test_no_module_imports_itself_through_others() -> None:
    """The imports of src have no cycle."""
    modules = {
        path.with_suffix("").relative_to(SOURCE).as_posix().replace("/", "."): path.read_text()
        for path in SOURCE.rglob("*.py")
    }

    found = cycle({name.removesuffix(".__init__"): text for name, text in modules.items()})

    assert found == [], " imports ".join(found)


@pytest.mark.parametrize(
    "imported",
    [
        "import a.b",
        "from a import b",
        "from a.b import name",
        "def late():\n    from a.b import name",
        "try:\n    import a.b\nexcept ImportError:\n    pass",
    ],
)
def test_a_cycle_is_found(imported: str) -> None:
    """A cycle of two modules is found, whichever way one of them imports the other."""
    modules = {"a": "", "a.b": "from a.c import other", "a.c": imported}

    assert set(cycle(modules)) == {"a.b", "a.c"}


def test_imports_for_type_checkers_make_no_cycle() -> None:
    """An import under TYPE_CHECKING does not count; one in the `else` of it does."""
    guarded = "if TYPE_CHECKING:\n    from a.b import name\nelse:\n    import a.d"
    modules = {"a": "", "a.b": "import a.c", "a.c": guarded, "a.d": ""}

    assert cycle(modules) == []
    assert set(cycle({**modules, "a.d": "import a.b"})) == {"a.b", "a.c", "a.d"}


def cycle(modules: Modules) -> list[str]:
    """The modules of a cycle, in which each imports the next; empty if there is none."""
    imports = {name: set(_imported(text, modules)) - {name} for name, text in modules.items()}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return [*reversed(error.args[1])]
    return []


def _imported(text: str, modules: Modules) -> Iterator[str]:
    for node in _at_run_time(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name in modules)
            case ast.ImportFrom(module=str(module), names=names):
                for alias in names:
                    full = f"{module}.{alias.name}"
                    name = full if full in modules else module
                    if name in modules:
                        yield name
            case _:
                pass


def _at_run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield other
                yield from _at_run_time(other)
        else:
            yield from _at_run_time(node)
