"""What decides the role of a broker, and who agrees to changes of its SyncStateSet.

    haMode = "controller"   the controllers, by elections (`controller_link`)
    haMode = "switchless"   the configuration; no broker is elected (`static_role`)
    haMode = "zookeeper"    the machine of a pair in ZooKeeper, switched by HA controllers
                            (`zookeeper_role`)
    haMode = "raft-log"     the brokers of the set, by votes (`ballot_role`)

A `Steering` tells a `RoleHandler` what the broker is to become. The rest of the broker does not
know the mode.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..ha_machine.machine import SlaveReport
from ..net.wire import Json, Op


@dataclass(frozen=True)
class ReplicaInfo:
    """The master and the SyncStateSet of a broker's set, as its steering knows them. Ids are
    positive."""

    epoch: int = 0
    master_id: int | None = None
    master_addr: str = ""
    master_ha_addr: str = ""
    members: tuple[int, ...] = ()
    set_epoch: int = 0

    @classmethod
    def of(cls, info: Json) -> "ReplicaInfo":
        """Read an answer of the controllers."""
        return cls(
            int(info["masterEpoch"]),
            None if info["masterId"] is None else int(info["masterId"]),
            str(info["masterAddr"] or ""),
            str(info["masterHaAddr"] or ""),
            tuple(int(i) for i in info["set"]),
            int(info["setEpoch"]),
        )


class RoleHandler(Protocol):
    """Carries out changes of the role."""

    async def become_master(self, info: ReplicaInfo) -> None:
        """Begin to reign, unless `Steering.info` is another one by then.

        Raises DiskFull if the reign has to begin with a record and there is no room for it.
        """

    async def become_slave(self, info: ReplicaInfo) -> None: ...

    async def stand_by(self, why: str) -> None:
        """Be neither master nor slave. Returns when the log stands still."""

    def heard_commit(self, epoch: int, commit: int) -> None:
        """Take what the master of this epoch has committed."""

    def install_set(self, info: ReplicaInfo) -> None: ...

    def act(self, acting: bool) -> None:
        """Begin or end to serve consumers for an absent master."""
        ...

    async def take_back(self, replies: Sequence[Json]) -> None:
        """Take the metadata that slaves kept while this broker, a master that starts, was
        absent."""

    def hold_sends(self) -> None:
        """Append no send until `release_sends`."""

    def release_sends(self) -> None:
        """Serve the sends that are held."""

    def slave_reports(self) -> Mapping[int, SlaveReport]:
        """Return how far each connected slave is, by a master."""
        ...


class SetAuthority(Protocol):
    """Agrees to changes of the SyncStateSet: answers ALTER_SYNC_STATE_SET and REPLICA_INFO. Raises
    NoLeader, OutcomeUnknown. `takes_proposals`: whether a master proposes sets at all."""

    takes_proposals: bool

    async def ask(self, op: Op, fields: Json) -> Json: ...


class Steering(Protocol):
    """Decides when the role changes.

    `id`: of this broker, 0 while it has none. `registered`: whether it may announce itself. `info`:
    the last ReplicaInfo that was applied. `authority`: who agrees to changes of the set, None if it
    never changes. `halted`: why it needs an operator, empty if it does not.
    """

    id: int
    registered: bool
    info: ReplicaInfo
    authority: SetAuthority | None
    halted: str

    def start(self) -> None: ...

    def close(self) -> None: ...

    def hand_back(self) -> None:
        """The master is about to return: no longer serve for it."""

    def notice(self, info: Json) -> None:
        """Act on a notice of the controllers."""

    def ask_soon(self) -> None:
        """Ask now who is master."""

    def freeze(self, frozen: bool) -> None:
        """Become no master, and help no broker to become one, while frozen: this broker, a slave,
        has promised to leave the mode (see conversion/)."""

    def suspend(self, suspended: bool) -> None:
        """Change nothing while suspended: this broker, a master, holds its sends until its set is
        converted."""
