"""Nodes as containers of a Docker engine, on this machine or another.

The driver talks to the engine alone and never to a node: each node's agent is reached through the
stream of a `docker exec`, and clients live on nodes of their own. So it makes no difference whether
the engine routes its containers' addresses to us; remote, rootless and desktop engines do not.

Containers outlive a driver that is killed. Then the streams end, and each agent heals its links and
ends what it started; the containers stay, idle, until `seatrial heal` or the next run of this
machine finds them by their labels and removes them.
"""

import asyncio
import sys
import tarfile
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from docker import DockerClient

from clusters.hosts._agent import clock_sync as _clocks
from clusters.hosts._agent.driver import PipeAgent
from clusters.hosts._agent.stream_agent import Carrier
from clusters.hosts._agent.threads import aside, started
from clusters.hosts._faults.traced_agent import behind_gates
from clusters.hosts.docker import containers as _docker_nodes
from clusters.hosts.docker import engine as _docker_engine
from clusters.hosts.docker import image as _docker_image
from clusters.hosts.docker import labels as _docker_marks
from clusters.hosts.docker.containers import Yard
from clusters.hosts.docker.engine import translated
from clusters.hosts.docker.exec_stream import ExecStream
from clusters.hosts.docker.options import options
from clusters.hosts.local.capabilities import clocks
from clusters.hosts.local.requirements import Problem
from harness.contracts import Agent, Clock, HostsPlugin, Node, Python
from harness.errors import BedFailed, NodeGone
from harness.history.rundir import RunDir
from harness.run.progress_messages import Say, listener
from harness.run.tasks import together
from harness.trial import Trial

RAISE_WITHIN_S = 60.0
LEAVE_WITHIN_S = 3.0
HOME_WITHIN_S = 30.0

NEEDS = (  # what `problems` tries, for the doctor's table
    "a Docker engine that answers",
    "Linux containers",
    "a subnet that is free",
)


def hosts(trial: Trial, folder: Path) -> "DockerHosts":
    return DockerHosts(trial, Path(folder).resolve())


def problems(bed: Mapping[str, Any]) -> list[Problem]:
    asked = options(bed).subnet
    if found := _docker_engine.problems():
        return found
    with closing(_docker_engine.connect()) as client, translated("its networks are not known"):
        taken = [one for one in _docker_nodes.subnets(client) if asked and one.overlaps(asked)]
    if taken:
        return [
            Problem(
                f"bed.subnet {asked} overlaps {taken[0]}, which a network of the engine has",
                "each run has a network of its own, and addresses must be unambiguous",
                "leave bed.subnet away, or choose one that `docker network inspect` shows nowhere",
            )
        ]
    return []


def heal(run: RunDir, entries: Sequence[Any]) -> list[str]:
    """Remove what a run that is over left on the engine; what was removed, in words. Its faults
    ended with it, because the agents undo them when their driver is gone."""
    with closing(_docker_engine.connect()) as client:
        return _cleared(client, run.path)


