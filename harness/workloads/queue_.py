"""Clients put values into queues and take them out; at the end each queue is drained.

Every value is put in once. A value counts as taken when the call that took it returned; one whose
outcome is unknown may have taken any. `order-per-queue` in the contract demands that values come
out in the order in which they went in; leave it out for a system that promises none.
"""

from collections import Counter

from harness.contracts import WorkloadContext, WorkloadPlugin
from harness.operation import F, Type
from harness.trial import Trial
from harness.workloads._objects import ObjectOptions, ObjectWorkload, PlainObjectClient, swarm

PUTS = 0.55  # share of the operations: a queue is rarely empty
EMPTY_TIMES = 3  # a drained queue was empty so often in a row


def workload(trial: Trial) -> ObjectWorkload:
    return ObjectWorkload(trial, QueueClient)


PLUGIN = WorkloadPlugin(
    workload=workload,
    client=frozenset({"calls"}),
    calls=(frozenset({"enqueue", "dequeue"}),),
    options=ObjectOptions,
    swarm=swarm,
)


class QueueClient(PlainObjectClient):
    """A client that puts in and takes out."""

    NOUN = "queue"

    def __init__(self, keys: list[str], context: WorkloadContext, process: int) -> None:
        super().__init__(keys, context, process)
        self._empty: Counter[int] = Counter()  # how often in a row each was found empty

    async def operate(self, key: int) -> None:
        if self.random.random() < PUTS:
            await self.change(F.ENQUEUE, key, next(self.fresh), "enqueue")
        else:
            await self._take(key)

    async def finish(self, key: int) -> bool:
        kind, value = await self._take(key)
        while kind is Type.OK and value is not None:
            kind, value = await self._take(key)
        self._empty[key] = self._empty[key] + 1 if kind is Type.OK else 0
        return self._empty[key] >= EMPTY_TIMES

    async def _take(self, key: int) -> tuple[Type, int | None]:
        """Take one; it changes the queue, so its outcome may be unknown."""
        return await self.look(F.DEQUEUE, key, "dequeue", read=False)
