"""Clients increment counters and read them: each read lies between what surely was added by then
and what may have been.
"""

from harness.contracts import WorkloadPlugin
from harness.operation import F, Type
from harness.trial import Trial
from harness.workloads._objects import ObjectOptions, ObjectWorkload, PlainObjectClient, swarm

STEP = 1  # equal steps: a read then tells how many were counted
READS = 0.5  # share of the operations


def workload(trial: Trial) -> ObjectWorkload:
    return ObjectWorkload(trial, CounterClient)


PLUGIN = WorkloadPlugin(
    workload=workload,
    client=frozenset({"calls"}),
    calls=(frozenset({"increment", "count"}),),
    options=ObjectOptions,
    swarm=swarm,
)


class CounterClient(PlainObjectClient):
    """A client that increments and reads."""

    NOUN = "counter"

    async def operate(self, key: int) -> None:
        if self.random.random() < READS:
            await self.finish(key)
        else:
            await self.change(F.ADD, key, STEP, "increment")

    async def finish(self, key: int) -> bool:
        return (await self.look(F.COUNT, key, "count", read=True))[0] is Type.OK
