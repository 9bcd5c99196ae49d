"""What a workload offers, and what it sees of the client process that it runs in."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from harness.contracts.clients import MessageClient, Received
from harness.contracts.plugin import Plugin
from harness.operation import Completion

if TYPE_CHECKING:
    from harness.trial import Trial


class Crew(Protocol):
    """What a workload sees of the client process it runs in."""

    client: MessageClient
    processes: Sequence[int]  # the logical processes that live in this crew
    total: int  # processes in all crews
    stopping: bool  # the load is over: finish what is open, begin nothing new

    def random(self, name: str) -> Any:
        """A `random.Random` of its own, from the trial's seed and the name."""
        ...

    def number(self, process: int) -> int:
        """What a logical process is called in the history: another number each time that its crew
        died and began again, for what was open then may still happen."""
        ...

    def now_s(self) -> float:
        """Seconds since the load began."""
        ...

    def invoke(
        self, process: int, f: int, key: int, value: int = -1, offset: int = -1, arg: int = -1
    ) -> int:
        """Journal an invocation; the operation's number."""
        ...

    def complete(
        self, process: int, op: int, f: int, key: int, value: int, completion: Completion
    ) -> None:
        """Journal a completion; its error text goes to the notes."""
        ...

    def received(
        self, process: int, op: int, f: int, key: int, pos: int, value: int, message: Received
    ) -> None:
        """Journal one message of a poll that returned."""
        ...

    def note(self, text: str, process: int = -1, op: int = -1) -> None:
        """Journal a note, such as `DRAINED ...` of `harness.history.schema`."""
        ...


class Workload(Protocol):
    """What clients do. The same object in every crew; `crew.processes` says whose part is here."""

    processes: int
    keys: Sequence[str]  # names of the objects operated on, e.g. "orders-0"; indexed by `key`
    checkers: Sequence[str]  # who judges it

    def who(self, process: int) -> str:
        """A logical process in words: "producer 0", "consumer 1 of group-0", "reader 0"."""
        ...

    def check_options(self) -> None:
        """BadRequest when the trial's `load` options make no sense."""
        ...

    def client_settings(self) -> Mapping[str, Any]:
        """What the system must prepare for: {"topics": {name: queues}, "body_bytes": at most,
        "once": may clients not send anything a second time, "selects": must clients be able to
        select queues, "strict": what has to outlive a failover, of "locks" and "metadata"}."""
        ...

    async def load(self, crew: Crew) -> None:
        """Operate until `crew.stopping`, then until every open operation has completed."""
        ...

    async def drain(self, crew: Crew) -> None:
        """The final phase: read everything that is left, from fresh and from group offsets."""
        ...


@dataclass(frozen=True, kw_only=True)
class WorkloadPlugin(Plugin):
    """What the module of a workload declares as `PLUGIN`.

    workload  the workload of a trial
    options   a dataclass of the options of the trial's `load`, for the documentation
    swarm     the load for one seed of a campaign
    client_faults  kinds of fault that drawn plans also aim at clients
    """

    MAIN: ClassVar[str] = "workload"

    workload: Callable[["Trial"], Workload]
    options: type | None = None
    swarm: Callable[[Random], Mapping[str, Any]] | None = None
    client_faults: frozenset[str] = frozenset()
