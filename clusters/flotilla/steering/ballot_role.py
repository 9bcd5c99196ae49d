"""Brokers that elect their master themselves: Raft in the data path, without controllers.

RocketMQ 4.5 had this mode as the *DLedger commit log*. The brokers of a set are one Raft group of a
fixed size (`dLegerPeers`); a term is an epoch of the log. `replication.ballot` decides, and this
module is its driver: it carries requests and answers, and keeps term and vote on the disk.

    VOTE   a candidate's request: term, the epoch of its last record, the end of its log
    BEAT   a leader's sign of life: its term, where slaves copy from it, and its commit

Both are answered with the term of the one who was asked. What was decided is carried out before
anything is answered or sent, in this order:

1. A broker that enters a later term, or leads no longer, stops at once to acknowledge sends and to
   copy (`RoleHandler.stand_by`): a copy that it acknowledged to an earlier leader after it had
   voted could be counted for a message that the next leader lacks.
2. The term and the vote are on the disk.
3. A leader begins its reign; a follower copies from its leader.

A leader serves no client before the first record of its epoch is committed: only then it knows all
that earlier masters have acknowledged. While no leader is known, the last one stays in `info`, so
that slaves that are read (`slaveReadEnable`) go on to serve.

A broker whose disk was emptied has forgotten its vote and what it had acknowledged. It may come
back while a majority of the others has lost nothing, as in every Raft group.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar
from zlib import crc32

from ..config import Config
from ..events import EventLog
from ..net.connection import (
    CallTimeout,
    ConnectionLost,
    FrameConnection,
    Pool,
    Tasks,
    Unreachable,
)
from ..net.wire import Json, Op, Status, from_json, to_json
from ..raft.effects import RaftState, Role
from ..raft.messages import VoteReply, VoteRequest
from ..raft.votes import Vote
from ..replication.ballot import BallotEffects, BallotTiming, Beat, LogElection, LogEnd, Message
from ..replication.replica import Replica
from ..rules import Rules
from ..store.commit_log import DiskFull
from ..world.ports import FileSystem, Ports, is_out_of_space, retry_when_out_of_files
from ..world.timers import WakeEvent
from .steering import ReplicaInfo, RoleHandler, SetAuthority

T = TypeVar("T")
Handler = Callable[[FrameConnection, Json], Awaitable[Json]]


class BallotRole:
    """Takes part in the elections of a broker's set; implements `steering.Steering`."""

    authority: SetAuthority | None = None  # the set never changes
    registered = True

    def __init__(
        self,
        config: Config,
        ports: Ports,
        rules: Rules,
        replica: Replica,
        roles: RoleHandler,
        events: EventLog,
    ) -> None:
        self.id = broker_id(config.dleger_self_id)
        self.info = ReplicaInfo()
        self.halted = ""
        self._config, self._ports, self._rules = config, ports, rules
        self._replica, self._roles, self._events = replica, roles, events
        self._peers = {name: at for name, at in config.dleger_peers.items() if at != config.address}
        self._members = tuple(sorted(broker_id(name) for name in config.dleger_peers))
        self._path = f"{config.store}/ballot"
        # a later answer would not count
        self._patience_s = config.ballot_heartbeat_s * config.max_heartbeat_leak
        self._pool = Pool(self._patience_s)
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._lock = asyncio.Lock()
        self._wake = WakeEvent()
        self._ballot: LogElection | None = None
        self._loaded = asyncio.Event()
        self._ha_address = ""  # of the leader
        self._leads = False
        self._follows: ReplicaInfo | None = None
        self._promotion: asyncio.Task[None] | None = None
        self._frozen = False

    def start(self) -> None:
        self._tasks.start(self._run())

    def close(self) -> None:
        self._tasks.cancel()
        self._pool.close()

    def hand_back(self) -> None:
        """Do nothing: no broker serves for an absent master here."""

    def notice(self, info: Json) -> None:
        """Do nothing: there are no controllers."""

    def ask_soon(self) -> None:
        """Do nothing: beats tell who leads."""

    def freeze(self, frozen: bool) -> None:
        self._frozen = frozen
        self._wake.set()

    def suspend(self, suspended: bool) -> None:
        """Do nothing: a master that is deposed has lost its votes."""

    def table(self) -> Mapping[int, Handler]:
        """Return the handlers of the requests that brokers of the group send each other."""
        return {Op.VOTE: self._on_vote, Op.BEAT: self._on_beat}

    async def _run(self) -> None:
        config = self._config
        timing = BallotTiming(
            config.ballot_heartbeat_s,
            config.max_heartbeat_leak,
            config.min_vote_interval_s,
            config.max_vote_interval_s,
        )
        vote = await self._last_vote()
        self._ballot = ballot = LogElection(
            config.dleger_self_id,
            tuple(self._peers),
            timing,
            self._ports.randomness.uniform,
            self._rules.may_grant_vote,
            self._first_attempt_at(vote, timing),
            vote,
        )
        self._loaded.set()
        while True:
            left_s = ballot.wake_at - self._loop.time()
            if left_s > 0:
                await self._wake.wait(left_s)
            else:
                await self._tick(ballot)

    def _first_attempt_at(self, vote: Vote, timing: BallotTiming) -> float:
        """Return when to think of an election. In the first one after a conversion the broker that
        was master goes ahead; all have the same log."""
        now, config = self._loop.time(), self._config
        begun = max(vote.term, self._replica.epochs.last_epoch) > config.epoch_before
        if begun or not config.first_master:
            return now
        if config.first_master == self.id:  # the others change their mode a moment later
            return now + timing.heartbeat_s / 20 - timing.max_vote_s
        return now + timing.doubt_s

    async def _tick(self, ballot: LogElection) -> None:
        async with self._lock:
            if not ballot.leads and not self._rules.may_lead(self._frozen):
                ballot.tick(self._loop.time(), None)
                await self._carry_out(ballot.take_effects())
                return
            if ballot.begins_term(self._loop.time()):
                await self._stand_by("it asks for votes")
            may_lead = ballot.leads or self._replica.store.has_room(b"", b"", b"")
            log = self._log_end() if may_lead else None
            ballot.tick(self._loop.time(), log)
            await self._carry_out(ballot.take_effects())

    def _log_end(self) -> LogEnd:
        end = self._replica.store.log.max_offset
        written = self._replica.epochs.ranges(end)
        return LogEnd(written[-1][0] if written else 0, end)

    # requests and their answers

    async def _on_vote(self, connection: FrameConnection, fields: Json) -> Json:
        if why := self._stranger(fields):
            return {"code": Status.INVALID_REPLICAS, "remark": why}
        request = VoteRequest(
            term=int(fields["term"]),
            source=str(fields["from"]),
            last_term=int(fields["lastEpoch"]),
            last_index=int(fields["maxOffset"]),
            pre=bool(fields["pre"]),
        )
        if not self._rules.may_lead(self._frozen):
            await self._loaded.wait()
            assert self._ballot is not None, "set before `_loaded`"
            return {"term": self._ballot.term, "granted": False}
        reply = await self._step(lambda b, now: b.on_vote_request(now, request, self._log_end()))
        return {"term": reply.term, "granted": reply.granted}

    async def _on_beat(self, connection: FrameConnection, fields: Json) -> Json:
        if why := self._stranger(fields):
            return {"code": Status.INVALID_REPLICAS, "remark": why}
        beat = Beat(int(fields["term"]), str(fields["from"]))
        ha_address, commit = str(fields["haAddr"]), int(fields["commit"])

        def hear(ballot: LogElection, now: float) -> int:
            term = ballot.on_beat(now, beat)
            if term == beat.term:
                self._ha_address = ha_address
            return term

        term = await self._step(hear)
        if term == beat.term:
            self._roles.heard_commit(term, commit)
        return {"term": term}

    def _stranger(self, fields: Json) -> str:
        """Return why a request is not from a member of this group, or an empty string."""
        name, source = fields["brokerName"], fields["from"]
        theirs, own = int(fields.get("generation", 0)), self._config.generation
        if not self._rules.is_of_generation(own, theirs):
            return f"{source} is in generation {theirs} of {name}, and this broker in {own}"
        if name == self._config.broker_name and source in self._peers:
            return ""
        return f"{source} of {name} is not one of dLegerPeers of {self._config.broker_name}"

    async def _deliver(self, peer: str, message: Message) -> None:
        """Send a request and take its answer."""
        fields: Json = {
            "brokerName": self._config.broker_name,
            "from": self._config.dleger_self_id,
            "term": message.term,
        }
        if self._config.generation:
            fields["generation"] = self._config.generation
        sent_at = self._loop.time()
        if isinstance(message, Beat):
            op, commit = Op.BEAT, self._replica.store.confirm_offset
            fields |= {"haAddr": self._config.ha_address, "commit": commit}
        else:
            op, end = Op.VOTE, {"lastEpoch": message.last_term, "maxOffset": message.last_index}
            fields |= {**end, "pre": bool(message.pre)}
        address = self._peers[peer]
        try:
            reply = await self._pool.ask(address, op, fields, self._patience_s)
        except (Unreachable, ConnectionLost, CallTimeout):
            self._pool.drop(address)
            return
        if reply["code"] != Status.SUCCESS:
            if not isinstance(message, Beat):
                no = VoteReply(term=0, source=peer, granted=False, pre=message.pre)
                await self._step(lambda b, now: b.on_vote_reply(now, no))
            return
        term = int(reply["term"])
        if isinstance(message, Beat):
            await self._step(lambda b, now: b.on_beat_reply(now, peer, term, sent_at))
        else:
            granted, pre = bool(reply["granted"]), message.pre
            vote = VoteReply(term=term, source=peer, granted=granted, pre=pre)
            await self._step(lambda b, now: b.on_vote_reply(now, vote))

    async def _step(self, act: Callable[[LogElection, float], T]) -> T:
        """Let the ballot decide, and carry out what follows before returning."""
        await self._loaded.wait()
        async with self._lock:
            assert self._ballot is not None, "set before `_loaded`"
            result = act(self._ballot, self._loop.time())
            await self._carry_out(self._ballot.take_effects())
        self._wake.set()
        return result

    # what follows

    async def _carry_out(self, effects: BallotEffects) -> None:
        """Carry out effects in the order of the module's docstring."""
        vote, role = effects.vote, effects.role
        later_term = vote is not None and self._follows is not None and vote.term > self.info.epoch
        if later_term or (self._leads and role is not None and role.state is not RaftState.LEADER):
            await self._stand_by("a later term began, or a majority does not answer")
        if vote is not None:
            await self._record(self._rules.hard_state(vote))
        if role is not None:
            await self._take_role(role)
        for peer, message in effects.messages:
            self._tasks.start(self._deliver(peer, message))

    async def _stand_by(self, why: str) -> None:
        """Serve and copy nothing until there is a leader. Returns when the log stands still."""
        if self._leads:
            self.info = ReplicaInfo(self.info.epoch)
            self._record_role("fenced", self.info)
        self._leads, self._follows = False, None
        await self._roles.stand_by(why)
        if self._promotion is not None:
            await asyncio.gather(self._promotion, return_exceptions=True)
            self._promotion = None

    async def _take_role(self, role: Role) -> None:
        self._events.write(
            "raft",
            brokerName=self._config.broker_name,
            term=role.term,
            state=role.state.value,
            leader=role.leader,
        )
        if role.state is RaftState.LEADER:
            self._leads = True
            self.info = info = self._info(role.term, self._config.dleger_self_id)
            self._record_role("master", info)
            self._record_election(role.term)
            self._promotion = self._tasks.start(self._promote(info))
        elif role.leader is not None:
            info = self._info(role.term, role.leader)
            if info != self._follows:
                self.info = self._follows = info
                self._record_role("slave", info)
                await self._roles.become_slave(info)

    def _info(self, term: int, leader: str) -> ReplicaInfo:
        me = leader == self._config.dleger_self_id
        address = self._config.address if me else self._peers[leader]
        ha_address = self._config.ha_address if me else self._ha_address
        return ReplicaInfo(term, broker_id(leader), address, ha_address, self._members, term)

    async def _promote(self, info: ReplicaInfo) -> None:
        try:
            await self._roles.become_master(info)
        except DiskFull:
            self._tasks.start(self._step(lambda b, now: b.resign(now)))

    def _record_role(self, role: str, info: ReplicaInfo) -> None:
        self._events.write(
            "role",
            role=role,
            brokerName=self._config.broker_name,
            brokerId=self.id,
            masterId=info.master_id,
            masterAddr=info.master_addr,
            epoch=info.epoch,
        )

    def _record_election(self, term: int) -> None:
        self._events.write(
            "election",
            brokerName=self._config.broker_name,
            masterId=self.id,
            epoch=term,
            set=list(self._members),
            setEpoch=term,
            previousSet=list(self._members),
            unclean=False,
            trigger="expired",
        )

    # term and vote on the disk

    async def _last_vote(self) -> Vote:
        """Return the term and the vote of this broker's last process; none if the store is new."""
        files, last = self._ports.files, Vote(self._replica.epochs.last_epoch)
        if not files.exists(self._path):
            return last
        data = await retry_when_out_of_files(lambda: _read(files, self._path))
        try:
            vote = unpack_vote(data)
        except ValueError as e:
            self._ports.exit.fatal(
                f"{self._path} is damaged ({e}): this broker could vote twice in one term; bring "
                f"the file back, or empty {self._config.store}"
            )
        return max(vote, last, key=lambda v: v.term)

    async def _record(self, vote: Vote) -> None:
        """Write term and vote to the disk; wait while that is full."""
        while True:
            try:
                await self._ports.files.replace(self._path, pack_vote(vote))
                return
            except OSError as e:
                if not is_out_of_space(e):
                    raise
            await asyncio.sleep(self._config.ballot_heartbeat_s)


def broker_id(peer: str) -> int:
    """Return the id of a broker of the group: 1 for n0, as in RocketMQ."""
    return int(peer[1:]) + 1


def pack_vote(vote: Vote) -> bytes:
    fields = {"term": vote.term, "votedFor": vote.voted_for}
    return to_json(fields | {"crc": crc32(to_json(fields))})


def unpack_vote(data: bytes) -> Vote:
    """Parse the file of term and vote. Raises ValueError if it is damaged."""
    try:
        fields = from_json(data)
        term, voted_for = int(fields["term"]), fields["votedFor"]
        crc = int(fields["crc"])
    except (KeyError, TypeError, ValueError) as e:
        raise ValueError(f"no vote: {type(e).__name__}: {e}") from e
    if crc != crc32(to_json({"term": term, "votedFor": voted_for})):
        raise ValueError("no vote: its checksum does not match")
    return Vote(term, voted_for)


async def _read(files: FileSystem, path: str) -> bytes:
    return files.read(path)
