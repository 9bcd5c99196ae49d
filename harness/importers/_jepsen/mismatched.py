"""Completions that say that something else was written than was asked for.

A client completes the operation that it invoked: what it was to write is in both lines. Where they
differ, lines are mixed up, or the values are no plain ones (a register's with its version), and
nobody knows which of the two was written. The completion is dropped: its outcome is unknown.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.importers._jepsen.pairing import NOBODY, Paired
from harness.importers._recording.recording import Bools, Events, Ints, Slip, Slips
from harness.operation import F, Type

WRITES = (F.SEND, F.PUT, F.CAS, F.APPEND, F.ENQUEUE, F.ADD)


def without_unlike(parts: pa.Table, events: Events, pairs: Paired, slips: Slips) -> Paired:
    """The pairs without completions that contradict their invocations, which are told."""
    asked, told = _couples(parts, events, pairs)
    unlike = np.zeros(len(told), np.bool_)
    for name in ("key", "value", "arg"):
        column = parts.column(name)
        differ = pc.not_equal(column.take(pa.array(told)), column.take(pa.array(asked)))
        differs = differ.fill_null(False).to_numpy()
        unlike |= differs if name != "arg" else differs & _of(parts, told, F.CAS)
    if not unlike.any():
        return pairs
    event = parts.column("event").to_numpy()
    wrong = np.unique(event[told[unlike]])
    line, before = events.line[wrong], events.line[pairs.invoke[wrong]]
    what = (
        f"process {events.process[wrong[0]]} completes a write of something else than it invoked on"
        f" line {before[0]}; the line is dropped"
    )
    slips.add(Slip("OTHER_VALUE", int(line[0]), what, gap=True), len(wrong))
    invoke = pairs.invoke.copy()
    invoke[wrong] = NOBODY
    return replace(pairs, invoke=invoke)


def _couples(parts: pa.Table, events: Events, pairs: Paired) -> tuple[Ints, Ints]:
    """Rows that ask for something to be written, and those that say what became of it."""
    event = parts.column("event").to_numpy()
    mop = parts.column("mop").fill_null(-1).to_numpy().astype(np.int64)
    writing = np.flatnonzero(np.isin(parts.column("f").to_numpy(), WRITES))
    width = int(mop.max(initial=-1)) + 2
    place = event[writing] * width + mop[writing] + 1
    asking = events.type[event[writing]] == Type.INVOKE
    asked, told = writing[asking], writing[~asking]
    there = place[asking]
    if (np.diff(there) <= 0).any():
        order = np.argsort(there, kind="stable")
        asked, there = asked[order], there[order]
    invoke = pairs.invoke[event[told]]
    sought = np.where(invoke == NOBODY, NOBODY, invoke * width + mop[told] + 1)
    at = np.minimum(np.searchsorted(there, sought), max(len(there) - 1, 0))
    found = there[at] == sought if len(there) else np.zeros(len(told), np.bool_)
    return asked[at[found]], told[found]


def _of(parts: pa.Table, rows: Ints, f: F) -> Bools:
    same: Bools = parts.column("f").to_numpy()[rows] == f
    return same
