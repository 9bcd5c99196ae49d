"""A disk that fails while the node's process runs, observed with a probe.

The probe is another process on the node: it writes a few bytes where the node's data is, syncs
them, and reports the errors and how long the sync took. A node may exit on such a disk; healing
starts it again, unless another fault holds it and will do so. A process that has seen an error may
exit only at its next write, when the disk is well again: a replica of Redis 7.0 does. So healing is
over once clients were acknowledged something, and each node runs then.

Where faults of disks meet they are merged: the worst of all is in force, and the probe's result is
compared with that. A fault that a worse one of the same kind hides was not observed: all writes to
a read-only disk fail, whether it is full or not. A sync is slow if it is slower than before the
fault, whatever the disk's own speed.

While another fault holds a node, it cannot be decided whether the node came back, so its healing is
observed when the other fault has released it.
"""

from collections.abc import Container, Sequence
from dataclasses import asdict, replace
from math import inf
from typing import Any, cast

from harness.contracts import (
    DiskAgent,
    DiskFault,
    DiskProbe,
    FaultContext,
    Node,
    Observation,
    ProcessState,
    TestBed,
)
from harness.errors import BedFailed
from nemesis._runner.waiting import NS, gather_all, wait_until

SEEN_WITHIN_S = 5.0
HEALED_WITHIN_S = 15.0  # a slow disk may have a queue of syncs
BACK_WITHIN_S = 10.0
WRITTEN_WITHIN_S = 10.0  # clients may get no answers meanwhile
POLL_S = 0.1
PROBE_TIMEOUT_S = 0.5  # for a sync that hangs
EXITED = ("exited", "absent")
PROBES_BEFORE = 2  # of the disk's own syncs; the fastest counts
MIN_SHARE = 0.75  # of the added time must be measured: the disk may have become faster meanwhile
MAX_SLOWER = 2.0  # the probe waits for this multiple of the time that a sync should take


class DiskInjection:
    """Failing disks. `kind` names the owner; `fault` is without a folder."""

    def __init__(
        self, scene: FaultContext, kind: str, victims: Sequence[Node], fault: DiskFault
    ) -> None:
        self.targets = scene.by_role(victims)
        self._bed, self._held = scene.bed, scene.claimed
        self._victims = [node.name for node in victims]
        self._fault = fault
        self._owner = f"{kind} {scene.random.getrandbits(48):x}"
        self._seen: dict[str, DiskProbe] = {}
        self._hidden: set[str] = set()  # nodes on which a worse fault hides this one
        self._before_s: dict[str, float] = {}  # time of a sync without the fault
        self._dead: dict[str, int] = {}  # node -> id of its process, which had exited before
        self._restarted: set[str] = set()

    async def __aenter__(self) -> "DiskInjection":
        for node in self._victims:
            state = await self._state(node)
            if state.state in EXITED:
                self._dead[node] = state.pid
        if 0 < self._fault.sync_s < inf:
            await gather_all(*map(self._measure_before, self._victims))
        await gather_all(*(self._disk(node, self._fault) for node in self._victims))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await gather_all(*(self._disk(node, None) for node in self._victims))

    async def observe(self) -> Observation:
        good = await self._probe_all(SEEN_WITHIN_S)
        return self._observation(good, self._hidden)

    async def observe_healed(self) -> Observation:
        while True:
            while self._held_by_others():
                await self._bed.sleep(POLL_S)
            good = await self._probe_all(HEALED_WITHIN_S)
            ours = [node for node in self._victims if await self._has_run(node)]
            await gather_all(*map(self._bring_back, ours))
            await self._write_passed()
            await gather_all(*map(self._bring_back, ours))
            down = [node for node in ours if (await self._state(node)).state in EXITED]
            healed = [node for node in good if node not in down]
            if len(healed) == len(self._victims) or not self._held_by_others():
                return self._observation(healed)

    def _held_by_others(self) -> bool:
        """Return whether another fault holds a victim."""
        return not self._held.isdisjoint(self._victims)

    async def _measure_before(self, node: str) -> None:
        """Measure a sync without the fault, and without the delay of other faults."""
        agent, took_s = _agent(self._bed, node), []
        for _ in range(PROBES_BEFORE):
            wanted = await agent.disk_fault() or DiskFault("")
            seen = await agent.probe_disk(data_of(self._bed, node), probe_timeout_s(wanted))
            if not seen.write and not seen.sync and seen.sync_s < inf:
                took_s.append(max(0.0, seen.sync_s - wanted.sync_s))
        self._before_s[node] = min(took_s, default=0.0)

    async def _disk(self, node: str, fault: DiskFault | None) -> None:
        below = data_of(self._bed, node)
        await _agent(self._bed, node).disk(self._owner, fault and replace(fault, below=below))

    async def _probe_all(self, within_s: float) -> list[str]:
        """Return the nodes on which the probe's result is that of all faults together."""
        self._seen.clear()
        deadline_ns = self._bed.now_ns() + within_s * NS
        good: set[str] = set()
        await gather_all(*(self._probe(node, deadline_ns, good) for node in self._victims))
        return [node for node in self._victims if node in good]

    async def _probe(self, node: str, deadline_ns: float, good: set[str]) -> None:
        async def as_wanted() -> bool:
            agent = _agent(self._bed, node)
            wanted = await agent.disk_fault() or DiskFault("")
            if is_hidden(wanted, self._fault):
                self._hidden.add(node)
            else:
                self._hidden.discard(node)
            seen = self._seen[node] = await agent.probe_disk(
                data_of(self._bed, node), probe_timeout_s(wanted)
            )
            return matches_fault(seen, wanted, self._fault, self._before_s.get(node, 0.0))

        if await wait_until(self._bed, as_wanted, deadline_ns, POLL_S):
            good.add(node)

    async def _write_passed(self) -> None:
        """Wait until clients were acknowledged something more, if they ever were."""
        if acknowledged := self._bed.acknowledged():

            async def is_more() -> bool:
                return self._bed.acknowledged() > acknowledged

            deadline_ns = self._bed.now_ns() + WRITTEN_WITHIN_S * NS
            await wait_until(self._bed, is_more, deadline_ns, POLL_S)
            await self._bed.sleep(POLL_S)  # replicas get it a little later

    async def _bring_back(self, node: str) -> None:
        """Wait until the node runs; start it if it exited."""

        async def runs() -> bool:
            exited = (await self._state(node)).state in EXITED
            if exited and node not in self._held:
                self._restarted.add(node)
                await self._start(node)
                return False
            return not exited

        await wait_until(self._bed, runs, self._bed.now_ns() + BACK_WITHIN_S * NS, POLL_S)

    async def _start(self, node: str) -> None:
        """Start a node, and hold it meanwhile so that another fault does not start it, too."""
        self._held.add(node)
        try:
            await self._bed.system.start_node(self._bed, node)
        finally:
            self._held.discard(node)

    async def _has_run(self, node: str) -> bool:
        """Return whether the node ran since the fault began, possibly started by another fault."""
        return node not in self._dead or (await self._state(node)).pid != self._dead[node]

    async def _state(self, node: str) -> ProcessState:
        return await self._bed.agents[node].state(self._bed.system.process(node))

    def _observation(self, good: Sequence[str], hidden: Container[str] = ()) -> Observation:
        """Return the observation; `good` are the nodes whose disk is as wanted."""
        below = sorted(node for node in good if node in hidden)
        evidence: dict[str, Any] = {
            "seen": {node: _plain(seen) for node, seen in self._seen.items()}
        }
        if self._before_s:
            evidence["sync_s_before"] = self._before_s
        if below:
            evidence["hidden_by_worse"] = below
        if self._restarted:
            evidence["started_again"] = sorted(self._restarted)
        measured = "; ".join(dict.fromkeys(map(describe_probe, self._seen.values())))
        seen = len(below) < len(good)
        everywhere = seen and len(good) == len(self._victims)
        return Observation.graded(everywhere, seen, evidence, measured)


