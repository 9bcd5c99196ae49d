"""Who holds which lock, until when, and whether a broker may say so: pure, it is told the time."""

from .catalog import Place


class Leases:
    """Who holds what, until when."""

    def __init__(self, lasts_s: float) -> None:
        self._lasts_s = lasts_s
        self._held: dict[Place, tuple[str, float]] = {}

    def take(self, place: Place, client: str, now: float) -> bool:
        holder, until = self._held.get(place, (client, 0.0))
        if holder != client and now < until:
            return False
        self._held[place] = (client, now + self._lasts_s)
        return True

    def give_back(self, place: Place, client: str) -> None:
        held = self._held.get(place)
        if held is not None and held[0] == client:
            del self._held[place]


def memory_is_whole(now: float, forgetful_until: float) -> bool:
    """Can no lock be held that this broker granted before it was started?"""
    return now >= forgetful_until
