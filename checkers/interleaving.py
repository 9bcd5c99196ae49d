"""Whether transactions over messages can have happened one after the other.

An operation that sends and polls in several parts is a transaction. The order of the logs and the
messages that were polled define how transactions depend on each other (`_cycles.logs`). A cycle of
dependencies is an anomaly: `G0` if it consists of sends, `G1C` if polls are part of it; with the
suffix `_PROCESS` or `_REALTIME` if it includes the order of a process or real time. Where
transactions are not isolated from each other, such as Kafka's, all of that is permitted: findings
only inform, unless the contract names a level of isolation.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from checkers._cycles.anomalies import Peeling
from checkers._cycles.cycle_findings import LogCycleText, cycle_finding, cycle_text, layer_of
from checkers._cycles.edges import OrderLayer
from checkers._cycles.graph import graph, sorted_tails
from checkers._cycles.lists import MissingAppends, TailRows
from checkers._cycles.logs import LogHistory, collect_log_transactions
from checkers._cycles.rows import OK
from harness.contracts import CheckerPlugin
from harness.history.reader import History
from harness.judge.verdict import Result
from harness.trial import ISOLATION, Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTHING = np.empty(0, np.int64)
NONE_MISSING = sorted_tails(
    MissingAppends(*[NOTHING] * MissingAppends.width()),
    TailRows(*[NOTHING] * TailRows.width()),
    TailRows(*[NOTHING] * TailRows.width()),
)


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    return judged(collect_log_transactions(history, spark), history.names, trial)


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset({"G0", "G0_PROCESS", "G0_REALTIME", "G1C", "G1C_PROCESS", "G1C_REALTIME"}),
    decides=frozenset(ISOLATION),
)


def judged(found: LogHistory, names: object, trial: Trial) -> Result:
    """Return the result of all dependencies."""
    isolated = not set(ISOLATION).isdisjoint(trial.contract)
    layer = layer_of(trial) if isolated else OrderLayer.DATA
    whole, nodes = graph(found.transactions, found.edges, NONE_MISSING, layer)
    causes = Peeling(whole, nodes, NONE_MISSING).run(layer)
    story = cycle_text(names, found.transactions, causes, LogCycleText)
    findings = [cycle_finding(c, story) for c in causes]
    if not isolated:
        findings = [replace(finding, demand="") for finding in findings]
    stats = {
        "transactions": len(found.transactions),
        "committed": int((found.transactions.status == OK).sum()),
        "dependencies": len(found.edges),
    }
    return Result("interleaving", tuple(findings), (), stats)
