"""Root causes of a lock, counted by definition, and their witnesses.

Other tests check by all orders that a history is illegal. These check the number of causes, which
locks are left to the search, and that the operations of each witness contradict each other.
"""

from dataclasses import replace
from itertools import combinations, pairwise
from random import Random

import pytest
from object_causes import (
    UNHEARD,
    History,
    Row,
    at_distinct_times,
    compared,
    end,
    told,
    told_at_once,
)
from object_dice import drawn
from object_oracle import Act, possible
from table_sizes import at_least, share

from checkers._linear import locks
from checkers._linear.violations import Code
from harness.operation import F

HISTORIES, EACH = share(8_000), at_least(200)
NEVER = 1 << 40
BETWEEN = 5  # from an event to an instant before the next one


class Holder:
    """The operations of one process on a lock, in order."""

    def __init__(self, acts: list[Act]) -> None:
        self.holds: list[tuple[Act, int]] = []
        self.instants: list[Act] = []
        self.not_held: list[Act] = []
        self.lost: list[Act] = []
        self._holding = self._releasing = False
        self._acquires = self._releases = 0  # of unknown outcome, that may still count
        overlaps = any(b.call < end(a) for a, b in combinations(acts, 2) if a.known)
        odd = [self._odd(act) for act in acts]
        self.undecided = overlaps or True in odd

    def _odd(self, act: Act) -> bool:
        """Add one operation; return whether it is ambiguous."""
        if act.f is F.ACQUIRE:
            return self._acquired(act)
        if act.failed:
            if self._holding:
                self.lost.append(act)
                self._until(act.call)
            self._holding = self._releasing = False
        elif not act.known:
            self._releases += not self._holding
            if self._holding:
                self._until(act.call)
                self._holding, self._releasing = False, True
        elif self._holding or self._releasing:
            odd = self._releasing and self._acquires > 0
            self._releases += self._releasing
            self._until(act.call)
            self._holding = self._releasing = False
            return odd
        else:
            (self.instants if self._acquires else self.not_held).append(act)
            self._acquires = max(0, self._acquires - 1)
        return False

    def _acquired(self, act: Act) -> bool:
        if not act.known:
            self._acquires += 1
            return False
        self.holds.append((act, NEVER))
        self._holding, self._releasing = True, False
        return self._releases > 0

    def _until(self, at: int) -> None:
        self.holds[-1] = (self.holds[-1][0], at)


class Naive:
    """The causes by loops over holds, subsets of them and instants."""

    def __init__(self, acts: History) -> None:
        mine = [act for act in acts if tells(act)]
        mine.sort(key=lambda act: act.call)
        processes = {act.process for act in mine}
        holders = [Holder([a for a in mine if a.process == process]) for process in processes]
        self.undecided = any(holder.undecided for holder in holders)
        told = [] if self.undecided else holders
        self.holds = [hold for holder in told for hold in holder.holds]
        self.holds.sort(key=lambda hold: end(hold[0]))
        self.not_held = [act for holder in told for act in holder.not_held]
        self.lost = [act for holder in told for act in holder.lost]
        instants = [act for holder in told for act in holder.instants]
        times = sorted({t for act in acts for t in (act.call, end(act))})
        self.blocked = [act for act in instants if self.held_during(act, times)]
        self.extra = self.too_many()

    def held_during(self, release: Act, times: list[int]) -> bool:
        inside = [t + BETWEEN for t in times if release.call <= t < end(release)]
        return all(any(end(a) < t < until for a, until in self.holds) for t in inside)

    def too_many(self) -> int:
        """How few holds have to go for the others to be apart."""
        for count in range(len(self.holds) + 1):
            for kept in combinations(self.holds, len(self.holds) - count):
                if not any(overlap(a, b) for a, b in combinations(kept, 2)):
                    return count
        raise AssertionError("one hold alone overlaps nothing")

    def fallen(self) -> int:
        """Tokens that are not greater than one that was certainly given before."""
        given = [act for act, _ in self.holds if act.offset is not None]
        if not self.extra:
            return sum((b.offset or 0) <= (a.offset or 0) for a, b in pairwise(given))
        return sum(any(self.broken(a, b) for b in given if end(b) < a.call) for a in given)

    def broken(self, later: Act, earlier: Act) -> bool:
        return (later.offset or 0) <= (earlier.offset or 0)

    def counts(self) -> dict[Code, int]:
        return {
            Code.LOCK_HELD_TWICE: self.extra + len(self.blocked),
            Code.LOCK_NOT_HELD: len(self.not_held),
            Code.LOCK_LOST: len(self.lost),
            Code.FENCING_BROKEN: self.fallen(),
        }

    def convicts(self, code: Code, shown: Row) -> bool:
        until = {id(act): until for act, until in self.holds}
        match code, [act for act in shown if act]:
            case Code.LOCK_HELD_TWICE, [hold, other] if hold.f is F.ACQUIRE:
                mine, theirs = ((act, until[id(act)]) for act in (hold, other))
                return hold is not other and overlap(mine, theirs)
            case Code.LOCK_HELD_TWICE, [release, other]:
                there = end(other) < release.call + BETWEEN < until[id(other)]
                return any(release is act for act in self.blocked) and there
            case Code.LOCK_NOT_HELD, [release]:
                return any(release is act for act in self.not_held)
            case Code.LOCK_LOST, [release]:
                return any(release is act for act in self.lost)
            case Code.FENCING_BROKEN, [later, earlier]:
                since = later.call if self.extra else end(later)
                return self.broken(later, earlier) and end(earlier) < since
        return False


