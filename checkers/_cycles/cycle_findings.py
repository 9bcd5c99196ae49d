"""Cycles as findings: the code of each cause, its demand, and a witness as text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkers._cycles.anomalies import Causes, CycleExample
from checkers._cycles.arrays import NULL, Ints
from checkers._cycles.edges import EdgeKind, OrderLayer
from checkers._cycles.paths import Hop
from checkers._cycles.rows import Transactions
from checkers._run.evidence import SAMPLE, seconds
from harness.judge.verdict import Finding
from harness.text.plurals import how_often
from harness.trial import ISOLATION, Trial

UNCOMMITTED, COMMITTED, SNAPSHOT, SERIALIZABLE, SESSION, STRICT = ISOLATION

CYCLES = {
    "G0": "a cycle of writes (dirty write)",
    "G1C": "a cycle of write and read dependencies",
    "G_SINGLE": "a transaction missed a write that it depends on",
    "G_NONADJACENT": "a cycle of transactions that missed writes, never two in a row",
    "G2_ITEM": "a cycle of transactions each of which missed a write of the next",
    "LOST_APPEND": "an append is in no read, although a later transaction read the list",
}
LAYERS = {OrderLayer.DATA: "", OrderLayer.PROCESS: "_PROCESS", OrderLayer.REALTIME: "_REALTIME"}


@dataclass(frozen=True)
class CycleText:
    """Text of cycles: a sentence for each dependency. `times`: begin and end in seconds, and the
    process."""

    keys: dict[int, str]
    times: dict[int, tuple[float, float, int]]
    values: Sequence[str] = ()

    def explain(self, hops: list[Hop]) -> str:
        """Return a cycle as sentences."""
        return ". ".join((*self._sentences(hops), "No serial order explains all of this")) + "."

    def _sentences(self, hops: list[Hop]) -> Iterator[str]:
        for hop in hops:
            first, second = transaction_name(hop.src), transaction_name(hop.dst)
            yield f"{self._observation(hop)}, so {first} came before {second}"

    def _observation(self, hop: Hop) -> str:
        first, second, key = transaction_name(hop.src), transaction_name(hop.dst), self.key(hop.key)
        if hop.kind is EdgeKind.WW:
            one, next_ = self.value(hop.a), self.value(hop.b)
            return f"{first} wrote {one} to {key} and {second} wrote {next_} next"
        if hop.kind is EdgeKind.WR:
            return f"{second} read {self.value(hop.a)} of {key}, which {first} wrote"
        if hop.kind is EdgeKind.RW:
            upto, unseen = self.value(hop.a), self.value(hop.b)
            return f"{first} read {key} up to {upto} and did not see {unseen}, which {second} wrote"
        begin, end = self.times.get(hop.dst, (0, 0, 0)), self.times.get(hop.src, (0, 0, 0))
        if hop.kind is EdgeKind.PROCESS:
            return f"process {end[2]} ended {first} before it started {second}"
        return f"{first} ended at {end[1]:.6f} s and {second} started at {begin[0]:.6f} s"

    def key(self, key: int) -> str:
        return self.keys.get(key, str(key))

    def value(self, value: int) -> str:
        if value == NULL:
            return "nothing"
        return self.values[value] if 0 <= value < len(self.values) else str(value)


class LogCycleText(CycleText):
    """Text of transactions that send messages to logs and poll them; the values of hops are
    offsets."""

    def _observation(self, hop: Hop) -> str:
        first, second, key = transaction_name(hop.src), transaction_name(hop.dst), self.key(hop.key)
        if hop.kind is EdgeKind.WW:
            return f"{first} sent the message at {hop.a} of {key} and {second} the one at {hop.b}"
        if hop.kind is EdgeKind.WR:
            before = "it" if hop.a == hop.b else f"the earlier one at {hop.a}"
            return f"{second} polled the message at {hop.b} of {key} and {first} had sent {before}"
        return super()._observation(hop)


def transaction_name(op: int) -> str:
    return f"T{op}"


def layer_of(trial: Trial) -> OrderLayer:
    """Return the order that the contract's level of isolation promises to keep."""
    return {STRICT: OrderLayer.REALTIME, SESSION: OrderLayer.PROCESS}.get(
        trial.isolation, OrderLayer.DATA
    )


def cycle_finding(causes: Causes, text: CycleText) -> Finding:
    """Return one kind of cycle on one layer, with its demand: the weakest level that forbids it."""
    code = causes.code if causes.code == "LOST_APPEND" else causes.code + LAYERS[causes.layer]
    kept = {
        OrderLayer.DATA: "",
        OrderLayer.PROCESS: ", in the order of its process",
        OrderLayer.REALTIME: ", in real time",
    }[causes.layer]
    evidence = tuple(_evidence(shown, text) for shown in causes.examples[:SAMPLE])
    message = f"{how_often(causes.count)}, {CYCLES[causes.code]}{kept}"
    return Finding(code, causes.count, message, _demand(causes), evidence)


def _evidence(shown: CycleExample, text: CycleText) -> dict[str, Any]:
    around = " -> ".join(
        transaction_name(op) for op in [*(h.src for h in shown.cycle), shown.cycle[0].src]
    )
    kinds = " ".join(hop.kind.name.lower() for hop in shown.cycle)
    evidence = {"cycle": around, "edges": kinds, "explanation": text.explain(shown.cycle)}
    return evidence | ({"by_time": text.explain(shown.by_time)} if shown.by_time else {})


def _demand(causes: Causes) -> str:
    if causes.layer is not OrderLayer.DATA:
        return SESSION if causes.layer is OrderLayer.PROCESS else STRICT
    return (UNCOMMITTED, COMMITTED, SNAPSHOT, SERIALIZABLE)[causes.step]


def cycle_text(
    names: Any, transactions: Transactions, causes: list[Causes], kind: type[CycleText] = CycleText
) -> CycleText:
    """Return the names of keys and values, and the times of the transactions in the examples."""
    keys = dict(enumerate(str(key) for key in names.get("keys", ())))
    return kind(keys, _times(transactions, causes), names.get("values", ()))


def _times(transactions: Transactions, causes: list[Causes]) -> dict[int, tuple[float, float, int]]:
    shown = [s for c in causes for s in c.examples]
    hops = [hop for s in shown for hop in (*s.cycle, *s.by_time)]
    ops = sorted({op for hop in hops for op in (hop.src, hop.dst)})
    at: Ints = np.searchsorted(transactions.op, np.array(ops, np.int64))
    t = transactions
    return {
        op: (seconds(int(t.begin[row])), seconds(int(t.end[row])), int(t.process[row]))
        for op, row in zip(ops, at.tolist(), strict=True)
    }
