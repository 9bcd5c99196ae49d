"""What a kind of hosts offers: machines for one trial, and their clocks.

Faults reach nodes through `Agent` alone, so a fault works on every kind of hosts that has the
abilities it needs, and hosts know no fault.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from harness.contracts.agent import Agent
from harness.contracts.plugin import Plugin

if TYPE_CHECKING:
    from harness.history.rundir import RunDir
    from harness.trial import Trial

CLIENT = "client"  # the role of nodes that clients live on
# An option of hosts whose cluster exists already: what keys of this run begin with, so that none is
# of an earlier run. Each run gets another.
KEY_PREFIX = "key_prefix"
# What hosts can do, by name. A fault declares in `needs` what it needs of these. A system may have
# abilities of its own, in an attribute `can`: `members`, `handover`, `versions`, `zones`.
HOST_ABILITIES = {
    "links": "cut links (Agent.links)",
    "loss": "drop a share of the packets of a link",
    "delay": "delay the packets of a link (see Agent.lacks)",
    "bandwidth": "limit the bandwidth of a link (see Agent.lacks)",
    "signal": "send signals to processes (Agent.signal)",
    "restart": "start the process of a node again (System.start_node)",
    "files": "change the files of a node whose process has ended (Agent.put)",
    "commands": "run any program of Linux on a node (Agent.run), and read its /proc",
    "limits": "set resource limits of processes",
    "clock": "give processes a wall clock of their own",
    "disk": "make a disk fail (DiskAgent)",
    "unsynced": "lose what a disk had not synced (UnsyncedAgent)",
    "own-disk": "cut the power of the disk that has a node's data (OwnDiskAgent)",
    "power": "cut the power of a node (PowerAgent)",
    "events": "report what nodes log as they log it, so that plans can wait for it",
}


@dataclass(frozen=True)
class Node:
    """A machine of the trial. `role`: broker, controller, nameserver ... or client."""

    name: str
    role: str
    address: str = ""  # filled in by the hosts
    zone: str = ""
    own_wall_clock: bool = False  # its own wall clock dates its events in the history
    leads_controllers: bool = True  # it may be `controller-leader`


@dataclass(frozen=True)
class Distance:
    """How much later packets arrive because of the distance alone; `jitter_s`: at most so much
    more."""

    delay_s: float = 0.0
    jitter_s: float = 0.0


@dataclass(frozen=True)
class PythonRuntime:
    """How a node runs our code: its interpreter (3.11 or later), and the folder, as the node sees
    it, that holds our packages and tomli_w."""

    executable: str
    packages: str


@dataclass(frozen=True)
class ClockOffset:
    """A node's monotonic clock relative to the driver's: its reading minus the driver's, and the
    error of that. Where `rate` of its seconds pass in one of the driver's, its reading minus `rate`
    times the driver's.

    Nodes on the driver's own kernel share its clock: zero, and no error.
    """

    offset_ns: int = 0
    error_ns: int = 0
    rate: float = 1.0

    def drivers_ns(self, reading_ns: int) -> int:
        """Return the reading of the driver's clock at this reading of the node's."""
        since_ns = reading_ns - self.offset_ns
        return since_ns if self.rate == 1.0 else round(since_ns / self.rate)


class Hosts(Protocol):
    """Machines for one trial. Entered: all nodes are up, with agents and addresses. Left: what the
    nodes wrote is in the run's folder, and everything that was made is gone."""

    can: frozenset[str]  # abilities, which faults need: names of HOST_ABILITIES
    shares_files: bool  # nodes see the run's folder, so nothing has to be copied back

    def enter(self) -> None:
        """Prepare this process while it is still single-threaded: enter namespaces, if the kind
        needs it."""
        ...

    def check(self, nodes: Sequence[Node]) -> None:
        """Raise BadRequest if there is no place for these nodes, without contacting any machine."""
        ...

    def run(self, main: Coroutine[Any, Any, int]) -> int:
        """Run the driver's coroutine to its end, on the event loop of these hosts' world."""
        ...

    def start_nodes(
        self, nodes: Sequence[Node]
    ) -> AbstractAsyncContextManager[tuple[Sequence[Node], Mapping[str, Agent]]]:
        """Start the nodes; yield them with addresses, and an agent for each name."""
        ...

    def folder(self, node: str) -> str:
        """Return the node's own folder, as the node sees it, for configuration, data and logs."""
        ...

    def python(self, node: str) -> PythonRuntime:
        """Return the node's Python, once the nodes are started."""
        ...

    def clock(self, node: str) -> ClockOffset:
        """Return the node's clock, once the nodes are started."""
        ...


