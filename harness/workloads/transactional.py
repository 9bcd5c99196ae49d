"""Producers prepare numbered messages and then commit them, roll them back, or do neither.

What becomes of a message follows from its value alone, so every producer knows it, also after a
crash: most are committed, some rolled back, and a few stay undecided for good. After a message is
prepared its producer waits up to `think_ms`, and decides; one in `FORGETS` it forgets. The system
then asks. *Answerers* wait for its questions and decide by the same rule, except that they do not
know the answer to a value's first question now and then.

In the final phase answerers go on for `asked_within_s`, by when the system must have asked about
everything that is open. Then readers, those of `messages`, read every queue.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, cast

from harness.contracts import (
    Completion,
    HalfClient,
    HalfQuestion,
    WorkloadContext,
    WorkloadPlugin,
)
from harness.errors import BadRequest
from harness.operation import F, Type
from harness.trial import Trial
from harness.workloads._body import body_of, key_of, value_in
from harness.workloads._clients import RETRY_S, checkers_of
from harness.workloads.messages import (
    POLL_WAIT_S,
    MessageOptions,
    MessageProducer,
    MessageWorkload,
    WorkloadQueue,
    partial_context,
)

CHECKERS = ("halves", "replicas", "masters", "invariants", "recovery", "availability", "coverage")
GROUP = "producers"
ROLL_BACK, COMMIT, UNKNOWN = 0, 1, 2
FORGETS = 0.2  # of the decisions
PREPARED = 0.7  # of the messages; the others are plain ones
SETTLED_S = 1.0  # after the last answer


def workload(trial: Trial) -> "TransactionalWorkload":
    return TransactionalWorkload(TransactionalOptions.of(trial.load, trial.workload), trial)


def swarm(random: Random) -> Mapping[str, Any]:
    """Return the load of one seed of a campaign."""
    return {
        "queues": random.choice((1, 2, 4)),
        "producers": random.choice((1, 2)),
        "consumers": random.choice((1, 2)),
        "rate": float(random.choice((15, 25, 50))),
        "think_ms": random.choice((1, 300, 2000)),
        "body_bytes": random.choice((16, 300)),
    }


@dataclass(frozen=True, kw_only=True)
class TransactionalOptions(MessageOptions):
    """The `load` options of this workload: those of `messages`, and some more."""

    rate: float = 100.0
    answerers: int = 2  # processes that answer the system's questions
    think_ms: int = 300  # between preparing and deciding, up to this many ms
    asked_within_s: float = 45.0  # the system must ask about an open message within this time


PLUGIN = WorkloadPlugin(
    workload=workload,
    client=frozenset(
        {"send", "prepare", "decide", "questions", "poll", "range", "commit", "committed"}
    ),
    calls=(
        frozenset({"append", "prepare", "decide", "questions", "entries", "end", "read", "write"}),
    ),
    options=TransactionalOptions,
    swarm=swarm,
)


def decision_of(value: int) -> int:
    """Return what becomes of a message: COMMIT, ROLL_BACK, or UNKNOWN, which is never decided."""
    drawn = (value * 0x9E3779B97F4A7C15 >> 40) % 20
    return COMMIT if drawn < 11 else ROLL_BACK if drawn < 19 else UNKNOWN


class TransactionalWorkload(MessageWorkload):
    """The workload; the same value in every client process."""

    def __init__(self, options: TransactionalOptions, trial: Trial) -> None:
        super().__init__(options, trial)
        self._own = options
        self.checkers: Sequence[str] = checkers_of(trial, CHECKERS)
        self._first_answerer = self.processes
        self.processes += options.answerers

    def check_options(self) -> None:
        super().check_options()
        if self._options.client_selects:
            raise BadRequest("load.client_selects is of the workload messages alone; leave it out")

    def client_settings(self) -> Mapping[str, Any]:
        return {**super().client_settings(), "asked_within_s": self._own.asked_within_s}

    def process_name(self, process: int) -> str:
        answerer = process - self._first_answerer
        return f"answerer {answerer}" if answerer >= 0 else super().process_name(process)

    def producer(self, context: WorkloadContext, process: int) -> MessageProducer:
        return TransactionalProducer(context, process, self._own, self.queues)

    async def load(self, context: WorkloadContext) -> None:
        answerers = self._answerers(context)
        answering = asyncio.gather(*(each.answer_until_stopped() for each in answerers))
        await super().load(partial_context(context, lambda p: p < self._first_answerer))
        await answering

    async def drain(self, context: WorkloadContext) -> None:
        within_s = self._own.asked_within_s
        await asyncio.gather(
            asyncio.sleep(within_s + SETTLED_S),
            *(each.answer_for(within_s) for each in self._answerers(context)),
        )
        await super().drain(partial_context(context, lambda p: p < self._first_answerer))

    def _answerers(self, context: WorkloadContext) -> list["Answerer"]:
        mine = [process for process in context.processes if process >= self._first_answerer]
        return [Answerer(context, process, self.queues) for process in mine]


class TransactionalProducer(MessageProducer):
    """A producer that prepares and decides most of its messages."""

    def __init__(
        self,
        context: WorkloadContext,
        process: int,
        options: TransactionalOptions,
        queues: Sequence[WorkloadQueue],
    ) -> None:
        super().__init__(context, process, options, queues)
        self._random: Random = context.random(f"decisions-{self._process}")
        self._longest_s = options.think_ms / 1000

    def _send(self) -> None:
        if self._random.random() < PREPARED:
            self._prepare()
        else:
            super()._send()

    def _prepare(self) -> None:
        value, queue = self._take_slot()
        context, process, f = self._context, self._process, F.PREPARE
        forgets = self._random.random() < FORGETS
        think_s = self._random.random() * self._longest_s
        op = context.invoke(process, f, queue.key, value)
        body = body_of(value, self._body_bytes)

        def done(completion: Completion) -> None:
            context.complete(process, op, f, queue.key, value, completion)
            decision = decision_of(value)
            if completion.type is Type.OK and decision != UNKNOWN and not forgets:
                half = HalfQuestion(completion.offset, key_of(body), body)
                self._loop.call_later(think_s, self._decide, queue, half, decision)
            else:
                self._free_slot()

        client = cast(HalfClient, context.client)
        client.prepare(queue.topic, queue.number, key_of(body), body, GROUP, done)

    def _decide(self, queue: WorkloadQueue, half: HalfQuestion, decision: int) -> None:
        context, process, f, value = self._context, self._process, F.DECIDE, value_in(half.body)
        op = context.invoke(process, f, queue.key, value, arg=decision)

        def done(completion: Completion) -> None:
            context.complete(process, op, f, queue.key, value, completion)
            self._free_slot()

        client, commit = cast(HalfClient, context.client), decision == COMMIT
        client.decide(queue.topic, queue.number, half.id, half.key, commit, done)


class Answerer:
    """Answers the system's questions for the group of all producers."""

    def __init__(
        self, context: WorkloadContext, process: int, queues: Sequence[WorkloadQueue]
    ) -> None:
        self._context, self._process = context, context.process_id(process)
        self._queues = queues
        self._client = cast(HalfClient, context.client)
        self._random: Random = context.random(f"answers-{self._process}")
        self._loop = asyncio.get_running_loop()
        self._asked: set[int] = set()

    async def answer_until_stopped(self) -> None:
        while not self._context.stopping:
            await self._answer_some()

    async def answer_for(self, within_s: float) -> None:
        end_s = self._loop.time() + within_s
        while self._loop.time() < end_s:
            await self._answer_some()

    async def _answer_some(self) -> None:
        queue = self._queues[self._random.randrange(len(self._queues))]
        asked = self._client.questions(GROUP, queue.topic, queue.number, POLL_WAIT_S)
        try:
            found = await asked
        except ConnectionError:
            await asyncio.sleep(RETRY_S)
            return
        await asyncio.gather(*(self._answer(queue, each) for each in found))

    async def _answer(self, asked_at: WorkloadQueue, half: HalfQuestion) -> None:
        value = value_in(half.body)
        answer = decision_of(value)
        if value not in self._asked and self._random.random() < FORGETS:
            answer = UNKNOWN
        self._asked.add(value)
        context, process, key = self._context, self._process, asked_at.key
        op = context.invoke(process, F.ASKED, key, value)
        context.complete(process, op, F.ASKED, key, value, Completion(Type.OK, arg=answer))
        if answer == UNKNOWN:
            return
        op = context.invoke(process, F.DECIDE, key, value, arg=answer)
        ended: asyncio.Future[Completion] = self._loop.create_future()
        place = asked_at.topic, asked_at.number
        self._client.decide(*place, half.id, half.key, answer == COMMIT, ended.set_result)
        context.complete(process, op, F.DECIDE, key, value, await ended)
