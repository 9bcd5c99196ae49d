"""Clients add elements to sets, and at the end read what is in them: every element that was added
is there, and nothing else.

A set is a queue of messages, so an element is kept by the replication of the brokers' log; its
position in the queue does not matter. Each element is added once.
"""

from harness.contracts import WorkloadPlugin
from harness.operation import F
from harness.trial import Trial
from harness.workloads._elements import ElementOptions, ElementWorkload, swarm

TOPIC = "sets"


def workload(trial: Trial) -> ElementWorkload:
    return ElementWorkload(trial, TOPIC, F.ADD)


PLUGIN = WorkloadPlugin(
    workload=workload,
    client=frozenset({"send", "poll", "range"}),
    options=ElementOptions,
    swarm=swarm,
)
