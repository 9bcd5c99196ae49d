"""Clients append entries to logs and receive their offsets; at the end each log is read.

A log is a queue of messages. Beyond what `set` asks, every entry is at the offset that its writer
was told, no two share one, and the order of offsets is one in which the appends can have happened.
`messages` asks that too, of reads during the load as well, by its checkers `offsets`, `order` and
`linearizable`; this is the same question in the words of Jepsen's append-only log, put to another
judge, so that two independent methods have to agree.
"""

from harness.contracts import WorkloadPlugin
from harness.operation import F
from harness.trial import Trial
from harness.workloads._elements import Elements, Options, swarm

TOPIC = "logs"


def workload(trial: Trial) -> Elements:
    return Elements(trial, TOPIC, F.APPEND)


PLUGIN = WorkloadPlugin(workload=workload, options=Options, swarm=swarm)
