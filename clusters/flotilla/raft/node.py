"""A Raft member: the core, driven by the event loop, its log and its links.

Effects are released in order. While a sync is in progress the core goes on accepting messages, so
everything that arrives meanwhile shares the next sync.

`propose` returns a future. Its result is what `apply` returned for the entry, or it raises
NotLeader (the entry certainly never takes effect), TooLarge (the same, and a retry cannot help) or
Indeterminate (leadership was lost meanwhile: the entry may take effect later). `change` does the
same for a change of the members (thesis 4). There is no timeout here; a caller that needs one keeps
its own.

`await node.read()` returns when this node's state holds everything that was committed anywhere at
the time of the call (thesis 6.4, read index), so what is read from the state then, at once, is
linearizable. It raises NotLeader on other nodes. It costs a round of messages and no write.

The state machine belongs to the owner: `Hooks.apply` changes it, `snapshot()` returns all of it as
bytes, and `restore(bytes)` replaces all of it, at the start or when this node was away for too
long. A snapshot is taken every `snapshot_entries` applied entries, and written while everything
else goes on; then the log is cut (Raft 7).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..events import EventLog
from ..net.connection import FrameConnection, Tasks
from ..net.wire import Op, ProtocolError, decode
from ..rules import Rules
from ..world.choices import delay
from ..world.ports import Ports
from .core import Raft, RaftTiming
from .effects import RaftEffects, RaftState, Role
from .journal import RaftBroken, RaftJournal
from .links import RaftLinks
from .membership import Change, Configuration
from .messages import Append, EntryKind, LogEntry, Message, SnapshotPart, VoteRequest, pack, unpack
from .snapshot import Snapshot
from .storage import RecoveredState, Storage, StorageDamaged

Apply = Callable[[int, LogEntry], Any]
MAX_TERMS_AHEAD = 2**32  # more elections than centuries can hold
MAX_ENTRY_BYTES = 1024 * 1024  # an entry is sent whole, in one frame with others


class NotLeader(Exception):
    """Not proposed, or replaced by another leader's entry: it certainly has no effect."""


class TooLarge(Exception):
    """Not proposed: it could not be sent to followers, and would block all later entries."""


class Indeterminate(Exception):
    """Proposed, and leadership was lost: it may still take effect."""


@dataclass(frozen=True)
class RaftConfig:
    """`initial_members`: the addresses of all members of a new group; later the log defines them.
    If it is empty, this node belongs to no group until a leader adds it."""

    me: str
    initial_members: Mapping[str, str]
    timing: RaftTiming
    folder: str
    snapshot_entries: int


@dataclass(frozen=True)
class Hooks:
    """The node's calls to its owner. `on_leading`: this node leads, and everything committed is
    applied; `on_protocol_error`: a protocol error of that address, and the reason."""

    apply: Apply
    snapshot: Callable[[], bytes]
    restore: Callable[[bytes], None]
    on_role: Callable[[Role], None]
    on_leading: Callable[[int], None]
    on_members: Callable[[Configuration], None]
    on_protocol_error: Callable[[str, str], None]


@dataclass
class _Proposal:
    term: int
    future: "asyncio.Future[Any]"


