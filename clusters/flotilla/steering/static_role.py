"""Switchless master and slave: the configuration decides the role; no broker is elected.

`brokerId = 0` is the master of its set for good, a slave has 1, 2 ... (RocketMQ before controllers,
and RIP-31 to RIP-34). When the master is gone, nothing can be sent to the set until it returns;
slaves can be read (`slaveReadEnable`). With `brokerRole = "SYNC_MASTER"` a send waits for
`inSyncReplicas` copies, and is refused while fewer replicas are in step; `enableAutoInSyncReplicas`
lowers that to as many as are in step, but not below `minInSyncReplicas`. An ASYNC_MASTER waits for
none.

**The master's lives are numbered.** In RocketMQ a slave reports only an offset, and a master that
lost the end of its log by a power cut does not compare it with its own: the slave's own bytes stay
below those that the master writes later. Here each start of the master begins an epoch, whose
number is on its disk before it is used, and slaves cut their logs as they do after an election. A
master whose disk was emptied asks the nameservers for the last epoch, so it waits for one of them.
There is no fencing beyond that: two masters of one set are an operator's mistake.

Slaves learn the master's addresses and epoch from the nameservers, every
`syncBrokerMemberGroupPeriod`. In this mode the master itself keeps the SyncStateSet, which is the
replicas that are in step: nothing depends on it but how many copies a send can get.
"""

from ..config import Config
from ..events import EventLog
from ..net.connection import CallTimeout, ConnectionLost, Pool, Tasks, Unreachable
from ..net.wire import Json, Op, Status
from ..replication.replica import Replica
from ..world.ports import FileSystem, Ports, is_out_of_space, retry_when_out_of_files
from ..world.timers import WakeEvent
from .steering import ReplicaInfo, RoleHandler, SetAuthority

MASTER = 0  # the brokerId of a master
MASTERS_ID = 1  # ids are positive inside a set: one more than the brokerId
SETS_IN_EPOCH = 1 << 20  # numbers of SyncStateSets that an epoch has for itself


class StaticRole:
    """Decides the role of one broker; implements `steering.Steering`."""

    def __init__(
        self, config: Config, ports: Ports, replica: Replica, roles: RoleHandler, events: EventLog
    ) -> None:
        self.id = config.broker_id + MASTERS_ID
        self.registered = True
        self.info = ReplicaInfo()
        self.authority: SetAuthority | None = MastersOwnSet()
        self._config, self._ports, self._replica = config, ports, replica
        self._roles, self._events = roles, events
        self._path = f"{config.store}/life"
        self._pool = Pool(config.controller_rpc_timeout_s)
        self._tasks = Tasks()
        self._wake = WakeEvent()

    def start(self) -> None:
        self._tasks.start(self._lead() if self._is_master else self._follow())

    def close(self) -> None:
        self._tasks.cancel()
        self._pool.close()

    def notice(self, info: Json) -> None:
        """Do nothing: there are no controllers."""

    def ask_soon(self) -> None:
        self._wake.set()

    @property
    def _is_master(self) -> bool:
        return self._config.broker_id == MASTER

    async def _lead(self) -> None:
        """Begin the next epoch of this master."""
        before = max(self._replica.epochs.last_epoch, await self._last_life())
        while (known := await self._ask_nameservers()) is None and before == 0:
            await self._wake.wait(self._config.sync_broker_member_group_s)
        epoch = 1 + max(before, known["stateVersion"] if known else 0)
        await self._record_life(epoch)
        address, ha_address = self._config.address, self._config.ha_address
        members, set_epoch = (MASTERS_ID,), epoch * SETS_IN_EPOCH
        info = ReplicaInfo(epoch, MASTERS_ID, address, ha_address, members, set_epoch)
        self._apply(info, "master")
        await self._roles.become_master(info)

    async def _last_life(self) -> int:
        """Return the epoch of this master's last start, 0 if the store is new or was emptied."""
        files = self._ports.files
        if not files.exists(self._path):
            return 0
        data = await retry_when_out_of_files(lambda: _read(files, self._path))
        try:
            return int(data)
        except ValueError:
            self._ports.exit.fatal(
                f"{self._path} is damaged: it has {data[:20]!r}, which is not a number; write the "
                "largest epoch of this set's brokers into it"
            )

    async def _record_life(self, epoch: int) -> None:
        """Write the number to the disk; wait while that is full."""
        number = f"{epoch}\n".encode()
        while True:
            try:
                await self._ports.files.replace(self._path, number)
                return
            except OSError as e:
                if not is_out_of_space(e):
                    raise
            await self._wake.wait(self._config.clean_resource_s)

    async def _follow(self) -> None:
        """Follow the master that the nameservers name, and its restarts."""
        if last := self._replica.epochs.last_epoch:
            self._apply(ReplicaInfo(last, MASTERS_ID), "slave")
        while True:
            known = await self._ask_nameservers()
            if known and (address := known["members"].get(str(MASTER))):
                info = ReplicaInfo(
                    known["stateVersion"], MASTERS_ID, address, known["masterHaAddr"]
                )
                new = (info.epoch, info.master_addr) != (self.info.epoch, self.info.master_addr)
                if new and info.epoch >= self.info.epoch:
                    self._apply(info, "slave")
                    await self._roles.become_slave(info)
            await self._wake.wait(self._config.sync_broker_member_group_s)

    def _apply(self, info: ReplicaInfo, role: str) -> None:
        self.info = info
        self._events.write(
            "role",
            role=role,
            brokerName=self._config.broker_name,
            brokerId=self.id,
            masterId=info.master_id,
            masterAddr=info.master_addr,
            epoch=info.epoch,
        )

    async def _ask_nameservers(self) -> Json | None:
        """Return the newest answer about this set, None if no nameserver answers."""
        newest: Json | None = None
        for address in self._config.nameservers:
            fields = {"brokerName": self._config.broker_name}
            try:
                reply = await self._pool.ask(
                    address, Op.MEMBER_GROUP, fields, self._config.heartbeat_rpc_timeout_s
                )
            except (Unreachable, ConnectionLost, CallTimeout):
                self._pool.drop(address)
                continue
            if newest is None or reply["stateVersion"] > newest["stateVersion"]:
                newest = reply
        return newest


async def _read(files: FileSystem, path: str) -> bytes:
    return files.read(path)


class MastersOwnSet:
    """The SyncStateSet of a set without controllers: the master's proposal is in force at once."""

    async def ask(self, op: Op, fields: Json) -> Json:
        assert op == Op.ALTER_SYNC_STATE_SET, "a proposal is never refused, so nothing is read back"
        return {
            "code": Status.SUCCESS,
            "set": fields["set"],
            "setEpoch": fields["setEpoch"] + 1,
        }
