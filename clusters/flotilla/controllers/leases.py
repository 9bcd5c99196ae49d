"""The queue locks that a broker has granted, and their expiry. Pure: the caller passes the time."""

from collections.abc import Callable
from typing import NamedTuple

from ..broker.catalog import GroupQueue

_MIN_SWEEP = 1024  # fewer leases than this are kept, expired or not


def may_unlock(holder: str, client: str) -> bool:
    """Decide whether a client may release a lock: only its holder may."""
    return holder == client


class QueueLock(NamedTuple):
    """A lock that was granted. `until`: on the broker's clock; `asked_at`: when its holder last
    asked for it, on the holder's, whose times are compared with no other clock's; None: an older
    client, which does not say it."""

    holder: str
    until: float
    asked_at: int | None


class Leases:
    """The lease of each locked place."""

    def __init__(self, lasts_s: float, may_unlock: Callable[[str, str], bool] = may_unlock) -> None:
        self._lasts_s, self._may_unlock = lasts_s, may_unlock
        self._held: dict[GroupQueue, QueueLock] = {}
        self._sweep_above = _MIN_SWEEP

    def __len__(self) -> int:
        """Return the number of leases in memory, including expired ones."""
        return len(self._held)

    def take(self, place: GroupQueue, client: str, now: float, asked_at: int | None = None) -> bool:
        held = self._held.get(place)
        if held and now < held.until:
            if held.holder != client:
                return False
            if _is_earlier(asked_at, held.asked_at):
                asked_at = held.asked_at
        self._held[place] = QueueLock(client, now + self._lasts_s, asked_at)
        if len(self._held) > self._sweep_above:
            self._drop_expired(now)
        return True

    def give_back(self, place: GroupQueue, client: str, asked_at: int | None = None) -> None:
        """Release a lock, unless its holder has asked for it since then: a release may arrive
        late."""
        held = self._held.get(place)
        if held and self._may_unlock(held.holder, client):
            if held.holder == client and _is_earlier(asked_at, held.asked_at):
                return
            del self._held[place]

    def _drop_expired(self, now: float) -> None:
        """Drop expired leases. The next sweep is due at twice the number that is left."""
        self._held = {place: lease for place, lease in self._held.items() if now < lease.until}
        self._sweep_above = max(_MIN_SWEEP, 2 * len(self._held))


def _is_earlier(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one < other


def memory_is_whole(now: float, forgetful_until: float) -> bool:
    """Decide whether all locks that this broker granted before it was started have expired."""
    return now >= forgetful_until
