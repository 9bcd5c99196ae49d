"""The agent of a node: remote control of one node, and the values it takes and returns.

Faults reach nodes through these methods and nothing else, so every fault works on every kind of
hosts whose agents have the methods that it needs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from harness.errors import BedFailed
from harness.text.parsing import parse_json


class LinkRule(NamedTuple):
    """What happens to packets that arrive at this node from `source`, an IPv4 address.

    `drop` is the probability that a packet is dropped: 1.0 is a cut, 0.8 is heavy loss. Other
    packets arrive `delay_s` later, plus a random time of up to `jitter_s`; a share of `reorder` is
    not delayed, and so overtakes others. The link carries `bytes_per_s` (0: unlimited);
    `node_bytes_per_s` is shared by all links into this node that have it.
    """

    source: str
    drop: float = 1.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    reorder: float = 0.0
    bytes_per_s: float = 0.0
    node_bytes_per_s: float = 0.0


class TimedDatagram(NamedTuple):
    """A datagram that one agent sent to another: its number among those sent together, and the
    times by the monotonic clocks of the sender and of the receiver."""

    number: int
    sent_ns: int
    arrived_ns: int


@dataclass(frozen=True)
class CommandResult:
    """The result of a command that ran on a node: its exit code (negative: minus the signal that
    ended it), its standard output and standard error as text."""

    code: int
    out: str
    err: str

    def json_output(self, node: str) -> Any:
        """Return the output as JSON. Raises BedFailed if it is not JSON: nodes may be hostile."""
        try:
            return parse_json(self.out)
        except ValueError:
            raise BedFailed(
                f"{node}: a program of Seatrial printed output that is not JSON"
            ) from None


@dataclass(frozen=True)
class ProcessState:
    """The state of a process that an agent started: its `pid`, and what /proc says now.

    `state`: running, stopped (SIGSTOP), exited (with `code`; negative: the signal), or absent
    (never started). `threads`: the state letters of all threads of a process that existed before;
    empty for one that the agent started, whose process group has no others.
    """

    state: Literal["running", "stopped", "exited", "absent"]
    pid: int = 0
    code: int = 0
    threads: str = ""


class Agent(Protocol):
    """Remote control of one node. Paths are those of the node (`Hosts.folder`). Processes have the
    names that they were started under. Every call raises BedFailed if the node cannot do it, and
    NodeGone, which is a BedFailed, once the agent cannot be reached."""

    async def run(
        self, argv: Sequence[str], stdin: bytes = b"", timeout_s: float = 10.0
    ) -> CommandResult:
        """Run a program to its end; return its result, whatever the exit code is. Raises BedFailed
        if there is no such program, or if it does not end in time, when it is killed. Simulated
        nodes run no programs: a fault that needs this declares `commands` in its `needs`."""
        ...

    async def put(self, path: str, data: bytes) -> None:
        """Write a file, in place of one that exists; make the folder that it is in."""
        ...

    async def get(self, path: str) -> bytes:
        """Return the contents of a file. Raises BedFailed if there is none."""
        ...

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
        """Start a process in a session of its own; return its pid. Standard error is appended to
        the file `log`; standard output is too, unless `on_line` takes its lines. `env` is added to
        the agent's environment. Raises BedFailed if a process of this name is running."""
        ...

    async def tell(self, name: str, line: str) -> None:
        """Write a line to the standard input of a process that was started with `on_line`."""
        ...

    async def signal(self, name: str, number: int) -> None:
        """Signal the process group, also what is left of it once the process itself has ended."""
        ...

    async def state(self, name: str) -> ProcessState:
        """Return the state of the process that was started last under this name."""
        ...

    async def exited(self, name: str) -> int:
        """Wait until the process ends; return its exit code."""
        ...

    async def links(self, rules: Sequence[LinkRule]) -> None:
        """Replace the rules of the node's SEATRIAL chain, all at once; no rules: heal."""
        ...

    async def dropped(self) -> Mapping[str, int]:
        """Return how many packets the current rules dropped since they were installed, by source
        address."""
        ...

    async def probe(self, target: str, token: str, count: int) -> None:
        """Send `count` datagrams marked `token` to the agent at address `target`."""
        ...

    async def probed(self, token: str) -> int:
        """Return how many datagrams marked `token` arrived here."""
        ...

    async def send_timed(self, target: str, token: str, count: int, size_bytes: int) -> None:
        """Send `count` datagrams marked `token` to the agent at address `target`, each with its
        number and the time, and of at least this size."""
        ...

    async def timed_arrivals(self, token: str) -> Sequence[TimedDatagram]:
        """Return the datagrams marked `token` that arrived here, in order of arrival. Only recent
        tokens are known."""
        ...

    async def lacks(self, ability: str) -> str:
        """Return a sentence that says why this node lacks an ability; empty if it has it. `pace`:
        hold packets back, for rules that delay a link or limit its bandwidth; `network`: have one
        at this moment."""
        ...

    async def ask(
        self, port: int, frame: bytes, timeout_s: float, *, to_end: bool = False
    ) -> bytes:
        """Connect to a port of this node from the node itself, write `frame`, and return the
        answer: a u32 big-endian length, which is cut off, and that many bytes; with `to_end`,
        everything that the server sends until it closes the connection. Raises ConnectionError if
        no answer comes in time."""
        ...


