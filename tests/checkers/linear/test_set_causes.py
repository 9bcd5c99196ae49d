"""Root causes of a set, counted by definition, and their witnesses.

Other tests check by all orders that a history is illegal. These check the number of causes, and
that the operations of each witness contradict each other.
"""

from collections.abc import Iterator
from random import Random

from object_causes import History, Row, compared, end, some_unheard
from object_dice import drawn
from object_oracle import Act
from table_sizes import at_least, share

from checkers._linear import sets
from checkers._linear.violations import Code
from harness.operation import F

HISTORIES, EACH = share(6_000), at_least(200)


class Naive:
    """The causes by loops over all elements, reads and pairs of them."""

    undecided = False

    def __init__(self, acts: History) -> None:
        acts = tuple(a for a in acts if not a.failed)
        self.reads = sorted((a for a in acts if a.f is F.LIST and a.known), key=lambda a: a.call)
        adds = [a for a in acts if a.f is F.ADD]
        self.adds = {a.value: [b for b in adds if b.value == a.value] for a in adds}
        seen = {v for read in self.reads for v in read.seen}
        self.nobodys = {v for v in seen if v not in self.adds}
        self.early = {
            v for v in seen - self.nobodys if any(self.too_early(v, r) for r in self.saw(v))
        }
        self.doubled = {v for read in self.reads for v in read.seen if read.seen.count(v) > 1}
        self.members = [v for v in self.adds if v not in self.early]
        self.missed = [v for v in self.members if self.missing(v)]
        self.lost = [v for v in self.missed if v not in self.reads[-1].seen]
        self.stale = [v for v in self.missed if v not in self.lost]
        self.sound = [v for v in self.members if v not in self.missed]

    def saw(self, value: int | None) -> list[Act]:
        return [read for read in self.reads if value in read.seen]

    def called(self, value: int | None) -> int:
        return min(add.call for add in self.adds[value])

    def added(self, value: int | None) -> int:
        return min(end(add) for add in self.adds[value])

    def known(self, value: int | None) -> int:
        """From then on it was surely there."""
        return min([self.added(value), *(end(read) for read in self.saw(value))])

    def too_early(self, value: int | None, read: Act) -> bool:
        return value in self.adds and end(read) < self.called(value)

    def missing(self, value: int | None) -> list[Act]:
        """The reads that should have seen it."""
        late = [read for read in self.reads if read.call > self.known(value)]
        return [read for read in late if value not in read.seen]

    def of(self, read: Act) -> set[int | None]:
        """What it saw of what can be put into a sequence at all."""
        return {v for v in self.sound if v in read.seen}

    def apart(self) -> Iterator[tuple[Act, Act]]:
        """Reads of which neither saw all that the other saw."""
        for one in self.reads:
            for other in self.reads:
                if self.of(one) - self.of(other) and self.of(other) - self.of(one):
                    yield one, other

    def precedes(self, one: Act, other: Act) -> bool:
        """Did one take effect before the other, by what was seen?"""
        if one.f is F.LIST and other.f is F.LIST:
            return self.of(one) < self.of(other)
        if one.f is F.LIST:
            return other.value not in one.seen
        if other.f is F.LIST:
            return one.value in other.seen
        return any(one.value in read.seen and other.value not in read.seen for read in self.reads)

    def late(self) -> set[int]:
        """Of everything that was called after what follows it had returned, the latest."""
        kept = [v for v in self.sound if self.saw(v) or self.added(v) < end(Act(F.ADD, 0, 0))]
        events = [(r, r.call, end(r)) for r in self.reads]
        events += [(self.adds[v][0], self.called(v), self.added(v)) for v in kept]
        found = set()
        for act, _, ret in events:
            calls = [call for one, call, _ in events if self.precedes(one, act)]
            if calls and max(calls) > ret:
                found.add(max(calls))
        return found

    def counts(self) -> dict[Code, int]:
        late_reads = {id(read) for v in self.stale for read in self.missing(v)}
        apart = any(True for _ in self.apart())
        return {
            Code.PHANTOM_ELEMENT: len(self.nobodys) + len(self.early),
            Code.DUPLICATE_ELEMENT: len(self.doubled),
            Code.ELEMENT_LOST: len(self.lost),
            Code.STALE_READ: min(len(self.stale), len(late_reads)),
            Code.NOT_LINEARIZABLE: 1 if apart else len(self.late()),
        }

    def convicts(self, code: Code, shown: Row) -> bool:
        match code, [act for act in shown if act]:
            case Code.PHANTOM_ELEMENT, [read]:
                return any(v in self.nobodys or self.too_early(v, read) for v in read.seen)
            case Code.DUPLICATE_ELEMENT, [read]:
                return len(set(read.seen)) < len(read.seen)
            case Code.ELEMENT_LOST, [add, knower, last]:
                return add.value in self.lost and last is self.reads[-1] and self.knew(add, knower)
            case Code.STALE_READ, [add, knower] if add.f is F.ADD:
                return add.value in self.stale and self.knew(add, knower)
            case Code.STALE_READ, [read]:
                return any(read in self.missing(v) for v in self.stale)
            case Code.NOT_LINEARIZABLE, [add, one, other]:
                apart = self.of(other) - self.of(one)
                return add.value in self.of(one) - self.of(other) and bool(apart)
            case Code.NOT_LINEARIZABLE, [later, earlier]:
                return later.call > end(earlier) and self.precedes(later, earlier)
        return False

    def knew(self, add: Act, knower: Act) -> bool:
        value = add.value
        mine = knower.value == value if knower.f is F.ADD else value in knower.seen
        return mine and end(knower) == self.known(value)


def test_causes_are_those_of_the_definitions() -> None:
    """The causes of one table, whatever other keys it has, and no others."""
    dice = Random(78)
    histories = list(some_unheard(dice, [drawn(dice, "set") for _ in range(HISTORIES)]))
    found, _ = compared(sets.judge, histories, Naive)
    assert min(found.values()) >= EACH, found
    assert len(found) == 5
