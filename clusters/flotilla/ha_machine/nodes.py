"""Where the machine is in ZooKeeper, and how it is changed.

    /flotilla/CLUSTER/brokers/SET/ID   ephemeral: a `BrokerReport`
    /flotilla/CLUSTER/state/SET        persistent: a `MachineState`; empty before the first
    /flotilla/CLUSTER/sequence         persistent: the last SequenceID given to any set
    /flotilla/CLUSTER/controllers/c-   ephemeral, sequential: the HA controllers that are there

A decision is one multi: it sets the sequence and the state, each at the version that was read. Of
two decisions that were made from the same state one succeeds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..events import EventLog
from ..net.wire import from_json, to_json
from ..zk.jute import SetNode, ZkCode, ZkError
from ..zk.session import Watcher, ZkSession
from .machine import NEW, BrokerReport, MachineState


@dataclass(frozen=True)
class MachinePaths:
    cluster: str

    @property
    def root(self) -> str:
        return f"/flotilla/{self.cluster}"

    @property
    def sequence(self) -> str:
        return f"{self.root}/sequence"

    @property
    def controllers(self) -> str:
        return f"{self.root}/controllers"

    @property
    def sets(self) -> str:
        return f"{self.root}/brokers"

    def brokers(self, name: str) -> str:
        return f"{self.sets}/{name}"

    def broker(self, name: str, number: int) -> str:
        return f"{self.sets}/{name}/{number}"

    def state(self, name: str) -> str:
        return f"{self.root}/state/{name}"

    async def create(self, session: ZkSession, name: str = "") -> None:
        """Create all persistent nodes, those of a set too if it is named."""
        wanted = ["/flotilla", self.root, self.sets, self.controllers, f"{self.root}/state"]
        for path in (*wanted, *((self.brokers(name), self.state(name)) if name else ())):
            await create_once(session, path)
        await create_once(session, self.sequence, b"0")


async def create_once(session: ZkSession, path: str, data: bytes = b"") -> None:
    try:
        await session.create(path, data)
    except ZkError as e:
        if e.code != ZkCode.NODE_EXISTS:
            raise


@dataclass(frozen=True)
class ReadState:
    """A state and the version of its node."""

    state: MachineState | None
    version: int


async def read_state(session: ZkSession, path: str, watcher: Watcher | None = None) -> ReadState:
    data, stat = await session.get(path, watcher)
    return ReadState(MachineState.of(from_json(data)) if data else None, stat.version)


async def read_broker(session: ZkSession, path: str, watcher: Watcher) -> BrokerReport | None:
    """Return a broker's report, None if its node is gone."""
    try:
        data, _ = await session.get(path, watcher)
    except ZkError as e:
        if e.code != ZkCode.NO_NODE:
            raise
        return None
    return BrokerReport.of(from_json(data))


async def change_state(
    session: ZkSession,
    paths: MachinePaths,
    name: str,
    before: ReadState,
    wanted: MachineState,
    counted_version: Callable[[int], int],
    last_sequence: Callable[[int], int] = lambda last: last,
) -> MachineState:
    """Write the state that follows `before`, with the next SequenceID; return it. `last_sequence`
    gives the number that this one follows, by the last one that was given.

    Raises MultiFailed if another decision came first, ConnectionLoss if the outcome is unknown:
    read the state again in both cases.
    """
    data, stat = await session.get(paths.sequence)
    seq = last_sequence(int(data)) + 1
    new = replace(wanted, seq=seq, epoch=seq if wanted.epoch == NEW else wanted.epoch)
    await session.multi(
        SetNode(paths.sequence, b"%d" % seq, counted_version(stat.version)),
        SetNode(paths.state(name), to_json(new.fields()), counted_version(before.version)),
    )
    return new


def record_change(
    events: EventLog, name: str, before: MachineState | None, new: MachineState, unclean: bool
) -> None:
    """Write the events of a state that this node has written. `unclean`: a broker that lacks
    messages may be elected."""
    members = sorted(new.sync)
    events.write(
        "machine",
        brokerName=name,
        seq=new.seq,
        state=new.phase.value,
        replaces=before.seq if before else 0,
        masterId=new.master,
        epoch=new.epoch,
        sync=members,
    )
    if new.epoch == new.seq:
        events.write(
            "election",
            brokerName=name,
            masterId=new.master,
            epoch=new.epoch,
            set=members,
            previousSet=sorted(before.sync)
            if before and before.generation == new.generation
            else [],
            unclean=unclean,
            trigger="machine",
        )
    events.write("set", brokerName=name, set=members, setEpoch=new.seq, why="machine")