def matches_fault(
    seen: DiskProbe, wanted: DiskFault, own: DiskFault, before_s: float = 0.0
) -> bool:
    """Return whether the probe's result is as wanted.

    A slow sync takes longer than before the fault; on a healed disk it takes less time than the
    fault would have added.
    """
    write = "EROFS" if wanted.read_only else "ENOSPC" if wanted.full else ""
    if seen.write != write:
        return False
    if wanted.sync_s == inf:
        return seen.sync_s == inf
    if seen.sync != ("EIO" if wanted.sync_fails else ""):
        return False
    longer_s = seen.sync_s - before_s
    if wanted.sync_s:
        return seen.sync_s >= wanted.sync_s and longer_s >= MIN_SHARE * wanted.sync_s
    return longer_s < MIN_SHARE * (own.sync_s or inf)


def is_hidden(wanted: DiskFault, own: DiskFault) -> bool:
    """Return whether a worse fault of the same kind hides this one from the probe."""
    refused = own.full and wanted.read_only and not own.read_only
    slower = 0 < own.sync_s < wanted.sync_s
    unanswered = own.sync_fails and own.sync_s < inf == wanted.sync_s
    return refused or slower or unanswered


def probe_timeout_s(wanted: DiskFault) -> float:
    """Return how long the probe waits for its sync."""
    if wanted.sync_s == inf:
        return PROBE_TIMEOUT_S
    return HEALED_WITHIN_S + MAX_SLOWER * wanted.sync_s


def describe_probe(seen: DiskProbe) -> str:
    """Describe the probe's result with its figures."""
    met = [f"a write fails with {seen.write}"] if seen.write else []
    if seen.sync:
        met.append(f"a sync fails with {seen.sync}")
    elif seen.sync_s == inf:
        met.append(f"a sync has not ended after {PROBE_TIMEOUT_S:g} s")
    elif not seen.write:
        met.append(f"a sync took {seen.sync_s * 1000:.0f} ms")
    return " and ".join(met)


def data_of(bed: TestBed, node: str) -> str:
    """Return the folder of the node's data, as the node sees it."""
    data = getattr(bed.system, "data", "")
    if not data:
        raise BedFailed("the system does not say in which folder its nodes keep their data")
    return f"{bed.hosts.folder(node)}/{data}"


def _plain(seen: DiskProbe) -> dict[str, Any]:
    return {**asdict(seen), "sync_s": -1 if seen.sync_s == inf else round(seen.sync_s, 4)}


def _agent(bed: TestBed, node: str) -> DiskAgent:
    return cast(DiskAgent, bed.agents[node])
