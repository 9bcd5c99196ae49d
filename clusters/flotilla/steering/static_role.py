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
master whose disk was emptied would make them cut everything, so it never leads: it waits until a
nameserver answers, learns that its set has had a master, and needs an operator.
There is no fencing beyond that: two masters of one set are an operator's mistake.
`switchlessEpochs = false` is RocketMQ's behaviour: there is one epoch, slaves cut nothing, and what
a slave holds beyond the master's end counts as a copy of what the master writes there.

While the master is absent, the slave with the lowest id serves consumers (`broker.acting`,
`enableSlaveActingMaster`, RIP-32), if the nameservers show it (`supportActingMaster`). A master
that starts first takes back what slaves kept for it, from each slave that the nameservers know; it
waits for those that do not answer, until they answer or leave the nameservers' table (RocketMQ's
BrokerPreOnlineService; `skipPreOnline` leaves it out).

Slaves learn the master's addresses and epoch from the nameservers, every
`syncBrokerMemberGroupPeriod`. In this mode the master itself keeps the SyncStateSet, which is the
replicas that are in step: nothing depends on it but how many copies a send can get.
"""

import asyncio

from ..config import Config
from ..events import EventLog
from ..net.connection import CallTimeout, ConnectionLost, Pool, Tasks, Unreachable
from ..net.wire import Json, Op, Status
from ..replication.replica import Replica
from ..rules import Rules
from ..world.ports import FileSystem, Ports, is_out_of_space, retry_when_out_of_files
from ..world.timers import WakeEvent
from .steering import ReplicaInfo, RoleHandler, SetAuthority

MASTER = 0  # the brokerId of a master
MASTERS_ID = 1  # ids are positive inside a set: one more than the brokerId
SETS_IN_EPOCH = 1 << 20  # numbers of SyncStateSets that an epoch has for itself


class StaticRole:
    """Decides the role of one broker; implements `steering.Steering`."""

    def __init__(
        self,
        config: Config,
        ports: Ports,
        rules: Rules,
        replica: Replica,
        roles: RoleHandler,
        events: EventLog,
    ) -> None:
        self.id = config.broker_id + MASTERS_ID
        # of a converted set: the broker that was master then
        self._masters_id = config.first_master or MASTERS_ID
        self.registered = True
        self.info = ReplicaInfo()
        self.halted = ""
        self.authority: SetAuthority | None = MastersOwnSet()
        self._config, self._ports, self._replica = config, ports, replica
        self._roles, self._events = roles, events
        self._next_epoch, self._acts = rules.next_epoch, rules.acts
        self._must_not_lead = rules.is_emptied
        self._acting, self._acts_from = False, 0.0
        self._loop = asyncio.get_running_loop()
        self._path = f"{config.store}/life"
        self._pool = Pool(config.controller_rpc_timeout_s)
        self._tasks = Tasks()
        self._wake = WakeEvent()

    def start(self) -> None:
        self._tasks.start(self._lead() if self._is_master else self._follow())

    def close(self) -> None:
        self._tasks.cancel()
        self._pool.close()

    def hand_back(self) -> None:
        """Stop serving for the master, which starts; again at the earliest when it would have left
        the nameservers' table."""
        self._acts_from = self._loop.time() + self._config.nameserver_timeout_s
        self._act(False, "the master returns")

    def notice(self, info: Json) -> None:
        """Do nothing: there are no controllers."""

    def ask_soon(self) -> None:
        self._wake.set()

    def freeze(self, frozen: bool) -> None:
        """Do nothing: a slave never becomes master."""

    def suspend(self, suspended: bool) -> None:
        """Do nothing: the master is always the same."""

    @property
    def _is_master(self) -> bool:
        return self.id == self._masters_id

    async def _lead(self) -> None:
        """Begin the next epoch of this master."""
        before = max(self._replica.epochs.last_epoch, await self._last_life())
        while (known := await self._ask_nameservers()) is None and before == 0:
            await self._wake.wait(self._config.sync_broker_member_group_s)
        registered = known["stateVersion"] if known else 0
        if self._must_not_lead(before, registered):
            await self._halt(registered)
        epoch = self._next_epoch(before, registered) if self._config.switchless_epochs else 1
        await self._record_life(epoch)
        await self._take_back()
        address, ha_address = self._config.address, self._config.ha_address
        members, set_epoch = (self.id,), epoch * SETS_IN_EPOCH
        info = ReplicaInfo(epoch, self.id, address, ha_address, members, set_epoch)
        self._apply(info, "master")
        await self._roles.become_master(info)

    async def _halt(self, registered: int) -> None:
        """Wait until this process ends. The slaves have the set's messages."""
        self.halted = (
            f"the disk of this master is empty, but {self._config.broker_name} has had a master of "
            f"epoch {registered}; copy the store of a slave to {self._config.store}, or, to begin "
            "with an empty set, empty the slaves and start the nameservers again"
        )
        self._events.write("halted", why=self.halted)
        await self._loop.create_future()

    async def _take_back(self) -> None:
        """Take what slaves kept while this master was absent, from each that nameservers know."""
        config = self._config
        if not config.slave_acting_master or config.skip_pre_online or config.total_replicas == 1:
            return
        while (replies := await self._kept_by_slaves()) is None:
            await self._wake.wait(config.sync_broker_member_group_s)
        await self._roles.take_back(replies)

    async def _kept_by_slaves(self) -> list[Json] | None:
        """Return what the slaves kept, None unless all that nameservers know have answered. One
        that answered would serve again after a while, so all are asked again."""
        known = await self._ask_nameservers()
        if known is None:
            return None
        others = sorted({*known["members"].values()} - {self._config.address})
        replies = [reply for each in others if (reply := await self._kept_by(each)) is not None]
        return replies if len(replies) == len(others) else None

    async def _kept_by(self, address: str) -> Json | None:
        config, fields = self._config, {"brokerName": self._config.broker_name}
        try:
            reply = await self._pool.ask(
                address, Op.REVERSE_SYNC, fields, config.controller_rpc_timeout_s
            )
        except (Unreachable, ConnectionLost, CallTimeout) as e:
            self._pool.drop(address)
            self._events.write("preonline", member=address, done=False, why=str(e))
            return None
        done = reply["code"] == Status.SUCCESS
        self._events.write("preonline", member=address, done=done, why=reply.get("remark", ""))
        return reply if done else None

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
            self._apply(ReplicaInfo(last, self._masters_id), "slave")
        while True:
            known = await self._ask_nameservers()
            if known and self._config.slave_acting_master:
                self._consider_acting(known["members"])
            if known and (address := known["members"].get(str(MASTER))):
                info = ReplicaInfo(
                    known["stateVersion"], self._masters_id, address, known["masterHaAddr"]
                )
                new = (info.epoch, info.master_addr) != (self.info.epoch, self.info.master_addr)
                if new and info.epoch >= self.info.epoch:
                    self._apply(info, "slave")
                    await self._roles.become_slave(info)
            await self._wake.wait(self._config.sync_broker_member_group_s)

    def _consider_acting(self, members: Json) -> None:
        """Begin or end to serve for the master, by the brokers that nameservers know."""
        acts = self._acts({int(i) for i in members}, self.id)
        if not acts or self._loop.time() >= self._acts_from:
            self._act(acts, "the master is absent" if acts else "another broker serves")

    def _act(self, acting: bool, why: str) -> None:
        if acting != self._acting:
            self._acting = acting
            self._events.write("acting", on=acting, why=why)
            self._roles.act(acting)

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
        """Return the newest answer about this set, None if no nameserver answers. One that knows
        the master counts before one that does not."""
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
            if newest is None or _rank(reply) > _rank(newest):
                newest = reply
        return newest


def _rank(reply: Json) -> tuple[int, bool]:
    return reply["stateVersion"], str(MASTER) in reply["members"]


async def _read(files: FileSystem, path: str) -> bytes:
    return files.read(path)


class MastersOwnSet:
    """The SyncStateSet of a set without controllers: the master's proposal is in force at once."""

    takes_proposals = True

    async def ask(self, op: Op, fields: Json) -> Json:
        assert op == Op.ALTER_SYNC_STATE_SET, "a proposal is never refused, so nothing is read back"
        return {
            "code": Status.SUCCESS,
            "set": fields["set"],
            "setEpoch": fields["setEpoch"] + 1,
        }
