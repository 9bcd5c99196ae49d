"""The driver that a service's declaration makes: `harness.contracts.System` for any service."""

import asyncio
import inspect
import shlex
import shutil
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property, partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from clusters.kit import process_tree
from clusters.kit.client_program import ClientProgram, offered_calls
from clusters.kit.clients import ServiceClient
from clusters.kit.placing import chosen, place, printed_version, supplied, supplied_to
from clusters.kit.roles import cluster_state, lacking, with_quorum
from clusters.kit.service import (
    SERVER,
    Copy,
    Event,
    NodeAccess,
    Profile,
    Service,
    View,
    role_events,
)
from clusters.kit.versions import (
    VersionedNodes,
    claims_of_versions,
    has_versions,
    version_words,
)
from clusters.supply import Supplied, digest, sources_here
from harness import registry
from harness.contracts import (
    CLIENT,
    KEY_PREFIX,
    AttachingHosts,
    ClusterState,
    ContainerNeeds,
    MessageClient,
    Node,
    SystemPlugin,
    TestBed,
)
from harness.contracts.calls import CALLS
from harness.contracts.membership import REJOIN, VERSIONS
from harness.errors import BadRequest, BedFailed, NodeGone, UnknownName
from harness.history.notes import NOT_COMPARED
from harness.run.broker_sets import FAILS_OVER, BrokerSetData
from harness.trial import Trial, node_counts

CLIENTS = 2
LOOK_EVERY_S = 0.1
ANSWER_WITHIN_S = 2.0
STOP_WITHIN_S = 5.0
COPY_WITHIN_S = 60.0
GUARD = "process_tree.py"
# what root needs to start, kill and read what another user runs and writes
OTHER_USERS = ("CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETUID")
# faults that change the processes of one process group, or trace what it runs
OF_THE_GROUP = frozenset({"clock", "limits", "disk", "unsynced"})
LISTENS = "0A"  # the state of a socket in /proc/net/tcp
DATA = """
import os, sys
os.makedirs(sys.argv[1], exist_ok=True)
print(any(files for _, _, files in os.walk(sys.argv[1])))
"""
WALL = "import time; print(time.time_ns() - time.monotonic_ns())"


def plugin(service: type[Service]) -> SystemPlugin:
    """Return the plug-in of a service. Raises BadRequest if its declaration is wrong."""
    if wrong := declaration_problem(service):
        raise BadRequest(f"{service.__name__} {wrong}")
    names = {profile.name: profile for profile in service.profiles}
    return SystemPlugin(
        system=partial(_driver, service),
        profiles=lambda: names,
        claims=lambda trial: claims_of_versions(
            service, {**service.claims, **_profile(service, trial).claims}
        ),
        in_force=partial(settings_in_force, service),
        calls=partial(_calls, service),
        program_calls=_program_calls,
        supply=lambda: {program.name: sources_here(program) for program in service.programs},
        prepare=partial(_prepared, service),
        words=_own_words(service),
        digests=_has_digests(service),
        copies_stopped=service.copies_stopped,
        attachable=service.attachable,
        containers=_container_needs(service),
    )


def _container_needs(service: type[Service]) -> ContainerNeeds:
    """Return what containers need for programs that come with their packages. Processes that leave
    their group also leave root, and the guard that kills them is root's."""
    linked = [program for program in service.programs if program.linked]
    return ContainerNeeds(
        {
            program.package: (program.name, *(f"{at}/{program.name}" for at in program.folders))
            for program in linked
            if program.package
        },
        [pattern for program in linked for pattern in program.files],
        OTHER_USERS if service.leaves_group else (),
    )


def _calls(service: type[Service], trial: Trial) -> Sequence[str]:
    """Return the calls of the clients: all that a client program may have, because none may be
    started to judge a stored run."""
    if trial.client:
        return [*CALLS]
    client = service.client_of(settings_in_force(service, trial))
    return [name for name in dir(client) if not name.startswith("_")]