@runtime_checkable
class ClockComparingHosts(Protocol):
    """Hosts that measure nodes' clocks, which may drift after the start."""

    async def compare_clocks(self) -> Mapping[str, ClockOffset]:
        """Return new readings of the clocks that have an error, with the error of this comparison;
        `clock` stays as it was. Raises BedFailed if a node does not answer."""
        ...


@runtime_checkable
class InterceptingHosts(Protocol):
    """Hosts that can `disk` and `unsynced` only for processes whose system calls are
    intercepted."""

    async def intercept_syscalls(
        self, nodes: Sequence[Node], agents: Mapping[str, Agent], unsynced: str = ""
    ) -> Mapping[str, Agent]:
        """Return all agents; those of these nodes, once started, now intercept the system calls of
        processes they start, and are `DiskAgent`s. Below the folder `unsynced` in the node's own,
        if one is named, what is not synced is recorded, and they are `UnsyncedAgent`s. Raises
        BedFailed if a node's kernel cannot do this."""
        ...


@runtime_checkable
class AttachingHosts(Protocol):
    """Hosts of a cluster that exists already: systems install, start and stop nothing there.
    `state`, `signal` and `exited` of an agent mean the node's one process, whatever the name."""

    async def start_process(self, node: str) -> None:
        """Start the node's process again, if it does not run, in its own way. Raises BedFailed if
        that does not work."""
        ...


@dataclass(frozen=True)
class AttachedCluster:
    """A cluster that exists already: how many nodes each role has (empty: the system's first one),
    what faults may hit, in words, by role and in the order of the nodes, and why some faults are
    impossible there."""

    counts: Mapping[str, int]
    targets: Sequence[str]
    limits: str


@runtime_checkable
class OwnDiskHosts(Protocol):
    """Hosts that can `own-disk`, where the machine allows it."""

    def why_no_own_disks(self) -> str:
        """Return why they cannot, and what to do; empty if they can."""
        ...

    def prepare_own_disks(self) -> None:
        """Prepare `own_disks` before `enter`. Removes `own-disk` from `can` if it is impossible."""
        ...

    def own_disks(
        self, nodes: Sequence[Node], agents: Mapping[str, Agent], data: str
    ) -> AbstractAsyncContextManager[Mapping[str, Agent]]:
        """Yield all agents; those of these nodes, once started, are `OwnDiskAgent`s, and the folder
        `data` in the node's own is a file system of its own. Left: the folder has its files."""
        ...


Problem = tuple[str, str, str]  # what is wrong, why it matters, what to do about it


@dataclass(frozen=True, kw_only=True)
class HostsPlugin(Plugin):
    """What the module of a kind of hosts declares as `PLUGIN`.

    hosts       the hosts of a trial, in the run's folder
    problems    why no node can run there, by the trial's `bed`
    needs       what was tried and works if there are no problems
    shell       the arguments that run a command on a node of a run in progress; None: impossible
    heal        undoes what a run left on hosts that outlive it; None: they end with it
    edition     of the code, where a run is a function of it and of the seed: simulated hosts
    replayable  raises BadRequest if the seed of a stored run means another run now
    swarm       options of the hosts for one seed of a campaign
    optional    what only some faults need -> why it is not there, or None if it was tried
    must_name   options that `replay` needs from the command line besides those that a stored run
                has, which it does not trust; None: options of a stored run can do no harm
    attach      the cluster that exists already which the trial's options name; None: these hosts
                make nodes of their own
    """

    MAIN: ClassVar[str] = "hosts"
    RETURNS: ClassVar[Any] = Hosts

    hosts: Callable[["Trial", Path], Hosts]
    problems: Callable[[Mapping[str, Any]], Sequence[Problem]]
    needs: Sequence[str] = ("all they need",)
    shell: Callable[["RunDir", str, Sequence[str]], Sequence[str]] | None = None
    heal: Callable[["RunDir", Sequence[Any]], Sequence[str]] | None = None
    edition: Callable[[], str] | None = None
    replayable: Callable[["RunDir"], None] | None = None
    swarm: Callable[..., Mapping[str, Any]] | None = None
    optional: Callable[[], Mapping[str, Problem | None]] | None = None
    must_name: Sequence[str] | None = ()
    attach: Callable[["Trial"], AttachedCluster] | None = None
