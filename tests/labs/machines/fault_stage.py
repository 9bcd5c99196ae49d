"""Where faults are shown on real nodes: witnesses that know nothing of agents, rules or signals.

A scene is a script of its own, `python SCENE.py FOLDER`, since it enters namespaces. It puts its
witnesses on nodes, lets the nemesis carry out one fault after the other, asks the witnesses while
it is on and after its healing, and prints all that was seen as JSON (`played`). Tests say what must
have been seen (`seen_by`).
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

from clusters.hosts.local import hosts as local
from harness.contracts import ClusterState, Hosts, Node, PlannedFault, TestBed
from harness.contracts.agent import Agent
from harness.trial import Trial
from nemesis import carry_out
from nemesis._plan import plan as _plan

PATIENCE_S = 20.0
LOOK_EVERY_S = 0.05
SCENE_WITHIN_S = 800.0  # less than a test may take


class Witnesses:
    """The system under test, as far as the nemesis needs one, and what its nodes tell."""

    detection_s = 1.0
    name: str  # of the process on each node
    port: int
    answer_within_s: float

    def __init__(self, nodes: Sequence[Node], agents: Mapping[str, Agent]) -> None:
        self.nodes, self.agents = nodes, agents

    def process(self, _node: str) -> str:
        return self.name

    async def start_node(self, bed: Any, node: str) -> None:
        raise NotImplementedError

    async def told(self) -> dict[str, Any]:
        """What every node tells; None when it does not answer."""
        answers = await asyncio.gather(*(self._told(node.name) for node in self.nodes))
        return {node.name: told for node, told in zip(self.nodes, answers, strict=True)}

    async def _told(self, node: str) -> Any:
        try:
            said = await self.agents[node].ask(self.port, b"ask", self.answer_within_s)
        except ConnectionError:
            return None
        return json.loads(said)

    async def awake(self) -> None:
        """Everybody answers, or that was waited for long enough."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            if all((await self.told()).values()) or time.monotonic() > deadline:
                return
            await asyncio.sleep(LOOK_EVERY_S)


class Writers(Witnesses):
    """Processes that write into a folder `data` of their nodes."""

    data = "data"

    def __init__(
        self, nodes: Sequence[Node], agents: Mapping[str, Agent], folder: Callable[[str], str]
    ) -> None:
        super().__init__(nodes, agents)
        self.folder = folder

    async def cluster_state(self, _bed: TestBed) -> ClusterState:
        return ClusterState(detail=await self.told())

    async def start_program(self, node: str, program: str) -> None:
        address = next(n.address for n in self.nodes if n.name == node)
        folder = self.folder(node)
        argv = [sys.executable, "-I", "-S", program, address, f"{folder}/{self.data}"]
        await self.agents[node].start(self.name, argv, log=f"{folder}/log")


class Rows:
    """A recorder that lets the story wait for the observation."""

    def __init__(self) -> None:
        self.observed = asyncio.Event()
        self.row: dict[str, Any] = {}

    def fault(self, row: Mapping[str, Any]) -> None:
        self.row = dict(row)
        if row["state"] != "planned":
            self.observed.set()

    def note(self, text: str) -> None:
        self.row["note"] = text

    alarm = note


async def staged(hosts: Hosts, witnesses: Witnesses) -> TestBed:
    """A bed on which all witnesses are awake."""
    began_ns = time.monotonic_ns()
    bed = TestBed(
        nodes=tuple(witnesses.nodes),
        agents=witnesses.agents,
        hosts=hosts,
        system=witnesses,  # type: ignore[arg-type]
        record=Rows(),  # type: ignore[arg-type]
        now_ns=lambda: time.monotonic_ns() - began_ns,
        acknowledged=lambda: 0,
        sleep=asyncio.sleep,
    )
    await asyncio.gather(*(witnesses.start_node(bed, node.name) for node in witnesses.nodes))
    await witnesses.awake()
    return bed


@asynccontextmanager
async def under(fault: PlannedFault, bed: TestBed, folder: Path, dice: str) -> AsyncIterator[Rows]:
    """A fault, from when it was observed; it is healed at the end."""
    plan = _plan.load(_plan.dump((fault,))).faults
    rows, stop = Rows(), asyncio.Event()
    bed = TestBed(**{**vars(bed), "record": rows})
    ledger = folder / "ledger"
    work = asyncio.ensure_future(carry_out(plan, bed, ledger, stop, Random(dice), bed.now_ns()))
    watch = asyncio.ensure_future(rows.observed.wait())
    await asyncio.wait([work, watch], return_when=asyncio.FIRST_COMPLETED)
    yield rows
    stop.set()
    await work


def loops(folder: Path) -> list[str]:
    """The loop devices of files below a folder."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):  # a device may be removed meanwhile
            found.append(backing.read_text())
    return [text for text in found if str(folder) in text]


def played(
    scene: Callable[[local.LocalHosts, Path], Awaitable[dict[str, Any]]], own_disks: bool = False
) -> None:
    """What a scene's script does; with `own_disks`, on nodes that can have them."""

    async def play() -> dict[str, Any]:
        return await scene(hosts, folder)

    folder = Path(sys.argv[1])
    hosts = local.hosts(Trial(), folder)
    if own_disks:
        hosts.prepare_own_disks()
    hosts.enter()
    print(json.dumps(asyncio.run(play())))


def seen_by(scene: Path, folder: Path) -> dict[str, Any]:
    """What a scene saw."""
    labs = Path(__file__).parent
    paths = os.pathsep.join([str(labs.parents[1]), str(labs)])
    done = subprocess.run(
        [sys.executable, str(scene), str(folder)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=SCENE_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen
