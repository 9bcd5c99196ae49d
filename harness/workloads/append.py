"""Transactions append to lists and read them: Elle's strongest workload, since a list that was read
tells the order of everything that was ever appended to it.
"""

from harness.contracts import WorkloadPlugin
from harness.operation import F
from harness.trial import Trial
from harness.workloads._transactions import TransactionOptions, TransactionWorkload, swarm


def workload(trial: Trial) -> TransactionWorkload:
    return TransactionWorkload(trial, "list", "append", F.APPEND, F.LIST)


PLUGIN = WorkloadPlugin(
    workload=workload,
    client=frozenset({"calls"}),
    calls=(frozenset({"transact"}),),
    options=TransactionOptions,
    swarm=swarm,
)
