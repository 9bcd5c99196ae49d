"""What the author of a driver writes: the declaration of one replicated service."""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self
from zlib import crc32

from clusters.supply import Program, Supplied
from harness.contracts import Agent, BedFailed, CommandResult, Node

SERVER = "server"
ZONE = re.compile(r"[+-]\d\d:?\d\d$")
LINE_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,]\d+(?:Z|[+-]\d\d:?\d\d)?")
Event = tuple[int, str, str, Mapping[str, Any]]  # time, node, kind, fields


class View(NamedTuple):
    """What one node says of the cluster: who leads it, in which term, and who the node itself is.
    `leader` equals the leader's `own`; None or empty: it knows no leader. `term`: -1 if the system
    tells none. `ready`: False while the node catches up or does not serve. `leads`: where parts of
    the data have leaders of their own, the names of those that this node leads, with their terms;
    their leaders are the targets of faults then. Of an arbiter, `defers`: it names no leader, since
    there are no data yet, or since that is for the arbiters' own leader (`leads_arbiters`) to say;
    `members`: the nodes whose copies count, if it knows that."""

    leader: Any
    term: int
    own: Any
    ready: bool = True
    leads: Mapping[str, int] = MappingProxyType({})
    defers: bool = False
    leads_arbiters: bool = False
    members: Collection[str] | None = None


class Copy(NamedTuple):
    """An element of a replica's log at the end: its key, offset, value, term and a checksum."""

    key: str
    offset: int
    value: int
    term: int = 0
    crc: int = 0

    @classmethod
    def of(cls, key: str, offset: int, body: bytes, term: int = 0) -> Self:
        """Return the copy of a message, whose body begins with its value (else -1)."""
        value = int.from_bytes(body[:8], "big", signed=True)
        return cls(key, offset, max(value, -1), term, crc32(body))


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A named configuration. `expected`: what a plan shows: plan -> verdict, or a finding's code.
    `claims`: what it claims to survive instead of the service's: kind of fault -> extent."""

    name: str
    about: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    expected: Mapping[str, str] = field(default_factory=dict)
    claims: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeAccess:
    """A node of a running cluster, as a driver reaches it: always from the node itself, so that
    no partition hides the answer."""

    node: Node
    agent: Agent
    folder: str
    program: Mapping[str, str]  # program -> its path on the node

    async def run(self, *argv: str, within_s: float = 5.0, stdin: bytes = b"") -> str:
        """Run a program on the node; return its output. Raises BedFailed if it fails."""
        ran: CommandResult = await self.agent.run(argv, stdin, timeout_s=within_s)
        if ran.code:
            raise BedFailed(f"{self.node.name}: {argv[0]}: {ran.err.strip() or ran.code}")
        return ran.out

    async def http(
        self, port: int, path: str, body: Any = None, *, within_s: float = 1.0
    ) -> tuple[int, bytes]:
        """Send an HTTP request to a port of the node; return status and body. `body`: JSON, sent by
        POST; None: GET. Raises ConnectionError if no answer comes in time."""
        data = b"" if body is None else json.dumps(body).encode()
        head = [
            f"{'GET' if body is None else 'POST'} {path} HTTP/1.0",
            f"Host: {self.node.address}:{port}",
            f"Content-Length: {len(data)}",
            "Content-Type: application/json",
            "Connection: close",
        ]
        frame = "\r\n".join([*head, "", ""]).encode() + data
        answer = await self.agent.ask(port, frame, within_s, to_end=True)
        first, _, rest = answer.partition(b"\r\n")
        words = first.split()
        if len(words) < 2 or not words[1].isdigit():
            raise ConnectionError(f"port {port} does not speak HTTP")
        return int(words[1]), rest.partition(b"\r\n\r\n")[2]

    async def text(self, port: int, question: bytes, *, within_s: float = 1.0) -> str:
        """Send bytes to a port of the node; return all that it answers."""
        answer = await self.agent.ask(port, question, within_s, to_end=True)
        return answer.decode(errors="replace")