def shell(run: RunDir, node: str, command: Sequence[str]) -> list[str]:
    """How a terminal is joined to a command on a node."""
    terminal = ["-t"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    place = ["-w", _docker_nodes.folder(node), _docker_marks.name(run.path, node)]
    return ["docker", "exec", "-i", *terminal, *place, *command]


PLUGIN = HostsPlugin(hosts=hosts, problems=problems, needs=NEEDS, shell=shell, heal=heal)


class DockerHosts:
    """The containers of one run, whose files are brought to `folder` at its end."""

    can = frozenset(
        {
            *("links", "loss", "delay", "bandwidth", "signal", "restart"),
            *("files", "disk", "unsynced", "limits"),
        }
    ) | clocks(as_root=False)
    shares_files = False

    def __init__(self, trial: Trial, folder: Path) -> None:
        self._options = options(trial.bed)
        self._run = folder
        self._clocks: dict[str, Clock] = {}
        self._agents: dict[str, PipeAgent] = {}
        self._whole_s = _clocks.whole_s(trial)

    def enter(self) -> None:
        """Nothing to prepare, and no death signal either: a driver ends with its standard input,
        and one that keeps a cluster must outlive the command that started it."""

    def check(self, nodes: Sequence[Node]) -> None:
        _docker_nodes.check_room(self._options, len(nodes))

    def run(self, main: Coroutine[Any, Any, int]) -> int:
        return asyncio.run(main)

    @asynccontextmanager
    async def raised(
        self, nodes: Sequence[Node]
    ) -> AsyncIterator[tuple[Sequence[Node], Mapping[str, Agent]]]:
        client = await aside(_docker_engine.connect)
        berths: list[_Berth] = []
        try:
            yield await self._raised(client, nodes, berths)
        finally:
            stuck = await self._left(client, berths)
            client.close()
        if stuck:
            raise BedFailed(stuck)

    async def gated(
        self, nodes: Sequence[Node], agents: Mapping[str, Agent], unsynced: str = ""
    ) -> Mapping[str, Agent]:
        return await behind_gates(self, nodes, agents, unsynced)

    def folder(self, node: str) -> str:
        return _docker_nodes.folder(node)

    def python(self, node: str) -> Python:
        return Python(_docker_image.PYTHON, _docker_image.PACKAGES)

    def clock(self, node: str) -> Clock:
        return self._clocks[node]

    async def clocks_again(self) -> Mapping[str, Clock]:
        return await _clocks.again(self._agents, self._clocks)

    # ------------------------------------------------------------------------------- raising

    async def _raised(
        self, client: DockerClient, nodes: Sequence[Node], berths: list["_Berth"]
    ) -> tuple[Sequence[Node], Mapping[str, Agent]]:
        yard, network = await aside(partial(self._prepared, client, len(nodes), listener.get()))
        addressed = [replace(node, address=network.address(at)) for at, node in enumerate(nodes)]
        berths += [
            _Berth(node.name, partial(_docker_nodes.raised, yard, network, node.name, node.address))
            for node in addressed
        ]
        try:
            async with asyncio.timeout(RAISE_WITHIN_S):
                await together(*map(self._man, berths))
        except TimeoutError:
            raise BedFailed(
                f"raising {len(nodes)} containers took longer than {RAISE_WITHIN_S:g} s; is the "
                "machine of the engine overloaded?"
            ) from None
        return addressed, {berth.node: berth.agent for berth in berths}

    async def _man(self, berth: "_Berth") -> None:
        self._clocks[berth.node] = await berth.manned(self._whole_s)
        self._agents[berth.node] = berth.agent

    def _prepared(
        self, client: DockerClient, nodes: int, say: Say
    ) -> tuple[Yard, _docker_nodes.Network]:
        """What all nodes need, once what crashed runs left is out of the way."""
        _sweep(client, self._run)
        image = _docker_image.image(client, self._options.base, say)
        yard = Yard(client, self._run, image, self._options)
        with translated("the network of the trial cannot be made"):
            return yard, _docker_nodes.joined(yard, nodes)

    # ------------------------------------------------------------------------------- leaving

    async def _left(self, client: DockerClient, berths: Sequence["_Berth"]) -> str:
        """Bring home what the nodes wrote, and remove all; what could not be removed, if any."""
        await asyncio.gather(*(berth.left() for berth in berths))
        homes = [started(partial(self._bring_home, client, berth.node)) for berth in berths]
        if not await _all_done(homes, HOME_WITHIN_S):
            _log(f"not all files of the nodes could be copied within {HOME_WITHIN_S:g} s")
        clearing = started(partial(_cleared, client, self._run))
        if not await _all_done([clearing], _docker_marks.REMOVE_WITHIN_S + LEAVE_WITHIN_S):
            return f"the engine does not answer; {_by_hand(self._run)}"
        error = clearing.exception()
        return str(error) if error else ""

    def _bring_home(self, client: DockerClient, node: str) -> None:
        into = RunDir(self._run).node(node)
        try:
            for left_out in _docker_nodes.brought_home(client, self._run, node, into):
                _log(f"{node}: too large to be copied: {left_out}")
        except (*_docker_engine.FAILURES, tarfile.TarError) as e:
            _log(f"the files of {node} could not be copied: {e}")


class _Berth:
    """One node: its containers being made in a thread, then its agent, and what carries it."""

    def __init__(self, node: str, work: Callable[[], ExecStream]) -> None:
        self.node = node
        self._made = started(work)
        self._carrier: Carrier | None = None

    @property
    def agent(self) -> PipeAgent:
        assert self._carrier
        return self._carrier.agent

    async def manned(self, for_s: float) -> Clock:
        """Wait until the node's agent answers; the node's clock."""
        with translated(f"the containers of {self.node} cannot be made"):
            stream = await asyncio.wrap_future(self._made)
        self._carrier = Carrier(self.node, stream)
        try:
            identity = await self.agent.hello()
            await self.agent.links(())  # so that the first fault finds its chain
            return await _clocks.compared(self.agent, identity, for_s)
        except NodeGone:
            said = " ".join(stream.errors.decode(errors="replace").split()[-40:])
            raise BedFailed(
                f"the agent of {self.node} ended as it began: {said or 'it said nothing'}"
            ) from None

    async def left(self) -> None:
        """Hang up: the agent ends what it started, and itself."""
        if self._carrier:
            await self._carrier.hang_up(LEAVE_WITHIN_S)
        elif await _all_done([self._made], RAISE_WITHIN_S) and not self._made.exception():
            self._made.result().close()


def _sweep(client: DockerClient, own: Path) -> None:
    """What runs of this machine that are over left on the engine."""
    with translated("the engine does not list its containers"):
        runs = _docker_marks.abandoned(client, own)
    for run in runs:
        try:
            _log(f"removed what {run} left: {', '.join(_cleared(client, run))}")
        except BedFailed as e:
            _log(str(e))


def _cleared(client: DockerClient, run: Path) -> list[str]:
    """What was removed, in words. BedFailed: what could not be, and what to do."""
    try:
        with translated(f"what {run.name} made cannot be removed"):
            return _docker_marks.removed(client, run)
    except TimeoutError as e:
        raise BedFailed(f"the engine did not remove {e} in time; {_by_hand(run)}") from None


def _by_hand(run: Path) -> str:
    return f"when it is well again, remove what is left with: seatrial heal {run}"


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


async def _all_done(futures: "Sequence[Future[Any]]", within_s: float) -> bool:
    """Whether all have ended in time. What failed is for the caller to ask: an error that nobody
    asked the loop's own future for would be taken for one that nobody expected, and end the run."""
    waited = [asyncio.wrap_future(future) for future in futures]
    for one in waited:
        one.add_done_callback(lambda one: one.cancelled() or one.exception())
    return not waited or not (await asyncio.wait(waited, timeout=within_s))[1]
