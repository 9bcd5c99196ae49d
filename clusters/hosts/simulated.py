"""Nodes in a simulated world inside the runner: the same code, a virtual clock, network and disks.

The very code of system and clients runs on event loops of this process, and so does the trial
itself: minutes pass in seconds, and every packet and sync is drawn from the trial's seed. The same
seed gives the same run, byte for byte, as long as the code is the same; `run.json` keeps the run's
digest and the edition of the code. What it shows is evidence of a kind of its own: no kernel, no
real disk and no real time takes part in it.
"""

import asyncio
import gc
import json
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from clusters.hosts.local.addresses import address
from clusters.hosts.local.requirements import Problem
from harness.contracts import CLIENT, Agent, Clock, HostsPlugin, Node, Python
from harness.contracts.cluster_view import Observed, Standing, Told
from harness.errors import EXIT_BED_FAILED, BadRequest, Unsupported
from harness.history.rundir import RunDir
from harness.registry import load
from harness.trial import Trial

from ._simulated.agent import SimulatedAgent
from ._simulated.content import Content
from ._simulated.driver import Driver, DriverLoop
from ._simulated.edition import edition
from ._simulated.machine import Machine, brought_home
from ._simulated.network import Network
from ._simulated.options import Options, swarm
from ._simulated.world import SECOND, Livelock, NotSimulated, World

HOME = "/seatrial"
OBJECTS = ("register", "set", "lock", "log")
CAN_BE = {"system": ("flotilla",), "workload": ("messages", "topics", "rebalance", *OBJECTS)}

__all__ = ["NEEDS", "SimulatedHosts", "edition", "hosts", "problems", "replayable", "swarm"]

NEEDS = ("nothing of this machine",)


def hosts(trial: Trial, folder: Path) -> "SimulatedHosts":
    Options.of(trial.bed)
    for kind, name in (("system", trial.system), ("workload", trial.workload)):
        if name not in CAN_BE[kind]:
            raise Unsupported(
                f"the {kind} {name!r} cannot be simulated, only {', '.join(CAN_BE[kind])}; "
                "choose other hosts, such as local"
            )
    return SimulatedHosts(trial, Path(folder).resolve())


def problems(bed: Mapping[str, Any]) -> list[Problem]:
    Options.of(bed)
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


PLUGIN = HostsPlugin(
    hosts=hosts,
    problems=problems,
    needs=NEEDS,
    edition=edition,
    replayable=replayable,
    swarm=swarm,
    must_name=None,
)


