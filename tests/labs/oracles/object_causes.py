"""The violations that kernels find in small histories of objects, as operations of those histories.

An operation that was called before time 0 has no recorded invocation. Histories are judged alone,
and together with others whose processes have the same numbers: the result of one must not depend on
the others.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from random import Random
from typing import Protocol

from object_oracle import Act, Table

from checkers._linear.objects import Objects, encode_objects
from checkers._linear.violations import Code, MethodResult
from harness.operation import F

NEVER = 1 << 40
UNHEARD = -1
COMPANIES = (1, 2, 3, 500)  # histories of one table
PROCESSES = 100
NOBODY = -1

History = tuple[Act, ...]
Row = tuple[Act | None, ...]


@dataclass
class Told:
    """Of one history: by code, the operations of each cause; and whether it was decided."""

    causes: dict[Code, list[Row]] = field(default_factory=dict)
    undecided: bool = False


class Definitions(Protocol):
    """Of one history: whether only a search decides it, how many causes of each code there are, and
    whether operations that are shown contradict each other."""

    @property
    def undecided(self) -> bool: ...

    def counts(self) -> Mapping[Code, int]: ...

    def convicts(self, code: Code, shown: Row) -> bool: ...


def end(act: Act) -> int:
    return NEVER if act.end is None else act.end


def told(judge: Callable[[Objects], MethodResult], histories: Sequence[History]) -> list[Told]:
    """Return the violations in each, judged in groups of several sizes."""
    answers: list[Told] = []
    sizes = cycle(COMPANIES)
    while len(answers) < len(histories):
        first = len(answers)
        answers += told_at_once(judge, histories[first : first + next(sizes)])
    return answers


def told_at_once(
    judge: Callable[[Objects], MethodResult], histories: Sequence[History]
) -> list[Told]:
    columns = Table.of(histories).columns()
    columns["process"] %= PROCESSES
    heard = columns["t"] > UNHEARD
    given = encode_objects({name: column[heard] for name, column in columns.items()})
    by_number = [act for history in histories for act in history]
    judged = judge(given)
    answers = [Told(undecided=bool(undecided)) for undecided in judged.undecided]
    for code, keys, places, _ in judged.violations:
        for key, row in zip(keys.tolist(), places.tolist(), strict=True):
            assert min(row) >= NOBODY
            shown = (None if at == NOBODY else by_number[given.operations.op[at]] for at in row)
            answers[key].causes.setdefault(code, []).append(tuple(shown))
    return answers


def compared(
    judge: Callable[[Objects], MethodResult],
    histories: Sequence[History],
    define: Callable[[History], Definitions],
) -> tuple[Counter[Code], int]:
    """Not one cause more or less of each code than the definitions know, and each shows operations
    that contradict each other. How many of each code there were, and how many were undecided."""
    found: Counter[Code] = Counter()
    undecided = 0
    for acts, answer in zip(histories, told(judge, histories), strict=True):
        naive = define(acts)
        assert answer.undecided is naive.undecided, acts
        undecided += answer.undecided
        for code, count in naive.counts().items():
            assert len(answer.causes.get(code, [])) == count, (code, answer, acts)
        for code, rows in answer.causes.items():
            found[code] += len(rows)
            for row in rows:
                assert naive.convicts(code, row), (code, row, acts)
    print(f"\n{dict(found)}, left to the search {undecided}")
    return found, undecided


def some_unheard(dice: Random, histories: Sequence[History]) -> Iterator[History]:
    """Return the same, with the invocations of a few operations removed whose ends have all their
    data."""
    for acts in histories:
        lost = dice.random() < 0.2
        yield tuple(
            replace(act, call=UNHEARD) if lost and _said(act) and dice.random() < 0.4 else act
            for act in acts
        )


def _said(act: Act) -> bool:
    return act.known or (act.told and act.f is F.DEQUEUE)


def at_distinct_times(acts: History) -> History:
    """The same, without two events at one time, so that there is one latest of all."""
    events = [(act.call, 0, n) for n, act in enumerate(acts) if act.call > UNHEARD]
    events += [(act.end, 1, n) for n, act in enumerate(acts) if act.end is not None]
    at = {(kind, n): 10 * place for place, (_, kind, n) in enumerate(sorted(events))}
    return tuple(
        replace(act, call=at.get((0, n), UNHEARD), end=at.get((1, n))) for n, act in enumerate(acts)
    )
