"""Clients add elements to sets, and at the end read what is in them: every element that was added
is there, and nothing else.

A set is a queue of messages, so that what keeps an element is the replication of the brokers' log;
where in the queue it lies is nobody's business. Each element is added once.
"""

from harness.contracts import WorkloadPlugin
from harness.operation import F
from harness.trial import Trial
from harness.workloads._elements import Elements, Options, swarm

TOPIC = "sets"


def workload(trial: Trial) -> Elements:
    return Elements(trial, TOPIC, F.ADD)


PLUGIN = WorkloadPlugin(workload=workload, options=Options, swarm=swarm)
