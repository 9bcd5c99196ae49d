"""Conversion of a set by an operator's command: the steps, over all its brokers.

    1 prepare the master    it holds sends; all logs are equal
    2 prepare the slaves    they promise to leave the generation
    3 the controllers       note the mode, if either mode is theirs (CONVERT_SET)
    4 commit the master     from here on the set is converted
    5 commit the slaves

The same command ends what an earlier one left. What brokers have on their disks decides:

    a broker has a later generation   the set is converted: the others follow it
    some have promised, none has it   nothing has changed: promises are withdrawn, master first

Nothing is guessed: unless all brokers of the set answer, the command refuses, since one that does
not may be the master that has the later generation. `next_step` is pure.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..controllers.controller_state import OWN_MODE
from ..net.wire import Json, Op, Status
from .mode_file import Generation
from .rules import COMMIT, PREPARE

MAX_STEPS = 20
LOOKS = 100  # for the first master of a generation


class ConversionRefused(Exception):
    """The set was not converted; the text says why. `code`: of the broker or controller that
    refused."""

    def __init__(self, why: str, code: Status = Status.INVALID_REQUEST) -> None:
        super().__init__(why)
        self.code = code


@dataclass(frozen=True)
class BrokerMode:
    """A broker's answer to the step `status`."""

    address: str
    broker_id: int
    total: int
    cluster: str
    in_force: Generation
    pending: Generation | None
    attempt: int
    is_master: bool
    epoch: int
    admits: bool

    @classmethod
    def of(cls, address: str, reply: Json) -> "BrokerMode":
        pending = reply["pending"]
        return cls(
            address,
            int(reply["brokerId"]),
            int(reply["total"]),
            str(reply["cluster"]),
            Generation.of(reply["inForce"]),
            Generation.of(pending) if pending else None,
            int(reply["attempt"]),
            bool(reply["isMaster"]),
            int(reply["epoch"]),
            bool(reply["admits"]),
        )


@dataclass(frozen=True)
class Done:
    """All brokers are in this generation, and it is the wanted mode."""

    generation: Generation


@dataclass(frozen=True)
class Follow:
    """These brokers have to follow into a generation that one of them has."""

    generation: Generation
    behind: Sequence[BrokerMode]


@dataclass(frozen=True)
class Withdraw:
    """An attempt to begin this generation, in this mode, has ended before the set was converted.
    `brokers`: its master first."""

    brokers: Sequence[BrokerMode]
    mode: str
    number: int
    attempt: int


@dataclass(frozen=True)
class Begin:
    """The set can be converted."""

    master: BrokerMode
    slaves: Sequence[BrokerMode]
    attempt: int


def next_step(brokers: Sequence[BrokerMode], mode: str) -> Done | Follow | Withdraw | Begin:
    """Decide what to do next. Raises ConversionRefused if that cannot be decided now."""
    total = max((b.total for b in brokers), default=0)
    if len({b.broker_id for b in brokers}) < max(total, 1):
        raise ConversionRefused(
            f"all {total} brokers of the set must answer, and {len(brokers)} do; start the others "
            "and run the command again",
            Status.BROKER_NOT_ALIVE,
        )
    latest = max((b.in_force for b in brokers), key=lambda each: each.number)
    if behind := [b for b in brokers if b.in_force.number < latest.number]:
        return Follow(latest, behind)
    attempt = 1 + max(b.attempt for b in brokers)
    if promised := [b for b in brokers if b.pending]:
        assert promised[0].pending is not None, "of those that have promised"
        promise = promised[0].pending
        first = sorted(brokers, key=lambda b: b.broker_id != promise.master)
        return Withdraw(first, promise.mode, latest.number + 1, attempt)
    if latest.mode == mode:
        return Done(latest)
    masters = [b for b in brokers if b.is_master]
    if not masters:
        raise ConversionRefused("the set has no master now", Status.MASTER_NOT_AVAILABLE)
    master_now = max(masters, key=lambda b: b.epoch)
    return Begin(master_now, [b for b in brokers if b is not master_now], attempt)


