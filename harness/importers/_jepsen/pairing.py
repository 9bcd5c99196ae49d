"""Each completion finds its invocation; what breaks a rule is named, and made harmless.

A process has one operation open at a time. Where a file breaks that, whatever is kept must not be
more than the file proves:

    completed twice    the second completion is dropped; if the two disagree, in type or in what
                       they say, both are, and the operation is of unknown outcome
    never invoked      it counts as invoked at the history's very beginning, the weakest there is
    overlapping        completions of a process with several open operations can not be told apart:
                       they are dropped, and the operations are of unknown outcome, until as many
                       have ended as were begun. A client that lost an answer and went on looks
                       like one that has two requests on their way and gets its answers in turn: to
                       go on after the first of them would give this one's answers to the wrong
                       requests, so where a completion is missing nothing more is known of a process
    another kind       a completion of another kind than the open operation's is dropped
    times that go back the file's order is kept, and a time that is too early is raised

Where the order of the lines is that of the events (`strict`), equal times are told apart by it.

Numpy does it for all processes at once, and a loop only for those that break rules.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from harness.importers._recording.recording import UNTIMED, Bools, Events, Ints, Slip, Slips
from harness.operation import Type

Alike = Callable[[int, int], bool]  # do two completions say the same?

NOBODY = -1
LONG_AGO = -(1 << 62)
LINE_NS = 1_000  # a line's share of a history that tells no times


@dataclass(frozen=True)
class Paired:
    """What became of the events.

    invoke   for each event the index of its operation's invocation: its own for an invocation,
             NOBODY for an event that is dropped
    orphans  completions that nobody invoked; `invoke` is their own index
    t        times of the events, which never go back, since the first
    """

    invoke: Ints
    orphans: Bools
    t: Ints


def paired(
    events: Events, slips: Slips, alike: Alike = lambda first, second: True, *, strict: bool = False
) -> Paired:
    invoke = in_turn(events)
    bad = np.unique(events.process[invoke == NOBODY])
    orphans = np.zeros(len(events), np.bool_)
    if len(bad):
        at = np.flatnonzero(np.isin(events.process, bad))
        at = at[np.argsort(events.process[at], kind="stable")]
        for mine in np.split(at, np.flatnonzero(np.diff(events.process[at])) + 1):
            _untangle(events, mine, invoke, orphans, slips, alike)
    return Paired(invoke, orphans, times(events, slips, strict=strict))


def in_turn(events: Events) -> Ints:
    """Each completion's invocation where it comes right before it in its process. NOBODY marks an
    event of a process that breaks the rules."""
    order = np.argsort(events.process, kind="stable")
    process, kind, f = events.process[order], events.type[order], events.f[order]
    invokes = kind == Type.INVOKE
    follows = np.zeros(len(order), np.bool_)  # the event before it is of the same process
    follows[1:] = process[1:] == process[:-1]
    after_invoke = follows & np.roll(invokes, 1)
    sound = np.where(invokes, ~after_invoke, after_invoke & (f == np.roll(f, 1)))
    found = np.where(invokes, order, np.roll(order, 1))
    invoke = np.empty(len(order), np.int64)
    invoke[order] = np.where(sound, found, NOBODY)
    return invoke


def _untangle(
    events: Events, at: Ints, invoke: Ints, orphans: Bools, slips: Slips, alike: Alike
) -> None:
    """One process's events in order, one after the other."""
    who = f"process {events.process[at[0]]}"
    opened: list[int] = []
    ended: int | None = None  # the last completion, while nothing is open
    tangled = False
    for event in at.tolist():
        line = int(events.line[event])
        if events.type[event] == Type.INVOKE:
            if opened:
                tangled = True
                before = int(events.line[opened[-1]])
                slips.add(
                    Slip(
                        "OVERLAP",
                        line,
                        f"{who} invokes, and its operation of line {before} is still open: whose"
                        " its completions are is not known until as many have ended as were begun",
                        gap=True,
                    )
                )
            opened.append(event)
            invoke[event] = event
            continue
        invoke[event] = NOBODY
        if tangled:
            slips.add(
                Slip(
                    "OVERLAP",
                    line,
                    f"{who} completes one of {len(opened)} open operations,"
                    " which is ambiguous; the line is dropped",
                    gap=True,
                )
            )
            opened.pop()
            tangled, ended = bool(opened), event
        elif opened and events.f[opened[-1]] == events.f[event]:
            invoke[event], ended = opened.pop(), event
        elif opened:
            before = int(events.line[opened[-1]])
            slips.add(
                Slip(
                    "OTHER_KIND",
                    line,
                    f"{who} completes another kind of operation than it"
                    f" invoked on line {before}; the line is dropped",
                    gap=True,
                )
            )
        elif ended is None:
            invoke[event], orphans[event], ended = event, True, event
            slips.add(
                Slip(
                    "NOT_INVOKED",
                    line,
                    f"{who} completes an operation that it did not"
                    " invoke; it counts as invoked at the history's beginning",
                )
            )
        else:
            same = events.type[ended] == events.type[event] and alike(ended, event)
            _twice(events, (ended, event), same, invoke, orphans, slips)


def _twice(
    events: Events, two: tuple[int, int], same: bool, invoke: Ints, orphans: Bools, slips: Slips
) -> None:
    first, second = two
    line, before = int(events.line[second]), int(events.line[first])
    if not same:
        invoke[first], orphans[first] = NOBODY, False
    what = "the second is dropped" if same else "both are dropped, because they differ"
    message = f"process {events.process[second]} completes its operation again after line {before};"
    slips.add(Slip("COMPLETED_TWICE", line, f"{message} {what}", gap=True))


def times(events: Events, slips: Slips, *, strict: bool = False) -> Ints:
    """The events' times since the first, never going back; `strict`: each later than the one
    before."""
    untimed = events.t == UNTIMED
    if untimed.all():
        return events.line * LINE_NS
    t = np.where(untimed, LONG_AGO, events.t)
    raised: Ints = np.maximum.accumulate(t)
    back = np.flatnonzero((t < raised) & ~untimed)
    if len(back):
        at = int(back[0])
        message = f"the time {t[at]} is before {raised[at]}, which an earlier line has; the lines'"
        slip = Slip("TIME_WENT_BACK", int(events.line[at]), f"{message} order is kept")
        slips.add(slip, len(back))
    first = int(np.argmax(~untimed))
    if strict:
        number = np.arange(len(t))
        raised = np.maximum.accumulate(t - number) + number
        raised[:first] = raised[first] - first + number[:first]
    else:
        raised[:first] = raised[first]
    since: Ints = raised - raised[0]
    return since