def _program_calls(trial: Trial) -> Sequence[str]:
    """Start the trial's client program, if this machine has it; return the calls that its hello
    names. One that only nodes have is asked there."""
    shares_files = registry.load("hosts", trial.hosts)(trial, Path()).shares_files
    if not shares_files and shutil.which(trial.client[0]) is None:
        return [*CALLS]
    return offered_calls(trial.client)


def declaration_problem(service: type[Service]) -> str:
    """Return what is wrong with a service's declaration, as the end of a sentence that begins with
    its name; empty if nothing is."""
    needed = ("name", "programs", "client", "argv", "ask")
    known = {*dir(Service), *Service.__annotations__}
    for name in (name for each in service.__mro__ if each is not Service for name in vars(each)):
        if not name.startswith("_") and name not in known:
            near = get_close_matches(name, known, n=1)
            more = f"; did you mean {near[0]}?" if near else ""
            return f"has {name!r}, which no service has: begin names of your own with _{more}"
    for name in needed:
        if getattr(service, name, None) is getattr(Service, name, None):
            return f"has no {name!r}, which each service needs"
    for profile in service.profiles:
        if not isinstance(profile, Profile):
            return f"has {profile!r} among its profiles: each must be Profile(name=..., about=...)"
        if stray := [key for key in profile.settings if key not in service.settings]:
            known_settings = ", ".join(service.settings) or "none"
            return (
                f"has a profile {profile.name!r} with the setting {stray[0]!r}; its settings are: "
                f"{known_settings}"
            )
    return ""


def _own_words(service: type[Service]) -> dict[str, str]:
    """Return the service's words for the harness's."""
    leader, follower, term = (service.words.get(w, w) for w in ("leader", "follower", "term"))
    return {
        "master": leader,
        "slave": follower,
        "epoch": term,
        "broker": service.words.get("server", SERVER),
        "broker set": service.words.get("group", "group"),
        "SyncStateSet": service.words.get("set", f"set of {follower}s"),
    }


def _driver(service: type[Service], trial: Trial) -> "ServiceDriver":
    wanted = registry.load("workload", trial.workload)(trial).client_settings()
    if wanted.get("selects"):
        raise BadRequest(
            f"{service.name} has no clients that select queues; leave load.client_selects out of "
            "the trial"
        )
    topics = wanted.get("topics", {})
    values = settings_in_force(service, trial)
    nodes = _cluster_nodes(service, service.roles_in(values), trial.nodes)
    driver = DigestDriver if _has_digests(service) else ServiceDriver
    driven = driver(service, trial, nodes, values, topics)
    driven.broker_sets(nodes, ())  # refuses what the settings do not allow
    return driven


def _has_digests(service: type[Service]) -> bool:
    return service.digests is not Service.digests


def _profile(service: type[Service], trial: Trial) -> Profile:
    names = {profile.name: profile for profile in service.profiles}
    name = trial.profile or service.profiles[0].name
    if name not in names:
        raise UnknownName("profile", name, names)
    return names[name]


def settings_in_force(service: type[Service], trial: Trial) -> dict[str, Any]:
    """Return all settings: the trial's over the profile's over the defaults. Raises UnknownName, or
    BadRequest that names the key."""
    defaults = service.defaults()
    given = {**_profile(service, trial).settings, **trial.settings}
    for key, value in given.items():
        if key not in defaults:
            raise UnknownName("setting", key, defaults)
        allowed = service.settings[key]
        if isinstance(allowed, tuple):
            if value not in allowed:
                words = ", ".join(map(str, allowed))
                raise BadRequest(
                    f"the trial's settings: {key} must be one of {words}, not {value!r}"
                )
        elif type(value) is int and type(allowed) is float:
            given[key] = float(value)
        elif type(value) is not type(allowed):
            kind = {bool: "true or false", int: "a whole number", float: "a number"}
            words = kind.get(type(allowed), "a string")
            raise BadRequest(f"the trial's settings: {key} must be {words}, not {value!r}")
        if key in service.smallest and value < service.smallest[key]:
            words = f"a number from {service.smallest[key]}"
            raise BadRequest(f"the trial's settings: {key} must be {words}, not {value!r}")
    return defaults | given


