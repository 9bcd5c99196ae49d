"""Root causes of a queue, counted by definition, and their witnesses.

Other tests check by all orders that a history is illegal. These check the number of causes, and
that the operations of each witness contradict each other.
"""

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest
from object_causes import (
    UNHEARD,
    History,
    Row,
    at_distinct_times,
    compared,
    end,
    some_unheard,
    told,
    told_at_once,
)
from object_dice import drawn
from object_oracle import Act, possible
from table_sizes import at_least, share

from checkers._linear import fifo
from checkers._linear.violations import Code
from harness.operation import F

HISTORIES, EACH = share(6_000), at_least(200)
BETWEEN = 0.5  # from an event to an instant before the next one

Pair = tuple[Act, Act]  # how an element was put, and how it was taken


def overtook(fast: Pair, slow: Pair) -> bool:
    """Put after the other one, and taken before it."""
    return end(slow[0]) < fast[0].call and end(fast[1]) < slow[1].call


class Naive:
    """The causes by loops over all operations and pairs of elements."""

    def __init__(self, acts: History) -> None:
        acts = tuple(a for a in acts if not a.failed)
        puts = [a for a in acts if a.f is F.ENQUEUE]
        self.put = {a.value: a for a in puts}
        self.undecided = len(self.put) < len(puts)
        self.times = sorted({t for a in acts for t in (a.call, end(a))})
        taken = [a for a in acts if a.f is F.DEQUEUE and a.known]
        taken.sort(key=end)
        self.taken = {v: [a for a in taken if a.value == v] for v in (a.value for a in taken)}
        self.pairs = [(put, self.taken[v][0]) for v, put in self.put.items() if self._once(v)]
        self.left = [put for v, put in self.put.items() if put.known and v not in self.taken]

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
        if self.undecided:
            return dict.fromkeys(Code, 0) | {Code.PHANTOM_ELEMENT: sum(nobodys)}
        return {
            Code.PHANTOM_ELEMENT: sum(nobodys) + len(early),
            Code.DUPLICATE_ELEMENT: sum(again),
            Code.QUEUE_ORDER: min(len(fast), len(slow)),
            Code.NOT_EMPTY: sum(map(self.never_empty, self.taken.get(None, []))),
        }

    def never_empty(self, empty: Act) -> bool:
        """Was there, at each instant of it, an element that was taken later?"""
        inside = [t + BETWEEN for t in self.times if empty.call <= t < end(empty)]
        return all(any(end(a) < t < b.call for a, b in self.pairs) for t in inside)

    def there(self, take: Act, instant: int) -> bool:
        """Was what this dequeue took certainly in the queue?"""
        return end(self.put[take.value]) < instant < take.call

    def convicts(self, code: Code, shown: Row) -> bool:
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
            case Code.ELEMENT_LOST, [lost, empty]:
                return lost in self.left and end(lost) < end(empty) and empty.value is None
            case Code.ELEMENT_LOST, [lost, put, take]:
                passed = end(lost) < put.call and end(self.taken[put.value][0]) <= end(take)
                return lost in self.left and passed
        return False


def long(dice: Random) -> History:
    """More elements than all orders could be tried of, in an order that is more or less kept."""
    acts: list[Act] = []
    count, lag, noise = dice.randint(4, 8), dice.choice((150, 400, 1200)), dice.choice((0, 80, 300))
    for value in range(count):
        call = 100 * value + dice.randint(0, 150)
        back = call + dice.randint(1, 200)
        acts.append(Act(F.ENQUEUE, 0, call, back if dice.random() < 0.9 else None, value=value))
        if dice.random() < 0.75:
            call = max(0, 100 * value + lag + dice.randint(-noise, noise))
            acts.append(Act(F.DEQUEUE, 0, call, call + dice.randint(1, 150), value=value))
    for _ in range(dice.choice((0, 0, 1, 2))):
        call = dice.randrange(100 * count + lag)
        acts.append(Act(F.DEQUEUE, 0, call, dice.choice((None, call + dice.randint(1, 150)))))
    return tuple(acts)


def put_again(dice: Random, acts: History) -> History:
    """A value that is put twice, sometimes."""
    puts = [n for n, act in enumerate(acts) if act.f is F.ENQUEUE]
    if len(puts) < 2 or dice.random() < 0.95:
        return acts
    one, other = dice.sample(puts, 2)
    return tuple(replace(a, value=acts[other].value) if n == one else a for n, a in enumerate(acts))


