"""Controllers of the type dledger: the leader computes, then logs what it computed (spec 4.2).

Requests pass through the docket one at a time. The table of the living is each controller's own,
and a new leader gives everybody it has not heard of a heartbeat timeout's grace.
"""

import asyncio
from collections.abc import Callable

from ..net.wire import Json, Op
from ..raft.node import NotLeader
from .consensus import ModeContext, recheck
from .controller_requests import Decision, DecisionContext, guard_last_member, replace_master
from .liveness import Heartbeat, Key
from .request_queue import RequestQueue
from .state_machine import ApplyResult, decide


class Dledger:
    def __init__(self, ground: ModeContext) -> None:
        self._ground = ground
        self._loop = asyncio.get_running_loop()
        self._docket = RequestQueue(
            ground.leads, ground.propose, ground.not_leader, ground.write_timeout_s
        )

    def scene(self) -> DecisionContext:
        ground, agreed = self._ground, self._ground.agreed()
        return DecisionContext(
            agreed.sets,
            lambda name, i: ground.liveness.candidate(name, i, self._loop.time()),
            ground.rules,
            ground.terms.unclean,
            ground.terms.policy,
            agreed.registers,
        )

    async def submit(self, op: Op, fields: Json) -> Json:
        """The registers are read by read-index, so that no lease is trusted for them."""
        if op == Op.KV_GET and self._ground.rules.answers_alone(self._ground.leads()):
            return decide(op, fields, self.scene()).reply
        if not self._ground.leads():
            return self._ground.not_leader()
        if op == Op.KV_GET:
            try:
                await self._ground.read()
            except NotLeader:
                return self._ground.not_leader()
            return decide(op, fields, self.scene()).reply
        return await self._docket.submit(lambda: self._decide(op, fields))

    async def replace(self, name: str, trigger: str) -> Json:
        if not self._ground.leads():
            return self._ground.not_leader()
        return await self._docket.submit(lambda: replace_master(self.scene(), name, trigger))

    def heard(self, heartbeat: Heartbeat, connection: int) -> None:
        if self._ground.liveness.heard(heartbeat, connection, self._loop.time()):
            self._ground.heard([heartbeat.key])

    def gone(self, key: Key, why: str) -> None:
        if self._ground.liveness.gone(key):
            self._ground.lost([key], why)

    def look_for_late(self) -> None:
        def late() -> list[Key]:
            return self._ground.liveness.late(self._loop.time())

        def expire(keys: list[Key]) -> None:
            for key in keys:
                self.gone(key, "expired")

        recheck(self._ground, late, expire)

    def _decide(self, op: Op, fields: Json) -> Decision:
        scene = self.scene()
        return guard_last_member(scene, decide(op, fields, scene))

    def took(self, taken: ApplyResult) -> None: ...

    def complete(self, then: Callable[[], None]) -> None:
        self._ground.liveness.leading_since(self._loop.time())
        self._docket.open()
        then()

    def deposed(self) -> None:
        self._docket.shut()  # a new leader opens it when everything committed is applied
        self._ground.liveness.leading_since(None)