@dataclass
class Conversion:
    """One run of the command.

    `ask`: asks the broker at an address; raises OSError or a network error of its caller's, which
    ends the run. `order`: asks the leading controller; None if there are no controllers.
    `pause`: waits a little.
    """

    name: str
    mode: str
    addresses: Sequence[str]
    ask: Callable[[str, Op, Json], Awaitable[Json | None]]
    order: Callable[[Op, Json], Awaitable[Json]] | None
    pause: Callable[[], Awaitable[None]]
    done: list[str] = field(default_factory=list)  # what was done, in words

    async def run(self) -> Generation:
        """Convert the set; return its generation. Raises ConversionRefused."""
        for _ in range(MAX_STEPS):
            brokers = await self._look()
            match next_step(brokers, self.mode):
                case Done(generation):
                    await self._agree(generation, brokers)
                    await self._await_master()
                    return generation
                case Follow(generation, behind):
                    await self._follow(generation, behind)
                    self.done.append(f"resumed the conversion to {generation.mode}")
                case Withdraw() as withdraw:
                    await self._withdraw(withdraw)
                    self.done.append("withdrew an unfinished conversion")
                case Begin() as begin:
                    await self._convert(begin)
        raise ConversionRefused("the set changes again and again; try later")

    async def _look(self) -> list[BrokerMode]:
        found = []
        for address in self.addresses:
            reply = await self.ask(address, Op.CONVERT, self._fields("status"))
            if reply is None:
                continue
            if reply["code"] != Status.SUCCESS:
                raise ConversionRefused(f"{address}: {reply.get('remark', '')}")
            found.append(BrokerMode.of(address, reply))
        return found

    def _fields(self, step: str, **more: object) -> Json:
        return {"brokerName": self.name, "step": step, **more}

    async def _step(self, broker: BrokerMode, step: str, fields: Mapping[str, object]) -> Json:
        """Ask a broker for a step. Raises ConversionRefused if it does not take it."""
        reply = await self.ask(broker.address, Op.CONVERT, self._fields(step, **fields))
        if reply is None:
            why = f"{broker.address} does not answer; run the command again"
            raise ConversionRefused(why, Status.BROKER_NOT_ALIVE)
        if reply["code"] != Status.SUCCESS:
            why = f"{broker.address}: {reply.get('remark', '')}"
            raise ConversionRefused(why, Status(reply["code"]))
        return reply

    async def _convert(self, begin: Begin) -> None:
        master, attempt = begin.master, begin.attempt
        involved = OWN_MODE in (master.in_force.mode, self.mode)
        if involved and self.order is None:
            raise ConversionRefused(
                f"the controllers take part in a conversion from {master.in_force.mode} to "
                f"{self.mode}; name them with --controllers"
            )
        wanted = {"attempt": attempt, "mode": self.mode}
        try:
            ready = await self._step(master, PREPARE, wanted)
            number = master.in_force.number + 1
            new = Generation(self.mode, number, int(ready["masterId"]), int(ready["epoch"]))
            promise = {**wanted, **new.fields(), "end": ready["end"]}
            for slave in begin.slaves:
                await self._step(slave, PREPARE, promise)
            if involved:
                await self._note(new, attempt, master.cluster)
            await self._step(master, COMMIT, {**new.fields(), "attempt": attempt})
        except ConversionRefused:
            await self._give_up(begin)
            raise
        await self._follow(new, begin.slaves)

    async def _give_up(self, begin: Begin) -> None:
        """Withdraw what was promised, as far as brokers answer, unless the set is converted."""
        in_force = begin.master.in_force
        brokers = (begin.master, *begin.slaves)
        try:
            number = in_force.number + 1
            await self._withdraw(Withdraw(brokers, self.mode, number, begin.attempt))
        except ConversionRefused:
            return  # the next run of the command goes on from what brokers have on their disks

    async def _withdraw(self, withdraw: Withdraw) -> None:
        """Withdraw promises: the master's answer says that it has not converted the set."""
        fields = {"attempt": withdraw.attempt, "number": withdraw.number}
        master, *slaves = withdraw.brokers
        await self._step(master, "abort", fields)
        if self.order is not None and OWN_MODE in (master.in_force.mode, withdraw.mode):
            number = withdraw.number - 1
            before = Generation(master.in_force.mode, number, master.broker_id, master.epoch)
            await self._note(before, withdraw.attempt, master.cluster)
        for slave in slaves:  # at last: as long as one has promised, the command knows what to do
            await self._step(slave, "abort", fields)

    async def _note(self, new: Generation, attempt: int, cluster: str) -> None:
        """Have the controllers note a generation. Raises ConversionRefused if they do not."""
        assert self.order is not None, "checked before"
        fields = {
            "brokerName": self.name,
            "cluster": cluster,
            "mode": new.mode,
            "generation": new.number,
            "attempt": attempt,
            "master": new.master,
            "epoch": new.epoch,
        }
        reply = await self.order(Op.CONVERT_SET, fields)
        if reply["code"] != Status.SUCCESS:
            why = f"the controllers: {reply.get('remark', '')}"
            raise ConversionRefused(why, Status(reply["code"]))

    async def _follow(self, generation: Generation, behind: Sequence[BrokerMode]) -> None:
        """Have all of them follow; raise ConversionRefused if one could not."""
        failed: ConversionRefused | None = None
        for broker in behind:
            try:
                await self._step(broker, COMMIT, generation.fields())
            except ConversionRefused as e:
                failed = failed or e
        if failed is not None:
            raise failed

    async def _agree(self, now: Generation, brokers: Sequence[BrokerMode]) -> None:
        """Have controllers that elect know the generation: a request of a command that was
        withdrawn may have reached them late."""
        leader = next((b.broker_id for b in brokers if b.is_master), now.master)
        if self.order is not None and now.mode == OWN_MODE and leader:
            attempt = max(b.attempt for b in brokers)
            noted = Generation(now.mode, now.number, leader, max(b.epoch for b in brokers))
            await self._note(noted, attempt, brokers[0].cluster)

    async def _await_master(self) -> None:
        """Wait until the set takes sends, for a while: a converted set may lack brokers."""
        for _ in range(LOOKS):
            if any(b.is_master and b.admits for b in await self._look()):
                return
            await self.pause()
