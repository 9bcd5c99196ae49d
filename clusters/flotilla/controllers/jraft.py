"""Controllers of the type jraft: requests are logged, and every controller computes (spec 4.3).

The leader stamps each command with its clock and proposes it; the answer is what applying it gave.
Who is alive is in the log too. Heartbeats are many, so those that come while an entry with others
is under way wait and share the next one; of a broker that beats twice meanwhile only the last one
counts. But no command goes before a heartbeat that came before it: a check or an election must not
take for silent whom the leader has heard.

After a silence of a whole set (liveness.py) its first heartbeat goes into the log together with the
last ones of the others, said once more: so their time begins anew, and controllers that know of no
such patience come to the same.

What each controller hears itself still counts for one thing more. A follower does not tell that a
broker's connections have closed; if it becomes leader, it does, unless the broker has been heard of
in another life since.
"""

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ..net.connection import refusal
from ..net.wire import Json, Op, Status, nested
from ..raft.node import Indeterminate, NotLeader
from .consensus import ModeContext, recheck, reply_of
from .controller_requests import READS, DecisionContext, guard_last_member
from .liveness import Heartbeat, Key, SilenceGrace
from .state_machine import ApplyResult, JraftCommand, context_at, decide

MAX_LEVELS = 8  # of a request that everybody must be able to read, however deep its stack is then


class Jraft:
    def __init__(self, ground: ModeContext) -> None:
        self._ground = ground
        self._loop = asyncio.get_running_loop()
        self._unsaid: dict[Key, Heartbeat] = {}
        self._sparing = SilenceGrace()
        self._saying = False
        self._reigns = 0
        self._led = False  # `lead` of this reign is applied

    def scene(self) -> DecisionContext:
        ground = self._ground
        return context_at(ground.agreed(), self._loop.time(), ground.terms, ground.rules)

    async def submit(self, op: Op, fields: Json) -> Json:
        if op == Op.KV_GET and self._ground.rules.answers_alone(self._ground.leads()):
            return decide(op, fields, self.scene()).reply
        if not (self._led and self._ground.leads()):
            return self._ground.not_leader()
        if op in READS:
            return await self._read(op, fields)
        if nested(fields, MAX_LEVELS):
            return refusal(Status.INVALID_REQUEST, f"more than {LEVELS} levels of JSON")
        if op == Op.CLEAN_BROKER_DATA and (why := self._objection(op, fields)):
            return why
        return await self._answered("request", [int(op), fields])

    async def replace(self, name: str, trigger: str) -> Json:
        if not (self._led and self._ground.leads()):
            return self._ground.not_leader()
        return await self._answered("replace", name, trigger)

    def heard(self, heartbeat: Heartbeat, connection: int) -> None:
        known = self._unsaid.get(heartbeat.key)
        self._ground.liveness.heard(heartbeat, connection, self._loop.time())
        if not (self._led and self._ground.leads()) or (known and heartbeat.precedes(known)):
            return
        self._unsaid = self._repeated(heartbeat) | self._unsaid | {heartbeat.key: heartbeat}
        if not self._saying:
            self._say()

    def gone(self, key: Key, why: str) -> None:
        if self._ground.liveness.gone(key) and self._led and self._ground.leads():
            self._propose("gone", [key], why)

    def look_for_late(self) -> None:
        if self._led and self._ground.leads():
            recheck(self._ground, self._late, self._expire)

    def took(self, taken: ApplyResult) -> None:
        if taken.fresh:
            self._ground.heard(taken.fresh)
        if taken.gone:
            self._ground.lost(taken.gone, taken.why)

    def complete(self, then: Callable[[], None]) -> None:
        """Lead by our own clock from here on."""
        reign = self._reigns

        def led(outcome: "asyncio.Future[Any]") -> None:
            if outcome.exception() is None and reign == self._reigns:
                self._led = True
                self._tell_who_is_gone()
                then()

        self._propose("lead").add_done_callback(led)

    def deposed(self) -> None:
        self._reigns += 1
        self._led = self._saying = False
        self._unsaid.clear()

    # inside

    def _objection(self, op: Op, fields: Json) -> Json:
        """Why we do not even log it; empty: we do."""
        scene = self.scene()
        decision = decide(op, fields, scene)
        allowed = guard_last_member(scene, decision)
        return {} if allowed is decision else allowed.reply

    def _propose(self, kind: str, content: Any = None, why: str = "") -> "asyncio.Future[Any]":
        if self._unsaid:
            self._say()
        command = JraftCommand(kind, self._loop.time(), self._ground.terms, content, why)
        outcome = self._ground.propose(command.pack())
        outcome.add_done_callback(lambda over: over.exception())  # nobody may be waiting for it
        return outcome

    def _say(self) -> None:
        """Put all heartbeats that wait into the log, and those that come meanwhile afterwards."""
        heartbeats = [asdict(heartbeat) for heartbeat in self._unsaid.values()]
        self._unsaid.clear()
        self._saying = True
        self._propose("hear", heartbeats).add_done_callback(self._said)

    def _said(self, outcome: "asyncio.Future[Any]") -> None:
        if not isinstance(outcome.exception(), Indeterminate | NotLeader):
            self._saying = False
            if self._unsaid:
                self._say()

    def _repeated(self, first: Heartbeat) -> dict[Key, Heartbeat]:
        """The last heartbeats of those whom this one, after a silence of all, speaks for."""
        last = {}
        living = self._ground.agreed().living
        for key, agreed in self._sparing.by(first, living, self._loop.time()).items():
            said, own = agreed.heartbeat, self._ground.liveness.known(key)
            if own is None or (own.heartbeat.life == said.life and not own.gone):
                newer = own and said.precedes(own.heartbeat)
                last[key] = own.heartbeat if own and newer else said
        return last

    async def _answered(self, kind: str, content: Any, why: str = "") -> Json:
        outcome = self._propose(kind, content, why)
        done, _ = await asyncio.wait([outcome], timeout=self._ground.write_timeout_s)
        if not done:
            return refusal(Status.SYSTEM_ERROR, "no majority in time: the outcome is unknown")
        return reply_of(self._ground, outcome)

    async def _read(self, op: Op, fields: Json) -> Json:
        try:
            await self._ground.read()
        except NotLeader:
            return self._ground.not_leader()
        return decide(op, fields, self.scene()).reply

    def _late(self) -> list[Key]:
        expired = self._ground.rules.heartbeat_expired
        late = self._ground.agreed().living.silenced(self._loop.time(), expired)
        return [key for key in late if key not in self._unsaid]

    def _expire(self, keys: list[Key]) -> None:
        if keys and self._led and self._ground.leads():
            self._propose("check", keys, "expired")

    def _tell_who_is_gone(self) -> None:
        """What closed before we led."""
        pulses = self._ground.agreed().living.pulses
        for pulse in self._ground.liveness.all():
            key = pulse.heartbeat.key
            same_life = key in pulses and pulses[key].heartbeat.life == pulse.heartbeat.life
            if pulse.gone and same_life and not pulses[key].gone:
                self._propose("gone", [key], "closed")
