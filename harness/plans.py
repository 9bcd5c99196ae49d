"""Editing of plans: select, join and shift their faults. Pure.

A fault may refer to another by its number, `fault-0`; when earlier faults are left out, its number
changes. A fault that a remaining one refers to cannot be left out: the rest is not a valid plan,
and is refused when it is carried out.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from harness.contracts import PlannedFault
from harness.errors import BadRequest
from harness.text.parsing import parse_toml

Faults = tuple[PlannedFault, ...]
_NUMBER = re.compile(r"\bfault-(\d{1,9})\b")
LEFT_OUT = "left-out"
PREVIOUS, NEXT = "previous is healed", "next"  # words of `after` and `until`


@lru_cache(maxsize=4)  # called several times for one plan, which may be long
def planned_kinds(text: str) -> tuple[str, ...]:
    """Return the kinds of the faults in a plan file; none if it is unreadable."""
    try:
        faults = parse_toml(text, "the plan").get("fault", [])
    except BadRequest:
        return ()
    return tuple(str(fault.get("kind", "")) for fault in faults if isinstance(fault, dict))


def first_faults(plan: Faults, count: int) -> Faults:
    """Return the faults that begin first, in the order of the plan."""
    in_time = sorted(range(len(plan)), key=lambda number: plan[number].at_s)
    return keep_faults(plan, sorted(in_time[:count]))


def keep_faults(plan: Faults, numbers: Iterable[int]) -> Faults:
    """Return these faults of the plan, with their references renumbered. A wait for the previous or
    the next fault is removed if there is none left."""
    numbers = list(numbers)
    now = {old: new for new, old in enumerate(numbers)}
    left = [renumber(plan[number], now) for number in numbers]
    if left and left[0].after.startswith(PREVIOUS):
        left[0] = replace(left[0], after="")
    if left and left[-1].until.startswith(NEXT):
        left[-1] = replace(left[-1], until="")
    return tuple(left)


def join_plans(plans: Iterable[Faults]) -> Faults:
    """Concatenate plans, with the references in each renumbered."""
    whole: list[PlannedFault] = []
    for plan in plans:
        now = {number: len(whole) + number for number in range(len(plan))}
        whole += [renumber(fault, now) for fault in plan]
    return tuple(whole)


def shift_plan(plan: Faults, first_s: float) -> Faults:
    """Shift all faults in time, so that the first is at `first_s`."""
    by_s = min((fault.at_s for fault in plan), default=0.0) - first_s
    return tuple(replace(fault, at_s=round(fault.at_s - by_s, 3)) for fault in plan)


def without_defaults(
    plan: Sequence[PlannedFault], defaults: Mapping[str, Mapping[str, object]]
) -> Faults:
    """Return the plan without parameters that have their default values."""
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


def renumber(fault: PlannedFault, now: Mapping[int, int]) -> PlannedFault:
    """Return the fault with its references renumbered."""

    def renamed(text: str) -> str:
        return _NUMBER.sub(lambda match: f"fault-{now.get(int(match[1]), LEFT_OUT)}", text)

    params = {k: renamed(v) if isinstance(v, str) else v for k, v in fault.params.items()}
    return replace(
        fault,
        target=renamed(fault.target),
        params=params,
        after=renamed(fault.after),
        until=renamed(fault.until),
    )
