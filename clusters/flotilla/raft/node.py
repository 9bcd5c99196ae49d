"""A Raft member in the world: the core, driven by the event loop, its log and its links.

Effects are released in order. While a sync is under way the core goes on taking messages, so that
everything that arrives meanwhile shares the next sync.

`propose` gives a future: what `apply` returned for the entry, or NotLeader (the entry certainly
never takes effect), or Indeterminate (leadership was lost under way: it may take effect later).
There is no time limit here; who asks on behalf of an impatient client keeps its own.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..net import Connection, Tasks
from ..ports import Ports
from ..rules import Rules
from ..wire import Op
from .core import Effects, Raft, RaftBroken, Role, State, Timing
from .links import Link
from .messages import Append, Entry, Message, VoteRequest, pack, unpack
from .wal import Recovered, Wal

Apply = Callable[[int, Entry], Any]


class NotLeader(Exception):
    """Not proposed, or replaced by another leader's entry: it certainly has no effect."""


class Indeterminate(Exception):
    """Proposed, and leadership was lost: it may still take effect."""


@dataclass(frozen=True)
class Member:
    """Who this node is, and where all members are."""

    me: str
    addresses: Mapping[str, str]
    timing: Timing
    folder: str


@dataclass(frozen=True)
class Hooks:
    """What the node tells its owner. `on_leading`: complete, everything committed is applied."""

    apply: Apply
    on_role: Callable[[Role], None]
    on_leading: Callable[[int], None]


@dataclass
class _Proposal:
    term: int
    future: "asyncio.Future[Any]"


class RaftNode:
    def __init__(self, raft: Raft, wal: Wal, member: Member, hooks: Hooks, ports: Ports) -> None:
        self.raft = raft
        self._wal = wal
        self._hooks = hooks
        self._ports = ports
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._links = self._make_links(member)
        self._inbound: dict[str, Connection] = {}
        self._proposals: dict[int, _Proposal] = {}
        self._role = Role(State.FOLLOWER, raft.term, None)
        self._busy = False
        self._closed = False
        self._syncing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def start(
        cls, member: Member, hooks: Hooks, ports: Ports, rules: Rules
    ) -> tuple["RaftNode", Recovered]:
        """Recover from disk and run. WalDamaged when the disk can not be trusted."""
        ports.files.makedirs(member.folder)
        wal, recovered = await Wal.recover(ports.files, f"{member.folder}/raft.wal")
        now = asyncio.get_running_loop().time()
        raft = Raft(
            member.me,
            tuple(member.addresses),
            member.timing,
            ports.randomness.uniform,
            rules,
            now,
            vote=recovered.vote,
            entries=recovered.entries,
        )
        node = cls(raft, wal, member, hooks, ports)
        for link in node._links.values():
            link.dial()
        node._pump()
        return node, recovered

    @property
    def leads(self) -> bool:
        """This node is the leader, surely, now."""
        return self.raft.has_quorum(self._loop.time())

    def propose(self, data: bytes) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = self._loop.create_future()
        index = self.raft.propose(self._loop.time(), data)
        if index is None:
            future.set_exception(NotLeader())
        else:
            self._proposals[index] = _Proposal(self.raft.term, future)
            self._pump()
        return future

    def receive(self, connection: Connection, body: bytes) -> None:
        """A peer's request that came by a connection it dialled. ValueError: not a peer."""
        message = unpack(body)
        if not isinstance(message, VoteRequest | Append) or message.source not in self._links:
            raise ValueError(f"an unexpected Raft message of {message.source}")
        self._inbound[message.source] = connection
        self._step(message)

    def forget(self, connection: Connection) -> None:
        """A connection that peers may have used is closed."""
        for peer in [p for p, c in self._inbound.items() if c is connection]:
            del self._inbound[peer]

    async def close(self) -> None:
        self._closed = True
        if self._timer:
            self._timer.cancel()
        for link in self._links.values():
            link.close()
        if self._syncing:
            await asyncio.wait([self._syncing])
        self._tasks.cancel()
        self._wal.close()

    # inside

    def _make_links(self, member: Member) -> dict[str, Link]:
        peers = sorted(peer for peer in member.addresses if peer != member.me)
        stale_s = member.timing.election_s
        return {
            peer: Link(member.addresses[peer], stale_s, self._tasks, self._answered(peer))
            for peer in peers
        }

    def _answered(self, peer: str) -> Callable[[bytes], None]:
        def on_answer(body: bytes) -> None:
            message = unpack(body)
            if message.source != peer:
                raise ValueError(f"{message.source} answers where {peer} should be")
            self._step(message)

        return on_answer

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
        """Keep a timer that fires no later than the core wants; too early does no harm."""
        if self._timer and self._timer.when() > self.raft.wake_at:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_at(self.raft.wake_at, self._tick)

    def _pump(self) -> None:
        self._arm()
        while not (self._busy or self._closed):
            effects = self.raft.take()
            if not effects:
                return
            if effects.to_disk:
                self._write(effects)
                self._busy = True
                self._syncing = self._tasks.start(self._sync(effects))
            else:
                self._release(effects)

    def _write(self, effects: Effects) -> None:
        try:
            self._wal.write(self.raft.vote, effects.first, effects.entries)
        except OSError as e:
            self._ports.exit.fatal(f"the Raft log could not be written: {e}")

    async def _sync(self, effects: Effects) -> None:
        try:
            await self._wal.sync()
        except OSError as e:
            self._ports.exit.fatal(f"the Raft log could not be synced: {e}")
        if not self._closed:
            self._release(effects)
            self._pump()

    def _release(self, effects: Effects) -> None:
        self._busy = True  # hooks may propose: what comes of it waits for its turn
        for peer, message in effects.messages:
            self._send(peer, message)
        if effects.role and effects.role != self._role:
            self._change_role(effects.role)
        for index, entry in effects.committed:
            self._apply(index, entry)
        self._busy = False

    def _send(self, peer: str, message: Message) -> None:
        if isinstance(message, VoteRequest | Append):
            self._links[peer].send(pack(message))
        elif connection := self._inbound.get(peer):
            connection.tell(Op.RAFT, pack(message))

    def _change_role(self, role: Role) -> None:
        led, self._role = self._role, role
        if led.state is State.LEADER and (role.state is not State.LEADER or role.term != led.term):
            proposals, self._proposals = self._proposals, {}
            for proposal in proposals.values():
                _fail(proposal.future, Indeterminate())
        self._hooks.on_role(role)

    def _apply(self, index: int, entry: Entry) -> None:
        result = self._hooks.apply(index, entry) if entry.data else None
        proposal = self._proposals.pop(index, None)
        if proposal and proposal.term == entry.term and not proposal.future.done():
            proposal.future.set_result(result)
        elif proposal:
            _fail(proposal.future, NotLeader())
        if (
            self._role.state is State.LEADER
            and index == self.raft.first_of_own_term
            and entry.term == self._role.term
        ):
            self._hooks.on_leading(entry.term)


def _fail(future: "asyncio.Future[Any]", why: Exception) -> None:
    if not future.done():
        future.set_exception(why)
