"""Transactions read and write registers, each with a value that was never written before: for
systems whose objects hold one value.
"""

from harness.contracts import WorkloadPlugin
from harness.operation import F
from harness.trial import Trial
from harness.workloads._transactions import TransactionOptions, TransactionWorkload, swarm


def workload(trial: Trial) -> TransactionWorkload:
    return TransactionWorkload(trial, "register", "write", F.PUT, F.GET)


PLUGIN = WorkloadPlugin(
    workload=workload,
    client=frozenset({"calls"}),
    calls=(frozenset({"transact"}),),
    options=TransactionOptions,
    swarm=swarm,
)