def _cluster_nodes(
    service: type[Service], roles: Mapping[str, int], counts: Mapping[str, Any]
) -> list[Node]:
    """Return the nodes, without addresses. Raises BadRequest if a count is invalid."""
    wanted = node_counts({**roles, CLIENT: CLIENTS}, counts)
    return [
        Node(
            f"{service.names.get(role, role)}-{n + 1}",
            role,
            own_wall_clock=role in service.dated,
            leads_controllers=role in service.own_leader,
        )
        for role, count in wanted.items()
        for n in range(count)
    ]


def _prepared(service: type[Service], trial: Trial) -> None:
    """Refuse logs that the service cannot have, and fetch the programs, unless the cluster exists
    already."""
    driver = _driver(service, trial)
    driver.broker_sets(driver.nodes(), driver.keys())
    if not registry.hosts(trial.hosts).attach:
        supplied(service, trial)


class ServiceDriver(VersionedNodes):
    """Installs, starts, watches and stops the nodes of a service."""

    def __init__(
        self,
        service: type[Service],
        trial: Trial,
        nodes: Sequence[Node],
        values: Mapping[str, Any],
        topics: Mapping[str, int],
    ) -> None:
        super().__init__()
        self._of, self._trial, self._nodes, self._values = service, trial, nodes, values
        self._topics = topics
        self._programs = {}
        self._started: set[str] = set()
        self._last_views: Mapping[str, View | None] = {}
        self._unanswered: dict[str, Exception] = {}  # node -> why the last failed question failed
        self._leaders: dict[str, tuple[str, int]] = {}  # group -> leader and term, last seen
        self._roles = [*service.roles_in(values)]  # in the order in which they start
        self.data_role = service.data_role or self._roles[0]
        self.detection_s = service.detects_within_s(values)
        self.log, self.data = service.log, service.data
        self._prefix = str(trial.bed.get(KEY_PREFIX, ""))  # of all keys of the run
        able = {
            REJOIN: service.rejoin is not Service.rejoin,
            VERSIONS: has_versions(service),
            "handover": service.hand_over is not Service.hand_over,
        }
        self.can = frozenset(name for name, is_so in able.items() if is_so)
        self.cannot = OF_THE_GROUP if service.leaves_group else frozenset()

    @cached_property
    def _attached(self) -> bool:
        """Whether the cluster exists already. Not asked in client processes, whose nodes lack what
        hosts need."""
        return registry.hosts(self._trial.hosts).attach is not None

    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def process(self, node: str) -> str:
        return self._of.name

    def keys(self) -> list[str]:
        """Return the logs of the workload, without the prefix of an existing cluster."""
        return [f"{topic}-{n}" for topic, queues in self._topics.items() for n in range(queues)]

    def broker_sets(
        self, nodes: Sequence[Node], keys: Sequence[str]
    ) -> Mapping[str, BrokerSetData]:
        """Return the service's groups of replicas."""
        names = [node.name for node in nodes if node.role == self.data_role]
        own = {f"{self._prefix}{key}": key for key in keys}
        groups = self._of.groups(self._values, names, [*own])
        return {
            group: BrokerSetData(tuple(members), len(members), tuple(own[key] for key in held))
            for group, (members, held) in groups.items()
        }

    def client_settings(self, nodes: Sequence[Node]) -> Mapping[str, Any]:
        return {
            "servers": [node.address for node in nodes if node.role == self.data_role],
            "settings": self._values,
            "topics": {f"{self._prefix}{topic}": n for topic, n in self._topics.items()},
            "prefix": self._prefix,
            "nodes": [(node.name, node.role, node.address) for node in nodes],
        }

    def client(self, settings: Mapping[str, Any]) -> MessageClient:
        if not (argv := self._trial.client):
            return ServiceClient(self._of.client_of(self._values), settings)
        needed = registry.workload(self._trial.workload).calls[:1]
        return ServiceClient(ClientProgram(argv, needed).calls, settings)

    # starting it

    async def install(self, bed: TestBed) -> None:
        if self._attached:
            names = [program.name for program in self._of.programs]
            there = {name: Supplied(name, self._trial.version, "attached") for name in names}
            self._service = self._of(self._values, there, _cluster(bed))
            return
        found = await supplied_to(bed, self._of, self._trial)
        self._service = self._of(self._values, found, _cluster(bed))
        await asyncio.gather(*(self._install(bed, node, found) for node in _cluster(bed)))
        for name, version in self._trial.mixed.items():
            await self.install_version(bed, version)
            await self.set_version(bed, name, version)

    async def _install(self, bed: TestBed, node: Node, found: dict[str, Supplied]) -> None:
        agent, folder = bed.agents[node.name], bed.hosts.folder(node.name)
        named = chosen(self._of, self._trial)
        paths = {}
        for program in self._of.programs:
            there = found[program.name]
            version, supply = named[program.name]
            asked = version or ("" if supply in ("auto", "path") else there.version)
            path = await place(bed, node, program, there, asked, f"{folder}/bin")
            paths[program.name] = path
            if not there.version and not (there.path and there.path.is_dir()):
                printed = await printed_version(agent, program, path)
                found[program.name] = replace(there, version=printed)
        self._programs[node.name] = paths
        here = self._here(bed, node)
        files = self._service.files(here, self._peers(bed))
        guards = {GUARD: inspect.getsource(process_tree)} if self._guard(bed, here) else {}
        for name, text in {**files, **guards}.items():
            await agent.put(f"{folder}/{name}", text.encode())

    async def start(self, bed: TestBed) -> None:
        """Start the nodes role by role, each when those before it serve."""
        if self._attached:
            return
        *first, last = self._roles
        for role in first:
            await asyncio.gather(*(self.start_node(bed, n.name) for n in bed.of_role(role)))
            await self._wait_whole(bed, self._of.start_s, role)
        await asyncio.gather(*(self.start_node(bed, n.name) for n in bed.of_role(last)))
        await self._wait_whole(bed, self._of.start_s)

    async def start_node(self, bed: TestBed, node: str) -> None:
        if isinstance(bed.hosts, AttachingHosts):
            await bed.hosts.start_process(node)
            return
        agent, here = bed.agents[node], self._here(bed, bed.node(node))
        fresh, has_data = True, await self._has_data(bed, here)
        rejoins = REJOIN in self.can and here.node.role == self.data_role
        if rejoins and node in self._started and not has_data:
            await self._as_run_by(node).rejoin(here, self._other_nodes(bed, node))
            fresh = False
        self._started.add(node)
        argv = self._as_run_by(node).argv(here, self._peers(bed), fresh)
        if wrong := [word for word in argv if not isinstance(word, str)]:
            why = f"is wrong: argv must return strings, not {wrong[0]!r}"
            raise registry.refusal("system", self._trial.system, why)
        await agent.start(
            self._of.name,
            [*self._guard(bed, here), *argv],
            env=self._as_run_by(node).environment(here),
            cwd=here.folder,
            log=f"{here.folder}/{self.log}",
        )

    def _guard(self, bed: TestBed, here: NodeAccess) -> list[str]:
        """Return what is before the command line of a node whose processes leave their group."""
        if here.node.role not in self._of.leaves_group:
            return []
        python = bed.hosts.python(here.node.name).executable
        return [python, "-I", "-S", f"{here.folder}/{GUARD}", f"{here.folder}/{self.data}"]

    async def _has_data(self, bed: TestBed, here: NodeAccess) -> bool:
        """Return whether a node's folder of data, which is made if it is not there, holds a file.
        Raises BedFailed if that is not certain: a node without data joins as a new one."""
        python = bed.hosts.python(here.node.name).executable
        answer = await here.run(python, "-I", "-S", "-c", DATA, f"{here.folder}/{self.data}")
        return answer.strip() == "True"

    def _peers(self, bed: TestBed) -> tuple[Node, ...]:
        return bed.of_role(self.data_role)

    # asking it

    async def _views(self, bed: TestBed) -> dict[str, View | None]:
        async def ask(node: Node) -> View | None:
            try:
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    view = await self._as_run_by(node.name).ask(self._here(bed, node))
            except NodeGone:
                raise
            except (BedFailed, OSError, ValueError, LookupError, TypeError, TimeoutError) as e:
                self._unanswered[node.name] = e
                return None  # it is down, or it answers nonsense: a fault may do either
            if not isinstance(view, View):
                why = f"is wrong: ask must return a View, not {type(view).__name__}"
                raise registry.refusal("system", self._trial.system, why)
            return view

        nodes = _cluster(bed)
        views = await asyncio.gather(*map(ask, nodes))
        self._last_views = {node.name: view for node, view in zip(nodes, views, strict=True)}
        return self._last_views

    async def cluster_state(self, bed: TestBed) -> ClusterState:
        views = await self._views(bed)
        arbiters = {node.name for node in self._nodes if node.role in self._of.arbiters}
        voters = {node.name for node in self._nodes if node.role in self._of.own_leader}
        if voters and not arbiters:
            state = with_quorum(self._of.name, views, voters)
        else:
            state = cluster_state(self._of.name, views, arbiters)
        self._record_leaders(bed, state)
        return state

    def _record_leaders(self, bed: TestBed, state: ClusterState) -> None:
        """Record leaders that are seen for the first time, where logs tell none. Where the system
        tells no terms, each change of the leader that is seen counts as one. Where logs tell
        only elections, the first leader and its followers are recorded."""
        dated = self._of.dated_in(self._values)
        logged = self._of.logs_roles(self._values) or (dated and self._leaders)
        if logged and not self._attached:
            return
        for group, leader in state.masters.items():
            last, last_term = self._leaders.get(group, ("", 0))
            term = state.epochs.get(group, last_term + (leader != last))
            if term > last_term or not last:
                self._leaders[group] = leader, term
                for event in role_events(bed.now_ns(), group, leader, term, True):
                    bed.record.event(*event)
                for node in state.slaves if dated else ():
                    bed.record.event(*role_events(bed.now_ns(), group, node, term, False)[0])

    async def healthy(self, bed: TestBed, within_s: float) -> Mapping[str, Any]:
        now = await self._wait_whole(bed, within_s)
        programs = {
            name: {"version": of.version, "source": of.source, "sha256": of.sha256}
            for name, of in self._service.supplied.items()
        }
        if argv := self._trial.client:
            file = shutil.which(argv[0]) if "/" in argv[0] or bed.hosts.shares_files else None
            sha256 = digest(Path(file)) if file else ""
            programs["client"] = {"version": "", "source": shlex.join(argv), "sha256": sha256}
        return {
            "masters": now.masters,
            "epochs": now.epochs,
            "programs": programs,
            "version": version_words(self._installed, [*self._trial.mixed.values()]),
            **await self._versions_in_use(bed),
            **({} if self._of.fails_over(self._values) else {FAILS_OVER: False}),
            **({"attached": True, "prefix": self._prefix} if self._attached else {}),
        }

    async def _wait_whole(self, bed: TestBed, within_s: float, role: str = "") -> ClusterState:
        """Wait until the cluster is whole, or with a role, until each of its nodes serves."""
        deadline_ns = bed.now_ns() + round(within_s * 1e9)
        nodes = bed.of_role(role) if role else _cluster(bed)
        while True:
            now = await self.cluster_state(bed)
            if now.redundant or (role and {n.name for n in nodes} <= {*now.serving}):
                return now
            await self._raise_if_exited(bed)
            if bed.now_ns() > deadline_ns:
                raise BedFailed(await self._why_not_whole(bed, now, nodes, within_s))
            await bed.sleep(LOOK_EVERY_S)

    async def _why_not_whole(
        self, bed: TestBed, now: ClusterState, nodes: Sequence[Node], within_s: float
    ) -> str:
        """Describe a cluster that does not serve, with what its first node that does not serve
        answers, where it listens, and how its log ends."""
        why = f"{self._of.name} does not serve after {within_s:g} s: "
        why += lacking(now, nodes, self._last_views)
        waiting = [node for node in nodes if node.name not in now.serving]
        if not waiting:
            return why
        here = self._here(bed, waiting[0])
        if error := self._unanswered.get(here.node.name):
            why += f"; {registry.blame(error)}"
        listens = f"{here.node.name} listens on {await _listening(here)}"
        return f"{why}; {listens}; {await self._log_end(here)}"

    async def _raise_if_exited(self, bed: TestBed) -> None:
        """Raise BedFailed with the last line of its log if a node's process has ended."""
        for node in _cluster(bed):
            state = await bed.agents[node.name].state(self._of.name)
            if state.state == "exited":
                raise BedFailed(
                    f"{node.name}: {self._of.name} exited with code {state.code}; "
                    f"{await self._log_end(self._here(bed, node), exited=True)}"
                )

    async def _log_end(self, here: NodeAccess, exited: bool = False) -> str:
        """Return the last line of a node's log, and where the run has all of it. Of a process that
        has exited also the first line: many programs end with the text of their usage."""
        try:
            log = await here.agent.get(f"{here.folder}/{self.log}")
        except BedFailed:
            return "it has no log"
        lines = [line for line in log.decode(errors="replace").splitlines() if line.strip()]
        last = lines[-1].strip()[:500] if lines else "(it is empty)"
        if exited and len(lines) > 1:
            last += f" (it begins: {lines[0].strip()[:300]})"
        return f"its log ends: {last}; to fix it: see nodes/{here.node.name}/{self.log} of the run"

    # collecting its history

    async def collect(self, bed: TestBed) -> None:
        nodes = self._peers(bed)
        await self.compared(bed)
        own = self._of.copy is not Service.copy and not self._trial.client
        copies = nodes if own else ()  # a client program has keys of its own
        if not self._of.copies_stopped:
            await asyncio.gather(*(self._copy(bed, node) for node in copies))
        if self._attached:
            return
        for role in reversed(self._roles):  # so that no arbiter sees leaders go
            await asyncio.gather(*(self._stop(bed, node.name) for node in bed.of_role(role)))
        if self._of.copies_stopped:
            await asyncio.gather(*(self._copy(bed, node) for node in copies))
        dated = self._of.dated_in(self._values)
        dated = dated or ((self.data_role,) if self._of.became else ())
        logs = (self._log_events(bed, node.name) for node in bed.nodes if node.role in dated)
        for event in sort_events(await asyncio.gather(*logs)):
            bed.record.event(*event)

    async def compared(self, bed: TestBed) -> None:
        """Record what the digests of the replicas are at the end, if the service has them."""

    async def _copy(self, bed: TestBed, node: Node) -> None:
        keys = [f"{self._prefix}{key}" for key in self.keys()]
        try:
            async with asyncio.timeout(COPY_WITHIN_S):
                rows = await self._as_run_by(node.name).copy(self._here(bed, node), keys)
            own = [Copy(row[0].removeprefix(self._prefix), *row[1:]) for row in rows]
            bed.record.replicas(node.name, own)
        except (BedFailed, OSError, ValueError, LookupError, TimeoutError) as e:
            bed.record.note(f"NO_REPLICA {node.name}: {str(e)[-500:] or type(e).__name__}")

    async def _stop(self, bed: TestBed, node: str) -> None:
        """Ask the process to end, then kill it, unless the node is gone."""
        agent, name = bed.agents[node], self._of.name
        with suppress(NodeGone):
            for number in (signal.SIGTERM, signal.SIGKILL):
                if (await agent.state(name)).state not in ("running", "stopped"):
                    return
                await agent.signal(name, number)
                with suppress(TimeoutError):
                    async with asyncio.timeout(STOP_WITHIN_S):
                        await agent.exited(name)

    async def _log_events(self, bed: TestBed, node: str) -> list[Event]:
        """Return the events that a node's log tells, on the clock of record."""
        agent, python = bed.agents[node], bed.hosts.python(node).executable
        ours_ns = round(asyncio.get_running_loop().time() * 1e9) - bed.now_ns()
        try:
            log = (await agent.get(f"{bed.hosts.folder(node)}/{self.log}")).decode(errors="replace")
            ran = await agent.run([python, "-I", "-S", "-c", WALL])
            begin_ns = int(ran.out) + ours_ns + bed.hosts.clock(node).offset_ns
        except (BedFailed, ValueError) as e:
            bed.record.note(f"NO_EVENTS {node}: {e}")
            return []
        events = self._as_run_by(node).events(log, node)
        return [(t - begin_ns, source, kind, fields) for t, source, kind, fields in events]


