"""The claims of one pump that are not settled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ledgerstone.engine.source import Claim


class HeldClaims:
    """Claims that are not settled, by the key of their item.

    - Several threads add, remove and copy them.
    - An item may be returned and claimed again while an outcome of its older claim is on its way:
      `has` and `remove` mean this claim, and not a newer one of the same item.
    """

    def __init__(self) -> None:
        self._claims: dict[str, Claim] = {}

    def __len__(self) -> int:
        return len(self._claims)

    def __iter__(self) -> Iterator[Claim]:
        return iter(list(self._claims.values()))

    def add(self, claims: Iterable[Claim]) -> None:
        """Hold these."""
        self._claims.update({claim.key: claim for claim in claims})

    def has(self, claim: Claim) -> bool:
        """Whether this claim is held."""
        return self._claims.get(claim.key) is claim

    def remove(self, claim: Claim) -> bool:
        """Hold this claim no longer; False if it is not held."""
        return self.has(claim) and self._claims.pop(claim.key, None) is not None

    def by_key(self) -> dict[str, Claim]:
        """A copy."""
        return dict(self._claims)
