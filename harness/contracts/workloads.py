"""What a workload offers, and what it sees of the client process that it runs in."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from harness.contracts.clients import MessageClient, ReceivedMessage
from harness.contracts.plugin import Plugin
from harness.operation import Completion

if TYPE_CHECKING:
    from harness.trial import Trial


class WorkloadContext(Protocol):
    """What a workload sees of the client process that it runs in."""

    client: MessageClient
    processes: Sequence[int]  # the logical processes of this client process
    total_processes: int  # logical processes in all client processes
    stopping: bool  # the load is over: complete open operations, begin no new ones

    def random(self, name: str) -> Any:
        """Return a `random.Random` that depends on the trial's seed and the name only."""
        ...

    def process_id(self, process: int) -> int:
        """Return a logical process's number in the history: a new one each time that its client
        process crashed and was restarted, since operations that were open then may still take
        effect."""
        ...

    def now_s(self) -> float:
        """Return the seconds since the load began."""
        ...

    def invoke(
        self, process: int, f: int, key: int, value: int = -1, offset: int = -1, arg: int = -1
    ) -> int:
        """Journal an invocation; return the operation's number."""
        ...

    def complete(
        self, process: int, op: int, f: int, key: int, value: int, completion: Completion
    ) -> None:
        """Journal a completion; its error text goes to the notes."""
        ...

    def received(
        self,
        process: int,
        op: int,
        f: int,
        key: int,
        pos: int,
        value: int,
        message: ReceivedMessage,
    ) -> None:
        """Journal one message of a poll that returned."""
        ...

    def note(self, text: str, process: int = -1, op: int = -1) -> None:
        """Journal a note, such as `DRAINED ...` of `harness.history.schema`."""
        ...


class Workload(Protocol):
    """What clients do. The same object in every client process; `context.processes` says which part
    runs here."""

    processes: int
    keys: Sequence[str]  # names of the objects operated on, e.g. "orders-0"; indexed by `key`
    checkers: Sequence[str]  # the checkers that judge it

    def process_name(self, process: int) -> str:
        """Return the name of a logical process: "producer 0", "consumer 1 of group-0", "reader
        0"."""
        ...

    def check_options(self) -> None:
        """Raise BadRequest if the trial's `load` options make no sense."""
        ...

    def client_settings(self) -> Mapping[str, Any]:
        """Return what the system must prepare for: {"topics": {name: queues}, "body_bytes": at
        most, "once": clients must not retry a send, "selects": clients must be able to select
        queues, "strict": what has to outlive a failover, of "locks" and "metadata"}."""
        ...

    async def load(self, context: WorkloadContext) -> None:
        """Operate until `context.stopping`, then until every open operation has completed."""
        ...

    async def drain(self, context: WorkloadContext) -> None:
        """The final phase: read everything that is left, from fresh and from group offsets."""
        ...


@dataclass(frozen=True, kw_only=True)
class WorkloadPlugin(Plugin):
    """What the module of a workload declares as `PLUGIN`.

    workload       the workload of a trial
    options        a dataclass of the options of the trial's `load`, for the documentation
    swarm          the load for one seed of a campaign
    client_faults  kinds of fault that drawn plans also aim at clients
    """

    MAIN: ClassVar[str] = "workload"

    workload: Callable[["Trial"], Workload]
    options: type | None = None
    swarm: Callable[[Random], Mapping[str, Any]] | None = None
    client_faults: frozenset[str] = frozenset()
