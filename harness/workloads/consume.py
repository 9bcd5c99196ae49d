"""Producers send numbered messages; the consumers of each group share them and acknowledge each.

Producers and final readers are those of `messages`. Its groups are offsets that clients keep; here
the system keeps the groups: it gives each message to one of the group's *consumers*, which fetch
from every queue in turn, and again, to the same or another one, if it is not acknowledged in time.
Now and then a consumer forgets to acknowledge a message, so some must come again.

In the final phase each consumer goes on until no queue gave anything for QUIET_S, which is longer
than systems wait for an acknowledgement. The messages of a fetch are recorded in the order of their
offsets, since a system promises none for what comes again.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from harness.contracts import ReceivedMessage, WorkloadContext, WorkloadPlugin
from harness.contracts.calls import Delivery
from harness.errors import BadRequest
from harness.history.notes import CORRUPTED, DRAINED, NOT_DRAINED
from harness.operation import NONE, F, Type
from harness.trial import Trial
from harness.workloads._body import claimed_value, damaged_part, value_in
from harness.workloads._clients import RETRY_S, ObjectClient, checkers_of
from harness.workloads.messages import (
    MessageConsumer,
    MessageOptions,
    MessageWorkload,
    WorkloadQueue,
    group_name,
)

CHECKERS = (
    *("loss", "phantom", "duplicates", "order", "offsets", "redelivery"),
    *("replicas", "recovery", "availability", "coverage"),
)
FORGETS = 0.02  # of the messages that a consumer was given
QUIET_S = 6.0


def workload(trial: Trial) -> "ConsumeWorkload":
    return ConsumeWorkload(MessageOptions.of(trial.load, trial.workload), trial)


def swarm(random: Random) -> Mapping[str, Any]:
    """Return the load of one seed of a campaign."""
    return {
        "queues": random.choice((1, 2, 4)),
        "consumers": random.choice((1, 2, 3)),
        "rate": float(random.choice((25, 50, 100))),
        "poll_limit": random.choice((4, 64)),
    }


PLUGIN = WorkloadPlugin(
    workload=workload,
    client=frozenset({"calls", "send", "poll", "range"}),
    calls=(frozenset({"append", "entries", "end", "fetch", "acknowledge"}),),
    options=MessageOptions,
    swarm=swarm,
)


class ConsumeWorkload(MessageWorkload):
    """The workload; the same value in every client process."""

    def __init__(self, options: MessageOptions, trial: Trial) -> None:
        super().__init__(options, trial)
        self.checkers: Sequence[str] = checkers_of(trial, CHECKERS)

    def check_options(self) -> None:
        super().check_options()
        if self._options.client_selects:
            raise BadRequest("load.client_selects is of the workload messages alone; leave it out")

    def consumers(self, context: WorkloadContext, process: int) -> Sequence[MessageConsumer]:
        options = self._options
        if not options.producers <= process < self._first_reader:
            return []
        group = (process - options.producers) // options.consumers
        return [GroupFetcher(context, process, group, self.queues, options.poll_limit)]


class GroupFetcher(ObjectClient):
    """One consumer of a group that the system keeps."""

    def __init__(
        self,
        context: WorkloadContext,
        process: int,
        group: int,
        queues: Sequence[WorkloadQueue],
        limit: int,
    ) -> None:
        super().__init__(context, process)
        self._group, self._queues, self._limit = group, queues, limit
        self._calls = self.plain_calls()

    async def follow(self) -> None:
        """Consume until the load is over."""
        while not self.context.stopping:
            for queue in self._queues:
                await self._consume(queue, FORGETS)

    async def drain(self, within_s: float) -> None:
        """Consume until no queue gives anything any more. A note of each queue says so, or that it
        did not come to that within `within_s`."""
        wait_s = max(within_s, 2 * QUIET_S)
        quiet_s = self.loop.time()  # since then nothing came
        left = {*self._queues}
        while left and self.loop.time() < quiet_s + wait_s:
            for queue in self._queues:
                begun_s = self.loop.time()
                if found := await self._consume(queue, 0.0):
                    quiet_s, left = self.loop.time(), {*self._queues}
                elif found == 0 and begun_s >= quiet_s + QUIET_S:
                    left.discard(queue)
        for queue in self._queues:
            fields = {"key": queue.key, "group": group_name(self._group), "from": 0}
            fields |= {"why": f"no answer for {wait_s:g} s"} if queue in left else {}
            word = NOT_DRAINED if queue in left else DRAINED
            self.context.note(f"{word} {json.dumps(fields)}", self.process)

    async def _consume(self, queue: WorkloadQueue, forgets: float) -> int | None:
        """Fetch messages and acknowledge them; return how many came, None: there was no answer."""
        op = self.context.invoke(self.process, F.POLL, queue.key, arg=self._group)
        asked = self._calls.fetch(str(queue), group_name(self._group), self._limit)
        done, found = await self.outcome(asked, read=True)
        deliveries: list[Delivery] = sorted(found or ())
        for pos, each in enumerate(deliveries):
            message = ReceivedMessage(each.offset, NONE, each.body)
            self._report_damage(queue, op, each)
            value = value_in(each.body)
            self.context.received(self.process, op, F.POLL, queue.key, pos, value, message)
        self.context.complete(self.process, op, F.POLL, queue.key, NONE, done)
        if done.type is not Type.OK:
            await asyncio.sleep(RETRY_S)
            return None
        if kept := [each for each in deliveries if self.random.random() >= forgets]:
            await self._acknowledge(queue, kept)
        return len(deliveries)

    async def _acknowledge(self, queue: WorkloadQueue, deliveries: Sequence[Delivery]) -> None:
        f, key = F.ACKNOWLEDGE, queue.key
        op = self.context.invoke(self.process, f, key, arg=self._group)
        handles = [each.handle for each in deliveries]
        asked = self._calls.acknowledge(str(queue), group_name(self._group), handles)
        done, _ = await self.outcome(asked)
        for pos, each in enumerate(deliveries if done.type is Type.OK else ()):
            message = ReceivedMessage(each.offset, NONE, b"")
            self.context.received(self.process, op, f, key, pos, NONE, message)
        # it keeps its number, by which its messages count for the group; an acknowledgement that
        # takes effect late breaks no promise
        self.context.complete(self.process, op, f, key, NONE, done)

    def _report_damage(self, queue: WorkloadQueue, op: int, each: Delivery) -> None:
        if damaged := damaged_part(each.body, None):
            fields = {"key": queue.key, "offset": each.offset, "damaged": damaged}
            fields |= {"group": group_name(self._group), "claimed": claimed_value(each.body)}
            self.context.note(f"{CORRUPTED} {json.dumps(fields)}", self.process, op)