class SimulatedHosts:
    """The world of one run."""

    can = frozenset(
        {
            *("links", "loss", "delay", "bandwidth", "signal", "restart"),
            *("clock", "files", "disk", "unsynced", "power", "events"),
        }
    )
    shares_files = True

    def __init__(self, trial: Trial, folder: Path) -> None:
        self._run = RunDir(folder)
        self._world = World(trial.seed)
        self._options = Options.of(trial.bed)
        self._network = Network(self._world, self._options.wire())
        self._machines: list[Machine] = []
        self._system: Any = load("system", trial.system)(trial)
        self._tell: list[Callable[[Told], object]] = []
        self._laws: Any = None  # until the nodes are raised

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
        gc.disable()  # the world collects its garbage itself, the last of it when it closes
        try:
            code = driver.sail(lambda _: main)
        except Exception as e:
            traceback.print_exception(e, file=sys.stderr)
            known = isinstance(e, Livelock | NotSimulated)
            why = str(e) if known else f"{type(e).__name__}: {e}; see {self._run.log}"
            self._run.update_state(error=f"the simulated world stopped: {why}")
            return EXIT_BED_FAILED
        finally:
            took_s = time.process_time() - began_s
            driver.kill()
            for machine in self._machines:
                machine.sink()
            self._world.close()
            gc.enable()
            gc.unfreeze()
        self._run.update_state(digest=self._world.digest(), simulated=self._figures(took_s))
        return code

    @asynccontextmanager
    async def raised(
        self, nodes: Sequence[Node]
    ) -> AsyncIterator[tuple[Sequence[Node], Mapping[str, Agent]]]:
        driver = asyncio.get_running_loop()
        assert isinstance(driver, DriverLoop)
        addressed = [replace(node, address=address(at)) for at, node in enumerate(nodes)]
        self._seen = self._system.seen(addressed)
        self._laws = self._system.laws(addressed, lambda: self._world.now_ns, self._file)
        pace = self._options.pace()
        self._machines = [
            Machine(self._world, self._network, node, self.folder(node.name), pace)
            for node in addressed
        ]
        self._by_name = {machine.node.name: machine for machine in self._machines}
        self._drift()
        peers: dict[str, SimulatedAgent] = {}
        for machine in self._machines:
            if machine.node.role != CLIENT:
                log = f"{machine.folder}/{self._system.log}"
                machine.disk.put(log, b"", spared=True)  # evidence, which no power cut takes
                machine.disk.on_append[log] = partial(self._wrote, machine.node.name)
                machine.rules = partial(self._laws.rules, machine.node.name)
                machine.host.on_power_cut.append(partial(self._laws.power_lost, machine.node.name))
                machine.on_damage.append(partial(self._laws.disk_damaged, machine.node.name))
                machine.on_failing_syncs.append(partial(self._laws.syncs_fail, machine.node.name))
            peers[machine.node.address] = SimulatedAgent(machine, driver, peers)
        try:
            yield addressed, {agent.machine.node.name: agent for agent in peers.values()}
        finally:
            await self._left()

    def hear(self, told: Callable[[Told], object]) -> None:
        """Tell of all events, once raised."""
        driver = asyncio.get_running_loop()
        assert isinstance(driver, DriverLoop)
        self._tell.append(partial(driver.enter, told))

    def standing(self) -> Standing:
        """Once raised."""
        now: Standing = self._seen.standing()
        return now

    def packets(self, source: str, sink: str, count: int) -> tuple[int, int]:
        ends = (self._by_name[name].node.address for name in (source, sink))
        passed = self._network.link(*ends).pass_all(count)
        return passed, count - passed

    def way_ns(self, source: str, sink: str) -> int:
        ends = (self._by_name[name].node.address for name in (source, sink))
        quickest: int = self._network.link(*ends).natural_ns
        return quickest

    def observed(self) -> Iterable[Observed]:
        """What was watched, and which laws were seen broken, however far the world came."""
        told: Iterable[Observed] = self._laws.events() if self._laws is not None else ()
        return told

    def _file(self, node: str, name: str) -> Content | None:
        """A file in a node's folder, as it is now."""
        machine = self._by_name[node]
        try:
            return machine.disk.file(f"{machine.folder}/{name}")
        except OSError:
            return None

    def _wrote(self, node: str, lines: bytes) -> None:
        """Lines of a node's event log."""
        for line in filter(None, lines.splitlines()):
            try:
                fields = json.loads(line)
                event = Told(node, fields["kind"], fields)
            except (ValueError, KeyError, TypeError):  # a part of a line: the disk had no more room
                self._laws.unread(node)
                continue
            self._seen.saw(node, event.kind, fields)
            self._laws.saw(self._world.now_ns, node, event.kind, fields)
            for tell in self._tell:
                self._world.after(0, tell, event)

    def folder(self, node: str) -> str:
        return f"{HOME}/{node}"

    def python(self, node: str) -> Python:
        return Python("python3", f"{HOME}/packages")

    def clock(self, node: str) -> Clock:
        return Clock(rate=self._by_name[node].host.clock.rate)

    def _drift(self) -> None:
        """The cluster's clocks run too fast or too slow, each in its own way. Those of clients tell
        when operations were, and are right."""
        most, dice = self._options.drift_ppm / 1_000_000, self._world.random("drift")
        for machine in self._machines if most else ():
            if machine.node.role != CLIENT:
                machine.host.set_clock_rate(1 + dice.uniform(-most, most))

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
