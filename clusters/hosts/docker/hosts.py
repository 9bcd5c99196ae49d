"""Nodes as containers of a Docker engine, on this machine or another.

The driver uses the engine only and opens no connection to a node: it reaches each node's agent
through the stream of a `docker exec`, and clients run on nodes of their own. So it does not matter
whether the engine routes its containers' addresses to this machine; remote, rootless and desktop
engines do not.

Containers outlive a driver that is killed. Then the streams end, and each agent heals its links and
ends what it started; the idle containers stay until `seatrial heal` or the next run of this machine
finds them by their labels and removes them.
"""

import asyncio
import sys
import tarfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from docker import DockerClient

from clusters.hosts._agent import clock_sync
from clusters.hosts._agent.driver import PipeAgent
from clusters.hosts._agent.stream_agent import StreamConnection
from clusters.hosts._agent.threads import in_thread, start_thread
from clusters.hosts._problems import Problem
from clusters.hosts._real_hosts import ABILITIES, RealHosts, clock_ability
from clusters.hosts.docker import containers, engine, image, labels
from clusters.hosts.docker.containers import DockerProject
from clusters.hosts.docker.engine import translate_errors
from clusters.hosts.docker.exec_stream import ExecStream
from clusters.hosts.docker.options import options
from harness import registry
from harness.contracts import Agent, ClockOffset, HostsPlugin, Node, PythonRuntime
from harness.errors import BedFailed, NodeGone
from harness.history.rundir import RunDir
from harness.run.parent_pipe import ShowMessage, listener, log
from harness.run.tasks import run_all
from harness.trial import Trial

RAISE_WITHIN_S = 60.0
LEAVE_WITHIN_S = 3.0
DOWNLOAD_WITHIN_S = 30.0

NEEDS = (  # what `problems` tries, for the doctor's table
    "a Docker engine that answers",
    "Linux containers",
    "a subnet that is free",
)


def hosts(trial: Trial, folder: Path) -> "DockerHosts":
    return DockerHosts(trial, Path(folder).resolve())


def problems(bed: Mapping[str, Any]) -> list[Problem]:
    subnet = options(bed).subnet
    if problems := engine.problems():
        return problems
    with closing(engine.connect()) as client, translate_errors("its networks are not known"):
        taken = [one for one in containers.subnets(client) if subnet and one.overlaps(subnet)]
    if taken:
        return [
            Problem(
                f"bed.subnet {subnet} overlaps {taken[0]}, which a network of the engine has",
                "each run has a network of its own, and addresses must be unambiguous",
                "leave out bed.subnet, or choose one that no network of the engine has",
            )
        ]
    return []


def heal(run: RunDir, entries: Sequence[Any]) -> list[str]:
    """Remove what a finished run left on the engine; return a list of it. The run's faults have
    ended before, because agents undo them when their driver is gone."""
    with closing(engine.connect()) as client:
        return remove_run(client, run.path)


