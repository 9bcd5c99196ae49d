"""Pairs each completion with its invocation.

A process has one operation open at a time. Where a file breaks that rule, the pairing must not
prove more than the file does, and the line is a slip:

    completed twice      the second completion is dropped; if the two disagree in type or parts,
                         both are, and the outcome is unknown
    never invoked        the operation counts as invoked at the beginning of the history, which is
                         the weakest assumption
    overlapping          completions of a process with several open operations are ambiguous: they
                         are dropped, and the outcomes are unknown, until as many operations have
                         ended as have begun. A client that lost an answer and continued cannot be
                         distinguished from one with two requests in flight; pairing it again after
                         the first answer could give answers to the wrong requests
    another kind         a completion of another kind than the open operation's is dropped
    another value        a completion that wrote something else than its invocation is dropped:
                         lines are mixed up, or values have another form (a register with its
                         version), and it is unknown which of the two was written
    times that go back   the file's order is kept, and a time that is too early is raised

Where lines are in the order of the events (`strict`), they order events of equal times.

Numpy pairs all processes at once; a loop handles only those that break rules.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.importers._recording import UNTIMED, Bools, Events, Ints, Slip, Slips, is_one_of
from harness.operation import F, Type

Alike = Callable[[int, int], bool]  # whether two completions have the same parts

UNPAIRED = -1
LONG_AGO = -(1 << 62)
LINE_NS = 1_000  # between two lines of a history without times


@dataclass(frozen=True)
class Pairing:
    """
    invoke   for each event the index of its operation's invocation: its own for an invocation,
             UNPAIRED for an event that is dropped
    orphans  completions without an invocation; `invoke` is their own index
    t        times since the first event, which never go back
    """

    invoke: Ints
    orphans: Bools
    t: Ints


def pair_events(
    events: Events, slips: Slips, alike: Alike = lambda first, second: True, *, strict: bool = False
) -> Pairing:
    invoke = pair_alternating(events)
    bad = np.unique(events.process[invoke == UNPAIRED])
    orphans = np.zeros(len(events), np.bool_)
    if len(bad):
        at = np.flatnonzero(np.isin(events.process, bad))
        at = at[np.argsort(events.process[at], kind="stable")]
        for mine in np.split(at, np.flatnonzero(np.diff(events.process[at])) + 1):
            _untangle(events, mine, invoke, orphans, slips, alike)
    return Pairing(invoke, orphans, times(events, slips, strict=strict))


def pair_alternating(events: Events) -> Ints:
    """Pair each completion with the event before it in its process, if that is its invocation.
    UNPAIRED marks events of processes that break the rules."""
    order = stable_order(events.process)
    process, kind, f = events.process[order], events.type[order], events.f[order]
    invokes = kind == Type.INVOKE
    follows = np.zeros(len(order), np.bool_)  # the event before it is of the same process
    follows[1:] = process[1:] == process[:-1]
    after_invoke = follows & np.roll(invokes, 1)
    sound = np.where(invokes, ~after_invoke, after_invoke & (f == np.roll(f, 1)))
    found = np.where(invokes, order, np.roll(order, 1))
    invoke = np.empty(len(order), np.int64)
    invoke[order] = np.where(sound, found, UNPAIRED)
    return invoke


def stable_order(numbers: Ints) -> Ints:
    """Return the order of numbers, of equal ones that in which they are. Numpy sorts small numbers
    by their digits, several times faster."""
    small = len(numbers) and numbers.min() >= 0 and numbers.max() < 1 << 15
    order: Ints = np.argsort(numbers.astype(np.int16) if small else numbers, kind="stable")
    return order


def _untangle(
    events: Events, at: Ints, invoke: Ints, orphans: Bools, slips: Slips, alike: Alike
) -> None:
    """Pair the events of one process, one after the other."""
    process = f"process {events.process[at[0]]}"
    opened: list[int] = []
    ended: int | None = None  # the last completion, while nothing is open
    ambiguous = False

    def report(rule: str, event: int, what: str, *, gap: bool = True) -> None:
        slips.add(Slip(rule, int(events.line[event]), f"{process} {what}", gap=gap))

    for event in at.tolist():
        before = int(events.line[opened[-1]]) if opened else 0
        if events.type[event] == Type.INVOKE:
            if opened:
                ambiguous = True
                what = f"invokes while its operation of line {before} is open: its completions are"
                report("OVERLAP", event, f"{what} ambiguous until as many have ended as began")
            opened.append(event)
            invoke[event] = event
            continue
        invoke[event] = UNPAIRED
        if ambiguous:
            what = f"completes one of {len(opened)} open operations, which is ambiguous"
            report("OVERLAP", event, f"{what}; the line is dropped")
            opened.pop()
            ambiguous, ended = bool(opened), event
        elif opened and events.f[opened[-1]] == events.f[event]:
            invoke[event], ended = opened.pop(), event
        elif opened:
            what = f"completes another kind of operation than it invoked on line {before}"
            report("OTHER_KIND", event, f"{what}; the line is dropped")
        elif ended is None:
            invoke[event], orphans[event], ended = event, True, event
            what = "completes an operation that it did not invoke; it counts as invoked at the"
            report("NOT_INVOKED", event, f"{what} beginning of the history", gap=False)
        else:
            same = events.type[ended] == events.type[event] and alike(ended, event)
            if not same:
                invoke[ended], orphans[ended] = UNPAIRED, False
            what = "the second is dropped" if same else "both are dropped, because they differ"
            again = f"completes its operation again after line {events.line[ended]}"
            report("COMPLETED_TWICE", event, f"{again}; {what}")


def times(events: Events, slips: Slips, *, strict: bool = False) -> Ints:
    """Return times since the first event, which never go back; `strict`: each later than the
    one before."""
    untimed = events.t == UNTIMED
    if untimed.all():
        return events.line * LINE_NS
    t = np.where(untimed, LONG_AGO, events.t)
    raised: Ints = np.maximum.accumulate(t)
    back = np.flatnonzero((t < raised) & ~untimed)
    if len(back):
        at = int(back[0])
        message = f"the time {t[at]} is before {raised[at]}, the time of an earlier line"
        slip = Slip("TIME_WENT_BACK", int(events.line[at]), f"{message}; the order is kept")
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


# ------------------------------------------------------------------ completions that contradict


WRITES = (F.SEND, F.PUT, F.CAS, F.APPEND, F.ENQUEUE, F.ADD)


def drop_contradictions(parts: pa.Table, events: Events, pairs: Pairing, slips: Slips) -> Pairing:
    """Drop completions that wrote something else than their invocations."""
    invoked, completed = _write_rows(parts, events, pairs)
    unlike = np.zeros(len(completed), np.bool_)
    is_cas = parts.column("f").to_numpy()[completed] == F.CAS
    for name in ("key", "value", "arg"):
        column = parts.column(name)
        differ = pc.not_equal(column.take(pa.array(completed)), column.take(pa.array(invoked)))
        differs = differ.fill_null(False).to_numpy()
        unlike |= differs & is_cas if name == "arg" else differs
    if not unlike.any():
        return pairs
    event = parts.column("event").to_numpy()
    wrong = np.unique(event[completed[unlike]])
    line, before = events.line[wrong], events.line[pairs.invoke[wrong]]
    what = (
        f"process {events.process[wrong[0]]} completes a write of another value than it invoked on"
        f" line {before[0]}; the line is dropped"
    )
    slips.add(Slip("OTHER_VALUE", int(line[0]), what, gap=True), len(wrong))
    invoke = pairs.invoke.copy()
    invoke[wrong] = UNPAIRED
    return replace(pairs, invoke=invoke)


def _write_rows(parts: pa.Table, events: Events, pairs: Pairing) -> tuple[Ints, Ints]:
    """Return the rows of invoked writes, and those of their completions, in the same order."""
    event = parts.column("event").to_numpy()
    mop = parts.column("mop").fill_null(-1).to_numpy()
    width = int(mop.max(initial=-1)) + 2
    writing = np.flatnonzero(is_one_of(parts.column("f").to_numpy(), WRITES))
    mop = mop[writing].astype(np.int64)
    place = event[writing] * width + mop + 1
    is_invoke = events.type[event[writing]] == Type.INVOKE
    invoked, completed = writing[is_invoke], writing[~is_invoke]
    there, mop = place[is_invoke], mop[~is_invoke]
    if (np.diff(there) <= 0).any():
        order = np.argsort(there, kind="stable")
        invoked, there = invoked[order], there[order]
    invoke = pairs.invoke[event[completed]]
    sought = np.where(invoke == UNPAIRED, UNPAIRED, invoke * width + mop + 1)
    at = np.minimum(np.searchsorted(there, sought), max(len(there) - 1, 0))
    found = there[at] == sought if len(there) else np.zeros(len(completed), np.bool_)
    return invoked[at[found]], completed[found]
