"""Root causes of a counter, counted by definition, and their witnesses.

Other tests check by all orders that a history is illegal. These check the number of causes, which
counters are left to the search, and that the operations of each witness contradict each other.
"""

from random import Random

from object_causes import UNHEARD, History, Row, compared, end, some_unheard, told_at_once
from object_dice import drawn
from object_oracle import Act
from slot_oracle import Slots
from table_sizes import at_least, share

from checkers._linear import counters
from checkers._linear.violations import Code
from harness.operation import F

HISTORIES, EACH = share(6_000), at_least(200)


class Naive:
    """The causes by loops over reads, increments and places."""

    def __init__(self, acts: History) -> None:
        acts = tuple(a for a in acts if not a.failed)
        self.adds = [a for a in acts if a.f is F.ADD and a.value]
        self.reads = [a for a in acts if a.f is F.COUNT and a.known]
        steps = {a.value or 0 for a in self.adds}
        self.undecided = len(steps) >= 2
        self.step = next(iter(steps), 1)
        self.beyond = [read for read in self.reads if self.out_of_range(read)]
        decided = not self.undecided and not self.beyond
        self.between = [r for r in self.reads if decided and (r.value or 0) % self.step]
        self.slots = self.bounds() if decided and not self.between else None

    def out_of_range(self, read: Act) -> bool:
        surely = [a.value or 0 for a in self.adds if end(a) < read.call]
        perhaps = [a.value or 0 for a in self.adds if read.call <= end(a) and a.call <= end(read)]
        least = sum(surely) + sum(v for v in perhaps if v < 0)
        most = sum(surely) + sum(v for v in perhaps if v > 0)
        return not least <= (read.value or 0) <= most

    def bounds(self) -> Slots:
        """The n-th increment was there when n were counted, and the one after it was not."""
        counted = [(read, (read.value or 0) // self.step) for read in self.reads]
        slots = Slots(max([0, *(n for _, n in counted)]))
        for read, n in counted:
            slots.not_before(n, read)
            if n > 0:
                slots.not_after(n - 1, read)
        return slots

    def unmatched(self, slots: Slots) -> int:
        """Return increments that were counted and not made, and made and not counted."""
        holes = range(len(slots.slots) - 1)
        must = slots.must(self.adds)
        empty = len(holes) - slots.matched(self.adds, holes)
        return empty + len(must) - slots.matched(must, holes)

    def counts(self) -> dict[Code, int]:
        crossed = len(self.slots.crossed()) if self.slots else 0
        odd = crossed or (self.unmatched(self.slots) if self.slots else 0)
        beyond = len(self.beyond) + len(self.between)
        return {Code.COUNTER_OUT_OF_RANGE: beyond, Code.NOT_LINEARIZABLE: odd}

    def convicts(self, code: Code, shown: Row) -> bool:
        match code, [act for act in shown if act]:
            case Code.COUNTER_OUT_OF_RANGE, [read]:
                return any(read is one for one in (*self.beyond, *self.between))
            case Code.NOT_LINEARIZABLE, [later, earlier] if later.f is F.COUNT:
                return later.call > end(earlier) and self.less(later, earlier)
            case Code.NOT_LINEARIZABLE, [read]:
                return read.f is F.COUNT and bool(read.value)
            case Code.NOT_LINEARIZABLE, [add, read]:
                return add.f is F.ADD and read.f is F.COUNT and end(add) < read.call
        return False

    def less(self, one: Act, other: Act) -> bool:
        return abs(one.value or 0) < abs(other.value or 0)


def test_causes_are_those_of_the_definitions() -> None:
    """The causes of one table, whatever other keys it has, and no others."""
    dice = Random(79)
    histories = list(some_unheard(dice, [drawn(dice, "counter") for _ in range(HISTORIES)]))
    found, undecided = compared(counters.judge, histories, Naive)
    assert min(*found.values(), undecided) >= EACH, found
    assert len(found) == 2


def test_what_a_neighbour_may_have_added_is_its_own() -> None:
    """A read without an invocation, beside a counter with an add that never completed."""
    neighbour = (Act(F.ADD, 0, 10, value=5), Act(F.COUNT, 1, 20, 30, value=0))
    for value, codes in ((0, []), (-3, [Code.COUNTER_OUT_OF_RANGE])):
        read = Act(F.COUNT, 0, UNHEARD, 50, value=value)
        answers = told_at_once(counters.judge, [neighbour, (read,)])
        assert [list(answer.causes) for answer in answers] == [[], codes]
