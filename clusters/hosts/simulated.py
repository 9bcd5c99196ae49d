"""Nodes in a simulated world inside the runner: the same code, a virtual clock, network and disks.

The very code of system and clients runs on event loops of this process, and so does the trial
itself: minutes pass in seconds, and every packet and sync is drawn from the trial's seed. The same
seed gives the same run, byte for byte, as long as the code is the same; `run.json` keeps the run's
digest and the edition of the code. What it shows is evidence of a kind of its own: no kernel, no
real disk and no real time takes part in it.
"""

import asyncio
import gc
import sys
import time
import traceback
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusters.hosts._probe import Problem
from harness.contracts import CLIENT, Agent, Clock, Node, Python
from harness.errors import EXIT_BED_FAILED, BadRequest, Unsupported
from harness.registry import load
from harness.rundir import RunDir
from harness.trial import Trial

from ._simulated.agent import SimulatedAgent
from ._simulated.driver import Driver, DriverLoop
from ._simulated.edition import edition
from ._simulated.machine import Machine, brought_home
from ._simulated.network import Network
from ._simulated.world import SECOND, Livelock, NotSimulated, World

HOME = "/seatrial"
NODES_PER_BLOCK = 200
CAN_BE = {"system": ("flotilla",), "workload": ("messages",)}

NEEDS = ("nothing of this machine",)


def hosts(trial: Trial, folder: Path) -> "SimulatedHosts":
    _check(trial.bed)
    for kind, name in (("system", trial.system), ("workload", trial.workload)):
        if name not in CAN_BE[kind]:
            raise Unsupported(
                f"the {kind} {name!r} can not be simulated, only {', '.join(CAN_BE[kind])}; "
                "choose other hosts, such as local"
            )
    return SimulatedHosts(trial, Path(folder).resolve())


def problems(bed: Mapping[str, Any]) -> list[Problem]:
    _check(bed)
    return []


def replayable(run: RunDir) -> None:
    """BadRequest when the code is not the one that made the run: its seed means another run now."""
    theirs = run.state().get("edition")
    if theirs != edition():
        raise BadRequest(
            f"{run.path} was simulated by another version of the code (edition "
            f"{theirs or 'unknown'}, this is {edition()}), for which its seed means another run; "
            "check out that version, or run its trial.toml anew"
        )


def _check(bed: Mapping[str, Any]) -> None:
    if bed:
        raise BadRequest(f"simulated hosts have no options, so bed.{min(bed)} means nothing here")


class SimulatedHosts:
    """The world of one run."""

    can = frozenset({"links", "loss", "signal", "restart", "power"})
    shares_files = False

    def __init__(self, trial: Trial, folder: Path) -> None:
        self._run = RunDir(folder)
        self._world = World(trial.seed)
        self._network = Network(self._world)
        self._machines: list[Machine] = []
        self._log = load("system", trial.system)(trial).log  # evidence, which no power cut takes

    def enter(self) -> None:
        """Nothing to prepare."""

    def check(self, nodes: Sequence[Node]) -> None:
        """There is room for everybody."""

    def run(self, main: Coroutine[Any, Any, int]) -> int:
        """Let a world go by, from the beginning of the driver to its end."""
        self._run.update_state(edition=edition())
        driver = Driver(self._world, self._network)
        began_s = time.process_time()
        gc.freeze()  # what is there by now stays, and need not be looked through again and again
        try:
            code = driver.sail(lambda _: main)
        except Exception as e:
            traceback.print_exception(e, file=sys.stderr)
            known = isinstance(e, Livelock | NotSimulated)
            why = str(e) if known else f"{type(e).__name__}: {e}; see {self._run.log}"
            self._run.update_state(error=f"the simulated world stopped: {why}")
            return EXIT_BED_FAILED
        finally:
            gc.unfreeze()
            took_s = time.process_time() - began_s
            driver.kill()
            for machine in self._machines:
                machine.sink()
            self._world.close()
        self._run.update_state(digest=self._world.digest(), simulated=self._figures(took_s))
        return code

    @asynccontextmanager
    async def raised(
        self, nodes: Sequence[Node]
    ) -> AsyncIterator[tuple[Sequence[Node], Mapping[str, Agent]]]:
        driver = asyncio.get_running_loop()
        assert isinstance(driver, DriverLoop)
        addressed = [replace(node, address=address(at)) for at, node in enumerate(nodes)]
        self._machines = [Machine(self._world, self._network, node) for node in addressed]
        peers: dict[str, SimulatedAgent] = {}
        for machine in self._machines:
            if machine.node.role != CLIENT:
                log = f"{self.folder(machine.node.name)}/{self._log}"
                machine.disk.put(log, b"", spared=True)
            peers[machine.node.address] = SimulatedAgent(machine, driver, peers)
        try:
            yield addressed, {agent.machine.node.name: agent for agent in peers.values()}
        finally:
            await self._left()

    def folder(self, node: str) -> str:
        return f"{HOME}/{node}"

    def python(self, node: str) -> Python:
        return Python("python3", f"{HOME}/packages")

    def clock(self, node: str) -> Clock:
        return Clock()

    async def _left(self) -> None:
        """End all processes, and bring home what they wrote."""
        ended = asyncio.Event()
        for machine in self._machines:
            self._world.after(0, machine.sink)
        self._world.after(0, asyncio.get_running_loop().call_soon, ended.set)
        await ended.wait()
        for machine in self._machines:
            name = machine.node.name
            with suppress(FileNotFoundError):  # nothing was put there
                brought_home(machine.disk, self.folder(name), self._run.node(name))

    def _figures(self, took_s: float) -> Mapping[str, float]:
        seconds = self._world.now_ns / SECOND
        return {
            "seconds": round(seconds, 3),
            "events": self._world.events,
            "cpu_s": round(took_s, 3),
        }


def address(index: int) -> str:
    """The address of the node at this place in the list."""
    block, place = divmod(index, NODES_PER_BLOCK)
    return f"198.18.{block + 1}.{place + 11}"