class DigestDriver(ServiceDriver):
    """The driver of a service whose replicas have digests
    (`harness.run.replica_comparison.ReplicaComparingSystem`)."""

    async def compare_replicas(self, bed: TestBed) -> Mapping[str, Any] | None:
        """Return the digests of all replicas, for `harness.run.replica_comparison`."""
        nodes = [self._here(bed, node) for node in self._peers(bed)]
        try:
            async with asyncio.timeout(COPY_WITHIN_S):
                digests = await self._service.digests(nodes)
        except (OSError, ValueError, LookupError, TypeError) as e:
            raise BedFailed(str(e) or type(e).__name__) from e
        return {self._of.name: {"digests": digests}} if digests else None

    async def compared(self, bed: TestBed) -> None:
        try:
            if found := await self.compare_replicas(bed):
                bed.record.event(bed.now_ns(), "", "compared", {"at_end": True, "sets": found})
        except (BedFailed, NodeGone) as e:
            bed.record.note(f"{NOT_COMPARED} the end: {e}")


def _cluster(bed: TestBed) -> list[Node]:
    return [node for node in bed.nodes if node.role != CLIENT]


async def _listening(here: NodeAccess) -> str:
    """Return the addresses on which TCP connections are taken on a node, by /proc/net/tcp."""
    found = await here.agent.run(["cat", "/proc/net/tcp", "/proc/net/tcp6"])
    return ", ".join(listeners(found.out)) or "no port"


def listeners(tables: str) -> list[str]:
    """Return the listening sockets of /proc/net/tcp and tcp6, as ADDRESS:PORT."""
    rows = [line.split() for line in tables.splitlines()]
    taken = {row[1] for row in rows if len(row) > 3 and row[3] == LISTENS}
    found = []
    for address, _, port in (each.partition(":") for each in taken):
        words = [bytes.fromhex(address[n : n + 8])[::-1] for n in range(0, len(address), 8)]
        found.append(f"{ip_address(b''.join(words))}:{int(port, 16)}")
    return sorted(found)


def sort_events(logs: Iterable[Iterable[Event]]) -> list[Event]:
    """Sort events by time and node. Those of one node at one instant keep their order."""
    return sorted((event for log in logs for event in log), key=lambda event: event[:2])