class Service:
    """A replicated service of nodes that agree on a leader. Subclasses declare what differs.

    name         of the system, as `--system` takes it
    programs     what its nodes run; the first is the one whose version is the system's
    roles        role -> number of nodes by default, in the order in which they start; the nodes of
                 `data_role`, by default the first, hold the data
    names        role -> what its nodes are called before their number, if not by the role
    arbiters     roles whose nodes name the leader, if those with the data do not; of those in
                 `own_leader`, one leads the others (`View.leads_arbiters`)
    own_leader   roles whose nodes elect a leader among themselves, the target `controller-leader`.
                 Where they are no arbiters, that is their `View.leader`, and the data's leaders
                 are those that `View.leads` of the other nodes names, whose `View.leader` is their
                 own name while they serve
    dated        roles whose logs `events` reads, where it is overridden; the nodes' own wall clocks
                 date them
    leaves_group roles whose programs start processes outside their process group, or refuse to run
                 as root; `clusters.kit.process_tree` runs them
    settings     settings of a trial with their defaults; a tuple lists the values allowed, the
                 first of them being the default; `smallest`: the smallest value of a number
    profiles     named configurations; the first is the default
    claims       what it claims to survive: kind of fault -> extent (one, minority, all)
    detection_s  how long it may take to detect that a leader is gone
    start_s      how long the cluster may need to serve
    client       the class of clients: `client(settings, number)`, with the calls of
                 `harness.contracts.calls` that the system can serve; `set_up(topics)`, if it has
                 it, creates what the workload needs, and is called in every client process
    became       a regular expression for log lines that tell a role: groups `role` and `term`;
                 `leading` is the word of a leader. Without it, elections are those that the
                 harness sees when it asks
    words        its words for a leader, a follower, a term, a server, a group, and the set of those
                 whose copies count, which reports use: {"leader": "primary", "set": "ISR"}
    attachable   False if a cluster that exists already cannot be tested (`--attach`), for example
                 because it is asked by a file that `files` puts there
    data, log    the folder and the file in a node's folder
    """

    name: ClassVar[str]
    programs: ClassVar[Sequence[Program]]
    roles: ClassVar[Mapping[str, int]] = {SERVER: 3}
    names: ClassVar[Mapping[str, str]] = {}
    arbiters: ClassVar[Sequence[str]] = ()
    own_leader: ClassVar[Sequence[str]] = ()
    dated: ClassVar[Sequence[str]] = ()
    data_role: ClassVar[str] = ""
    leaves_group: ClassVar[Sequence[str]] = ()
    settings: ClassVar[Mapping[str, Any]] = {}
    smallest: ClassVar[Mapping[str, float]] = {}
    profiles: ClassVar[Sequence[Profile]] = (Profile(name="default", about="its own defaults"),)
    claims: ClassVar[Mapping[str, str]] = {}
    detection_s: ClassVar[float] = 2.0
    start_s: ClassVar[float] = 30.0
    client: ClassVar[type[Any]]
    became: ClassVar[str] = ""
    leading: ClassVar[str] = "leader"
    words: ClassVar[Mapping[str, str]] = {}
    copies_stopped: ClassVar[bool] = False
    attachable: ClassVar[bool] = True
    data: ClassVar[str] = "data"
    log: ClassVar[str] = "server.log"

    def __init__(
        self,
        values: Mapping[str, Any],
        supplied: Mapping[str, Supplied],
        nodes: Sequence[Node] = (),
    ) -> None:
        """`values`: the settings in force; `supplied`: the programs, with their versions; `nodes`:
        those of the cluster."""
        self.values, self.supplied, self.nodes = values, supplied, nodes

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return all settings with their default values."""
        return {k: v[0] if isinstance(v, tuple) else v for k, v in cls.settings.items()}

    @classmethod
    def client_of(cls, values: Mapping[str, Any]) -> type[Any]:
        """Return `client`, where it follows from the settings."""
        return cls.client

    @classmethod
    def roles_in(cls, values: Mapping[str, Any]) -> Mapping[str, int]:
        """Return `roles`, where they follow from the settings."""
        return cls.roles

    @classmethod
    def detects_within_s(cls, values: Mapping[str, Any]) -> float:
        """Return `detection_s`, where it follows from the settings."""
        return cls.detection_s

    @classmethod
    def fails_over(cls, values: Mapping[str, Any]) -> bool:
        """Return whether the cluster elects another leader when one is gone. If not, no fault has
        to last until it is noticed, and a run's healthy state says so."""
        return True

    @classmethod
    def groups(
        cls, values: Mapping[str, Any], nodes: Sequence[str], keys: Sequence[str]
    ) -> Mapping[str, tuple[Sequence[str], Sequence[str]]]:
        """Return the groups of replicas: name -> its nodes and its keys. By default each node has
        all keys; in a system of shards, `View.leads` has the names of these groups."""
        return {cls.name: (nodes, keys)}

    def files(self, here: NodeAccess, peers: Sequence[Node]) -> Mapping[str, str]:
        """Return the configuration files of a node: path in its folder -> text."""
        return {}

    def argv(self, here: NodeAccess, peers: Sequence[Node], fresh: bool) -> Sequence[str]:
        """Return the command line of a node. `peers`: all nodes of the first role, in the same
        order on every node; `fresh`: False if it rejoins with an empty disk."""
        raise NotImplementedError

    def environment(self, here: NodeAccess) -> Mapping[str, str]:
        return {"TZ": "UTC"}

    async def ask(self, here: NodeAccess) -> View:
        """Ask a node on the node itself. Raises BedFailed, ConnectionError or ValueError if it does
        not answer as it should. With `arbiters`, `leader` and `own` are names of nodes."""
        raise NotImplementedError

    @classmethod
    def dated_in(cls, values: Mapping[str, Any]) -> Sequence[str]:
        """Return `dated`, where it follows from the settings."""
        return cls.dated

    @classmethod
    def logs_roles(cls, values: Mapping[str, Any]) -> bool:
        """Return whether logs tell all roles and elections, so that none is to be recorded from
        answers; where it follows from the settings."""
        return bool(cls.became)

    def events(self, log: str, node: str) -> Iterable[Event]:
        """Return the events that a node's log tells, at its wall clock in ns."""
        return [
            event
            for t, role, term in roles_in(log, self.became)
            for event in role_events(t, self.name, node, term, role == self.leading)
        ]

    async def rejoin(self, here: NodeAccess, others: Sequence[NodeAccess]) -> None:
        """Make the others accept this node, which has lost its disk, as a new member.

        A service that does not override it cannot lose a disk: faults that destroy one are refused.
        """
        raise NotImplementedError

    async def hand_over(self, here: NodeAccess, others: Sequence[NodeAccess]) -> str:
        """Have this node hand over what it leads to another (`handover`), as an operator does
        before maintenance. Return why it was refused; empty if another is to lead.

        A service that does not override it has no such command.
        """
        raise NotImplementedError

    async def before_version(self, here: NodeAccess, version: str) -> None:
        """Prepare the cluster for this node, which still runs, to be started with another version
        (`upgrade`, `downgrade`): what an operator has to do first. `files`, `argv` and
        `environment` have the node's version in `self.supplied`."""

    async def digests(self, nodes: Sequence[NodeAccess]) -> Mapping[str, str]:
        """Return a digest of each node's replica at one point of its history that all nodes have
        reached: node -> digest. Empty if there is nothing to compare yet. It is asked at the end,
        and between faults with `compare_replicas`.

        A service that does not override it has no digests to compare.
        """
        raise NotImplementedError

    async def copy(self, here: NodeAccess, keys: Sequence[str]) -> Sequence[Copy]:
        """Return what this node's replica holds at the end, while it still runs, or after its stop
        where `copies_stopped`.

        A service that does not override it has no copies to compare.
        """
        raise NotImplementedError


