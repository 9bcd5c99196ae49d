"""Places filled one after the other, naively: bounds by loops, matchings by augmenting paths."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from object_causes import NEVER, end
from object_oracle import Act

BEGIN = -2


@dataclass
class Slot:
    """`lower`: times at which it was not filled yet, with the reader; `upper`: at which it was."""

    lower: list[tuple[int, Act | None]] = field(default_factory=lambda: [(BEGIN, None)])
    upper: list[tuple[int, Act | None]] = field(default_factory=lambda: [(NEVER, None)])


class Slots:
    def __init__(self, count: int) -> None:
        self.slots = [Slot() for _ in range(count + 1)]

    def not_before(self, place: int, act: Act) -> None:
        self.slots[place].lower.append((act.call, act))

    def not_after(self, place: int, act: Act) -> None:
        self.slots[place].upper.append((end(act), act))

    def lower(self, place: int) -> tuple[int, Act | None]:
        bounds = [bound for slot in self.slots[: place + 1] for bound in slot.lower]
        return max(bounds, key=lambda bound: bound[0])

    def upper(self, place: int) -> tuple[int, Act | None]:
        bounds = [bound for slot in self.slots[place:] for bound in slot.upper]
        return min(bounds, key=lambda bound: bound[0])

    def crossed(self) -> list[Act]:
        """Return appends that were called after a slot must have been filled."""
        found: list[Act] = []
        for place in range(len(self.slots)):
            at, act = self.lower(place)
            if act and at > self.upper(place)[0] and not any(act is one for one in found):
                found.append(act)
        return found

    def admits(self, place: int, act: Act) -> bool:
        return act.call <= self.upper(place)[0] and self.lower(place)[0] <= end(act)

    def must(self, acts: Sequence[Act]) -> list[Act]:
        """Those that returned before the first free place was seen to be free."""
        return [act for act in acts if end(act) < self.lower(len(self.slots) - 1)[0]]

    def matched(self, acts: Sequence[Act], holes: Sequence[int]) -> int:
        """How many of the holes can be filled at once."""
        return matched(len(acts), holes, lambda at, hole: self.admits(hole, acts[at]))


def matched(count: int, holes: Sequence[int], admits: Callable[[int, int], bool]) -> int:
    """The size of a largest matching."""
    filled: dict[int, int] = {}

    def placed(at: int, tried: set[int]) -> bool:
        for hole in holes:
            if hole not in tried and admits(at, hole):
                tried.add(hole)
                if hole not in filled or placed(filled[hole], tried):
                    filled[hole] = at
                    return True
        return False

    return sum(placed(at, set()) for at in range(count))
