"""A broker's part in a conversion: the steps that the operator's command asks for (CONVERT).

    status    in which mode and generation it is, its role, and where its log ends
    prepare   the master holds all sends, and answers when all brokers of its set hold its whole log
              and no send waits; a slave promises, durably, to become no master of this generation
              and to vote for none
    commit    the broker writes the new generation to its disk, and changes its mode
    abort     the master serves again, and a slave's promise ends

The master is asked first in each step. Its disk decides: when it has the new generation the set is
converted, and the others have to follow; before, nothing has changed, and the promises are
withdrawn. An attempt has a number, and a broker takes no step of an earlier attempt than the last
one that it knows. A master that starts again, or is deposed, has forgotten that it was prepared,
and refuses to commit.

**Why the logs are equal for good.** All brokers of the set have promised, so no other master can
begin in the old generation; one that had begun before refuses to promise as a slave. The master
appends nothing from `prepare` on, and checks at `commit` that it is still the master of that epoch
and that all copies still end where its log ends.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from ..broker.broker import Broker
from ..broker.handler import HandlerTable
from ..config import Config, convertible_modes
from ..events import EventLog
from ..net.connection import FrameConnection, Tasks, refusal
from ..net.wire import Json, Op, Status
from ..replication.replica import Replica
from ..rules import Rules
from ..steering.zookeeper_role import reaches_zookeeper
from ..world.ports import Ports, is_out_of_space
from .mode_file import Generation, ModeFile, ModeState
from .rules import COMMIT, PREPARE

HOLDS_AT_MOST = 3  # so many times convertTimeout a prepared master waits for its commit


@dataclass(frozen=True)
class PreparedMaster:
    """What a master has prepared, in memory only."""

    attempt: int
    epoch: int
    timer: asyncio.TimerHandle


class ConversionHandler:
    """Serves CONVERT. `broker`: the present one; `switch`: changes its mode."""

    def __init__(
        self,
        config: Config,
        ports: Ports,
        rules: Rules,
        replica: Replica,
        events: EventLog,
        file: ModeFile,
        state: ModeState,
        broker: Callable[[], Broker],
        switch: Callable[[], Awaitable[None]],
    ) -> None:
        self.state = state
        self._config, self._ports, self._rules = config, ports, rules
        self._replica, self._events = replica, events
        self._file, self._broker, self._switch = file, broker, switch
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._tasks = Tasks()
        self._prepared: PreparedMaster | None = None
        self._holds = False  # sends, for a conversion
        self._steps: dict[str, Callable[[Json], Awaitable[Json]]] = {
            "status": self._status,
            PREPARE: self._prepare,
            COMMIT: self._commit,
            "abort": self._abort,
        }

    def table(self) -> HandlerTable:
        return {Op.CONVERT: self._serve}

    async def _serve(self, connection: FrameConnection, fields: Json) -> Json:
        name, step = self._config.broker_name, str(fields["step"])
        if fields["brokerName"] != name:
            return refusal(Status.INVALID_REQUEST, f"this is a broker of {name}")
        if step not in self._steps:
            return refusal(Status.INVALID_REQUEST, f"step is one of {', '.join(self._steps)}")
        if step == "status":
            return await self._status(fields)
        if self._lock.locked() and step == PREPARE:
            return refusal(Status.SYSTEM_BUSY, "another step is under way")
        async with self._lock:
            return await self._steps[step](fields)

    async def _status(self, fields: Json) -> Json:
        broker, state = self._broker(), self.state
        role, store = broker.role, self._replica.store
        return {
            "brokerId": self._config.broker_id + 1,
            "total": self._config.total_replicas,
            "cluster": self._config.cluster,
            "inForce": state.in_force.fields(),
            "pending": state.pending.fields() if state.pending else None,
            "attempt": state.attempt,
            "isMaster": role.serves_as_master(),
            "epoch": role.link.info.epoch,
            "maxOffset": store.log.max_offset,
            "admits": broker.admits(),
        }

    # prepare

    async def _prepare(self, fields: Json) -> Json:
        attempt, mode = int(fields.get("attempt", 0)), str(fields.get("mode", ""))
        known = convertible_modes(bool(self._config.zk_servers))
        if mode not in known:
            of = "" if self._config.zk_servers else " of a broker without zkServers"
            remark = f"mode{of} is one of {', '.join(known)}, not {mode!r}"
            return refusal(Status.INVALID_REQUEST, remark)
        if attempt <= self.state.attempt:
            return refusal(Status.INVALID_REQUEST, f"attempt {self.state.attempt} is later")
        if mode == "zookeeper" and not await self._reaches_zookeeper():
            remark = "no server of zkServers answers, so the set would have no master there"
            return refusal(Status.MASTER_NOT_AVAILABLE, remark)
        if self._broker().role.is_master():
            return await self._prepare_master(attempt)
        wanted = Generation.of(fields | {"mode": mode})
        return await self._promise(attempt, wanted, int(fields.get("end", -1)))

    async def _prepare_master(self, attempt: int) -> Json:
        broker, log = self._broker(), self._replica.store.log
        if not broker.role.serves_as_master():
            return refusal(Status.MASTER_NOT_AVAILABLE, "this master does not serve yet")
        if broker.handover.is_holding:
            return refusal(Status.SYSTEM_BUSY, "sends are held by a handover or another attempt")
        epoch, timeout_s = broker.role.epoch, self._config.convert_timeout_s
        await self._save(replace(self.state, attempt=attempt, pending=None))
        broker.handover.hold()
        self._holds = True
        broker.role.link.suspend(True)
        broker.pause_scans(True)
        for other in self._others():
            self._tasks.start(broker.handover.announce_metadata(other))
        equal = await broker.handover.wait_until_equal(lambda: self._is_equal(epoch), timeout_s)
        if not equal:
            self._resume()
            remark = f"not all brokers hold everything after {timeout_s:g} s"
            return refusal(Status.FLUSH_SLAVE_TIMEOUT, remark)
        timer = self._loop.call_later(HOLDS_AT_MOST * timeout_s, self._resume)
        self._prepared = PreparedMaster(attempt, epoch, timer)
        self._events.write("prepared", attempt=attempt, epoch=epoch, end=log.max_offset)
        return {"masterId": self._config.broker_id + 1, "epoch": epoch, "end": log.max_offset}

    async def _reaches_zookeeper(self) -> bool:
        return await reaches_zookeeper(
            self._config, self._ports, self._config.convert_timeout_s / 2
        )

    def _is_equal(self, epoch: int) -> bool:
        """Return whether this is still the master of this epoch, and all copies are equal."""
        broker, store = self._broker(), self._replica.store
        changes = broker.role.current_changes()
        if broker.role.epoch != epoch or not broker.role.serves_as_master() or changes is None:
            return False
        others, acks = self._others(), broker.role.ha.acks()
        copies = [acks.get(i) if changes.has_all(i) else None for i in others]
        end = store.log.max_offset
        whole = self._rules.logs_are_equal([store.confirm_offset, *copies], end)
        return whole and broker.is_quiet() and store.log.written == end

    def _others(self) -> list[int]:
        """Return the ids of the other brokers of the set, connected or not."""
        own = self._config.broker_id + 1
        return [i for i in range(1, self._config.total_replicas + 1) if i != own]

    async def _promise(self, attempt: int, wanted: Generation, end: int) -> Json:
        role, log = self._broker().role, self._replica.store.log
        info, own = role.link.info, self.state.in_force.number
        if wanted.number != own + 1:
            return refusal(Status.INVALID_REQUEST, f"this broker is in generation {own}")
        if role.is_promoting() or (info.master_id, info.epoch) != (wanted.master, wanted.epoch):
            remark = f"this broker follows broker {info.master_id} in epoch {info.epoch}"
            return refusal(Status.FENCED_MASTER_EPOCH, remark)
        if not self._rules.logs_are_equal([log.max_offset], end):
            remark = f"the log of this broker ends at {log.max_offset}, not at {end}"
            return refusal(Status.FLUSH_SLAVE_TIMEOUT, remark)
        role.link.freeze(True)
        await self._save(ModeState(self.state.in_force, attempt, wanted))
        self._events.write("promised", attempt=attempt, epoch=wanted.epoch, end=log.max_offset)
        if self._rules.switches_at(PREPARE):
            await self._begin(wanted)
        return {"end": log.max_offset}

    # commit and abort

    async def _commit(self, fields: Json) -> Json:
        wanted, state = Generation.of(fields), self.state
        if wanted.number <= state.in_force.number:
            if wanted != state.in_force:
                remark = f"this broker is in generation {state.in_force.number} already"
                return refusal(Status.INVALID_REQUEST, remark)
            return {}
        role = self._broker().role
        if role.is_master() or role.is_promoting():
            prepared, attempt = self._prepared, int(fields.get("attempt", 0))
            of_attempt = prepared is not None and prepared.attempt == attempt
            equal = role.epoch == wanted.epoch and self._is_equal(wanted.epoch)
            if not self._rules.may_convert(of_attempt, equal):
                if not of_attempt:
                    remark = f"attempt {attempt} is not prepared here"
                    return refusal(Status.INVALID_REQUEST, remark)
                self._resume()
                return refusal(Status.FENCED_MASTER_EPOCH, "the set has changed since it prepared")
            if prepared is not None:
                prepared.timer.cancel()
            self._prepared, self._holds = None, False
        await self._begin(wanted)
        return {}

    async def _begin(self, wanted: Generation) -> None:
        """Write the generation to the disk and change the mode."""
        await self._save(ModeState(wanted, self.state.attempt))
        await self._switch()

    async def _abort(self, fields: Json) -> Json:
        attempt, number = int(fields.get("attempt", 0)), int(fields.get("number", 0))
        if self.state.in_force.number >= number:
            in_force = self.state.in_force.number
            return refusal(Status.INVALID_REQUEST, f"this broker is in generation {in_force}")
        if attempt < self.state.attempt:
            return refusal(Status.INVALID_REQUEST, f"attempt {self.state.attempt} is later")
        self._resume()
        await self._save(ModeState(self.state.in_force, attempt))
        self._broker().role.link.freeze(False)
        self._events.write("withdrawn", attempt=attempt)
        return {}

    def _resume(self) -> None:
        """Serve again, as the master of the present generation."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.timer.cancel()
        broker = self._broker()
        if self._holds and broker.handover.is_holding:
            broker.pause_scans(False)
            broker.handover.end()
        self._holds = False
        broker.role.link.suspend(False)

    async def _save(self, state: ModeState) -> None:
        """Write the file; wait while the disk is full."""
        while True:
            try:
                await self._file.save(state)
                break
            except OSError as e:
                if not is_out_of_space(e):
                    raise
            await asyncio.sleep(self._config.clean_resource_s)
        self.state = state