def test_as_few_are_lost_as_have_to_be() -> None:
    """Without other errors, the rest is legal without this many acknowledged elements that were
    never taken, and not without fewer."""
    dice = Random(83)
    histories = [drawn(dice, "queue") for _ in range(HISTORIES)]
    some = 0
    for acts, answer in zip(histories, told(fifo.judge, histories), strict=True):
        if set(answer.causes) != {Code.ELEMENT_LOST}:
            continue
        some += 1
        left = Naive(acts).left
        lost = len(answer.causes[Code.ELEMENT_LOST])
        without = {
            count: any(
                possible("queue", tuple(a for a in acts if a not in gone))
                for gone in combinations(left, count)
            )
            for count in (lost - 1, lost)
        }
        assert without == {lost - 1: False, lost: True}, (answer, acts)
    assert some >= EACH


def test_causes_are_those_of_the_definitions() -> None:
    """The causes of one table, whatever other keys it has, and no others."""
    dice = Random(77)
    short = [put_again(dice, drawn(dice, "queue")) for _ in range(HISTORIES)]
    histories = [*some_unheard(dice, short), *(long(dice) for _ in range(HISTORIES))]
    histories = [at_distinct_times(acts) for acts in histories]
    found, undecided = compared(fifo.judge, histories, Naive)
    assert min(*found.values(), undecided) >= EACH, (found, undecided)
    assert len(found) == 5


@pytest.mark.parametrize("slow", [1, 3])
def test_the_fewer_of_two_sides_are_told(slow: int) -> None:
    """One that three overtook, or three that one overtook, is one accident."""
    order = [1, 2, 3, 0] if slow == 1 else [3, 0, 1, 2]
    acts = [Act(F.ENQUEUE, 0, 10 * n + 1, 10 * n + 2, value=n) for n in range(4)]
    acts += [Act(F.DEQUEUE, 0, 100 + 10 * n, 101 + 10 * n, value=v) for n, v in enumerate(order)]
    assert len(told(fifo.judge, [tuple(acts)])[0].causes[Code.QUEUE_ORDER]) == 1


def test_who_was_taken_at_the_same_time_suffered_nothing() -> None:
    """0 is taken last of all. 1 is taken concurrently with 2: it was not overtaken."""
    acts = [Act(F.ENQUEUE, 0, 10 * n + 1, 10 * n + 2, value=n) for n in range(4)]
    acts += [Act(F.DEQUEUE, 0, 100, 110, value=2), Act(F.DEQUEUE, 1, 105, 111, value=1)]
    acts += [Act(F.DEQUEUE, 0, 112, 113, value=3), Act(F.DEQUEUE, 0, 120, 121, value=0)]
    causes = told(fifo.judge, [tuple(acts)])[0].causes
    assert [(code, len(rows)) for code, rows in causes.items()] == [(Code.QUEUE_ORDER, 1)]


@pytest.mark.parametrize("company", [0, 1])
def test_it_was_empty_before_everything(company: int) -> None:
    """The first enqueue and the dequeue that found nothing have no invocations: the dequeue may
    have been first, whether there is a queue before this one in the table or not."""
    acts = (
        *(Act(F.ENQUEUE, 0, UNHEARD, 10, value=1), Act(F.DEQUEUE, 1, UNHEARD, 20)),
        Act(F.DEQUEUE, 2, 30, 40, value=1),
    )
    assert possible("queue", acts)
    assert not told_at_once(fifo.judge, [acts] * (company + 1))[company].causes


def test_who_never_told_when_he_was_called_may_have_taken_it() -> None:
    """The end of a dequeue that timed out is all that is known of it."""
    acts = (
        *(Act(F.ENQUEUE, 0, 10, 20, value=1), Act(F.ENQUEUE, 0, 30, 40, value=2)),
        *(Act(F.DEQUEUE, 1, 50, 60, value=2), Act(F.DEQUEUE, 2, UNHEARD, told=True)),
    )
    assert possible("queue", acts)
    assert [answer.causes for answer in told_at_once(fifo.judge, [acts, acts])] == [{}, {}]


def test_it_has_to_be_gone_when_who_overtook_it_has_been_taken() -> None:
    """Not when something else was that was called for later: 1 may be taken just before 2 is, by
    the dequeue that timed out."""
    acts = (
        *(Act(F.ENQUEUE, 0, 50, 500, value=0), Act(F.ENQUEUE, 1, 100, 200, value=1)),
        *(Act(F.ENQUEUE, 2, 240, 520, value=2), Act(F.DEQUEUE, 3, 1000, 2000, value=2)),
        *(Act(F.DEQUEUE, 4, 1100, 1200, value=0), Act(F.DEQUEUE, 5, 1500)),
    )
    assert possible("queue", acts)
    assert not told(fifo.judge, [acts])[0].causes
    late = (*acts[:-1], replace(acts[-1], call=2100))
    assert not possible("queue", late)
    assert list(told(fifo.judge, [late])[0].causes) == [Code.ELEMENT_LOST]
