"""Clients add elements to sets, and read what is in them: every element that was added is there,
and nothing else. Each element is added once.

Of a system whose clients have sets (`add` and `members`), sets are read all along. Else a set is a
queue of messages, so that an element is kept by the replication of the log; its position in the
queue does not matter, and sets are read at the end.
"""

from harness import registry
from harness.contracts import ReceivedMessage, Workload, WorkloadPlugin
from harness.operation import NONE, Completion, F, Type
from harness.trial import Trial
from harness.workloads._elements import ElementOptions, ElementWorkload, swarm
from harness.workloads._objects import ObjectWorkload, PlainObjectClient

TOPIC = "sets"
READS = 0.1  # share of the operations: a read returns the whole set
SET_CALLS = frozenset({"add", "members"})
_BARE = ReceivedMessage(NONE, NONE, b"")


def workload(trial: Trial) -> Workload:
    calls = registry.system(trial.system).calls
    if calls is not None and set(calls(trial)) >= SET_CALLS:
        return ObjectWorkload(trial, SetClient)
    return ElementWorkload(trial, TOPIC, F.ADD)


PLUGIN = WorkloadPlugin(
    workload=workload,
    client=frozenset({"send", "poll", "range"}),
    calls=(SET_CALLS, frozenset({"append", "entries", "end"})),
    options=ElementOptions,
    swarm=swarm,
)


class SetClient(PlainObjectClient):
    """A client that adds and reads."""

    NOUN = "set"

    async def operate(self, key: int) -> None:
        if self.random.random() < READS:
            await self.finish(key)
        else:
            await self.change(F.ADD, key, next(self.fresh), "add")

    async def finish(self, key: int) -> bool:
        op = self.invoke(F.LIST, key)
        done, members = await self.outcome(self.calls.members(self.keys[key]), read=True)
        if done.type is Type.OK:
            for pos, value in enumerate(sorted(set(members))):
                self.context.received(self.process, op, F.LIST, key, pos, value, _BARE)
        self.complete(op, F.LIST, key, NONE, Completion(done.type, error=done.error))
        return done.type is Type.OK
