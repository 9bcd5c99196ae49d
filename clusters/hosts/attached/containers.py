"""Attached nodes that are containers: their engine kills and starts them, a helper does the rest.

A container that exists may have no Python and no privileges. So one helper container of ours, which
shares the process ids of the engine's machine and may join networks, runs an agent for each of them
in the network of the container's present process: link rules, probes and questions to the node work
as on hosts of our own. SIGSTOP and SIGCONT go by pid, since the engine would note any
other signal of its own as a stop by hand; SIGKILL and SIGTERM go by the engine, so that no restart
policy brings the container back before the fault is over.

A container that was started again has a new network. Then a new agent gets the rules in force, and
the old one is closed once its last call has ended.

The load runs in client containers of ours, on the network that all nodes share.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Any, cast

from docker import DockerClient
from docker.errors import APIError, NotFound

from clusters.hosts._agent import clock_sync
from clusters.hosts._agent.driver import PipeAgent
from clusters.hosts._agent.stream_agent import StreamConnection
from clusters.hosts._agent.threads import in_thread
from clusters.hosts._real_hosts import RealHosts
from clusters.hosts.attached.attached_agent import AttachedAgent, refuse_stopped, start_again
from clusters.hosts.attached.inventory import AttachInventory, ExistingContainer, pair
from clusters.hosts.attached.machines import ABILITIES
from clusters.hosts.docker import engine, image, labels
from clusters.hosts.docker.containers import AGENT, folder
from clusters.hosts.docker.engine import translate_errors
from clusters.hosts.docker.exec_stream import ExecStream
from clusters.hosts.docker.hosts import remove_abandoned, save_and_remove
from clusters.hosts.docker.image import PACKAGES, PYTHON
from harness.contracts import (
    CLIENT,
    Agent,
    ClockOffset,
    LinkRule,
    Node,
    ProcessState,
    PythonRuntime,
)
from harness.errors import BadRequest, BedFailed, NodeGone
from harness.run.parent_pipe import ShowMessage, listener
from harness.run.tasks import run_all
from harness.trial import Trial

HELPER = "helper"
HELPER_CAN = ("SYS_ADMIN", "SYS_PTRACE", "NET_ADMIN", "KILL")  # join networks, cut links, signal
PREPARE_WITHIN_S = 120.0
LEAVE_WITHIN_S = 3.0
RETIRE_AFTER_S = 30.0
POLL_S = 0.1
NOT_RUNNING = 409  # the engine's status for a signal to a container that does not run
ENDS = (SIGKILL, SIGTERM)


@dataclass(frozen=True)
class FoundContainer:
    """A running container of the inventory, and its address on the network that all share."""

    name: str
    identity: str
    network: str
    address: str
    role: str = ""

    def __str__(self) -> str:
        return f"container {self.name} ({self.identity[:12]}), {self.address} on {self.network}"


def find(client: DockerClient, listed: AttachInventory) -> list[FoundContainer]:
    """Return the containers of the inventory. Raises BadRequest or BedFailed if one does not exist,
    does not run, or shares no network with the others."""
    with translate_errors("the engine does not list its containers"):
        inspected = [(each, _inspect(client, each.container)) for each in _listed(client, listed)]
    for each, what in inspected:
        if not what["State"]["Running"]:
            raise BedFailed(f"the container {each.container} does not run; start it, then attach")
    if len({what["Id"] for _, what in inspected}) < len(inspected):
        raise BadRequest(f"{listed.source} names a container twice; list each once")
    network = _shared_network([what for _, what in inspected])
    return [
        FoundContainer(
            what["Name"].lstrip("/"),
            what["Id"],
            network,
            what["NetworkSettings"]["Networks"][network]["IPAddress"],
            each.role,
        )
        for each, what in inspected
    ]


def _listed(client: DockerClient, listed: AttachInventory) -> Sequence[ExistingContainer]:
    if listed.compose is None:
        return listed.containers
    project, service = listed.compose.project, listed.compose.service
    label = "com.docker.compose"
    words = [f"{label}.project={project}", f"{label}.service={service}"]
    found = client.api.containers(filters={"label": words})
    if not found:
        raise BedFailed(
            f"no container of the service {service} of the compose project {project} runs; start "
            "it, or correct [compose]"
        )
    found.sort(key=lambda one: int(one["Labels"].get(f"{label}.container-number", 0)))
    return [ExistingContainer(one["Id"], listed.compose.role) for one in found]


def _inspect(client: DockerClient, container: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = client.api.inspect_container(container)
    except NotFound:
        raise BedFailed(
            f"there is no container {container}; `docker ps` lists those that run"
        ) from None
    return found


def _shared_network(inspected: Sequence[Mapping[str, Any]]) -> str:
    """Return the one network that all containers share. Links are cut by address, so there must be
    no second one."""
    shared: set[str] | None = None
    for what in inspected:
        networks = what["NetworkSettings"]["Networks"]
        own = {name for name, end in networks.items() if end.get("IPAddress")}
        shared = own if shared is None else shared & own
    names = ", ".join(what["Name"].lstrip("/") for what in inspected)
    if not shared:
        raise BedFailed(
            f"{names} share no network of the engine with an address for each, so no link between "
            "them can be cut; connect them to one"
        )
    if len(shared) > 1 and len(inspected) > 1:
        raise BedFailed(
            f"{names} share {len(shared)} networks ({', '.join(sorted(shared))}), and links are "
            "cut by the addresses of one; disconnect them from the others"
        )
    return min(shared)


class AttachedContainer:
    """A node that is a container, and the agent in its present network."""

    network_ends_with_process = True

    def __init__(self, node: str, client: DockerClient, helper: str, what: FoundContainer) -> None:
        self.node, self.what = node, what
        self._client, self._helper = client, helper
        self._connection: StreamConnection | None = None
        self._pid, self._rules = 0, tuple[LinkRule, ...]()
        self._turn = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()

    @property
    def agent(self) -> PipeAgent:
        assert self._connection
        return self._connection.agent

    async def connect(self, for_s: float) -> ClockOffset:
        """Start the agent; return the clock of the container's machine."""
        if (await self.state()).state == "exited":
            raise BedFailed(f"{self.node}: the container {self.what.name} does not run")
        return await clock_sync.compare_clock(self.agent, await self.agent.hello(), for_s)

    async def state(self) -> ProcessState:
        async with self._turn:
            now = await self._inspected()
            if not now["State"]["Running"]:
                return ProcessState("exited", self._pid, int(now["State"]["ExitCode"]))
            pid = int(now["State"]["Pid"])
            if pid != self._pid:
                await self._join(pid, now)
        found = await self.agent.look(pid, 0, "")
        stopped = found.threads[:1] in ("T", "t") or now["State"]["Paused"]
        return ProcessState("stopped" if stopped else "running", pid, threads=found.threads)

    async def signal(self, number: int) -> None:
        if number in ENDS:
            await in_thread(partial(self._engine_signal, number))
        elif (await self.state()).state != "exited":
            await self.agent.hit(self._pid, 0, number)

    def _engine_signal(self, number: int) -> None:
        try:
            self._client.api.kill(self.what.identity, signal=Signals(number).name)
        except APIError as e:
            if e.status_code != NOT_RUNNING:
                raise BedFailed(f"{self.node}: the engine refused the signal: {e}") from e

    async def start(self) -> None:
        with translate_errors(f"the container of {self.node} cannot be started again"):
            await in_thread(lambda: self._client.api.start(self.what.identity))

    async def links(self, rules: Sequence[LinkRule]) -> None:
        async with self._turn:
            self._rules = tuple(rules)
            await self.agent.links(rules)

    async def leave(self) -> None:
        """Close the agents, which undo what is in force."""
        for task in self._retiring:
            task.cancel()
        if self._connection:
            await self._connection.hang_up(LEAVE_WITHIN_S)

    async def _inspected(self) -> dict[str, Any]:
        with translate_errors(f"the container of {self.node} cannot be inspected"):
            return await in_thread(lambda: _inspect(self._client, self.what.identity))

    async def _join(self, pid: int, now: Mapping[str, Any]) -> None:
        """Start an agent in the network of a container that has started again."""
        address = now["NetworkSettings"]["Networks"].get(self.what.network, {}).get("IPAddress")
        if address != self.what.address:
            raise BedFailed(
                f"{self.node} came back with the address {address or '(none)'} instead of "
                f"{self.what.address}; give the container a fixed one (docker network connect --ip)"
            )
        stream = await in_thread(lambda: self._exec(pid))
        joined = StreamConnection(self.node, stream)
        try:
            await joined.agent.hello()
            await joined.agent.links(self._rules)
        except NodeGone:
            why = " ".join(stream.errors.decode(errors="replace").split()[-40:])
            raise BedFailed(f"the agent of {self.node} ended at its start: {why}") from None
        old, self._connection, self._pid = self._connection, joined, pid
        if old:
            task = asyncio.create_task(_retire(old))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    def _exec(self, pid: int) -> ExecStream:
        inside = ["nsenter", f"--net=/proc/{pid}/ns/net", "--"]
        return exec_agent(self._client, self._helper, self.what.address, inside)


