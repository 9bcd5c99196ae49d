"""Clients append entries to logs and receive their offsets; at the end each log is read.

A log is a queue of messages. Beyond what `set` demands, every entry is at the offset that its
writer received, no two share one, and the order of offsets is one in which the appends can have
happened. `messages` demands that too, of reads during the load as well, by its checkers `offsets`,
`order` and `linearizable`; this workload has the terms of Jepsen's append-only log and another
checker, so that two independent methods have to agree.
"""

from harness.contracts import WorkloadPlugin
from harness.operation import F
from harness.trial import Trial
from harness.workloads._elements import ElementOptions, ElementWorkload, swarm

TOPIC = "logs"


def workload(trial: Trial) -> ElementWorkload:
    return ElementWorkload(trial, TOPIC, F.APPEND)


PLUGIN = WorkloadPlugin(
    workload=workload,
    client=frozenset({"send", "poll", "range"}),
    calls=(frozenset({"append", "entries", "end"}),),
    options=ElementOptions,
    swarm=swarm,
)
