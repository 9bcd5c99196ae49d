"""Transactions are isolated as the contract says, from read-uncommitted to strict-serializable.

The reads of lists and registers define how transactions depend on each other. A cycle of
dependencies is an anomaly according to Adya: `G0`, `G1C`, `G_SINGLE`, `G_NONADJACENT`, `G2_ITEM`;
with the suffix `_PROCESS` or `_REALTIME` if it includes the order of a process or real time, which
only the two strictest levels guarantee. Anomalies without a cycle have names of their own. A
finding's demand is the weakest level that forbids it. Each root cause counts once, by the rules in
`_cycles.anomalies` and
`_cycles.direct_anomalies`: its consequences are not counted again.

The level is the strongest that the contract names, or strict-serializable if it names none. A
transaction of unknown outcome was committed if another one saw what it wrote.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from checkers._cycles.anomalies import Peeling
from checkers._cycles.arrays import NULL
from checkers._cycles.collect import TransactionHistory, collect_transactions
from checkers._cycles.cycle_findings import (
    COMMITTED,
    SNAPSHOT,
    UNCOMMITTED,
    CycleText,
    cycle_finding,
    cycle_text,
    layer_of,
    transaction_name,
)
from checkers._cycles.direct_anomalies import DirectAnomaly, roots
from checkers._cycles.edges import EdgeKind
from checkers._cycles.graph import graph
from checkers._cycles.rows import OK
from checkers._run.evidence import SAMPLE
from harness.contracts import CheckerPlugin
from harness.history.reader import History
from harness.judge.verdict import Finding, Reason, Result
from harness.trial import ISOLATION, Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REMARKS = {
    DirectAnomaly.UNSEEN_OWN: (
        "INTERNAL",
        UNCOMMITTED,
        "did not read its own writes",
        "T{op} read {key} and did not read its own writes",
    ),
    DirectAnomaly.SHUFFLED: (
        "INTERNAL",
        UNCOMMITTED,
        "made appends that are in the list in another order",
        "T{op} appended {value} to {key} after its own element that follows it there",
    ),
    DirectAnomaly.PHANTOM: (
        "PHANTOM_VALUE",
        UNCOMMITTED,
        "was read but never written",
        "T{op} read {value} of {key}, which was never written",
    ),
    DirectAnomaly.DUPLICATE: (
        "DUPLICATE_ELEMENT",
        UNCOMMITTED,
        "was twice in its list",
        "T{op} read {key} with {value} twice, which was appended once",
    ),
    DirectAnomaly.ABORTED: (
        "G1A",
        COMMITTED,
        "was aborted, but others read its writes",
        "T{other} read {value} of {key}, which T{op} wrote, and T{op} was aborted",
    ),
    DirectAnomaly.INTERMEDIATE: (
        "G1B",
        COMMITTED,
        "was read by others in an intermediate state",
        "T{other} read {value} of {key}, which T{op} wrote before it wrote {key} again",
    ),
    DirectAnomaly.INCOMPATIBLE: (
        "INCOMPATIBLE_ORDER",
        COMMITTED,
        "was read in two orders, neither of which is a prefix of the other",
        "T{op} and others read {key} in orders neither of which is a prefix of the other",
    ),
    DirectAnomaly.LOST_OWN: (
        "LOST_APPEND",
        COMMITTED,
        "was read by its own transaction, but is missing in the reads of others",
        "T{op} appended {value} to {key} and read it; others read later elements without it",
    ),
    DirectAnomaly.READ_TWICE: (
        "INTERNAL",
        SNAPSHOT,
        "read one object twice and in two states",
        "T{op} read {key} in two states without changing it in between",
    ),
    DirectAnomaly.LOST_UPDATE: (
        "LOST_UPDATE",
        SNAPSHOT,
        "replaced a version that another transaction had also read and replaced",
        "T{op} and T{other} both read the same version of {key}, and both replaced it",
    ),
}
SUBJECTS = {
    DirectAnomaly.PHANTOM: "value",
    DirectAnomaly.DUPLICATE: "value",
    DirectAnomaly.INCOMPATIBLE: "list",
    DirectAnomaly.LOST_OWN: "append",
}


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    return judged(
        collect_transactions(history, spark, layer_of(trial)),
        history.names,
        trial,
        history.complete,
    )


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset(
        {
            "DUPLICATE_ELEMENT",
            "G0",
            "G0_PROCESS",
            "G0_REALTIME",
            "G1A",
            "G1B",
            "G1C",
            "G1C_PROCESS",
            "G1C_REALTIME",
            "G2_ITEM",
            "G2_ITEM_PROCESS",
            "G2_ITEM_REALTIME",
            "G_NONADJACENT",
            "G_NONADJACENT_PROCESS",
            "G_NONADJACENT_REALTIME",
            "G_SINGLE",
            "G_SINGLE_PROCESS",
            "G_SINGLE_REALTIME",
            "INCOMPATIBLE_ORDER",
            "INTERNAL",
            "LOST_APPEND",
            "LOST_UPDATE",
            "PHANTOM_VALUE",
        }
    ),
    decides=frozenset(ISOLATION),
    reasons=frozenset({"NO_TRANSACTIONS", "VALUES_NOT_UNIQUE", "WRITING_UNRECORDED"}),
)


def judged(found: TransactionHistory, names: Any, trial: Trial, complete: bool) -> Result:
    """Return the result of all dependencies."""
    layer = layer_of(trial)
    whole, nodes = graph(found.transactions, found.edges, found.ending, layer)
    causes = Peeling(whole, nodes, found.ending).run(layer)
    story = cycle_text(names, found.transactions, causes)
    findings = [*_remarked(found, story, complete), *(cycle_finding(c, story) for c in causes)]
    findings.sort(key=lambda f: (ISOLATION.index(f.demand), f.code))
    committed = int((found.transactions.status == OK).sum())
    stats: dict[str, Any] = {
        "transactions": len(found.transactions),
        "committed": committed,
        "dependencies": int((found.edges.kind != EdgeKind.LINK).sum()),
        "isolation": trial.isolation,
    }
    if committed and not findings:
        stats["proved"] = f"{committed:,} committed transactions, and no anomaly that " + (
            f"{trial.isolation} forbids"
        )
    decided = {trial.isolation: committed}
    return Result("transactions", tuple(findings), tuple(_reasons(found, complete)), stats, decided)


def _remarked(found: TransactionHistory, story: CycleText, complete: bool) -> Iterator[Finding]:
    """Yield findings of anomalies without a cycle."""
    for remark, (code, demand, words, sentence) in REMARKS.items():
        count, rows = roots(found.remarks, remark)
        if not count or (remark is DirectAnomaly.PHANTOM and not complete):
            continue
        evidence = tuple(_evidence(row, sentence, story) for row in rows[:SAMPLE])
        subject = SUBJECTS.get(remark, "transaction")
        many = f"1 {subject}" if count == 1 else f"{count:,} {subject}s, each of which"
        yield Finding(code, count, f"{many} {words}", demand, evidence)


def _evidence(row: dict[str, int], sentence: str, story: CycleText) -> dict[str, Any]:
    key, value = story.key(row["key"]), row["value"]
    words = sentence.format(op=row["op"], other=row["other"], key=key, value=story.value(value))
    shown: dict[str, Any] = {"key": key, "transaction": transaction_name(row["op"])}
    if value != NULL:
        shown["value"] = value
    if row["other"] >= 0:
        shown["other"] = transaction_name(row["other"])
    return {**shown, "explanation": f"{words}."}


def _reasons(found: TransactionHistory, complete: bool) -> Iterator[Reason]:
    if not (found.transactions.status == OK).any():
        yield Reason(
            "NO_TRANSACTIONS", "no transaction was committed, so nothing is proven of isolation"
        )
    count, _ = roots(found.remarks, DirectAnomaly.NOT_UNIQUE)
    if count:
        yield Reason(
            "VALUES_NOT_UNIQUE",
            f"{count:,} objects were written the same value twice, so it is not known which "
            "write a read saw; they were not checked; write each value once",
        )
    count, _ = roots(found.remarks, DirectAnomaly.PHANTOM)
    if count and not complete:
        yield Reason(
            "WRITING_UNRECORDED",
            f"{count:,} values were read whose write is not recorded; the history has gaps, so "
            "the record may be incomplete; run it again",
        )
