"""Bring nodes to another version of the system's program, as an operator does, while it serves.

Each victim is stopped with SIGTERM and started with the version `to`, by default one after the
other: the next one only when the cluster is whole again. The version is fetched and installed on
all nodes before the load begins, and it stays: healed means that all victims run, each with the
version that it was brought to.

A node is believed to run a version if its process does, by the digest of what it executes, and if
it goes on to do so until it serves or the fault's time is over. A node whose program in that
version ends by itself is started with the one it had before, and no further node is touched.

Other faults may hit a victim at all times but between its stop and its start: it waits for them.
Only systems whose programs have versions support this.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, NoReturn, cast

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    FaultContext,
    FaultEffects,
    FaultPlugin,
    Node,
    Observation,
    Param,
    PlannedFault,
    ProcessEnd,
)
from harness.contracts.membership import VersionedSystem
from harness.errors import BadRequest
from nemesis import restart
from nemesis._plan.plan import VERSION
from nemesis._process import victims as _victims
from nemesis._process.victims import NothingToHit, ProcessHold, hit_targets
from nemesis._runner.waiting import gather_all
from nemesis.kill import BACK_WITHIN_S
from nemesis.restart import ROLLING

EXAMPLE = "params = { to = '2.12.1' }"


def draw(_random: Random, _targets: Sequence[str]) -> NoReturn:
    """Raise BadRequest: no seed knows which versions a system has."""
    raise BadRequest(
        f"a change of the version is not drawn from a seed; write a plan with {EXAMPLE}"
    )


def check(planned: PlannedFault) -> None:
    """Raise BadRequest if the target or the version is missing."""
    _victims.check(planned, "all server")
    if not planned.params["to"]:
        raise BadRequest(f"upgrade needs the version to bring the nodes to: {EXAMPLE}")


def fault(planned: PlannedFault, scene: FaultContext) -> "VersionChange":
    return VersionChange(scene, scene.resolve(planned.target), planned)


PLUGIN = FaultPlugin(
    fault=fault,
    # a node may be elected that lacks what this one acknowledged
    effects=FaultEffects(may_break=ANY_BUT_INTEGRITY, ends=ProcessEnd.TERMINATED, silences=True),
    needs=frozenset({"signal", "restart", "commands", "versions"}),
    params={
        "to": Param("", "the version of the system's program, such as 2.12.1", unit=VERSION),
        "order": Param(
            ROLLING,
            "rolling: one after the other, each as soon as the cluster is whole again; together:"
            " all are stopped before any is started",
            among=(ROLLING, "together"),
        ),
        "down_s": Param(0.0, "how long each node is down", unit="s", high=3600.0),
    },
    draw=draw,
    check=check,
    takes_s=restart.takes_s,
)


class VersionChange(restart.GradualRestart):
    """Nodes brought to another version."""

    def __init__(self, scene: FaultContext, victims: Sequence[Node], planned: PlannedFault) -> None:
        super().__init__(scene, victims, planned.for_s)
        self._system = cast(VersionedSystem, scene.bed.system)
        self._claimed, self._params = scene.claimed, planned.params
        self._mine: set[str] = set()  # nodes that this fault holds
        self._turns: dict[str, str] = {}  # node -> the version that it is brought to
        self._was: dict[str, str] = {}  # node -> the version that it had
        self._done: dict[str, Mapping[str, Any]] = {}
        self._ended: dict[str, int] = {}  # node -> the code with which the new version ended

    async def __aenter__(self) -> "VersionChange":
        for node in self._victims:
            to = self._wanted(node)
            if (was := self._system.version(node)) != to:
                self._turns[node], self._was[node] = to, was
        self.targets = hit_targets(self.targets, self._turns)
        if not self._turns:
            versions = sorted({*map(self._system.version, self._victims)})
            raise NothingToHit(f"{', '.join(self._victims)} run {', '.join(versions)} already")
        self._begin(self._change_all())
        return self

    def _wanted(self, node: str) -> str:
        return self._params["to"] or self._system.first_version(node)

    async def __aexit__(self, *exc: object) -> None:
        """Start what this fault stopped, with the version before if the new one ended."""
        await self._stop_work()
        for node in self._killed.keys() - (self._claimed - self._mine):
            if (await self._state(node)).state == "exited":
                await self._system.set_version(self._bed, node, self._was[node])
            await self._start(node)

    async def _change_all(self) -> None:
        rolling = self._params["order"] == ROLLING
        for group in [[node] for node in self._turns] if rolling else [[*self._turns]]:
            if rolling and not await self._until(self._whole):
                return
            await self._until(partial(self._free, group))
            self._hold, self._mine = ProcessHold(self._claimed, group), set(group)
            self._hold.take()
            if not await self._change(group):
                return
        await self._until(self._whole)

    async def _change(self, nodes: Sequence[str]) -> bool:
        """Bring nodes to their versions; return whether all of them run and serve then."""
        for node in nodes:
            await self._system.before_version(self._bed, node, self._turns[node])
        await gather_all(*map(self._kill, nodes))
        stopped = [node for node in nodes if node in self._killed]
        await gather_all(*(self._wait(self._gone, node, self.gone_within_s) for node in stopped))
        await self._bed.sleep(self._params["down_s"])
        for node in nodes:
            await self._system.set_version(self._bed, node, self._turns[node])
        await gather_all(*map(self._start, stopped))
        await gather_all(*(self._wait(self._back, node, BACK_WITHIN_S) for node in stopped))
        self._release()
        await gather_all(*map(self._settle, stopped))
        return self._done.keys() >= {*nodes}

    async def _settle(self, node: str) -> None:
        """Wait until a node serves, has ended by itself, or the time is over."""

        async def is_settled() -> bool:
            if await self._has_ended(node):
                return True
            return node in (await self._bed.system.cluster_state(self._bed)).serving

        await self._until(is_settled)
        state = await self._state(node)
        runs = await self._system.running_version(self._bed, node)
        if runs == self._turns[node]:
            was = self._killed.pop(node)
            pids = {"was": was, "pid": state.pid}
            self._done[node] = {**pids, "version_was": self._was[node], "version": runs}
        elif await self._has_ended(node):
            self._ended[node] = state.code
            await self._system.set_version(self._bed, node, self._was[node])
            await self._start(node)

    async def _has_ended(self, node: str) -> bool:
        """Return whether a node's process ended, and no other fault did it."""
        return node not in self._others() and (await self._state(node)).state == "exited"

    def _others(self) -> set[str]:
        """Return the nodes that other faults hold."""
        return self._claimed - self._mine

    async def _free(self, nodes: Sequence[str]) -> bool:
        return self._others().isdisjoint(nodes)

    def _release(self) -> None:
        self._hold.release()
        self._mine = set()

    async def observe(self) -> Observation:
        """Wait until all nodes were brought to their version, or the time is over."""
        await self._work_is_over()
        count = len(self._done)
        evidence = {"processes": self._done, "ended": self._ended}
        return Observation.graded(count == len(self._turns), count, evidence, self._words())

    def _words(self) -> str:
        """Return what was done: `server-1, server-2 brought from 2.11.4 to 2.12.1`."""
        changes: dict[tuple[str, str], list[str]] = {}
        for node in self._done:
            changes.setdefault((self._was[node], self._turns[node]), []).append(node)
        parts = [f"{', '.join(n)} brought from {was} to {to}" for (was, to), n in changes.items()]
        parts += [
            f"{node} ended with code {code} as {self._turns[node]}, and is {self._was[node]} again"
            for node, code in self._ended.items()
        ]
        left = len(self._turns) - len(self._done) - len(self._ended)
        return "; ".join(parts + [f"{left} of {len(self._turns)} left as they were"] * bool(left))

    async def observe_healed(self) -> Observation:
        """Observe that each node runs the version that it is to run, unless another fault has it
        now."""
        runs: dict[str, str] = {}
        right: set[str] = set()

        async def is_right(node: str) -> bool:
            runs[node] = await self._system.running_version(self._bed, node)
            if node in self._others() or runs[node] == self._system.version(node):
                right.add(node)
            return node in right

        try:
            await gather_all(*(self._wait(is_right, node, BACK_WITHIN_S) for node in self._turns))
        finally:
            self._release()
        good = len(right)
        return Observation.graded(good == len(self._turns), good, {"versions": runs})
