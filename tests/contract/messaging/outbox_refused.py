"""The contract of publishing that raises, in a transaction of the caller's."""

from __future__ import annotations

import pytest

from ledgerstone.errors import StoreBusy
from ledgerstone.testing.fixtures import Home
from tests.contract.messaging.destination import NAME
from tests.contract.messaging.outbox import with_notes
from tests.contract.messaging.relays import Opened, Opening
from tests.harness.joinable import GUESTS, guest_on
from tests.harness.own_table import notes_kept

SHORT_WAIT = {
    "postgres": "SET lock_timeout = '300ms'",
    "mysql": "SET innodb_lock_wait_timeout = 1",
}
"""What a caller may have set on their connection, by the kind of database."""


class RefusedPublishingContract(Opened):
    """What is left of a call that raises. Fixtures: `home`, `clock`."""

    @pytest.mark.parametrize("name", ["driver", "django"])
    def test_what_raised_is_not_published(self, opening: Opening, home: Home, name: str) -> None:
        """A caller who catches the error and commits keeps their own rows, and no message."""
        shop = opening()
        if shop.ledger.database.dialect.one_writer:
            # Nobody writes beside an open transaction there: the first statement is refused.
            return
        with_notes(shop)
        shop.publish(0, partition="ann")

        with guest_on(name, home.url) as guest:
            guest.begin()
            guest.execute(SHORT_WAIT[home.kind])
            guest.execute("INSERT INTO note (name, count) VALUES ('mine', 1)")
            with shop.ledger.transaction() as other:
                other.outbox.publish(NAME, 1, partition="ann")
                other.finish()
                with pytest.raises(StoreBusy):
                    guest.joined(
                        shop.ledger, lambda tx: tx.outbox.publish(NAME, 2, partition="ann", key="k")
                    )
            guest.execute("INSERT INTO note (name, count) VALUES ('mine too', 1)")
            guest.commit()

        assert shop.waiting() == [0, 1]
        assert sorted(notes_kept(shop.ledger)) == ["mine", "mine too"]
        (again,) = shop.publish(2, partition="ann", key="k")
        assert again.created

    @pytest.mark.parametrize("name", GUESTS)
    def test_a_key_that_is_held(self, opening: Opening, home: Home, name: str) -> None:
        """A caller whose key waits for another transaction, and catches that, publishes nothing."""
        shop = opening()
        if shop.ledger.database.dialect.one_writer:
            return
        with_notes(shop)

        with guest_on(name, home.url) as guest:
            guest.begin()
            guest.execute(SHORT_WAIT[home.kind])
            with shop.ledger.transaction() as other:
                other.outbox.publish(NAME, 1, partition="ann", key="k")
                other.finish()
                with pytest.raises(StoreBusy):
                    guest.joined(
                        shop.ledger, lambda tx: tx.outbox.publish(NAME, 1, partition="bob", key="k")
                    )
            guest.execute("INSERT INTO note (name, count) VALUES ('mine', 1)")
            guest.commit()

        assert shop.waiting() == [1]
        assert notes_kept(shop.ledger) == ["mine"]
