"""Damage the files of a stopped node and start it again: flipped bits, or a truncated end.

`flip` inverts `bits` random bits in all files that match `files` (`commitlog/*`; by default all of
the node's data); `truncate` removes the last `bytes` of one of them. With `stripes`, the default,
nodes that are hit together are hit in different sectors, so that no byte is damaged on two nodes.

The node is started again at once, and either serves from its files or refuses to. If it does not
run, healing empties its disk, as an operator would have to, and starts it again; a running node
keeps its files. Changed bytes are counted by reading the files again.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from harness.contracts import (
    ALL_DEMANDS,
    DataLoss,
    FaultContext,
    FaultEffects,
    FaultPlugin,
    Node,
    Observation,
    Param,
    PlannedFault,
    ProcessEnd,
)
from harness.contracts.membership import REJOIN
from nemesis._process.offline_change import DataDestruction, damaged
from nemesis._process.victims import check
from nemesis._runner.waiting import NS, gather_all, wait_until

TARGETS = ("one slave", "one broker", "minority broker")
SETTLE_S = 30.0  # within which a node, maybe a JVM, answers, or refuses its files and exits


def draw(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """Draw a target, from `targets` if there are any, else a minority, and a kind of damage."""
    how = random.choice(("flip", "truncate"))
    return random.choice(targets or TARGETS), {"how": how}


def fault(planned: PlannedFault, scene: FaultContext) -> "Corrupt":
    return Corrupt(scene, scene.resolve(planned.target, spare=scene.claimed), planned.params)


PLUGIN = FaultPlugin(
    fault=fault,
    # a damaged record may be read as a valid one
    effects=FaultEffects(
        may_break=ALL_DEMANDS,
        ends=ProcessEnd.RESTARTED,
        excuses_exit=True,
        destroys=DataLoss.TARGETS,
    ),
    needs=frozenset({"signal", "restart", "files", REJOIN}),
    params={
        "how": Param("flip", "what is done to the files", among=("flip", "truncate")),
        "files": Param("*", "files of the node's data, as a pattern of paths"),
        "bits": Param(16.0, "flip: bits on each node", low=1.0, high=1e6),
        "bytes": Param(1000.0, "truncate: size on each node", unit="bytes", low=1.0, high=1e9),
        "stripes": Param(True, "flip: no position is hit on two nodes"),
    },
    verify_examples=(("one slave", {"how": "flip"}), ("one slave", {"how": "truncate"})),
    draw=draw,
    check=check,
)


class Corrupt(DataDestruction):
    """Nodes that run, or refuse to run, on damaged files."""

    def __init__(
        self, scene: FaultContext, victims: Sequence[Node], params: Mapping[str, Any]
    ) -> None:
        super().__init__(scene, victims)
        self._params = params
        self._seed = scene.random.getrandbits(48)
        self._began_again: set[str] = set()
        self._refused: dict[str, int] = {}  # node -> exit code

    async def _kill(self, node: str) -> None:
        await super()._kill(node)
        if node not in self._killed:
            return
        self._began_again.add(node)
        await self._begin_again(node)

    async def _change(self, node: str) -> Mapping[str, Any]:
        return await self._damage(node, self._order(self._victims.index(node)))

    def _order(self, number: int) -> Mapping[str, Any]:
        common = {"pattern": self._params["files"], "seed": self._seed + number}
        if self._params["how"] == "truncate":
            return {"do": "cut", "size": int(self._params["bytes"]), **common}
        stripe = [number, len(self._victims)] if self._params["stripes"] else [0, 1]
        return {"do": "flip", "count": int(self._params["bits"]), "stripe": stripe, **common}

    def _changed(self, node: str) -> bool:
        return bool(self.changes[node]["changed"] > 0)

    def _lost_copies(self) -> list[str]:
        """Leave out nodes without a changed byte, for example if no file matched the pattern."""
        spared = {n for n in self.changes if not self._changed(n)} - self._refused.keys()
        return [node for node in super()._lost_copies() if node not in spared]

    async def observe(self) -> Observation:
        """Observe the changed bytes, and whether the node runs with them."""
        await gather_all(*map(self._wait_until_settled, self._victims))
        changed = sum(change["changed"] for change in self.changes.values())
        good = [node for node in self._victims if node in self.changes and self._changed(node)]
        evidence = {"files": self.changes, "refused": self._refused}
        refused = ", ".join(sorted(self._refused))
        does = f"{refused} refused to start" if refused else "all started with them"
        measured = f"{changed} bytes changed; {does}"
        everywhere = len(good) == len(self._victims)
        return self._with_lost_copies(Observation.graded(everywhere, good, evidence, measured))

    async def _wait_until_settled(self, node: str) -> None:
        until_ns = self._bed.now_ns() + SETTLE_S * NS
        await wait_until(self._bed, lambda: self._serves_or_exited(node), until_ns, every_s=0.05)

    async def _serves_or_exited(self, node: str) -> bool:
        state = await self._state(node)
        if node in self._began_again and state.state == "exited":
            self._refused[node] = state.code
        if state.state == "exited":
            return True
        return node in (await self._bed.system.cluster_state(self._bed)).serving

    async def __aexit__(self, *exc: object) -> None:
        await gather_all(*map(self._repair, tuple(self._killed)))

    async def _repair(self, node: str) -> None:
        """Empty the disk of a node that was started on its files and does not run."""
        if node not in self._began_again:
            return await self._start(node)
        state = await self._state(node)
        if state.state in ("exited", "absent"):
            self._refused.setdefault(node, state.code)
            self.changes[node] = {
                **self.changes[node],
                "emptied": await damaged(self._bed, node, {"do": "wipe"}),
            }
            await self._begin_again(node)
        return None

    async def observe_healed(self) -> Observation:
        """Observe that the node runs; it had time to refuse its files before."""
        seen = await super().observe_healed()
        return Observation(seen.state, {**seen.evidence, "emptied": sorted(self._refused)})