class RaftNode:
    def __init__(
        self,
        raft: Raft,
        storage: Storage,
        member: RaftConfig,
        hooks: Hooks,
        ports: Ports,
        rules: Rules,
    ) -> None:
        self.raft = raft
        self._storage = storage
        self._member = member
        self._hooks = hooks
        self._ports = ports
        self._rules = rules
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._links = RaftLinks(
            member.timing.election_s, self._tasks, self._on_reply, hooks.on_protocol_error
        )
        self._inbound: dict[str, FrameConnection] = {}
        self._proposals: dict[int, _Proposal] = {}
        self._reads: deque[tuple[int, asyncio.Future[None]]] = deque()  # with their rounds
        self._role = Role(RaftState.FOLLOWER, raft.term, None)
        self._applied = self._saved = raft.commit  # the entries in the state, and in the snapshot
        self._busy = False
        self._closed = False
        self._syncing: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def start(
        cls, member: RaftConfig, hooks: Hooks, ports: Ports, rules: Rules
    ) -> tuple["RaftNode", RecoveredState]:
        """Recover from disk and run. Raises StorageDamaged if the disk cannot be trusted."""
        storage, recovered = await Storage.recover(ports.files, member.folder)
        if recovered.snapshot:
            _restore(hooks, recovered.snapshot, member)
        first = Configuration(dict(member.initial_members))
        raft = Raft(
            member.me,
            RaftJournal(first, recovered.snapshot, recovered.base, recovered.entries),
            member.timing,
            partial(_election_timeout, ports),
            rules,
            asyncio.get_running_loop().time(),
            vote=recovered.vote,
        )
        node = cls(raft, storage, member, hooks, ports, rules)
        node._links.set_peers(_others(raft.members, member.me))
        node._pump()
        return node, recovered

    @classmethod
    async def start_recorded(
        cls, member: RaftConfig, hooks: Hooks, ports: Ports, rules: Rules, events: EventLog
    ) -> tuple["RaftNode", RecoveredState]:
        """Start as `start` does, and record it. End the process if the disk cannot be trusted."""
        try:
            node, recovered = await cls.start(member, hooks, ports, rules)
        except StorageDamaged as e:
            events.write("fatal", why=str(e))
            ports.exit.fatal(str(e))
        events.write(
            "recover", term=recovered.vote.term, last=recovered.last_index, cut=recovered.cut
        )
        return node, recovered

    @property
    def leads(self) -> bool:
        """Whether this node certainly is the leader now."""
        return self.raft.has_quorum(self._loop.time())

    @property
    def members(self) -> Configuration:
        """The members by this node's log; the last change may not be committed."""
        return self.raft.members

    @property
    def committed_members(self) -> tuple[int, Configuration]:
        """The members by the last change that this node knows as committed, and the commit index:
        of two nodes that differ, the one with the greater index is right."""
        commit = self.raft.commit
        return commit, self.raft.journal.members_at(commit)

    def propose(self, data: bytes) -> "asyncio.Future[Any]":
        if len(data) > MAX_ENTRY_BYTES:
            future: asyncio.Future[Any] = self._loop.create_future()
            why = f"{len(data)} bytes in one entry; the maximum is {MAX_ENTRY_BYTES}"
            future.set_exception(TooLarge(why))
            return future
        return self._proposed(self.raft.propose(self._loop.time(), data))

    def change(self, change: Change) -> "asyncio.Future[Any]":
        """Change the members. The future is done when the change is committed.

        A new member becomes a learner by it; the leader makes it a voter later. Raises
        ChangeRefused or ChangeMustWait at once.
        """
        return self._proposed(self.raft.change(self._loop.time(), change))

    def read(self) -> Awaitable[None]:
        """Wait until the state holds what was committed anywhere by now. Raises NotLeader."""
        future: asyncio.Future[None] = self._loop.create_future()
        number = self.raft.read(self._loop.time())
        if number is None:
            future.set_exception(NotLeader())
        else:
            self._reads.append((number, future))
            self._pump()
        return future

    def receive(self, connection: FrameConnection, body: bytes) -> None:
        """Take a request from a connection that a peer opened. Raises Senseless if malformed."""
        message = self._parse(body)
        if not isinstance(message, VoteRequest | Append | SnapshotPart):
            raise ProtocolError(f"an unexpected Raft message from {message.source}")
        if message.source == self._member.me:
            raise ProtocolError(f"{message.source} is this node itself")
        self._inbound[message.source] = connection
        self._step(message)

    def forget(self, connection: FrameConnection) -> None:
        """Forget a closed connection that peers may have used."""
        for peer in [p for p, c in self._inbound.items() if c is connection]:
            del self._inbound[peer]

    async def close(self) -> None:
        """Stop without waiting for the disk. Nothing is promised before it is on disk, so the next
        start is the same as after a kill."""
        self._closed = True
        if self._timer:
            self._timer.cancel()
        self._links.close()
        in_progress = [task for task in (self._syncing, self._saving) if task]
        self._tasks.cancel()
        if in_progress:
            await asyncio.wait(in_progress)
        self._storage.close()

    # input

    def _proposed(self, index: int | None) -> "asyncio.Future[Any]":
        if index in self._proposals:
            return self._proposals[index].future
        future: asyncio.Future[Any] = self._loop.create_future()
        if index is None:
            future.set_exception(NotLeader())
        elif index <= self._applied:
            future.set_result(None)  # nothing to change
        else:
            self._proposals[index] = _Proposal(self.raft.log.term_at(index) or 0, future)
            self._pump()
        return future

    def _parse(self, body: bytes) -> Message:
        """Return the message. Raises Senseless if it is malformed, or from a term that no election
        can have reached: it would use up the terms, and no leader could be elected any more."""
        message = decode(unpack, body)
        if message.term > self.raft.term + MAX_TERMS_AHEAD:
            raise ProtocolError(f"term {message.term}, while ours is {self.raft.term}")
        return message

    def _on_reply(self, peer: str, body: bytes) -> None:
        message = self._parse(body)
        if message.source != peer:
            raise ProtocolError(f"{message.source} answers in place of {peer}")
        self._step(message)

    def _step(self, message: Message) -> None:
        if self._closed:
            return
        try:
            self.raft.step(self._loop.time(), message)
        except RaftBroken as e:
            self._ports.exit.fatal(f"Raft: {e}")
        self._pump()

    def _tick(self) -> None:
        self._timer = None
        self.raft.tick(self._loop.time())
        self._pump()

    def _arm(self) -> None:
        """Keep a timer that fires no later than `wake_at`; too early does no harm."""
        if self._timer and self._timer.when() > self.raft.wake_at:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_at(self.raft.wake_at, self._tick)

    # output

    def _pump(self) -> None:
        self._arm()
        while not (self._busy or self._closed):
            effects = self.raft.take_effects()
            if not effects:
                return
            if effects.needs_disk:
                self._busy = True
                self._syncing = self._tasks.start(self._write(effects))
            else:
                self._release(effects)

    async def _write(self, effects: RaftEffects) -> None:
        try:
            most_s = self._member.timing.heartbeat_s
            await delay(self._ports.choices, "raft-sync-late", most_s)
            await self._storage.write(effects.hard_state, effects.log)
        except OSError as e:
            self._ports.exit.fatal(f"the Raft log could not be written: {e}")
        if not self._closed:
            self._release(effects)
            self._pump()

    def _release(self, effects: RaftEffects) -> None:
        self._busy = True  # hooks may propose; those effects follow later
        if effects.log.members:
            self._links.set_peers(_others(effects.log.members, self._member.me))
            self._hooks.on_members(effects.log.members)
        for peer, message in effects.messages:
            most_s = self._member.timing.election_s / 2
            if late_s := self._ports.choices.moment_s("raft-late", most_s):
                self._loop.call_later(late_s, self._send, peer, message)
            else:
                self._send(peer, message)
        role, led = effects.role, self._role.state is RaftState.LEADER
        deposed = led and role is not None and role.state is not RaftState.LEADER
        if role and role != self._role and not deposed:
            self._change_role(role)
        if effects.log.install:
            self._install(effects.log.install)
        for index, entry in effects.committed:
            self._apply(index, self._rules.committed_entry(index, entry))
        if role and deposed:
            self._change_role(role)  # after the entries committed until then have succeeded
        self._answer_reads(effects.readable)
        self._busy = False
        self._save_if_due()

    def _answer_reads(self, readable: int) -> None:
        while self._reads and self._reads[0][0] <= readable:
            _, future = self._reads.popleft()
            if not future.done():
                future.set_result(None)

    def _send(self, peer: str, message: Message) -> None:
        if self._closed:
            return
        if isinstance(message, VoteRequest | Append | SnapshotPart):
            self._links.send(peer, pack(message))
        elif connection := self._inbound.get(peer):
            connection.send_oneway(Op.RAFT, pack(message))

    def _change_role(self, role: Role) -> None:
        led, self._role = self._role, role
        if led.state is RaftState.LEADER and (
            role.state is not RaftState.LEADER or role.term != led.term
        ):
            proposals, self._proposals = self._proposals, {}
            for proposal in proposals.values():
                _fail(proposal.future, Indeterminate())
            reads, self._reads = self._reads, deque()
            for _, read in reads:
                _fail(read, NotLeader())
        self._hooks.on_role(role)

    # the state machine

    def _apply(self, index: int, entry: LogEntry) -> None:
        of_owner = entry.data and entry.kind == EntryKind.DATA
        result = self._hooks.apply(index, entry) if of_owner else None
        self._applied = index
        proposal = self._proposals.pop(index, None)
        if proposal and proposal.term == entry.term and not proposal.future.done():
            proposal.future.set_result(result)
        elif proposal:
            _fail(proposal.future, NotLeader())
        leading = self.raft.leading
        if (
            self._role.state is RaftState.LEADER
            and leading
            and index == leading.first_of_own_term
            and entry.term == self._role.term
        ):
            self._hooks.on_leading(entry.term)

    def _install(self, snapshot: Snapshot) -> None:
        self._applied = self._saved = snapshot.index
        _restore(self._hooks, snapshot, self._member)

    def _save_if_due(self) -> None:
        """Start a snapshot if one is due, but not before a leader's snapshot is restored."""
        entries = self._ports.choices.fewer("snapshot-early", self._member.snapshot_entries)
        due = self._applied - self._saved >= entries
        behind = self._applied < self.raft.log.base.index
        if due and not behind and self._saving is None and not self._closed:
            self._saved = self._applied
            snapshot = self.raft.journal.snapshot_at(self._applied, self._hooks.snapshot())
            self._saving = self._tasks.start(self._save(snapshot))

    async def _save(self, snapshot: Snapshot) -> None:
        try:
            await self._storage.save_snapshot(snapshot)
        except OSError as e:
            self._ports.exit.fatal(f"the Raft snapshot could not be written: {e}")
        self._saving = None
        if not self._closed:
            self.raft.compact(snapshot)
            self._pump()


def _election_timeout(ports: Ports, least: float, most: float) -> float:
    """Return a random factor of the election timeout, or by a choice the least one."""
    drawn = ports.randomness.uniform(least, most)
    return least if ports.choices.chance("election-soon") else drawn


def _restore(hooks: Hooks, snapshot: Snapshot, member: RaftConfig) -> None:
    try:
        hooks.restore(snapshot.data)
    except (KeyError, TypeError, ValueError) as e:
        path = f"{member.folder}/raft.snapshot"
        raise StorageDamaged(
            f"{path}, byte {snapshot.data_at}: the state in it is invalid: {e!r}"
        ) from e


def _others(members: Configuration, me: str) -> dict[str, str]:
    return {peer: address for peer, address in members.addresses.items() if peer != me}


def _fail(future: "asyncio.Future[Any]", why: Exception) -> None:
    if not future.done():
        future.set_exception(why)
