"""Controllers of the type dledger: the leader computes events, then logs them.

Requests pass through the request queue one at a time. Each controller has its own table of
heartbeats, and a new leader gives each broker it has not heard one heartbeat timeout of grace.
"""

import asyncio
from collections.abc import Callable

from ..net.wire import Json, Op
from ..raft.node import NotLeader
from .consensus import ControllerAccess, recheck
from .controller_requests import Decision, DecisionContext, guard_last_member, replace_master
from .liveness import Heartbeat, Key
from .request_queue import RequestQueue
from .state_machine import ApplyResult, decide


class Dledger:
    def __init__(self, controller: ControllerAccess) -> None:
        self._controller = controller
        self._loop = asyncio.get_running_loop()
        self._queue = RequestQueue(
            controller.leads, controller.propose, controller.not_leader, controller.write_timeout_s
        )

    def context(self) -> DecisionContext:
        controller, state = self._controller, self._controller.state()
        return DecisionContext(
            state.sets,
            lambda name, i: controller.liveness.candidate(name, i, self._loop.time()),
            controller.rules,
            controller.settings.unclean,
            controller.settings.policy,
            state.registers,
        )

    async def submit(self, op: Op, fields: Json) -> Json:
        """Registers are read by Raft's read index: no lease is trusted for them."""
        if op == Op.KV_GET and self._controller.rules.answers_alone(self._controller.leads()):
            return decide(op, fields, self.context()).reply
        if not self._controller.leads():
            return self._controller.not_leader()
        if op == Op.KV_GET:
            try:
                await self._controller.read()
            except NotLeader:
                return self._controller.not_leader()
            return decide(op, fields, self.context()).reply
        return await self._queue.submit(lambda: self._decide(op, fields))

    async def replace(self, name: str, trigger: str) -> Json:
        if not self._controller.leads():
            return self._controller.not_leader()
        return await self._queue.submit(lambda: replace_master(self.context(), name, trigger))

    def on_heartbeat(self, heartbeat: Heartbeat, connection: int) -> None:
        if self._controller.liveness.on_heartbeat(heartbeat, connection, self._loop.time()):
            self._controller.on_returned([heartbeat.key])

    def on_gone(self, key: Key, why: str) -> None:
        if self._controller.liveness.mark_gone(key):
            self._controller.on_lost([key], why)

    def check_heartbeats(self) -> None:
        def late() -> list[Key]:
            return self._controller.liveness.late(self._loop.time())

        def expire(keys: list[Key]) -> None:
            for key in keys:
                self.on_gone(key, "expired")

        recheck(self._controller, late, expire)

    def _decide(self, op: Op, fields: Json) -> Decision:
        context = self.context()
        return guard_last_member(context, decide(op, fields, context))

    def on_applied(self, result: ApplyResult) -> None: ...

    def on_leading(self, then: Callable[[], None]) -> None:
        self._controller.liveness.set_leader_since(self._loop.time())
        self._queue.open()
        then()

    def on_deposed(self) -> None:
        self._queue.shut()  # `on_leading` opens it when everything committed is applied
        self._controller.liveness.set_leader_since(None)
