"""The hints of the command line name commands that are there."""

from __future__ import annotations

import re

import pytest
import typer.main
from typer.core import TyperGroup

from ledgerstone.signing.cli.commands import app
from ledgerstone.signing.cli.opening import HINTS


@pytest.mark.parametrize("hint", HINTS.values())
def test_commands_of_hints(hint: str) -> None:
    """Each command in a hint is one of `ledgerstone signing`."""
    for words in re.findall(r"`(?:ledgerstone signing )?([a-z ]+?)(?: [A-Z]+)?`", hint):
        found = typer.main.get_command(app)
        for word in words.split():
            assert isinstance(found, TyperGroup)
            assert word in found.commands
            found = found.commands[word]
