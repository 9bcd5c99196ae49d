"""The queue locks that a broker has granted, and their expiry. Pure: the caller passes the time."""

from collections.abc import Callable

from ..broker.catalog import GroupQueue

_MIN_SWEEP = 1024  # fewer leases than this are kept, expired or not


def may_unlock(holder: str, client: str) -> bool:
    """Decide whether a client may release a lock: only its holder may."""
    return holder == client


class Leases:
    """For each locked place its holder and the time of expiry."""

    def __init__(self, lasts_s: float, may_unlock: Callable[[str, str], bool] = may_unlock) -> None:
        self._lasts_s, self._may_unlock = lasts_s, may_unlock
        self._held: dict[GroupQueue, tuple[str, float]] = {}
        self._sweep_above = _MIN_SWEEP

    def __len__(self) -> int:
        """Return the number of leases in memory, including expired ones."""
        return len(self._held)

    def take(self, place: GroupQueue, client: str, now: float) -> bool:
        holder, until = self._held.get(place, (client, 0.0))
        if holder != client and now < until:
            return False
        self._held[place] = (client, now + self._lasts_s)
        if len(self._held) > self._sweep_above:
            self._drop_expired(now)
        return True

    def give_back(self, place: GroupQueue, client: str) -> None:
        held = self._held.get(place)
        if held is not None and self._may_unlock(held[0], client):
            del self._held[place]

    def _drop_expired(self, now: float) -> None:
        """Drop expired leases. The next sweep is due at twice the number that is left."""
        self._held = {place: lease for place, lease in self._held.items() if now < lease[1]}
        self._sweep_above = max(_MIN_SWEEP, 2 * len(self._held))


def memory_is_whole(now: float, forgetful_until: float) -> bool:
    """Decide whether all locks that this broker granted before it was started have expired."""
    return now >= forgetful_until
