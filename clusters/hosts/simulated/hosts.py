"""The kind of hosts `simulated`: raises the nodes in a world and runs the trial in it.

The code of system and clients runs on event loops of this process, and so does the trial itself:
minutes pass in seconds, and every packet and sync is drawn from the trial's seed. The same seed
gives the same run, byte for byte, as long as the code is the same; `run.json` contains the run's
digest and the edition of the code. Such a run is evidence of a special kind: no kernel, no real
disk and no real time take part in it.
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

from clusters.hosts._addresses import address
from clusters.hosts._problems import Problem
from clusters.hosts._world.content import Content
from clusters.hosts._world.driver import Driver, DriverLoop
from clusters.hosts._world.network import SimNetwork
from clusters.hosts._world.ports import WorldChoices
from clusters.hosts._world.recording import MessageRecorder, Writes
from clusters.hosts._world.world import SECOND, Livelock, NotSimulated, World
from clusters.hosts.simulated.agent import SimulatedAgent
from clusters.hosts.simulated.edition import edition
from clusters.hosts.simulated.machine import SimNode, download
from clusters.hosts.simulated.options import SimulationOptions, swarm
from harness.contracts import CLIENT, Agent, ClockOffset, HostsPlugin, Node, PythonRuntime
from harness.contracts.cluster_view import ClusterState, LoggedEvent, WorldEvent
from harness.errors import EXIT_BED_FAILED, BadRequest, Unsupported
from harness.history.messages import REQUEST, RecordingWindow, write_messages
from harness.history.rundir import RunDir
from harness.registry import load
from harness.trial import Trial

HOME = "/seatrial"
SYSTEMS = ("flotilla",)  # whose programs run in a simulated world

__all__ = ["NEEDS", "SimulatedHosts", "edition", "hosts", "problems", "replayable", "swarm"]

NEEDS = ("nothing of this machine",)


def hosts(trial: Trial, folder: Path) -> "SimulatedHosts":
    SimulationOptions.of(trial.bed)
    if trial.system not in SYSTEMS:
        raise Unsupported(
            f"the system {trial.system!r} cannot be simulated, only {', '.join(SYSTEMS)}; "
            "choose other hosts, such as local"
        )
    return SimulatedHosts(trial, Path(folder).resolve())


def problems(bed: Mapping[str, Any]) -> list[Problem]:
    SimulationOptions.of(bed)
    return []


def replayable(run: RunDir) -> None:
    """Raise BadRequest if the run was made by other code, for which its seed means another run."""
    theirs = run.state().get("edition")
    if theirs != edition():
        raise BadRequest(
            f"{run.path} was simulated by another version of the code (edition "
            f"{theirs or 'unknown'}, this is {edition()}), for which its seed means another run; "
            "check out that version, or run its trial.toml again"
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
        self._options = SimulationOptions.of(trial.bed)
        self._network = SimNetwork(self._world, self._options.wire())
        self._choices = WorldChoices(self._world, self._options.choices)
        self._nodes: list[SimNode] = []
        self._system: Any = load("system", trial.system)(trial)
        self._listeners: list[Callable[[LoggedEvent], object]] = []
        self._laws: Any = None  # until the nodes are raised
        self._recorder: MessageRecorder | None = None
        if window := RecordingWindow.of(self._run.state().get(REQUEST)):
            reader = getattr(self._system, "frame_reader", Writes)
            self._recorder = MessageRecorder(self._network, window, reader)

    def enter(self) -> None:
        """Prepare nothing."""

    def check(self, nodes: Sequence[Node]) -> None:
        """Accept any number of nodes."""

    def run(self, main: Coroutine[Any, Any, int]) -> int:
        """Run a world from the start of the driver to its end."""
        self._run.update_state(edition=edition())
        driver = Driver(self._world, self._network)
        began_s = time.process_time()
        gc.disable()  # the world collects garbage itself, the last time when it closes
        try:
            code = driver.run_world(lambda _: main)
        except Exception as e:
            traceback.print_exception(e, file=sys.stderr)
            expected = isinstance(e, Livelock | NotSimulated)
            why = str(e) if expected else f"{type(e).__name__}: {e}; see {self._run.log}"
            self._run.update_state(error=f"the simulated world stopped: {why}")
            return EXIT_BED_FAILED
        finally:
            took_s = time.process_time() - began_s
            if self._recorder:
                write_messages(self._run, self._recorder.recording())
            driver.kill()
            for machine in self._nodes:
                machine.kill_processes()
            self._world.close()
            gc.enable()
        self._run.update_state(digest=self._world.digest(), simulated=self._figures(took_s))
        return code

    @asynccontextmanager
    async def start_nodes(
        self, nodes: Sequence[Node]
    ) -> AsyncIterator[tuple[Sequence[Node], Mapping[str, Agent]]]:
        driver = asyncio.get_running_loop()
        assert isinstance(driver, DriverLoop)
        addressed = [replace(node, address=address(at)) for at, node in enumerate(nodes)]
        self._event_view = self._system.event_view(addressed)
        self._laws = self._system.laws(addressed, lambda: self._world.now_ns, self._file)
        pace = self._options.pace()
        self._nodes = [
            SimNode(self._world, self._network, node, self.folder(node.name), pace, self._choices)
            for node in addressed
        ]
        self._by_name = {machine.node.name: machine for machine in self._nodes}
        if self._recorder:
            self._recorder.names |= {node.address: node.name for node in addressed}
        self._drift()
        peers: dict[str, SimulatedAgent] = {}
        for machine in self._nodes:
            if machine.node.role != CLIENT:
                log = f"{machine.folder}/{self._system.log}"
                machine.disk.put(log, b"", spared=True)  # evidence, which a power cut must not take
                machine.disk.on_append[log] = partial(self._read_events, machine.node.name)
                machine.rules = partial(self._laws.rules, machine.node.name)
                machine.host.on_power_cut.append(partial(self._laws.power_lost, machine.node.name))
                machine.on_damage.append(partial(self._laws.disk_damaged, machine.node.name))
                machine.on_failing_syncs.append(partial(self._laws.syncs_fail, machine.node.name))
            peers[machine.node.address] = SimulatedAgent(machine, driver, peers)
        try:
            yield addressed, {agent.machine.node.name: agent for agent in peers.values()}
        finally:
            await self._release()

    def subscribe(self, listener: Callable[[LoggedEvent], object]) -> None:
        """Report all events to this function, once raised."""
        driver = asyncio.get_running_loop()
        assert isinstance(driver, DriverLoop)
        self._listeners.append(partial(driver.enter, listener))

    def cluster_state(self) -> ClusterState:
        """Return the roles of all nodes, once raised."""
        now: ClusterState = self._event_view.cluster_state()
        return now

    def packets(self, source: str, sink: str, count: int) -> tuple[int, int]:
        ends = (self._by_name[name].node.address for name in (source, sink))
        passed = self._network.link(*ends).pass_all(count)
        return passed, count - passed

    def min_latency_ns(self, source: str, sink: str) -> int:
        ends = (self._by_name[name].node.address for name in (source, sink))
        quickest: int = self._network.link(*ends).natural_ns
        return quickest

    def world_events(self) -> Iterable[WorldEvent]:
        """Return the checks and violations of the laws so far."""
        events: Iterable[WorldEvent] = self._laws.events() if self._laws is not None else ()
        return events

    def _file(self, node: str, name: str) -> Content | None:
        """Return a file in a node's folder, as it is now."""
        machine = self._by_name[node]
        try:
            return machine.disk.file(f"{machine.folder}/{name}")
        except OSError:
            return None

    def _read_events(self, node: str, lines: bytes) -> None:
        """Read lines that were appended to a node's event log."""
        for line in filter(None, lines.splitlines()):
            try:
                fields = json.loads(line)
                event = LoggedEvent(node, fields["kind"], fields)
            except (ValueError, KeyError, TypeError):  # a partial line: the disk was full
                self._laws.unreadable_event(node)
                continue
            self._event_view.read(node, event.kind, fields)
            self._laws.read_event(self._world.now_ns, node, event.kind, fields)
            for listener in self._listeners:
                self._world.after(0, listener, event)

    def folder(self, node: str) -> str:
        return f"{HOME}/{node}"

    def python(self, node: str) -> PythonRuntime:
        return PythonRuntime("python3", f"{HOME}/packages")

    def clock(self, node: str) -> ClockOffset:
        return ClockOffset(rate=self._by_name[node].host.clock.rate)

    def _drift(self) -> None:
        """Make each of the cluster's clocks run too fast or too slow. Clients' clocks, which date
        the operations, stay exact."""
        most, dice = self._options.drift_ppm / 1_000_000, self._world.random("drift")
        for machine in self._nodes if most else ():
            if machine.node.role != CLIENT:
                machine.host.set_clock_rate(1 + dice.uniform(-most, most))

    async def _release(self) -> None:
        """End all processes, and copy their files into the run's folder."""
        ended = asyncio.Event()
        for machine in self._nodes:
            self._world.after(0, machine.kill_processes)
        self._world.after(0, asyncio.get_running_loop().call_soon, ended.set)
        await ended.wait()
        for machine in self._nodes:
            name = machine.node.name
            with suppress(FileNotFoundError):  # the folder was never made
                download(machine.disk, self.folder(name), self._run.node(name))

    def _figures(self, took_s: float) -> Mapping[str, Any]:
        seconds, made = self._world.now_ns / SECOND, self._choices.made
        return {
            "seconds": round(seconds, 3),
            "events": self._world.events,
            "cpu_s": round(took_s, 3),
            **({} if made is None else {"choices": dict(made)}),
        }
