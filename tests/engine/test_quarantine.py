"""Suspects that cannot be put on record, and who is one."""

from __future__ import annotations

import pytest

from ledgerstone.engine.quarantine import Quarantine, QuarantineQueue, is_suspect
from ledgerstone.engine.source import Claim
from ledgerstone.errors import StoreUnavailable
from ledgerstone.store.wakeup import WakeSignal
from ledgerstone.testing.clock import ManualClock

FIRST, SECOND = (Claim(key, 3, 3, crashes=2) for key in ("first", "second"))


class _Record:
    """A record that can be out of reach."""

    def __init__(self) -> None:
        self.reached = True

    def __call__(self) -> None:
        if not self.reached:
            raise StoreUnavailable("out of reach")


def test_one_that_cannot_be_put_on_record() -> None:
    """It does not begin, stays the first in line, and keeps nobody else out."""
    record = _Record()
    quarantine, wake_signal = Quarantine(record, ManualClock().monotonic), WakeSignal()
    suspects = QuarantineQueue(
        quarantine, crashes_max=3, wake_signal=wake_signal, monotonic=ManualClock().monotonic
    )
    suspects.kept_back([FIRST, SECOND])
    record.reached = False
    with pytest.raises(StoreUnavailable):
        suspects.admitted()
    never = quarantine.begun
    record.reached = True

    admitted = [suspects.admitted(), suspects.admitted()]
    wake_signal.wait(0)
    quarantine.leave(FIRST)

    assert never == ()
    assert admitted == [FIRST, None]
    assert wake_signal.wait(0)
    assert suspects.admitted() is SECOND


def test_no_more_than_so_many_wait() -> None:
    """The last ones are taken back; where fewer wait, none is."""
    suspects = QuarantineQueue(
        Quarantine(lambda: None, ManualClock().monotonic),
        crashes_max=3,
        wake_signal=WakeSignal(),
        monotonic=ManualClock().monotonic,
    )
    suspects.kept_back([FIRST, SECOND])

    dropped = [suspects.drop_beyond(5), suspects.drop_beyond(1), suspects.drop_beyond(1)]

    assert dropped == [[], [SECOND], []]
    assert suspects.drop() == [FIRST]


def test_only_who_is_inside_leaves() -> None:
    """Another claim that is settled, also an earlier one on the same item, frees no place."""
    quarantine = Quarantine(lambda: None, ManualClock().monotonic)
    quarantine.enter(FIRST)

    quarantine.leave(SECOND)
    quarantine.leave(Claim("first", 3, 2, crashes=2))

    assert not quarantine.enter(SECOND)


@pytest.mark.parametrize(
    ("crashes", "crashes_max", "last", "suspect"),
    [
        (0, 3, False, False),
        (1, 3, False, False),
        (2, 3, False, True),
        (1, 3, True, True),
        # Without a death there is no suspicion: else all would wait for each other.
        (0, 3, True, False),
        (0, 1, False, False),
        (1, 2, False, True),
    ],
)
def test_who_is_a_suspect(crashes: int, crashes_max: int, last: bool, suspect: bool) -> None:
    """Workers died with it, and it is given up with one more, by deaths or by attempts."""
    assert is_suspect(crashes, crashes_max, last=last) is suspect
