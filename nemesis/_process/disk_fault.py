"""A disk that misbehaves towards the node's process while that runs, seen by a prober.

The prober is a process of the node's like any other: it writes a few bytes where the node's data is
and asks for a sync, and tells which errors it met and how long the sync took. A node may end by
itself on such a disk; healing starts it again, unless another fault has hold of it and will.

Faults of disks merge where they meet: the worst of what all want is in force, and what the prober
meets is compared with that. Where a worse fault of the same kind hides one, nobody saw that one at
work: all writes to a read-only disk fail, be it full or not. A slow sync is one that is slower than
it was before, whatever the disk is like by itself.

While another fault has hold of a node, nobody can say whether it came back: its healing is looked
for when the other has let go.
"""

from collections.abc import Container, Sequence
from dataclasses import asdict, replace
from math import inf
from typing import Any, cast

from harness.contracts import (
    Bed,
    Disked,
    DiskFault,
    DiskSeen,
    Node,
    Observation,
    ProcessState,
    Scene,
)
from harness.errors import BedFailed
from nemesis._runner.waiting import NS, each, reached

SEEN_WITHIN_S = 5.0
HEALED_WITHIN_S = 15.0  # a disk that was slow may have a queue of syncs to work off
BACK_WITHIN_S = 10.0
LOOK_EVERY_S = 0.1
PATIENCE_S = 0.5  # of the prober, for a sync of a sound disk or one that hangs
ENDED = ("exited", "absent")
LOOKS_BEFORE = 2  # at a disk's own syncs, of which the quickest counts
SURE = 0.75  # of what a sync is to take longer: the disk itself may have got that much quicker
SLOWER = 2.0  # ... and more than so many times as long as a slow one is meant to take


class DiskTrouble:
    """Disks spoilt, until it is left. `kind` names the owner; `fault` is without a folder."""

    def __init__(self, scene: Scene, kind: str, victims: Sequence[Node], fault: DiskFault) -> None:
        self.targets = scene.parts(victims)
        self._bed, self._held = scene.bed, scene.held
        self._victims = [node.name for node in victims]
        self._fault = fault
        self._owner = f"{kind} {scene.random.getrandbits(48):x}"
        self._seen: dict[str, DiskSeen] = {}
        self._hidden: set[str] = set()  # where a worse fault was all that could be seen
        self._before_s: dict[str, float] = {}  # what a sync took by itself
        self._dead: dict[str, int] = {}  # whose process had ended when it began: its id
        self._ended: set[str] = set()  # whose process was started again

    async def __aenter__(self) -> "DiskTrouble":
        for node in self._victims:
            state = await self._state(node)
            if state.state in ENDED:
                self._dead[node] = state.pid
        if 0 < self._fault.sync_s < inf:
            await each(*map(self._measured, self._victims))
        await each(*(self._disk(node, self._fault) for node in self._victims))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await each(*(self._disk(node, None) for node in self._victims))

    async def observe(self) -> Observation:
        good = await self._looked_at(SEEN_WITHIN_S)
        return self._observation(good, self._hidden)

    async def observe_healed(self) -> Observation:
        while True:
            while self._others():
                await self._bed.sleep(LOOK_EVERY_S)
            good = await self._looked_at(HEALED_WITHIN_S)
            ours = [node for node in self._victims if await self._has_run(node)]
            await each(*map(self._back, ours))
            down = [node for node in ours if (await self._state(node)).state in ENDED]
            healed = [node for node in good if node not in down]
            if len(healed) == len(self._victims) or not self._others():
                return self._observation(healed)

    def _others(self) -> bool:
        """Whether another fault has hold of a victim."""
        return not self._held.isdisjoint(self._victims)

    async def _measured(self, node: str) -> None:
        """What a sync takes without the fault: nothing, as far as other faults hide it."""
        agent, took_s = _agent(self._bed, node), []
        for _ in range(LOOKS_BEFORE):
            wanted = await agent.disk_wanted() or DiskFault("")
            seen = await agent.disk_seen(data_of(self._bed, node), patience_s(wanted))
            if not seen.write and not seen.sync and seen.sync_s < inf:
                took_s.append(max(0.0, seen.sync_s - wanted.sync_s))
        self._before_s[node] = min(took_s, default=0.0)

    async def _disk(self, node: str, fault: DiskFault | None) -> None:
        below = data_of(self._bed, node)
        await _agent(self._bed, node).disk(self._owner, fault and replace(fault, below=below))

    async def _looked_at(self, within_s: float) -> list[str]:
        """The nodes on which a prober meets what all faults together want."""
        self._seen.clear()
        deadline_ns = self._bed.now_ns() + within_s * NS
        good: set[str] = set()
        await each(*(self._settled(node, deadline_ns, good) for node in self._victims))
        return [node for node in self._victims if node in good]

    async def _settled(self, node: str, deadline_ns: float, good: set[str]) -> None:
        async def as_wanted() -> bool:
            agent = _agent(self._bed, node)
            wanted = await agent.disk_wanted() or DiskFault("")
            (self._hidden.add if hidden(wanted, self._fault) else self._hidden.discard)(node)
            seen = self._seen[node] = await agent.disk_seen(
                data_of(self._bed, node), patience_s(wanted)
            )
            return as_laid(seen, wanted, self._fault, self._before_s.get(node, 0.0))

        if await reached(self._bed, as_wanted, deadline_ns, LOOK_EVERY_S):
            good.add(node)

    async def _back(self, node: str) -> None:
        """The node runs: it did all the time, or is started again."""

        async def runs() -> bool:
            ended = (await self._state(node)).state in ENDED
            if ended and node not in self._held:
                self._ended.add(node)
                await self._started(node)
                return False
            return not ended

        await reached(self._bed, runs, self._bed.now_ns() + BACK_WITHIN_S * NS, LOOK_EVERY_S)

    async def _started(self, node: str) -> None:
        """Held meanwhile, so that no other fault that ends now starts it, too."""
        self._held.add(node)
        try:
            await self._bed.system.start_node(self._bed, node)
        finally:
            self._held.discard(node)

    async def _has_run(self, node: str) -> bool:
        """Since it began: all the time, or started by whoever had ended it."""
        return node not in self._dead or (await self._state(node)).pid != self._dead[node]

    async def _state(self, node: str) -> ProcessState:
        return await self._bed.agents[node].state(self._bed.system.process(node))

    def _observation(self, good: Sequence[str], hidden: Container[str] = ()) -> Observation:
        """`good`: the nodes on which the disk is as wanted, of which a worse fault hides some."""
        below = sorted(node for node in good if node in hidden)
        evidence: dict[str, Any] = {
            "seen": {node: _plain(seen) for node, seen in self._seen.items()}
        }
        if self._before_s:
            evidence["sync_s_before"] = self._before_s
        if below:
            evidence["hidden_by_worse"] = below
        if self._ended:
            evidence["started_again"] = sorted(self._ended)
        measured = "; ".join(dict.fromkeys(map(words, self._seen.values())))
        if len(good) == len(self._victims) and len(below) < len(good):
            return Observation("installed", evidence, measured)
        return Observation("partial" if len(below) < len(good) else "failed", evidence, measured)