def roles_in(log: str, became: str) -> list[tuple[int, str, int]]:
    """Return the roles that a log tells: wall clock in ns, role, term. Lines have a date."""
    found = []
    pattern = re.compile(became)
    for line in log.splitlines():
        match, t = pattern.search(line), time_of_line(line)
        if match and t is not None:
            found.append((t, match["role"], int(match["term"])))
    return found


def time_of_line(line: str) -> int | None:
    """Return the first date in a line of a log, as wall clock in ns; without a zone it is UTC."""
    if (date := LINE_TIME.search(line)) is None:
        return None
    text = date[0].replace(",", ".").replace("Z", "+00:00")
    text += "" if ZONE.search(text) else "+00:00"
    return round(datetime.fromisoformat(text).timestamp() * 1e6) * 1000


def role_events(
    t: int, name: str, node: str, term: int, leads: bool, source: str = ""
) -> list[Event]:
    """Return the events of a node that leads or follows from now on. `source`: the node that
    elected it, if it was another."""
    number = int(node.rpartition("-")[2])
    who = {"brokerName": name, "brokerId": number, "epoch": term}
    events: list[Event] = [(t, node, "role", {**who, "role": "master" if leads else "slave"})]
    if leads:
        election = {"brokerName": name, "masterId": number, "epoch": term}
        events.append((t, source or node, "election", election))
    return events