def tells(act: Act) -> bool:
    """A failed operation proves nothing, except a refused release."""
    return act.f in (F.ACQUIRE, F.RELEASE) and (
        not act.failed or (act.refused and act.f is F.RELEASE)
    )


def overlap(one: tuple[Act, int], other: tuple[Act, int]) -> bool:
    return end(one[0]) < other[1] and end(other[0]) < one[1]


def crowd(dice: Random) -> History:
    """A lock given to many processes, held or not, with tokens that rise more or less."""
    acts: list[Act] = []
    for process in range(dice.randint(3, 5)):
        call = dice.randrange(1000)
        back = call + dice.randint(1, 200)
        token = dice.choice((None, call // 250, call // 100 + dice.randrange(3)))
        acts.append(Act(F.ACQUIRE, process, call, back, offset=token))
        release = back + dice.randint(1, 300)
        if dice.random() < 0.7:
            acts.append(Act(F.RELEASE, process, release, release + dice.randint(1, 100)))
    if dice.random() < 0.3:
        acts += [
            Act(F.ACQUIRE, 9, dice.randrange(500)),
            Act(F.RELEASE, 9, at := dice.randrange(500, 900), at + dice.randint(1, 100)),
        ]
    return tuple(acts)


def odd(dice: Random, acts: History) -> History:
    """Sometimes with more time-outs, refusals, processes that overlap, or what is no lock's."""
    made = list(acts)
    if dice.random() < 0.3:
        at = dice.randrange(len(made))
        made[at] = replace(made[at], end=None, offset=None, failed=False, refused=False)
    if dice.random() < 0.2:
        at = dice.randrange(len(made))
        made[at] = replace(made[at], process=dice.choice(made).process)
    if dice.random() < 0.2:
        call = dice.randrange(1500)
        other = Act(F.ACQUIRE, dice.choice(made).process, call, call + 1, failed=True, refused=True)
        made.append(dice.choice((other, Act(F.ADD, other.process, call, call + 1, value=1))))
    return tuple(made)


def test_causes_are_those_of_the_definitions() -> None:
    """The causes of one table, whatever other keys it has, and no others."""
    dice = Random(81)
    drawn_ones = [
        odd(dice, crowd(dice) if dice.random() < 0.2 else drawn(dice, "lock"))
        for _ in range(HISTORIES)
    ]
    histories = [at_distinct_times(acts) for acts in drawn_ones]
    found, undecided = compared(locks.judge, histories, Naive)
    assert min(*found.values(), undecided) >= EACH, found
    assert len(found) == 4


@pytest.mark.parametrize("company", [0, 1])
def test_it_was_free_before_everything(company: int) -> None:
    """Operations without invocations: one may have held and released the lock before the other,
    whether there is a lock before this one in the table or not."""
    acts = (
        *(Act(F.ACQUIRE, 1, UNHEARD, 0), Act(F.ACQUIRE, 2, UNHEARD, told=True)),
        Act(F.RELEASE, 2, UNHEARD, 50),
    )
    assert possible("lock", acts)
    assert not told_at_once(locks.judge, [acts] * (company + 1))[company].causes


def of_one(*did: tuple[F, bool]) -> History:
    """What one process did, one after the other; with an outcome or without."""
    return tuple(
        Act(f, 1, 20 * n, 20 * n + 10 if known else None) for n, (f, known) in enumerate(did)
    )


def test_each_acquire_that_timed_out_may_owe_one_release() -> None:
    """Two of them explain two releases, and not a third."""
    unsure, given = (F.ACQUIRE, False), (F.RELEASE, True)
    two, three = (of_one(unsure, unsure, *[given] * count) for count in (2, 3))
    answers = told(locks.judge, [two, three])
    assert [list(answer.causes) for answer in answers] == [[], [Code.LOCK_NOT_HELD]]


def test_a_release_that_two_holds_may_owe_is_left_to_the_search() -> None:
    """The first release timed out, and so did another acquire: which of them was given back?"""
    acts = of_one((F.ACQUIRE, True), (F.RELEASE, False), (F.ACQUIRE, False), (F.RELEASE, True))
    [answer] = told(locks.judge, [acts])
    assert (answer.undecided, answer.causes) == (True, {})
