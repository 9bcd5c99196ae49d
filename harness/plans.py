"""Parts of a plan. Pure.

A fault may speak of another by its number, `fault-0`; when faults before that one are left out, its
number changes with its place. One that is spoken of by a fault that stays can not be left out: what
is left is then no plan, which whoever carries it out will say.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from harness.contracts import PlannedFault
from harness.errors import BadRequest
from harness.text.parsing import parsed

Faults = tuple[PlannedFault, ...]
_NUMBER = re.compile(r"\bfault-(\d{1,9})\b")
GONE = "left-out"
PREVIOUS, NEXT = "previous is healed", "next"  # words of `after` and `until`


@lru_cache(maxsize=4)  # several ask the same of a plan, which may be long
def planned_kinds(text: str) -> tuple[str, ...]:
    """Kinds of the faults in a plan file; an unreadable plan has none."""
    try:
        faults = parsed(text, "the plan").get("fault", [])
    except BadRequest:
        return ()
    return tuple(str(fault.get("kind", "")) for fault in faults if isinstance(fault, dict))


def first(plan: Faults, count: int) -> Faults:
    """The faults that begin first, in the order of the plan."""
    in_time = sorted(range(len(plan)), key=lambda number: plan[number].at_s)
    return kept(plan, sorted(in_time[:count]))


def kept(plan: Faults, numbers: Iterable[int]) -> Faults:
    """These faults of the plan, which still speak of the same ones. Who waits for the fault before
    or after it where none is left does not wait."""
    numbers = list(numbers)
    now = {old: new for new, old in enumerate(numbers)}
    left = [renumbered(plan[number], now) for number in numbers]
    if left and left[0].after.startswith(PREVIOUS):
        left[0] = replace(left[0], after="")
    if left and left[-1].until.startswith(NEXT):
        left[-1] = replace(left[-1], until="")
    return tuple(left)


def joined(plans: Iterable[Faults]) -> Faults:
    """Several plans as one, each after the other; each still speaks of its own faults."""
    whole: list[PlannedFault] = []
    for plan in plans:
        now = {number: len(whole) + number for number in range(len(plan))}
        whole += [renumbered(fault, now) for fault in plan]
    return tuple(whole)


def shifted(plan: Faults, first_s: float) -> Faults:
    """All of it earlier, or later, so that the first fault is at this time."""
    by_s = min((fault.at_s for fault in plan), default=0.0) - first_s
    return tuple(replace(fault, at_s=round(fault.at_s - by_s, 3)) for fault in plan)


def told(plan: Sequence[PlannedFault], defaults: Mapping[str, Mapping[str, object]]) -> Faults:
    """The plan without parameters that say what goes without saying."""
    return tuple(
        replace(
            fault,
            params={
                name: value
                for name, value in fault.params.items()
                if value != defaults[fault.kind].get(name)
            },
        )
        for fault in plan
    )


def renumbered(fault: PlannedFault, now: Mapping[int, int]) -> PlannedFault:
    """The fault when those that it speaks of have these numbers."""

    def renamed(text: str) -> str:
        return _NUMBER.sub(lambda match: f"fault-{now.get(int(match[1]), GONE)}", text)

    params = {k: renamed(v) if isinstance(v, str) else v for k, v in fault.params.items()}
    return replace(
        fault,
        target=renamed(fault.target),
        params=params,
        after=renamed(fault.after),
        until=renamed(fault.until),
    )
