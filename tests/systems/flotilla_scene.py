"""A Flotilla cluster on local hosts, in a process of its own: `python flotilla_scene.py NAME DIR`.

The driver raises it, a client works on it, its master is paused, killed and started again, and its
history is taken. What was seen is printed as JSON; the tests say what must have been seen.
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusters.flotilla.client.admin import Admin
from clusters.hosts.local import hosts as local
from clusters.systems.flotilla import driver as flotilla
from harness.contracts import ClusterState, TestBed
from harness.errors import BedFailed
from harness.operation import Completion, Type, value_of
from harness.trial import Trial
from harness.workloads._body import body_of, value_in

# no send may time out, however busy the machine is
PATIENT = {"timeScale": 0.5, "sendMsgTimeout": 20_000, "slaveTimeout": 20_000}
TRIAL = Trial(profile="allack-min2", nodes={"client": 1}, settings=PATIENT)
ON_ZOOKEEPER = Trial(
    profile="zk-ha",
    nodes={"client": 1},
    settings={**PATIENT, "coordinators": "zookeeper"},
)
PATIENCE_S = 120.0
SENDS = 300
Seen = dict[str, Any]


class Records:
    """The recorder's place: keeps what it is given."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.events: list[tuple[int, str, str]] = []
        self.values: dict[str, list[int]] = {}

    def note(self, text: str) -> None:
        self.notes.append(text)

    def fault(self, row: Mapping[str, Any]) -> None: ...

    def event(self, t: int, node: str, kind: str, fields: Mapping[str, Any]) -> None:
        self.events.append((t, node, kind))

    def replicas(self, node: str, rows: Sequence[tuple[str, int, int, int, int]]) -> None:
        self.values[node] = [row[2] for row in rows]


