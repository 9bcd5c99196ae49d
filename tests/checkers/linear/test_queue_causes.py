"""Root causes of a queue, counted by definition, and what each of them shows.

That a history is illegal is tried elsewhere, by all orders; here it is how many causes are told,
and that the operations shown with each contradict each other.
"""

from collections import Counter
from random import Random

import pytest
from object_dice import drawn
from object_oracle import Act, Table

from checkers._linear import fifo
from checkers._linear.objects import objects
from checkers._linear.wrongs import Code
from harness.operation import F

HISTORIES, EACH = 6_000, 200
NEVER = 1 << 40

Pair = tuple[Act, Act]  # how an element was put, and how it was taken
Shown = dict[Code, list[tuple[Act | None, ...]]]


def end(act: Act) -> int:
    return NEVER if act.end is None else act.end


def overtook(fast: Pair, slow: Pair) -> bool:
    """Put after the other one, and taken before it."""
    return end(slow[0]) < fast[0].call and end(fast[1]) < slow[1].call


class Naive:
    """The causes by loops over all operations and pairs of elements."""

    def __init__(self, acts: tuple[Act, ...]) -> None:
        self.put = {a.value: a for a in acts if a.f is F.ENQUEUE and not a.failed}
        taken = [a for a in acts if a.f is F.DEQUEUE and a.known and not a.failed]
        taken.sort(key=end)
        self.taken = {v: [a for a in taken if a.value == v] for v in (a.value for a in taken)}
        self.pairs = [(put, self.taken[v][0]) for v, put in self.put.items() if self._once(v)]

    def _once(self, value: int | None) -> bool:
        takes = self.taken.get(value, [])
        return len(takes) == 1 and not self._early(value)

    def _early(self, value: int | None) -> bool:
        return end(self.taken[value][0]) < self.put[value].call

    def counts(self) -> dict[Code, int]:
        elements = {value: takes for value, takes in self.taken.items() if value is not None}
        nobodys = [len(takes) for value, takes in elements.items() if value not in self.put]
        early = [v for v in elements if v in self.put and self._early(v)]
        again = [len(takes) - 1 for v, takes in elements.items() if v in self.put]
        fast = [a for a in self.pairs if any(overtook(a, b) for b in self.pairs)]
        slow = [a for a in self.pairs if any(overtook(b, a) for b in self.pairs)]
        return {
            Code.PHANTOM_ELEMENT: sum(nobodys) + len(early),
            Code.DUPLICATE_ELEMENT: sum(again),
            Code.QUEUE_ORDER: min(len(fast), len(slow)),
        }

    def there(self, take: Act, instant: int) -> bool:
        """Was what this dequeue took certainly in the queue?"""
        return end(self.put[take.value]) < instant < take.call

    def convicts(self, code: Code, shown: tuple[Act | None, ...]) -> bool:
        match code, [act for act in shown if act]:
            case Code.PHANTOM_ELEMENT, [take]:
                return take.value not in self.put
            case Code.PHANTOM_ELEMENT, [take, put]:
                return put.value == take.value and end(take) < put.call
            case Code.DUPLICATE_ELEMENT, [put, first, again]:
                return first is self.taken[put.value][0] and again in self.taken[put.value][1:]
            case Code.QUEUE_ORDER, [put, take, other, taken]:
                mine, theirs = (put, take), (other, taken)
                return overtook(mine, theirs) or overtook(theirs, mine)
            case Code.NOT_EMPTY, [empty, take]:
                return self.there(take, empty.call) and self.there(take, end(empty))
            case Code.NOT_EMPTY, [empty, first, last]:
                return self.there(first, empty.call) and self.there(last, end(empty))
        return code is Code.ELEMENT_LOST


def told(histories: list[tuple[Act, ...]]) -> list[Shown]:
    """Of each history: by code, the operations of each cause."""
    queues = objects(Table.of(histories).columns())
    by_number = [act for history in histories for act in history]
    answers: list[Shown] = [{} for _ in histories]
    for code, keys, places in fifo.judge(queues).wrongs:
        for key, row in zip(keys.tolist(), places.tolist(), strict=True):
            shown = (by_number[queues.operations.op[at]] if at >= 0 else None for at in row)
            answers[key].setdefault(code, []).append(tuple(shown))
    return answers


def test_causes_are_those_of_the_definitions() -> None:
    """Not one more or less of each code, and each shows operations that contradict each other."""
    dice = Random(77)
    histories = [drawn(dice, "queue") for _ in range(HISTORIES)]
    found: Counter[Code] = Counter()
    for acts, shown in zip(histories, told(histories), strict=True):
        naive = Naive(acts)
        for code, count in naive.counts().items():
            assert len(shown.get(code, [])) == count, (code, shown, acts)
        for code, rows in shown.items():
            found[code] += len(rows)
            for row in rows:
                assert naive.convicts(code, row), (code, row, acts)
    print(f"\n{dict(found)}")
    assert min(found.values()) >= EACH, found
    assert len(found) == 5


@pytest.mark.parametrize("slow", [1, 3])
def test_the_fewer_of_two_sides_are_told(slow: int) -> None:
    """One that three overtook, or three that one overtook, is one accident."""
    order = [1, 2, 3, 0] if slow == 1 else [3, 0, 1, 2]
    acts = [Act(F.ENQUEUE, 0, 10 * n + 1, 10 * n + 2, value=n) for n in range(4)]
    acts += [Act(F.DEQUEUE, 0, 100 + 10 * n, 101 + 10 * n, value=v) for n, v in enumerate(order)]
    assert len(told([tuple(acts)])[0][Code.QUEUE_ORDER]) == 1


def test_who_was_taken_at_the_same_time_suffered_nothing() -> None:
    """0 is taken last of all. 1 is taken while 2 is: nobody overtook it."""
    acts = [Act(F.ENQUEUE, 0, 10 * n + 1, 10 * n + 2, value=n) for n in range(4)]
    acts += [Act(F.DEQUEUE, 0, 100, 110, value=2), Act(F.DEQUEUE, 1, 105, 111, value=1)]
    acts += [Act(F.DEQUEUE, 0, 112, 113, value=3), Act(F.DEQUEUE, 0, 120, 121, value=0)]
    causes = told([tuple(acts)])[0]
    assert [(code, len(rows)) for code, rows in causes.items()] == [(Code.QUEUE_ORDER, 1)]