def shell(run: RunDir, node: str, command: Sequence[str]) -> list[str]:
    """Return the command line that runs a command on a node, in a terminal if there is one."""
    terminal = ["-t"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    place = ["-w", containers.folder(node), labels.name(run.path, node)]
    return ["docker", "exec", "-i", *terminal, *place, *command]


PLUGIN = HostsPlugin(hosts=hosts, problems=problems, needs=NEEDS, shell=shell, heal=heal)


class DockerHosts(RealHosts):
    """The containers of one run, whose files are copied to `folder` at its end."""

    can = ABILITIES | clock_ability(as_root=False)
    shares_files = False

    def __init__(self, trial: Trial, folder: Path) -> None:
        self._options = options(trial.bed)
        self._needs = registry.system(trial.system).containers
        self._run = folder
        self._clocks: dict[str, ClockOffset] = {}
        self._agents: dict[str, PipeAgent] = {}
        self._max_run_s = clock_sync.max_run_s(trial)

    def check(self, nodes: Sequence[Node]) -> None:
        containers.check_room(self._options, len(nodes))

    @asynccontextmanager
    async def start_nodes(
        self, nodes: Sequence[Node]
    ) -> AsyncIterator[tuple[Sequence[Node], Mapping[str, Agent]]]:
        client = await in_thread(engine.connect)
        started: list[_ContainerNode] = []
        try:
            yield await self._start_nodes(client, nodes, started)
        finally:
            stuck = await self._release(client, started)
            client.close()
        if stuck:
            raise BedFailed(stuck)

    def folder(self, node: str) -> str:
        return containers.folder(node)

    def python(self, node: str) -> PythonRuntime:
        return PythonRuntime(image.PYTHON, image.PACKAGES)

    def clock(self, node: str) -> ClockOffset:
        return self._clocks[node]

    async def compare_clocks(self) -> Mapping[str, ClockOffset]:
        return await clock_sync.compare_again(self._agents, self._clocks)

    # ------------------------------------------------------------------------------- raising

    async def _start_nodes(
        self, client: DockerClient, nodes: Sequence[Node], started: list["_ContainerNode"]
    ) -> tuple[Sequence[Node], Mapping[str, Agent]]:
        yard, network = await in_thread(partial(self._prepare, client, len(nodes), listener.get()))
        addressed = [replace(node, address=network.address(at)) for at, node in enumerate(nodes)]
        started += [
            _ContainerNode(
                node.name, partial(containers.start_node, yard, network, node.name, node.address)
            )
            for node in addressed
        ]
        try:
            async with asyncio.timeout(RAISE_WITHIN_S):
                await run_all(*map(self._connect, started))
        except TimeoutError:
            raise BedFailed(
                f"starting {len(nodes)} containers took longer than {RAISE_WITHIN_S:g} s; is the "
                "machine of the engine overloaded?"
            ) from None
        return addressed, {each.node: each.agent for each in started}

    async def _connect(self, each: "_ContainerNode") -> None:
        self._clocks[each.node] = await each.connect(self._max_run_s)
        self._agents[each.node] = each.agent

    def _prepare(
        self, client: DockerClient, nodes: int, say: ShowMessage
    ) -> tuple[DockerProject, containers.DockerNetwork]:
        """Remove what crashed runs left, and make what all nodes need."""
        remove_abandoned(client, self._run)
        tag = image.image(client, self._options.base, say, self._needs)
        yard = DockerProject(client, self._run, tag, self._options, self._needs.capabilities)
        with translate_errors("the network of the trial cannot be made"):
            return yard, containers.create_network(yard, nodes)

    # ------------------------------------------------------------------------------- leaving

    async def _release(self, client: DockerClient, started: Sequence["_ContainerNode"]) -> str:
        """Copy the nodes' files and remove all containers; return what could not be removed, if
        anything."""
        await asyncio.gather(*(each.release() for each in started))
        holders = {each.node: f"{each.node}-holder" for each in started}
        return await save_and_remove(client, self._run, holders)


class _ContainerNode:
    """A node: its containers, which a thread starts, then its agent and the connection to it."""

    def __init__(self, node: str, work: Callable[[], ExecStream]) -> None:
        self.node = node
        self._starting = start_thread(work)
        self._connection: StreamConnection | None = None

    @property
    def agent(self) -> PipeAgent:
        assert self._connection
        return self._connection.agent

    async def connect(self, for_s: float) -> ClockOffset:
        """Wait until the node's agent answers; return the node's clock."""
        with translate_errors(f"the containers of {self.node} cannot be made"):
            stream = await asyncio.wrap_future(self._starting)
        self._connection = StreamConnection(self.node, stream)
        try:
            identity = await self.agent.hello()
            await self.agent.links(())  # so that the first fault finds its chain
            return await clock_sync.compare_clock(self.agent, identity, for_s)
        except NodeGone:
            output = " ".join(stream.errors.decode(errors="replace").split()[-40:])
            raise BedFailed(
                f"the agent of {self.node} ended at its start: {output or 'it printed nothing'}"
            ) from None

    async def release(self) -> None:
        """Close the stream: the agent ends what it started, and exits."""
        if self._connection:
            await self._connection.hang_up(LEAVE_WITHIN_S)
        elif await all_done([self._starting], RAISE_WITHIN_S) and not self._starting.exception():
            self._starting.result().close()


async def save_and_remove(client: DockerClient, run: Path, holders: Mapping[str, str]) -> str:
    """Copy the nodes' folders into the run's, each from the container named, and remove what the
    run made on the engine; return what could not be removed, if anything."""
    homes = [start_thread(partial(_save, client, run, *each)) for each in holders.items()]
    if not await all_done(homes, DOWNLOAD_WITHIN_S):
        log(f"not all files of the nodes could be copied within {DOWNLOAD_WITHIN_S:g} s")
    clearing = start_thread(partial(remove_run, client, run))
    if not await all_done([clearing], labels.REMOVE_WITHIN_S + LEAVE_WITHIN_S):
        return f"the engine does not answer; {heal_command(run)}"
    error = clearing.exception()
    return str(error) if error else ""


def _save(client: DockerClient, run: Path, node: str, holder: str) -> None:
    into = RunDir(run).node(node)
    try:
        for left_out in containers.download_folder(client, run, node, holder, into):
            log(f"{node}: too large to be copied: {left_out}")
    except (*engine.FAILURES, tarfile.TarError) as e:
        log(f"the files of {node} could not be copied: {e}")


def remove_abandoned(client: DockerClient, own: Path) -> None:
    """Remove what finished runs of this machine left on the engine."""
    with translate_errors("the engine does not list its containers"):
        runs = labels.abandoned_runs(client, own)
    for run in runs:
        try:
            if started := labels.start_stopped(client, run):
                log(f"started {', '.join(started)} again, which {run} had stopped")
            log(f"removed what {run} left: {', '.join(remove_run(client, run))}")
        except BedFailed as e:
            log(str(e))


def remove_run(client: DockerClient, run: Path) -> list[str]:
    """Remove a run; return a list of what was removed. Raises BedFailed if something could
    not be."""
    try:
        with translate_errors(f"what {run.name} made cannot be removed"):
            return labels.remove(client, run)
    except TimeoutError as e:
        raise BedFailed(f"the engine did not remove {e} in time; {heal_command(run)}") from None


def heal_command(run: Path) -> str:
    return f"once the engine answers again, run: seatrial heal {run}"


async def all_done(futures: "Sequence[Future[Any]]", within_s: float) -> bool:
    """Return whether all futures are done in time.

    The caller handles their exceptions. An exception of the wrapping future that is never retrieved
    would be reported by the loop as unexpected, and end the run; so it is retrieved here.
    """
    waited = [asyncio.wrap_future(future) for future in futures]
    for one in waited:
        one.add_done_callback(lambda one: one.cancelled() or one.exception())
    return not waited or not (await asyncio.wait(waited, timeout=within_s))[1]
