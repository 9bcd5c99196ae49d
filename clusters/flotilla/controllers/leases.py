"""Who holds which lock, until when, and whether a broker may say so: pure, it is told the time."""

from collections.abc import Callable

from ..broker.catalog import Place

_FEW = 1024  # that are kept whether they ran out or not


def may_unlock(holder: str, client: str) -> bool:
    """Only the client that holds a lock gives it back."""
    return holder == client


class Leases:
    """Who holds what, until when."""

    def __init__(self, lasts_s: float, may_unlock: Callable[[str, str], bool] = may_unlock) -> None:
        self._lasts_s, self._may_unlock = lasts_s, may_unlock
        self._held: dict[Place, tuple[str, float]] = {}
        self._many = _FEW

    def __len__(self) -> int:
        """How many are remembered, among them some that ran out."""
        return len(self._held)

    def take(self, place: Place, client: str, now: float) -> bool:
        holder, until = self._held.get(place, (client, 0.0))
        if holder != client and now < until:
            return False
        self._held[place] = (client, now + self._lasts_s)
        if len(self._held) > self._many:
            self._forget(now)
        return True

    def give_back(self, place: Place, client: str) -> None:
        held = self._held.get(place)
        if held is not None and self._may_unlock(held[0], client):
            del self._held[place]

    def _forget(self, now: float) -> None:
        """What ran out; the next time when there are twice as many as are left."""
        self._held = {place: lease for place, lease in self._held.items() if now < lease[1]}
        self._many = max(_FEW, 2 * len(self._held))


def memory_is_whole(now: float, forgetful_until: float) -> bool:
    """Can no lock be held that this broker granted before it was started?"""
    return now >= forgetful_until
