"""Our hands on a node: what an agent does there, and the values that it is told and tells.

Faults reach nodes through these verbs and nothing else, so every fault works on every kind of hosts
whose agents have the verbs that it needs. `harness.contracts` offers all of it, too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from harness.errors import BedFailed
from harness.text.parsing import json_of


class LinkRule(NamedTuple):
    """What happens to packets that arrive at this node from `source`: an IPv4 address.

    `drop` is the probability that a packet is dropped: 1.0 is a cut, 0.8 is heavy loss. What is not
    dropped arrives `delay_s` later, and at most `jitter_s` more, by lot; a share of `reorder` is
    not late, and so overtakes others. The link carries `bytes_per_s` (0: as many as it can), and
    with all other links into this node that have it `node_bytes_per_s`.
    """

    source: str
    drop: float = 1.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    reorder: float = 0.0
    bytes_per_s: float = 0.0
    node_bytes_per_s: float = 0.0


class Flight(NamedTuple):
    """A datagram's way from one agent to another: its number among those sent together, and what
    the sender's and the receiver's monotonic clocks read."""

    number: int
    sent_ns: int
    arrived_ns: int


@dataclass(frozen=True)
class Completed:
    """A command that ran on a node."""

    code: int
    out: str
    err: str

    def answer(self, node: str) -> Any:
        """Return what it printed, as JSON. Raises BedFailed if it is none: nodes may be hostile."""
        try:
            return json_of(self.out)
        except ValueError:
            raise BedFailed(f"{node}: a program of ours printed what is no JSON") from None


@dataclass(frozen=True)
class ProcessState:
    """A process that an agent started: `pid`, and what /proc says of it at this moment.

    `state`: running, stopped (SIGSTOP), exited (with `code`; negative: the signal), or absent
    (never started).
    """

    state: Literal["running", "stopped", "exited", "absent"]
    pid: int = 0
    code: int = 0


class Agent(Protocol):
    """Our hands on one node. Every call raises NodeGone once the agent can not be reached."""

    async def run(
        self, argv: Sequence[str], stdin: bytes = b"", timeout_s: float = 10.0
    ) -> Completed: ...

    async def put(self, path: str, data: bytes) -> None: ...

    async def get(self, path: str) -> bytes: ...

    async def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        log: str = "",
        on_line: Callable[[str], None] | None = None,
    ) -> int:
        """Start a process in a session of its own; its pid. Standard error goes to the file
        `log`; standard output too, unless `on_line` wants its lines."""
        ...

    async def tell(self, name: str, line: str) -> None:
        """Write a line to the process's standard input (when it was started with `on_line`)."""
        ...

    async def signal(self, name: str, number: int) -> None:
        """Signal the process's whole group; nothing happens when it has ended."""
        ...

    async def state(self, name: str) -> ProcessState: ...

    async def exited(self, name: str) -> int:
        """Wait for the process's end; its exit code."""
        ...

    async def links(self, rules: Sequence[LinkRule]) -> None:
        """Make these the rules of the node's SEATRIAL chain, all at once; none: heal."""
        ...

    async def dropped(self) -> Mapping[str, int]:
        """Packets dropped by the rules in force since they were installed, by source address."""
        ...

    async def probe(self, target: str, token: str, count: int) -> None:
        """Send `count` datagrams marked `token` to the agent at address `target`."""
        ...

    async def probed(self, token: str) -> int:
        """How many datagrams marked `token` arrived here."""
        ...

    async def fly(self, target: str, token: str, count: int, size_bytes: int) -> None:
        """Send `count` datagrams of at least this size, each with its number and the time, marked
        `token`, to the agent at address `target`."""
        ...

    async def flown(self, token: str) -> Sequence[Flight]:
        """Those marked `token` that arrived here, in their order. Only young tokens are known."""
        ...

    async def lacks(self, ability: str) -> str:
        """Why this node can not do it, in a sentence; nothing when it can. `pace`: hold packets
        back, for rules that make a link late or narrow."""
        ...

    async def ask(self, port: int, frame: bytes, timeout_s: float) -> bytes:
        """Connect to this node's own address from within, write `frame`, and return the answer:
        a u32 big-endian length and that many bytes (the length is cut off). ConnectionError when
        the node gives none in time."""
        ...


@dataclass(frozen=True)
class Forgotten:
    """What of a disk no sync had covered (files, with so many bytes written or cut off, and names:
    made, removed or renamed), and what it lost of that. `unseen`: in words, what else may have been
    changed there without being seen, and was kept."""

    files: int = 0
    names: int = 0
    size_bytes: int = 0
    lost_files: int = 0
    lost_names: int = 0
    lost_bytes: int = 0
    unseen: tuple[str, ...] = ()


class Powered(Agent, Protocol):
    """An agent beside its node, on hosts that can `power`."""

    async def power(self, on: bool) -> Forgotten:
        """Cut the node's power, or give it back: no process, and the disk as the cut left it.
        What its disk lost by that."""
        ...


class Forgetful(Agent, Protocol):
    """An agent of a node whose disk can lose what was not synced, on hosts that can `unsynced`."""

    async def forget_unsynced(self, seed: int) -> Forgotten:
        """The disk loses of what it was given and did not sync what a power cut would take, while
        none of the node's processes runs. The seed draws it, but in a world that has dice."""
        ...

    async def keep_unsynced(self) -> None:
        """What is on the disk now stays, however it came there: somebody else changed files."""
        ...


@dataclass(frozen=True)
class DiskFault:
    """How a node's disk misbehaves towards the node's process, below the folder `below`.

    full        what needs more room fails with ENOSPC
    read_only   what changes a file or a name fails with EROFS
    sync_fails  a sync fails with EIO
    sync_s      a sync takes so much longer; infinity: it hangs until the fault is over
    """

    below: str
    full: bool = False
    read_only: bool = False
    sync_fails: bool = False
    sync_s: float = 0.0


@dataclass(frozen=True)
class DiskSeen:
    """What a process met that wrote a few bytes and asked for a sync: names of errors, empty where
    there was none. `sync_s` is infinite when the sync did not end within the prober's patience."""

    write: str = ""
    sync: str = ""
    sync_s: float = 0.0


class Disked(Agent, Protocol):
    """An agent of a node whose disk we can spoil, on hosts that can `disk`."""

    async def disk(self, owner: str, fault: DiskFault | None) -> None:
        """What the owner wants of the node's disk; none: nothing any more. Where several want
        something, the worst of it is in force."""
        ...

    async def disk_wanted(self) -> DiskFault | None:
        """What all owners together want."""
        ...

    async def disk_seen(self, below: str, patience_s: float) -> DiskSeen:
        """What a process of the node meets that writes below this folder, now."""
        ...
