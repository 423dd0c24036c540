"""The checks of messaging for `doctor`."""

from __future__ import annotations

from collections.abc import Iterator

from ledgerstone.errors import LedgerstoneError
from ledgerstone.messaging.read.reaching import Endpoint, reached
from ledgerstone.messaging.read.status import COUNTED_MAX, failed_messages_of
from ledgerstone.messaging.registry import MessagingRegistry
from ledgerstone.messaging.symfony import foreign_rows as foreign
from ledgerstone.messaging.symfony.setup import NOT_OURS
from ledgerstone.room import Check, CheckStatus, Opened, counted, refused
from ledgerstone.settings.messaging import LOCAL
from ledgerstone.store.schema import revisions


def failed_messages(opened: Opened[MessagingRegistry]) -> Iterator[Check]:
    """Whether messages have failed."""
    database = opened.database
    with database.reading() as tx:
        if not revisions.look(tx.connection, database.namespace, database.rooms).up_to_date:
            return
        failed = failed_messages_of(tx, opened.state)
    if failed:
        todo = "`ledgerstone failed show --group` shows why; then `failed retry --all`"
        yield Check("failed messages", CheckStatus.WARNING, counted(failed, COUNTED_MAX), todo)
    elif failed is not None:
        yield Check("failed messages", CheckStatus.OK, "none")


def tables(opened: Opened[MessagingRegistry]) -> Iterator[Check]:
    """Whether the shared tables are complete."""
    setup = opened.state.setup
    lost = setup.lost(opened.database)
    if lost is not None:
        todo = f"run `ledgerstone messaging setup --apply`; then {NOT_OURS}"
        yield Check("messages", CheckStatus.PROBLEM, lost, todo)
        return
    if setup.shared_setup(opened.database):
        found = "Symfony Messenger also sets up the outbox, and would drop partition_key"
        todo = f"{NOT_OURS}; then drop its indexes IDX_… of the outbox"
        yield Check("symfony", CheckStatus.WARNING, found, todo)
    lacking = setup.plan(opened.database)
    if not lacking:
        yield Check("messages", CheckStatus.OK, "the tables exist")
        yield from _foreign_rows(opened)
        return
    words = list(dict.fromkeys(step.words for step in lacking))
    rest = f" and {len(words) - 1} more" if words[1:] else ""
    todo = "run `ledgerstone messaging setup --apply`; with --dry-run it shows what that does"
    yield Check("messages", CheckStatus.WARNING, f"not done yet: {words[0]}{rest}", todo)


def _foreign_rows(opened: Opened[MessagingRegistry]) -> Iterator[Check]:
    """Whether rows of other programs in the outbox delay other messages."""
    database = opened.database
    with database.reading() as tx:
        if not revisions.look(tx.connection, database.namespace, database.rooms).up_to_date:
            return
        ahead = foreign.from_the_future(tx, opened.state)
        queues = foreign.held_up(tx, opened.state)
    if ahead:
        found = f"{ahead} of the newest messages have a created_at in the future"
        todo = "set messaging.time_zone to the date.timezone of PHP, or set the clock"
        yield Check("time zones", CheckStatus.WARNING, found, todo)
    if queues:
        found = f"one delayed message without a partition holds all others to {', '.join(queues)}"
        todo = 'give them partitions, or set mode = "competing" for the destination'
        yield Check("partitions", CheckStatus.WARNING, found, todo)


def destinations(opened: Opened[MessagingRegistry]) -> Iterator[Check]:
    """Whether destinations and subscriptions can be reached, within seconds."""
    settings = opened.settings.messaging
    places: dict[str, Endpoint] = {}
    for name, destination in settings.destinations.items():
        if name != LOCAL:
            places[f"destination {name}"] = destination
    for name, subscription in settings.subscriptions.items():
        places[f"subscription {name}"] = subscription
    for name, place in places.items():
        try:
            yield Check(name, CheckStatus.OK, reached(name, place))
        except LedgerstoneError as error:
            yield refused(name, error)
