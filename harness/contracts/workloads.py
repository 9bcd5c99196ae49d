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


OperationPart = tuple[int, int, int, int, int]  # f, key, value, pos, mop: see harness.operation


class WorkloadContext(Protocol):
    """What a workload sees of the client process that it runs in.

    A *process* is a number under which operations are journalled. Each does one operation at a
    time. One whose operation ended INFO does nothing else, since that operation may still take
    effect: the client continues as `process + total_processes`, which no other client uses.
    `ObjectClient` of `harness.contracts` does this.
    """

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
        """Journal an invocation; return the operation's number. `process`: as `process_id`
        returned it, or a later number of the same client. `f`: of the class `F`, which explains the
        other fields. `key`: a position in `Workload.keys`. -1: a field that does not apply."""
        ...

    def complete(
        self, process: int, op: int, f: int, key: int, value: int, completion: Completion
    ) -> None:
        """Journal how the operation `op` ended, under the process that invoked it; the completion's
        error text goes to the notes. `value`: what was written or read; -1: none."""
        ...

    def invoke_parts(self, process: int, f: int, parts: Sequence[OperationPart]) -> int:
        """Journal the invocation of an operation with parts, such as a transaction; return its
        number."""
        ...

    def complete_parts(
        self,
        process: int,
        op: int,
        f: int,
        parts: Sequence[OperationPart],
        completion: Completion,
    ) -> None:
        """Journal its completion; its error text goes to the notes."""
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
        """Journal a line of text, which checkers and reports can read (`History.notes`)."""
        ...


class Workload(Protocol):
    """What clients do. An equal one is made in every client process; `context.processes` says which
    part runs there.

    processes  number of logical processes, in all client processes together
    keys       names of the objects operated on, such as "orders-0"; operations give positions in it
    checkers   names of the checkers that judge it: the trial's, if it names any
    """

    processes: int
    keys: Sequence[str]
    checkers: Sequence[str]

    def process_name(self, process: int) -> str:
        """Return the name of a logical process: "producer 0", "consumer 1 of group-0", "reader
        0"."""
        ...

    def check_options(self) -> None:
        """Raise BadRequest if the trial's `load` options make no sense."""
        ...

    def client_settings(self) -> Mapping[str, Any]:
        """Return what the system must prepare for, {} if nothing: {"topics": {name: queues},
        "body_bytes": at most, "once": clients must not retry a send, "selects": clients must be
        able to select queues, "strict": what has to outlive a failover, of "locks" and
        "metadata", "asked_within_s": it must ask about an open transaction within this time}."""
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
    client         names of the methods that it calls on a client of the system, besides `open` and
                   `close`; a system whose client lacks one is refused
    calls          calls that clients need, of `harness.contracts.calls`: all of one of these
    options        a dataclass of the options of the trial's `load`, for the documentation
    swarm          the load for one seed of a campaign
    client_faults  kinds of fault that drawn plans also aim at clients
    """

    MAIN: ClassVar[str] = "workload"
    RETURNS: ClassVar[Any] = Workload

    workload: Callable[["Trial"], Workload]
    client: frozenset[str] = frozenset()
    calls: Sequence[frozenset[str]] = ()
    options: type | None = None
    swarm: Callable[[Random], Mapping[str, Any]] | None = None
    client_faults: frozenset[str] = frozenset()