@dataclass(frozen=True)
class UnsyncedReport:
    """What no sync had covered on a disk (files, with the bytes written or cut off, and names that
    were made, removed or renamed), and how much of it was lost. `unseen`: descriptions of what else
    may have changed there unobserved, and was kept."""

    files: int = 0
    names: int = 0
    size_bytes: int = 0
    lost_files: int = 0
    lost_names: int = 0
    lost_bytes: int = 0
    unseen: tuple[str, ...] = ()


class PowerAgent(Agent, Protocol):
    """An agent beside its node, on hosts that can `power`."""

    async def power(self, on: bool) -> UnsyncedReport:
        """Cut the node's power, or restore it: no process runs, and the disk is as the cut left it.
        Return what the disk lost."""
        ...


class UnsyncedAgent(Agent, Protocol):
    """An agent of a node whose disk can lose unsynced data, on hosts that can `unsynced`."""

    async def drop_unsynced(self, seed: int | None) -> UnsyncedReport:
        """Remove from the disk what a power cut would take of the data that was written and not
        synced, while no process of the node runs. The seed decides what; simulated worlds have
        randomness of their own. None: everything."""
        ...

    async def keep_unsynced(self) -> None:
        """Treat everything on the disk as synced, after something other than the node changed its
        files."""
        ...


class OwnDiskAgent(Agent, Protocol):
    """An agent of a node whose data has a file system of its own, on hosts that can `own-disk`."""

    async def cut_disk(self, process: str) -> None:
        """Cut the power of the node's disk while the process is stopped, and kill the process."""
        ...

    async def restore_disk(self) -> UnsyncedReport:
        """Make the disk readable again as the cut left it, while no process of the node runs;
        return what it lost. After the first call for a cut, do nothing."""
        ...

    async def why_disk_fails(self) -> str:
        """Return why the disk cannot be written to; empty if it can."""
        ...

    async def keep_unsynced(self) -> None:
        """Sync everything, after something other than the node changed its files."""
        ...


@dataclass(frozen=True)
class DiskFault:
    """How a node's disk misbehaves towards the node's process, in the folder `below`.

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
class DiskProbe:
    """What happened to a process that wrote a few bytes and called fsync: names of errors, empty if
    there were none. `sync_s` is infinite if the sync did not end before the prober's timeout."""

    write: str = ""
    sync: str = ""
    sync_s: float = 0.0


class DiskAgent(Agent, Protocol):
    """An agent of a node whose disk can be made faulty, on hosts that can `disk`."""

    async def disk(self, owner: str, fault: DiskFault | None) -> None:
        """Set the disk fault that `owner` wants; None: none any more. Where several owners want a
        fault, the worst of each kind is in force."""
        ...

    async def disk_fault(self) -> DiskFault | None:
        """Return the fault that all owners together want."""
        ...

    async def probe_disk(self, below: str, patience_s: float) -> DiskProbe:
        """Return what a process of the node that writes in this folder experiences now."""
        ...