class Scene:
    """The cluster and a client on it."""

    def __init__(self, bed: TestBed, records: Records) -> None:
        self.bed, self.records = bed, records
        self.system = bed.system
        self.client = self.system.client(self.system.client_settings(bed.nodes))
        self.acknowledged: list[int] = []
        self._sequence = 0

    async def send(self, count: int) -> list[str]:
        """Send one after the other; how each ended."""
        loop = asyncio.get_running_loop()
        ends = []
        for _ in range(count):
            ended: asyncio.Future[Completion] = loop.create_future()
            value = value_of(1, self._sequence)
            self._sequence += 1
            queue = self._sequence % 4
            self.client.send("orders", queue, b"k", body_of(value, 64), ended.set_result)
            completion = await ended
            if completion.type is Type.OK:
                self.acknowledged.append(value)
            ends.append(f"{completion.type.name} by {completion.node}")
        return ends

    async def read(self) -> list[int]:
        """Everything in every queue, from its first message to its last."""
        values = []
        for queue in range(4):
            at, high = await self.client.range("orders", queue)
            while at < high:
                batch = await self.client.poll("orders", queue, at, 50, 0.2)
                values += [value_in(m.body) for m in batch.messages]
                at = batch.next_offset
        return values

    async def until(self, condition: Callable[[Any], bool]) -> Any:
        """The first standing that is so."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            now = await self.system.cluster_state(self.bed)
            if condition(now):
                return now
            await asyncio.sleep(0.05)
        raise AssertionError("it never came to that")


async def life(scene: Scene) -> Seen:
    """Raised, used, its master paused, killed and back, and its history taken."""
    seen: Seen = {"healthy": dict(await scene.system.healthy(scene.bed, PATIENCE_S))}
    await scene.client.open()
    seen["sent"] = sorted(set(await scene.send(SENDS)))
    seen["group before"] = await scene.client.committed("g", "orders", 1)
    await scene.client.commit("g", "orders", 1, 7)
    seen["group after"] = await scene.client.committed("g", "orders", 1)
    seen["read"] = sorted(await scene.read()) == sorted(scene.acknowledged)
    master = seen["healthy"]["masters"]["set-1"]
    agent, process = scene.bed.agents[master], scene.system.process(master)

    await agent.signal(process, signal.SIGSTOP)
    paused = await scene.system.cluster_state(scene.bed)
    seen["paused"] = [paused.masters["set-1"] == master, paused.redundant]
    await agent.signal(process, signal.SIGCONT)
    await scene.until(lambda now: now.redundant)

    await agent.signal(process, signal.SIGKILL)
    other = await scene.until(lambda now: now.masters.get("set-1") not in (None, master))
    seen["elected"] = other.epochs["set-1"] > seen["healthy"]["epochs"]["set-1"]
    seen["sent after the kill"] = sorted({end.split()[0] for end in await scene.send(SENDS)})
    await scene.system.start_node(scene.bed, master)
    await scene.until(lambda now: now.redundant)
    seen["designated"] = await designate(scene)
    await scene.send(20)
    await scene.client.close()
    await scene.system.collect(scene.bed)
    return seen | _history(scene)


async def designate(scene: Scene) -> bool:
    """An operator names another member of the set; whether it became master."""
    admin = Admin([f"{node.address}:9878" for node in scene.bed.of_role("controller")])
    row = (await admin.sync_state_data("set-1"))["set-1"]
    chosen = next(number for number in row["set"] if number != row["masterId"])
    answer = await admin.elect_master("set-1", chosen)
    address = row["members"][str(chosen)]["addr"].split(":")[0]
    wanted = next(node.name for node in scene.bed.nodes if node.address == address)
    await scene.until(lambda now: now.redundant and now.masters["set-1"] == wanted)
    described = await admin.describe(f"{address}:10911")
    admin.close()
    return bool(answer["code"] == 0 and described["role"] == "master")


def _history(scene: Scene) -> Seen:
    records, acknowledged = scene.records, set(scene.acknowledged)
    times = [t for t, _, _ in records.events]
    return {
        "notes": records.notes,
        "missing": {n: len(acknowledged - set(v)) for n, v in records.values.items()},
        "repeated": {n: len(v) - len(set(v)) for n, v in records.values.items()},
        "kinds": sorted({kind for _, _, kind in records.events}),
        "in order": times == sorted(times),
        "in time": bool(times) and 0 < times[0] <= times[-1] < scene.bed.now_ns(),
    }


async def refusal(scene: Scene) -> Seen:
    """A node whose configuration makes no sense: what the driver then says."""
    folder = scene.bed.hosts.folder("controller-1")
    await scene.bed.agents["controller-1"].put(f"{folder}/node.toml", b"role = 3\n")
    try:
        await scene.system.start(scene.bed)
    except BedFailed as e:
        return {"said": str(e)}
    return {"said": ""}


def silent(now: ClusterState) -> list[str]:
    """Nodes that did not answer; on a busy machine others than dead ones, for a moment."""
    return [name for name, answer in now.detail.items() if answer is None]


async def ensemble(scene: Scene) -> Seen:
    """Servers of ZooKeeper in the coordinators' place: the leading one is killed, loses its disk,
    and is back."""
    seen: Seen = {"healthy": dict(await scene.system.healthy(scene.bed, PATIENCE_S))}
    leader = seen["healthy"]["controller_leader"]
    agent = scene.bed.agents[leader]
    await scene.client.open()
    await agent.signal(scene.system.process(leader), signal.SIGKILL)
    await scene.until(
        lambda now: now.controller_leader not in ("", leader) and silent(now) == [leader]
    )
    seen["leader"] = leader
    seen["sent"] = sorted({end.split()[0] for end in await scene.send(50)})
    await agent.run(["rm", "-rf", f"{scene.bed.hosts.folder(leader)}/{scene.system.data}"])
    await scene.system.start_node(scene.bed, leader)
    now = await scene.until(lambda now: now.detail[leader] is not None and now.redundant)
    seen["is back"] = now.detail[leader]["state"]
    await scene.client.close()
    await scene.system.collect(scene.bed)
    return seen | _history(scene)


SCENES: Mapping[str, Callable[[Scene], Awaitable[Seen]]] = {
    "life": life,
    "refusal": refusal,
    "ensemble": ensemble,
}


def trial_of(name: str) -> Trial:
    return ON_ZOOKEEPER if name == "ensemble" else TRIAL


async def play(hosts: local.LocalHosts, name: str) -> Seen:
    system, records = flotilla.system(trial_of(name)), Records()
    began = time.monotonic_ns()
    async with hosts.start_nodes(system.nodes()) as (nodes, agents):
        bed = TestBed(
            nodes=nodes,
            agents=agents,
            hosts=hosts,
            system=system,
            record=records,
            now_ns=lambda: time.monotonic_ns() - began,
            acknowledged=lambda: 0,
            sleep=asyncio.sleep,
        )
        await system.install(bed)
        if name != "refusal":
            await system.start(bed)
        return await SCENES[name](Scene(bed, records))


def main() -> None:
    hosts = local.hosts(trial_of(sys.argv[1]), Path(sys.argv[2]))
    hosts.enter()
    print(json.dumps(asyncio.run(play(hosts, sys.argv[1]))))


if __name__ == "__main__":
    main()
