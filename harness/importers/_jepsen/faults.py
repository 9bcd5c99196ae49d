"""Faults of a foreign history: from when to when the nemesis says that they lasted.

    :start ... :stop    :start-partition ... :stop-partition    :partition-start ... :partition-stop
    :kill ... :start    :pause ... :resume    :partition ... :heal    :stop ... :start

Jepsen writes two lines of each, when the nemesis begins to act and when it has acted. A fault lasts
from the first line of its beginning to the first line of its end, or to the end of the history.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from harness.importers._recording.recording import Events
from harness.operation import Type

ENDS = {
    "kill": ("start", "restart", "recover"),
    "crash": ("start", "restart", "recover"),
    "stop": ("start", "restart", "recover"),
    "pause": ("resume", "start", "recover"),
    "partition": ("heal", "stop", "recover"),
    "isolate": ("heal", "stop", "recover"),
    "split": ("heal", "stop", "recover"),
    "slow": ("fast", "heal", "stop"),
    "flaky": ("fast", "heal", "stop"),
}


def caveats(notes: Sequence[tuple[int, str]], events: Events) -> Sequence[str]:
    """What a verdict should say of faults under which nothing succeeded. `notes`: the line and kind
    of each of the nemesis's."""
    faults = list(_faults(notes))
    quiet = [fault for fault in faults if _is_quiet(fault, events)]
    if not quiet:
        return ()
    kind, first, last = quiet[0]
    until = f"to line {last}" if last else "to the end"
    which = f"while :{kind} lasted, from line {first} {until}"
    if len(quiet) > 1:
        which = f"during {len(quiet):,} of {len(faults):,} faults, first {which}"
    return (f"no operation was acknowledged {which}",)


def _faults(notes: Sequence[tuple[int, str]]) -> Iterator[tuple[str, int, int]]:
    """Kind, first line, and line of the end, 0 if there is none, of each fault."""
    begun: dict[str, int] = {}
    for line, kind in notes:
        if ended := [other for other in begun if kind in _ends_of(other)]:
            yield from ((other, begun.pop(other), line) for other in ended)
        elif _ends_of(kind) and kind not in begun:
            begun[kind] = line
    yield from ((kind, line, 0) for kind, line in begun.items())


def _ends_of(kind: str) -> tuple[str, ...]:
    """Which kinds end a fault; none: it is no fault that lasts."""
    if kind in ENDS:
        return ENDS[kind]
    words = kind.split("-")
    if "start" not in words:
        return ()
    same = "-".join("stop" if word == "start" else word for word in words)
    return (same, "heal", "recover")


def _is_quiet(fault: tuple[str, int, int], events: Events) -> bool:
    """Whether something was asked while a fault lasted, and nothing acknowledged."""
    _, first, last = fault
    during = events.line > first
    if last:
        during &= events.line < last
    kinds = events.type[during]
    return bool(np.any(kinds == Type.INVOKE) and not np.any(kinds == Type.OK))
