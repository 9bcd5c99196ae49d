"""Controllers of the type jraft: requests are logged, and every controller computes their effect.

The leader stamps each command with its clock and proposes it; the answer is what applying it gave.
Liveness is in the log as well. Heartbeats are many, so the ones that arrive while an entry with
others is in progress share the next entry, and only the last of each broker is kept. No command is
logged before a heartbeat that arrived before it: a check or an election must not take a broker for
silent that the leader has heard.

When a whole set was silent (see `liveness`), its first heartbeat is logged together with the last
ones of the other brokers, repeated. That restarts their time, also on controllers of an edition
that does not know this rule.

A follower does not report that a broker's connections closed. When it becomes the leader, it does,
unless the broker has started again since.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from ..net.connection import refusal
from ..net.wire import Json, Op, Status, nested
from ..raft.node import Indeterminate, NotLeader
from .consensus import ControllerAccess, majority_timeout, recheck, reply_of
from .controller_requests import READS, DecisionContext, guard_last_member
from .liveness import Heartbeat, Key, SilenceGrace
from .state_machine import ApplyResult, JraftCommand, context_at, decide

MAX_LEVELS = 8  # of JSON in a request: each controller must be able to parse it on any stack


class Jraft:
    def __init__(self, controller: ControllerAccess) -> None:
        self._controller = controller
        self._loop = asyncio.get_running_loop()
        self._unlogged: dict[Key, Heartbeat] = {}
        self._grace = SilenceGrace()
        self._logging = False  # an entry with heartbeats is in progress
        self._reign = 0
        self._ready = False  # the command `lead` of this reign is applied

    def context(self) -> DecisionContext:
        controller = self._controller
        now = self._loop.time()
        return context_at(controller.state(), now, controller.settings, controller.rules)

    async def submit(self, op: Op, fields: Json) -> Json:
        if op == Op.KV_GET and self._controller.rules.answers_alone(self._controller.leads()):
            return decide(op, fields, self.context()).reply
        if not self._decides():
            return self._controller.not_leader()
        if op in READS:
            return await self._read(op, fields)
        if nested(fields, MAX_LEVELS):
            return refusal(Status.INVALID_REQUEST, f"more than {MAX_LEVELS} levels of JSON")
        if op == Op.CLEAN_BROKER_DATA and (objection := self._objection(op, fields)):
            return objection
        return await self._logged("request", [int(op), fields])

    async def replace(self, name: str, trigger: str) -> Json:
        if not self._decides():
            return self._controller.not_leader()
        return await self._logged("replace", name, trigger)

    def on_heartbeat(self, heartbeat: Heartbeat, connection: int) -> None:
        known = self._unlogged.get(heartbeat.key)
        self._controller.liveness.on_heartbeat(heartbeat, connection, self._loop.time())
        if not self._decides() or (known and heartbeat.precedes(known)):
            return
        self._unlogged = self._repeated(heartbeat) | self._unlogged | {heartbeat.key: heartbeat}
        if not self._logging:
            self._log_heartbeats()

    def on_gone(self, key: Key, why: str) -> None:
        if self._controller.liveness.mark_gone(key) and self._decides():
            self._propose("gone", [key], why)

    def check_heartbeats(self) -> None:
        if self._decides():
            recheck(self._controller, self._late, self._expire)

    def on_applied(self, result: ApplyResult) -> None:
        if result.returned:
            self._controller.on_returned(result.returned)
        if result.gone:
            self._controller.on_lost(result.gone, result.why)

    def on_leading(self, then: Callable[[], None]) -> None:
        """Make this controller's clock the one that counts, then decide."""
        reign = self._reign

        def applied(outcome: "asyncio.Future[Any]") -> None:
            if outcome.exception() is None and reign == self._reign:
                self._ready = True
                self._report_closed()
                then()

        self._propose("lead").add_done_callback(applied)

    def on_deposed(self) -> None:
        self._reign += 1
        self._ready = self._logging = False
        self._unlogged.clear()

    # inside

    def _decides(self) -> bool:
        return self._ready and self._controller.leads()

    def _objection(self, op: Op, fields: Json) -> Json:
        """Return the reply if the request must not even be logged, else {}."""
        context = self.context()
        decision = decide(op, fields, context)
        allowed = guard_last_member(context, decision)
        return {} if allowed is decision else allowed.reply

    def _propose(self, kind: str, content: Any = None, why: str = "") -> "asyncio.Future[Any]":
        if self._unlogged:
            self._log_heartbeats()
        command = JraftCommand(kind, self._loop.time(), self._controller.settings, content, why)
        outcome = self._controller.propose(command.pack())
        outcome.add_done_callback(lambda done: done.exception())  # retrieved, or asyncio complains
        return outcome

    def _log_heartbeats(self) -> None:
        """Propose all heartbeats that wait. Those that arrive meanwhile follow in the next
        entry."""
        heartbeats = [heartbeat.fields() for heartbeat in self._unlogged.values()]
        self._unlogged.clear()
        self._logging = True
        self._propose("hear", heartbeats).add_done_callback(self._heartbeats_logged)

    def _heartbeats_logged(self, outcome: "asyncio.Future[Any]") -> None:
        if not isinstance(outcome.exception(), Indeterminate | NotLeader):
            self._logging = False
            if self._unlogged:
                self._log_heartbeats()

    def _repeated(self, first: Heartbeat) -> dict[Key, Heartbeat]:
        """Return the last heartbeats of the brokers whose time restarts with `first`.

        This controller's own connections may know newer ones than the log.
        """
        repeated = {}
        table = self._controller.state().heartbeats
        for key, agreed in self._grace.renew(first, table, self._loop.time()).items():
            logged, own = agreed.heartbeat, self._controller.liveness.last(key)
            if own is None or (own.heartbeat.life == logged.life and not own.gone):
                newer = own and logged.precedes(own.heartbeat)
                repeated[key] = own.heartbeat if own and newer else logged
        return repeated

    async def _logged(self, kind: str, content: Any, why: str = "") -> Json:
        outcome = self._propose(kind, content, why)
        done, _ = await asyncio.wait([outcome], timeout=self._controller.write_timeout_s)
        if not done:
            return majority_timeout()
        reply: Json = reply_of(outcome, self._controller.not_leader)
        return reply

    async def _read(self, op: Op, fields: Json) -> Json:
        try:
            await self._controller.read()
        except NotLeader:
            return self._controller.not_leader()
        return decide(op, fields, self.context()).reply

    def _late(self) -> list[Key]:
        expired = self._controller.rules.heartbeat_expired
        late = self._controller.state().heartbeats.expired_brokers(self._loop.time(), expired)
        return [key for key in late if key not in self._unlogged]

    def _expire(self, keys: list[Key]) -> None:
        if keys and self._decides():
            self._propose("check", keys, "expired")

    def _report_closed(self) -> None:
        """Log the connections that closed before this controller led."""
        agreed = self._controller.state().heartbeats.rows
        for own in self._controller.liveness.rows():
            key = own.heartbeat.key
            same_life = key in agreed and agreed[key].heartbeat.life == own.heartbeat.life
            if own.gone and same_life and not agreed[key].gone:
                self._propose("gone", [key], "closed")
