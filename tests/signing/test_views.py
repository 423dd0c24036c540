"""The views of events and requests, whose words come from others."""

from __future__ import annotations

from io import StringIO

import msgspec
from rich.console import Console, RenderableType

from ledgerstone.signing import hashes
from ledgerstone.signing.cli import views
from ledgerstone.signing.values import Manual
from tests.signing.people import address, payment
from tests.signing.world import Worlds

SPOOF = f"x\nto  {address(2)}\r\u202e\u2028\x1b[2J"


def shown(seen: RenderableType) -> list[str]:
    """The lines that people see."""
    out = StringIO()
    Console(file=out, width=1000).print(seen)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_metadata_is_set_apart() -> None:
    """The names that a source gives its metadata replace no fact of the payment."""
    event = payment(metadata={"to": address(2), "pays": "1 KAS", "  to": "x", SPOOF: SPOOF})

    lines = shown(views.event(hashes.event_hash(event), event))

    facts = [line for line in lines if not line.startswith(" ")]
    assert [line.split() for line in facts if line[:4] in {"to  ", "pays"}] == [
        ["pays", "10", "KAS"],
        ["to", address(1)],
    ]
    assert facts[-1] == "metadata"
    assert len(lines) - len(facts) == 4


def test_words_of_others_begin_no_line(worlds: Worlds) -> None:
    """A line break or an invisible character in an id or a reason is shown as an escape."""
    world = worlds()
    event = payment(event_id=SPOOF, event_source=Manual(operator=SPOOF), metadata={"reason": SPOOF})
    event_hash = hashes.event_hash(event)
    request = world.propose("r1", event)
    world.vote(request, 1, accept=False, reason=SPOOF)
    world.vote(request, 2, accept=False, reason=SPOOF)
    report = world.signing.audit_request(request)
    config = msgspec.structs.replace(
        world.config,
        group_metadata=msgspec.structs.replace(world.config.group_metadata, group_name=SPOOF),
    )

    seen = {
        "events": shown(views.events({event_hash: event})),
        "event": shown(views.event(event_hash, event)),
        "group": shown(views.group(world.group_id, config)),
        "groups": shown(views.groups({world.group_id: config})),
        "standing": shown(views.standing(report, None)),
        "swept": shown(views.swept("1 archived", [SPOOF], {SPOOF: SPOOF})),
        "audit": report.as_text().splitlines(),
    }

    for name, lines in seen.items():
        spoofed = [line for line in lines if line.split()[:2] == ["to", address(2)]]
        assert (name, spoofed) == (name, [])
        assert "\u202e" not in "".join(lines), name
        assert any("\\n" in line for line in lines), name
