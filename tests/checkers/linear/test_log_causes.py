"""Root causes of a log, counted by definition, and their witnesses.

Other tests check by all orders that a history is illegal. These check the number of causes, and
that the operations of each witness contradict each other.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from object_causes import History, Row, at_distinct_times, compared, end, some_unheard
from object_dice import drawn
from object_oracle import Act
from slot_oracle import Slots
from table_sizes import at_least, share

from checkers._linear import appends
from checkers._linear.violations import Code
from harness.operation import F

HISTORIES, EACH = share(6_000), at_least(200)

Named = tuple[Act, int, int | None]  # whose word it is, offset, value


class Naive:
    """The causes by loops over entries, as they were named, and places."""

    def __init__(self, acts: History) -> None:
        acts = tuple(a for a in acts if not a.failed)
        self.appends = [a for a in acts if a.f is F.APPEND]
        self.by = {a.value: a for a in self.appends}
        self.reads = [a for a in acts if a.f is F.LIST and a.known]
        self.undecided = len(self.by) < len(self.appends)
        named = [(a, a.offset, a.value) for a in self.appends if a.known and a.offset is not None]
        named += [(read, n, v) for read in self.reads for n, v in enumerate(read.seen)]
        self.phantoms = {value for _, _, value in named if value not in self.by}
        told = [] if self.undecided else [each for each in named if each[2] in self.by]
        self.named: list[Named] = told
        self.twice = {v for _, n, v in told for _, other, w in told if v == w and n != other}
        self.conflicts = {n for _, n, v in told for _, other, w in told if n == other and v != w}
        self.loose = [a for a in self.appends if a.value not in {v for _, _, v in told}]
        self.holes = sorted(
            set(range(max([-1, *(n for _, n, _ in told)]))) - {n for _, n, _ in told}
        )
        spoilt = self.undecided or self.phantoms or self.twice or self.conflicts
        self.gaps = not spoilt and len(self.holes) > len(self.loose)
        self.slots = None if spoilt or self.gaps else self.bounds()
        self.crossed = self.slots.crossed() if self.slots else []

    def bounds(self) -> Slots:
        """An entry was there when a read had it, and not yet when a read ended before it."""
        slots = Slots(max([0, *(n + 1 for _, n, _ in self.named)]))
        for act, offset, value in self.named:
            slots.not_before(offset, self.by[value])
            slots.not_after(offset, self.by[value])
            slots.not_after(offset, act)
        for read in self.reads:
            slots.not_before(len(read.seen), read)
        return slots

    def counts(self) -> dict[Code, int]:
        stale = [act for act in self.crossed if act.f is F.LIST]
        holes, lost = int(self.gaps), 0
        if self.slots and not self.crossed:
            must = self.slots.must(self.loose)
            holes = len(self.holes) - self.slots.matched(self.loose, self.holes)
            lost = len(must) - self.slots.matched(must, self.holes)
        return {
            Code.PHANTOM_ELEMENT: len(self.phantoms),
            Code.DUPLICATE_ELEMENT: len(self.twice),
            Code.OFFSET_CONFLICT: len(self.conflicts),
            Code.LOG_HOLE: holes,
            Code.ELEMENT_LOST: lost,
            Code.STALE_READ: len(stale),
            Code.NOT_LINEARIZABLE: len(self.crossed) - len(stale),
        }

    def convicts(self, code: Code, shown: Row) -> bool:
        match code, [act for act in shown if act]:
            case Code.PHANTOM_ELEMENT, [read]:
                return any(value in self.phantoms for value in read.seen)
            case Code.DUPLICATE_ELEMENT, [append, one, other]:
                mine, theirs = (offsets(act, append.value) for act in (one, other))
                return append.f is F.APPEND and len(mine | theirs) > 1 and bool(mine and theirs)
            case Code.OFFSET_CONFLICT, [one, other]:
                return any(entry(one, n) != entry(other, n) for n in places(one) & places(other))
            case Code.LOG_HOLE, [act, *others]:
                return self.above_a_hole(others[0] if others else act)
            case Code.ELEMENT_LOST, [append, witness]:
                return append in self.loose and end(append) < witness.call
            case ((Code.STALE_READ | Code.NOT_LINEARIZABLE), [later, earlier]):
                stale = later.f is F.LIST
                return stale is (code is Code.STALE_READ) and end(earlier) < later.call
        return False

    def above_a_hole(self, act: Act) -> bool:
        """The operations that show an entry with an unknown place below it."""
        return any(n > self.holes[0] for n in places(act))


def places(act: Act) -> set[int]:
    """The offsets at which an operation named an entry."""
    if act.f is F.LIST:
        return set(range(len(act.seen)))
    return set() if act.offset is None else {act.offset}


def entry(act: Act, offset: int) -> int | None:
    return act.seen[offset] if act.f is F.LIST else act.value


def offsets(act: Act, value: int | None) -> set[int]:
    return {offset for offset in places(act) if entry(act, offset) == value}


def odd(dice: Random, acts: History) -> History:
    """Sometimes a value that is appended twice, or a time-out that names an offset all the same."""
    made: list[Act] = list(acts)
    at = [n for n, act in enumerate(made) if act.f is F.APPEND]
    if len(at) > 1 and dice.random() < 0.1:
        one, other = dice.sample(at, 2)
        made[one] = replace(made[one], value=made[other].value)
    for n in at:
        if not made[n].known and dice.random() < 0.5:
            made[n] = replace(made[n], offset=dice.randrange(4), told=True)
    return tuple(made)


def test_causes_are_those_of_the_definitions() -> None:
    """The causes of one table, whatever other keys it has, and no others."""
    dice = Random(80)
    drawn_ones: Sequence[History] = [odd(dice, drawn(dice, "log")) for _ in range(HISTORIES)]
    histories = [at_distinct_times(acts) for acts in some_unheard(dice, drawn_ones)]
    found, undecided = compared(appends.judge, histories, Naive)
    assert min(*found.values(), undecided) >= EACH, found
    assert len(found) == 7
