"""Producers send numbered messages; consumers of one group pop them, each for a limited time.

Producers and final readers are those of `messages`. The system gives each message to one of the
group's *consumers*, which pop from every queue in turn, and lets it be invisible to the others for
`invisible_ms`. A consumer acknowledges most messages. Some it forgets, as one that crashed would,
and for some it asks for more time, which it then needs or not. What is not acknowledged must come
again.

In the final phase consumers acknowledge all that they are given, and go on until nothing came for
as long as a message may be invisible, and `late_s` more.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, cast

from harness.contracts import PopClient, PopDelivery, WorkloadContext, WorkloadPlugin
from harness.errors import BadRequest
from harness.history.notes import CORRUPTED, DRAINED, NOT_DRAINED
from harness.operation import NONE, F, Type
from harness.trial import Trial
from harness.workloads._body import claimed_value, damaged_part, value_in
from harness.workloads._clients import RETRY_S, checkers_of
from harness.workloads.messages import (
    POLL_WAIT_S,
    MessageConsumer,
    MessageOptions,
    MessageWorkload,
    WorkloadQueue,
    group_name,
)

CHECKERS = ("pops", "replicas", "masters", "invariants", "recovery", "availability", "coverage")
OF_POLLS = ("loss", "redelivery")  # checkers of what consumers polled
FORGETS, HIDES = 0.06, 0.1  # of the messages that a consumer was given
LONGER = 2  # times `invisible_ms`: for so long a consumer asks


def workload(trial: Trial) -> "PopWorkload":
    return PopWorkload(PopOptions.of(trial.load, trial.workload), trial)


def swarm(random: Random) -> Mapping[str, Any]:
    """Return the load of one seed of a campaign."""
    return {
        "queues": random.choice((1, 2, 4)),
        "producers": random.choice((1, 2)),
        "consumers": random.choice((1, 2, 3)),
        "rate": float(random.choice((15, 25, 50))),
        "invisible_ms": random.choice((1500, 2500, 4000)),
        "poll_limit": random.choice((1, 4, 32)),
        "body_bytes": random.choice((16, 300)),
    }


@dataclass(frozen=True, kw_only=True)
class PopOptions(MessageOptions):
    """The `load` options of this workload: those of `messages`, and some more."""

    rate: float = 100.0
    invisible_ms: int = 2500  # a message is invisible for so long
    late_s: float = 5.0  # after that time, a message that did not come again counts as lost
    exclusive: bool = True  # the system promises that an invisible or acknowledged message is
    # given to no other consumer of the group


PLUGIN = WorkloadPlugin(
    workload=workload,
    client=frozenset({"send", "pop", "acknowledge", "hide", "poll", "range"}),
    # no plain client has `pop` and `hide`
    calls=(frozenset({"append", "pop", "acknowledge", "hide", "entries", "end"}),),
    options=PopOptions,
    swarm=swarm,
)


class PopWorkload(MessageWorkload):
    """The workload; the same value in every client process."""

    def __init__(self, options: PopOptions, trial: Trial) -> None:
        super().__init__(options, trial)
        self._own = options
        self.checkers: Sequence[str] = checkers_of(trial, CHECKERS)

    def check_options(self) -> None:
        super().check_options()
        if self._options.client_selects:
            raise BadRequest("load.client_selects is of the workload messages alone; leave it out")
        if unfit := [name for name in self.checkers if name in OF_POLLS]:
            raise BadRequest(
                f"the checker {unfit[0]} judges consumers that poll, and those of the workload pop "
                "take messages with POP; leave it out, pops judges them"
            )
        if self._options.groups != 1:
            raise BadRequest("the workload pop has one group of consumers; leave load.groups out")

    def consumers(self, context: WorkloadContext, process: int) -> Sequence[MessageConsumer]:
        if not self._options.producers <= process < self._first_reader:
            return []
        return [PopConsumer(context, process, self._own, self.queues)]


class PopConsumer:
    """One consumer of the group."""

    def __init__(
        self,
        context: WorkloadContext,
        process: int,
        options: PopOptions,
        queues: Sequence[WorkloadQueue],
    ) -> None:
        self._context, self._process = context, context.process_id(process)
        self._options, self._queues, self._group = options, queues, group_name(0)
        self._client = cast(PopClient, context.client)
        self._random: Random = context.random(f"pops-{self._process}")
        self._loop = asyncio.get_running_loop()
        self._seen: set[int] = set()  # values that came in the final phase
        self._wait_s = POLL_WAIT_S / len(queues)

    async def follow(self) -> None:
        """Consume until the load is over."""
        while not self._context.stopping:
            for queue in self._queues:
                await self._consume(queue, self._handle)

    async def drain(self, within_s: float) -> None:
        """Consume until no queue gives anything any more. A note of each queue says so, or that it
        did not come to that: for `within_s` there was no answer, or nothing that is new."""
        longest_s = LONGER * self._options.invisible_ms / 1000
        quiet_s = longest_s + self._options.late_s
        wait_s = max(within_s, quiet_s) + quiet_s
        last_s = new_s = self._loop.time()  # when something came, and something new
        left = {*self._queues}
        while left and self._loop.time() < new_s + wait_s:
            for queue in self._queues:
                begun_s, known = self._loop.time(), len(self._seen)
                if found := await self._consume(queue, self._acknowledge):
                    last_s, left = self._loop.time(), {*self._queues}
                    new_s = self._loop.time() if len(self._seen) > known else new_s
                elif found == 0 and begun_s >= last_s + quiet_s:
                    left.discard(queue)
        for queue in self._queues:
            fields: dict[str, Any] = {"key": queue.key, "group": self._group, "from": 0}
            fields |= {"why": f"nothing new for {wait_s:g} s"} if queue in left else {}
            word = NOT_DRAINED if queue in left else DRAINED
            self._context.note(f"{word} {json.dumps(fields)}", self._process)

    async def _consume(self, queue: WorkloadQueue, handle: Any) -> int | None:
        """Pop messages and handle each; return how many came, None: there was no answer."""
        context, process, invisible_ms = self._context, self._process, self._options.invisible_ms
        op = context.invoke(process, F.POP, queue.key, arg=invisible_ms)
        place, limit = (queue.topic, queue.number), self._options.poll_limit
        popped = await self._client.pop(self._group, *place, limit, invisible_ms, self._wait_s)
        for pos, each in enumerate(popped.messages):
            value = value_in(each.message.body)
            self._report_damage(queue, op, each)
            context.received(process, op, F.POP, queue.key, pos, value, each.message)
        context.complete(process, op, F.POP, queue.key, NONE, popped.completion)
        if popped.completion.type is not Type.OK:
            await asyncio.sleep(RETRY_S)
            return None
        await asyncio.gather(*(handle(queue, each) for each in popped.messages))
        return len(popped.messages)

    async def _handle(self, queue: WorkloadQueue, each: PopDelivery) -> None:
        """Acknowledge a message, forget it, or ask for more time."""
        drawn = self._random.random()
        forgets = self._random.random() < FORGETS
        if drawn < HIDES:
            handle = await self._hide(queue, each)
            if handle and not forgets:
                await self._acknowledge(queue, PopDelivery(each.message, handle))
        elif not forgets:
            await self._acknowledge(queue, each)

    async def _acknowledge(self, queue: WorkloadQueue, each: PopDelivery) -> None:
        context, process, value = self._context, self._process, value_in(each.message.body)
        self._seen.add(value)
        offset = each.message.offset
        op = context.invoke(process, F.ACK, queue.key, value, offset)
        place = queue.topic, queue.number
        done = await self._client.acknowledge(self._group, *place, each.handle)
        context.complete(process, op, F.ACK, queue.key, value, replace(done, offset=offset))

    async def _hide(self, queue: WorkloadQueue, each: PopDelivery) -> str:
        """Ask for more time; return the message's new handle, "" if it has none."""
        context, process, value = self._context, self._process, value_in(each.message.body)
        longer_ms = LONGER * self._options.invisible_ms
        offset = each.message.offset
        op = context.invoke(process, F.HIDE, queue.key, value, offset, longer_ms)
        place = queue.topic, queue.number
        done, handle = await self._client.hide(self._group, *place, each.handle, longer_ms)
        context.complete(process, op, F.HIDE, queue.key, value, replace(done, offset=offset))
        return handle if done.type is Type.OK else ""

    def _report_damage(self, queue: WorkloadQueue, op: int, each: PopDelivery) -> None:
        message = each.message
        if damaged := damaged_part(message.body, message.key):
            fields = {"key": queue.key, "offset": message.offset, "damaged": damaged}
            fields |= {"group": self._group, "claimed": claimed_value(message.body)}
            self._context.note(f"{CORRUPTED} {json.dumps(fields)}", self._process, op)