def as_laid(seen: DiskSeen, wanted: DiskFault, own: DiskFault, before_s: float = 0.0) -> bool:
    """Whether the prober met what is wanted. A sync that has to take longer does, than it did by
    itself; one of a disk that is sound again took less than the fault would have made it."""
    write = "EROFS" if wanted.read_only else "ENOSPC" if wanted.full else ""
    if seen.write != write:
        return False
    if wanted.sync_s == inf:
        return seen.sync_s == inf
    if seen.sync != ("EIO" if wanted.sync_fails else ""):
        return False
    longer_s = seen.sync_s - before_s
    if wanted.sync_s:
        return seen.sync_s >= wanted.sync_s and longer_s >= SURE * wanted.sync_s
    return longer_s < SURE * (own.sync_s or inf)


def hidden(wanted: DiskFault, own: DiskFault) -> bool:
    """Whether a prober would meet the same without the own fault, for a worse one of the same kind
    is in force: nobody can see it then."""
    refused = own.full and wanted.read_only and not own.read_only
    slower = 0 < own.sync_s < wanted.sync_s
    unanswered = own.sync_fails and own.sync_s < inf == wanted.sync_s
    return refused or slower or unanswered


def patience_s(wanted: DiskFault) -> float:
    """How long the prober waits for its sync."""
    if wanted.sync_s == inf:
        return PATIENCE_S
    return HEALED_WITHIN_S + SLOWER * wanted.sync_s


def words(seen: DiskSeen) -> str:
    """What the prober met, with its figures."""
    met = [f"a write fails with {seen.write}"] if seen.write else []
    if seen.sync:
        met.append(f"a sync fails with {seen.sync}")
    elif seen.sync_s == inf:
        met.append(f"a sync has not ended after {PATIENCE_S:g} s")
    elif not seen.write:
        met.append(f"a sync took {seen.sync_s * 1000:.0f} ms")
    return " and ".join(met)


def data_of(bed: Bed, node: str) -> str:
    """The folder that holds what the node must not lose, as the node sees it."""
    data = getattr(bed.system, "data", "")
    if not data:
        raise BedFailed("the system does not say in which folder its nodes keep their data")
    return f"{bed.hosts.folder(node)}/{data}"


def _plain(seen: DiskSeen) -> dict[str, Any]:
    return {**asdict(seen), "sync_s": -1 if seen.sync_s == inf else round(seen.sync_s, 4)}


def _agent(bed: Bed, node: str) -> Disked:
    return cast(Disked, bed.agents[node])
