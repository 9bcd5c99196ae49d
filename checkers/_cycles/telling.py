"""Cycles as findings: what each cause is called, whom it offends, and a witness of it in words."""

from typing import Any

import numpy as np

from checkers._cycles.arrays import Ints
from checkers._cycles.edges import Layer
from checkers._cycles.peel import Causes, Shown
from checkers._cycles.rows import Transactions
from checkers._cycles.witness import Story, name
from checkers._run.evidence import SAMPLE, seconds
from harness.judge.verdict import Finding
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
LAYERS = {Layer.DATA: "", Layer.PROCESS: "_PROCESS", Layer.REALTIME: "_REALTIME"}


def layer_of(trial: Trial) -> Layer:
    """What the contract's level of isolation promises to keep."""
    return {STRICT: Layer.REALTIME, SESSION: Layer.PROCESS}.get(trial.isolation, Layer.DATA)


def cycles(causes: Causes, story: Story) -> Finding:
    """One kind of cycle on one layer, with its demand: the weakest level that forbids it."""
    code = causes.code if causes.code == "LOST_APPEND" else causes.code + LAYERS[causes.layer]
    times = "once" if causes.count == 1 else f"{causes.count:,} times"
    kept = {
        Layer.DATA: "",
        Layer.PROCESS: ", in the order of its process",
        Layer.REALTIME: ", in real time",
    }[causes.layer]
    evidence = tuple(_told(shown, story) for shown in causes.shown[:SAMPLE])
    message = f"{times}, {CYCLES[causes.code]}{kept}"
    return Finding(code, causes.count, message, _demand(causes), evidence)


def _told(shown: Shown, story: Story) -> dict[str, Any]:
    around = " -> ".join(name(op) for op in [*(h.src for h in shown.cycle), shown.cycle[0].src])
    kinds = " ".join(hop.kind.name.lower() for hop in shown.cycle)
    told = {"cycle": around, "edges": kinds, "explanation": story.told(shown.cycle)}
    return told | ({"by_time": story.told(shown.by_time)} if shown.by_time else {})


def _demand(causes: Causes) -> str:
    if causes.layer is not Layer.DATA:
        return SESSION if causes.layer is Layer.PROCESS else STRICT
    return (UNCOMMITTED, COMMITTED, SNAPSHOT, SERIALIZABLE)[causes.step]


def story_of(
    names: Any, transactions: Transactions, causes: list[Causes], kind: type[Story] = Story
) -> Story:
    """The words for witnesses: names of keys and values, and when their transactions were."""
    keys = dict(enumerate(str(key) for key in names.get("keys", ())))
    return kind(keys, _times(transactions, causes), names.get("values", ()))


def _times(transactions: Transactions, causes: list[Causes]) -> dict[int, tuple[float, float, int]]:
    shown = [s for c in causes for s in c.shown]
    hops = [hop for s in shown for hop in (*s.cycle, *s.by_time)]
    ops = sorted({op for hop in hops for op in (hop.src, hop.dst)})
    at: Ints = np.searchsorted(transactions.op, np.array(ops, np.int64))
    t = transactions
    return {
        op: (seconds(int(t.begin[row])), seconds(int(t.end[row])), int(t.process[row]))
        for op, row in zip(ops, at.tolist(), strict=True)
    }
