"""Producers send numbered messages, half of them with a delay, after which readers are to get them.

Producers, consumer groups and final readers are those of `messages`. A producer draws for each
message whether it is delayed, and by how much, up to `delay_ms`. In the final phase readers wait
until everything that was accepted is due and `late_s` have passed; then they read every queue from
its first message to its last. What was accepted and is not there is lost.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, cast

from harness.contracts import Completion, DelayClient, WorkloadContext, WorkloadPlugin
from harness.errors import BadRequest
from harness.operation import NONE, F
from harness.trial import Trial
from harness.workloads._body import body_of, key_of
from harness.workloads._clients import checkers_of
from harness.workloads.messages import (
    MessageOptions,
    MessageProducer,
    MessageWorkload,
    WorkloadQueue,
)

CHECKERS = ("delays", "replicas", "masters", "invariants", "recovery", "availability", "coverage")
DELAYED = 0.5  # of the messages


def workload(trial: Trial) -> "DelayedWorkload":
    return DelayedWorkload(DelayedOptions.of(trial.load, trial.workload), trial)


def swarm(random: Random) -> Mapping[str, Any]:
    """Return the load of one seed of a campaign."""
    return {
        "queues": random.choice((1, 2, 4)),
        "producers": random.choice((1, 2)),
        "consumers": random.choice((1, 2)),
        "rate": float(random.choice((15, 25, 50))),
        "delay_ms": random.choice((50, 1000, 3000)),
        "body_bytes": random.choice((16, 300)),
    }


@dataclass(frozen=True, kw_only=True)
class DelayedOptions(MessageOptions):
    """The `load` options of this workload: those of `messages`, and two more."""

    rate: float = 100.0
    delay_ms: int = 2000  # a message's delay is drawn from 1 to this many ms
    late_s: float = 5.0  # after its time, a message that is not there counts as lost


PLUGIN = WorkloadPlugin(
    workload=workload,
    client=frozenset({"send", "send_delayed", "poll", "range", "commit", "committed"}),
    calls=(frozenset({"append", "append_later", "entries", "end", "read", "write"}),),
    options=DelayedOptions,
    swarm=swarm,
)


class DelayedWorkload(MessageWorkload):
    """The workload; the same value in every client process."""

    def __init__(self, options: DelayedOptions, trial: Trial) -> None:
        super().__init__(options, trial)
        self._delays = options
        self.checkers: Sequence[str] = checkers_of(trial, CHECKERS)

    def check_options(self) -> None:
        super().check_options()
        if self._options.client_selects:
            raise BadRequest("load.client_selects is of the workload messages alone; leave it out")

    def producer(self, context: WorkloadContext, process: int) -> MessageProducer:
        return DelayingProducer(context, process, self._delays, self.queues)

    async def drain(self, context: WorkloadContext) -> None:
        await asyncio.sleep(self._delays.delay_ms / 1000 + self._delays.late_s)
        await super().drain(context)


class DelayingProducer(MessageProducer):
    """A producer that delays some of its messages."""

    def __init__(
        self,
        context: WorkloadContext,
        process: int,
        options: DelayedOptions,
        queues: Sequence[WorkloadQueue],
    ) -> None:
        super().__init__(context, process, options, queues)
        self._random: Random = context.random(f"delays-{self._process}")
        self._longest_ms = options.delay_ms

    def _send(self) -> None:
        if self._random.random() < DELAYED:
            self._send_delayed(self._random.randint(1, self._longest_ms))
        else:
            super()._send()

    def _send_delayed(self, delay_ms: int) -> None:
        value, queue = self._take_slot()
        context, process, f = self._context, self._process, F.DELAY
        op = context.invoke(process, f, queue.key, value, arg=delay_ms)

        def done(completion: Completion) -> None:
            accepted = replace(completion, offset=NONE)  # it has no place in its queue yet
            context.complete(process, op, f, queue.key, value, accepted)
            self._free_slot()

        client, body = cast(DelayClient, context.client), body_of(value, self._body_bytes)
        client.send_delayed(queue.topic, queue.number, key_of(body), body, delay_ms, done)