async def _retire(old: StreamConnection) -> None:
    """Close an agent once its open calls have ended: an agent that ends under a call counts as a
    node that is lost."""
    for _ in range(round(RETIRE_AFTER_S / POLL_S)):
        if not old.agent.unanswered():
            break
        await asyncio.sleep(POLL_S)
    await old.hang_up(LEAVE_WITHIN_S)


def exec_agent(
    client: DockerClient, container: str, address: str, inside: Sequence[str] = ()
) -> ExecStream:
    """Start an agent in a container of ours; return its stream."""
    command = [*inside, PYTHON, "-I", "-S", "-X", "frozen_modules=on", AGENT, address]
    with translate_errors("the agent cannot be started"):
        started = client.api.exec_create(container, command, stdin=True, stdout=True, stderr=True)
        return ExecStream(client.api.exec_start(started["Id"], socket=True))


class AttachedContainers(RealHosts):
    """The containers of an inventory, and client containers of ours."""

    can = ABILITIES | {"restart"}
    shares_files = False

    def __init__(self, trial: Trial, run: Path, listed: AttachInventory) -> None:
        self._listed, self._run = listed, run
        self._base = trial.bed.get("base", "")
        self._max_run_s = clock_sync.max_run_s(trial)
        self._nodes: dict[str, AttachedContainer] = {}
        self._clients: dict[str, StreamConnection] = {}
        self._clocks: dict[str, ClockOffset] = {}

    def check(self, nodes: Sequence[Node]) -> None:
        if self._listed.compose is None:
            pair(nodes, self._listed.containers, self._listed.source)

    @asynccontextmanager
    async def start_nodes(
        self, nodes: Sequence[Node]
    ) -> AsyncIterator[tuple[Sequence[Node], Mapping[str, Agent]]]:
        client = await in_thread(engine.connect)
        try:
            yield await self._start_nodes(client, nodes)
        finally:
            stuck = await self._release(client)
            client.close()
        if stuck:
            raise BedFailed(stuck)

    def folder(self, node: str) -> str:
        return folder(node)

    def python(self, node: str) -> PythonRuntime:
        return PythonRuntime(PYTHON, PACKAGES)

    def clock(self, node: str) -> ClockOffset:
        return self._clocks[node]

    async def compare_clocks(self) -> Mapping[str, ClockOffset]:
        agents = {name: each.agent for name, each in self._nodes.items()}
        agents |= {name: each.agent for name, each in self._clients.items()}
        return await clock_sync.compare_again(agents, self._clocks)

    async def start_process(self, node: str) -> None:
        await start_again(self._nodes[node])

    async def _start_nodes(
        self, client: DockerClient, nodes: Sequence[Node]
    ) -> tuple[Sequence[Node], Mapping[str, Agent]]:
        clients = [node for node in nodes if node.role == CLIENT]
        try:
            async with asyncio.timeout(PREPARE_WITHIN_S):
                prepared = partial(self._prepare, client, nodes, listener.get())
                found, helper, tag = await in_thread(prepared)
                self._nodes = {
                    name: AttachedContainer(name, client, helper, what)
                    for name, what in found.items()
                }
                await run_all(*(self._connect(each) for each in self._nodes.values()))
                await refuse_stopped(list(self._nodes.values()))
                network = next(iter(found.values())).network
                addresses = {name: what.address for name, what in found.items()}
                for node in clients:
                    addresses[node.name] = await self._start_client(client, tag, network, node)
        except TimeoutError:
            raise BedFailed(
                f"attaching to {len(self._nodes)} containers took longer than "
                f"{PREPARE_WITHIN_S:g} s; is the machine of the engine overloaded?"
            ) from None
        addressed = [replace(node, address=addresses[node.name]) for node in nodes]
        agents: dict[str, Any] = {name: AttachedAgent(each) for name, each in self._nodes.items()}
        agents |= {name: each.agent for name, each in self._clients.items()}
        return addressed, cast(Mapping[str, Agent], agents)

    async def _connect(self, each: AttachedContainer) -> None:
        self._clocks[each.node] = await each.connect(self._max_run_s)

    def _prepare(
        self, client: DockerClient, nodes: Sequence[Node], say: ShowMessage
    ) -> tuple[Mapping[str, FoundContainer], str, str]:
        """Remove what crashed runs left, find the containers, and start the helper."""
        remove_abandoned(client, self._run)
        found = pair(nodes, find(client, self._listed), self._listed.source)
        tag = image.image(client, self._base, say)
        with translate_errors("the helper container cannot be made"):
            config = client.api.create_host_config(
                pid_mode="host",
                network_mode="none",
                cap_drop=["ALL"],
                cap_add=list(HELPER_CAN),
                security_opt=["apparmor=unconfined", "label=disable", "no-new-privileges"],
            )
            ids = json.dumps({name: what.identity for name, what in found.items()})
            helper = self._create(
                client, tag, HELPER, HELPER, {labels.TARGETS: ids}, host_config=config
            )
            client.api.start(helper)
        return found, helper, tag

    def _create(
        self,
        client: DockerClient,
        tag: str,
        kind: str,
        name: str,
        more: Mapping[str, str],
        **given: Any,
    ) -> str:
        made = client.api.create_container(
            tag,
            entrypoint=["sleep"],
            command=["infinity"],
            user="0",
            working_dir="/",
            healthcheck={"test": ["NONE"]},
            name=labels.name(self._run, name),
            labels={**labels.labels(self._run, kind, name), **more},
            **given,
        )
        return str(made["Id"])

    async def _start_client(self, client: DockerClient, tag: str, network: str, node: Node) -> str:
        """Start a client container; return its address."""
        with translate_errors(f"the container of {node.name} cannot be made"):
            identity, address = await in_thread(
                partial(self._client_container, client, tag, network, node.name)
            )
        stream = await in_thread(partial(exec_agent, client, identity, address))
        connection = self._clients[node.name] = StreamConnection(node.name, stream)
        identified = await connection.agent.hello()
        await connection.agent.links(())
        clock = await clock_sync.compare_clock(connection.agent, identified, self._max_run_s)
        self._clocks[node.name] = clock
        return address

    def _client_container(
        self, client: DockerClient, tag: str, network: str, name: str
    ) -> tuple[str, str]:
        config = client.api.create_host_config(
            network_mode=network,
            init=True,
            cap_drop=["ALL"],
            cap_add=["NET_ADMIN"],
            security_opt=["no-new-privileges"],
        )
        identity = self._create(client, tag, "node", name, {}, host_config=config)
        client.api.start(identity)
        ends = client.api.inspect_container(identity)["NetworkSettings"]["Networks"]
        return identity, str(ends[network]["IPAddress"])

    async def _release(self, client: DockerClient) -> str:
        """Close the agents, copy the clients' files and remove what is ours; return what could not
        be removed, if anything."""
        leaving = [each.hang_up(LEAVE_WITHIN_S) for each in self._clients.values()]
        await asyncio.gather(*(each.leave() for each in self._nodes.values()), *leaving)
        return await save_and_remove(client, self._run, {name: name for name in self._clients})
