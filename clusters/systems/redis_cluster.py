"""Redis Cluster: shards, each a primary that acknowledges alone and its replicas, whose primaries
elect another for a shard that has lost its own.

Each of 16,384 slots of keys belongs to a shard. Servers that do not hear a primary for the
`cluster-node-timeout` agree that it failed, and a majority of the other primaries votes for a
replica of it, in a new epoch. A primary that hears no majority of them refuses commands after the
same time. What it acknowledged until then and its replicas lack is lost, as Redis's manual says.
With `wait-replicas`, clients wait (WAIT) until replicas have a write, and verify reads likewise.

A client learns which server has a slot by CLUSTER NODES and by MOVED, which means that nothing was
done; a command that was redirected is sent to the next server. Everything else is as with
`clusters.systems.redis`. Servers begin with a nodes.conf that has all of them, so the cluster needs
no commands to be formed. A server that has lost its disk comes back as a replica of its shard.
"""

import asyncio
import hashlib
import re
from binascii import crc_hqx
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from clusters.kit import Copy, NodeAccess, Profile, View, plugin, servers_in_turn
from clusters.systems import redis
from clusters.systems.redis import (
    BROKER,
    PORTS,
    Primary,
    Redis,
    RedisClient,
    RedisConnection,
    RedisStreamClient,
)
from harness.contracts import BadRequest, BedFailed, Node
from harness.contracts.calls import Refused

SLOTS, BUS = 16_384, 10_000  # the port between servers is the other one and this
MAX_HOPS = 5
MAJORITY = "majority"  # the leader of all servers that reach most primaries
ELECTION_S = 1.0  # a replica waits 0.5 to 1 s before it asks for votes
REJOIN_LOOK_S, REJOIN_WITHIN = 0.2, 5  # looks for another primary, for so many times the detection
GONE = frozenset({"fail", "fail?", "handshake", "noaddr"})  # flags of servers that are not reached
REDIRECT = re.compile(r"MOVED \d+ (\S+):\d+")
OF_SHARDS = ("shards",)
WAIT_ONE = {"wait-replicas": 1, "min-replicas-to-write": 1, "appendfsync": "always"}


# ------------------------------------------------------------------------------------ its protocol


class Member(NamedTuple):
    """A line of CLUSTER NODES, which nodes.conf has, too."""

    address: str
    flags: frozenset[str]
    epoch: int
    slots: Sequence[range]

    def has(self, slot: int) -> bool:
        return any(slot in each for each in self.slots)


def members_in(text: str) -> list[Member]:
    """Return the servers that a server knows. Raises ValueError if the text has other lines."""
    found = []
    for line in text.splitlines():
        _, where, flags, _, _, _, epoch, _, *owns = line.split(" ")
        ranges = [each.partition("-") for each in owns if not each.startswith("[")]
        slots = [range(int(first), int(last or first) + 1) for first, _, last in ranges]
        address = where.partition("@")[0].rpartition(":")[0]
        found.append(Member(address, frozenset(flags.split(",")), int(epoch), slots))
    return found


def own_of(members: Iterable[Member]) -> Member:
    """Return the server that was asked. Raises ValueError if it is not there."""
    for member in members:
        if "myself" in member.flags:
            return member
    raise ValueError("the server does not know itself")


def slot_of(key: str) -> int:
    """Return the slot of a key: of what is between its first braces, if there is anything."""
    tag = key.partition("{")[2].partition("}")
    return crc_hqx((tag[0] if tag[0] and tag[1] else key).encode(), 0) % SLOTS


# -------------------------------------------------------------------------------------- the client


class RedisClusterClient(RedisClient):
    """A client of one logical process, with one connection to each server that it needs."""

    def __init__(self, settings: Mapping[str, Any], number: int) -> None:
        super().__init__(settings, number)
        self._servers = deque(servers_in_turn(settings, number))
        self._links: dict[str, asyncio.Task[RedisConnection]] = {}
        self._owners: dict[int, asyncio.Task[Primary]] = {}  # slot -> its primary
        self._moved: dict[int, str] = {}  # slot -> address that a server has named

    async def close(self) -> None:
        for task in (*self._owners.values(), *self._links.values()):
            task.cancel()
        for link in filter(_is_open, self._links.values()):
            if link.done():
                link.result().close()

    async def _connected(self, key: str) -> Primary:
        slot = slot_of(key)
        owner = self._owners.get(slot)
        if owner is None or not _is_open(owner):
            owner = self._owners[slot] = asyncio.create_task(self._find(slot))
        return await asyncio.shield(owner)

    async def _find(self, slot: int) -> Primary:
        try:
            async with asyncio.timeout(redis.WITHIN_S):
                address = self._moved.pop(slot, "") or await self._named(slot)
                link = await self._link(address)
                own = own_of(await _members(link))
        except (OSError, ValueError, Refused) as e:
            raise Refused(f"no primary of slot {slot} is known: {e}") from None
        if not own.has(slot):
            raise Refused(f"{address} does not have slot {slot}")
        return Primary(link, address, own.epoch)

    async def _named(self, slot: int) -> str:
        """Return the server that the next one names as the slot's. Raises ValueError if it names
        none."""
        self._servers.rotate(-1)
        for member in await _members(await self._link(self._servers[0])):
            if member.has(slot):
                return member.address
        raise ValueError(f"{self._servers[0]} knows no server of the slot")

    async def _link(self, address: str) -> RedisConnection:
        link = self._links.get(address)
        if link is None or not _is_open(link):
            link = self._links[address] = asyncio.create_task(_connect(address))
        return await asyncio.shield(link)

    async def _ask(self, *words: bytes | str | int) -> tuple[Any, Primary]:
        """Return the reply of the slot's primary, which other servers are asked for, and it."""
        slot = slot_of(redis.key_of(words))
        for _ in range(MAX_HOPS):
            try:
                return await super()._ask(*words)
            except Refused as e:
                moved = REDIRECT.search(str(e))
                self._forget(slot, moved[1] if moved else "")
                if not moved:
                    await asyncio.sleep(redis.SEEK_AGAIN_S)  # as a search for a primary
                    raise
        raise Refused(f"slot {slot} was moved {MAX_HOPS} times")

    def _forget(self, slot: int, moved: str) -> None:
        """Forget the slot's primary, unless it is the one that another server has named."""
        owner = self._owners.get(slot)
        if owner is None or not owner.done():
            return
        if not (moved and _is_open(owner) and owner.result().address == moved):
            del self._owners[slot]
            self._moved.update({slot: moved} if moved else {})


class RedisClusterStreamClient(RedisStreamClient, RedisClusterClient):
    """A client of one logical process whose logs are streams."""


def _is_open(task: asyncio.Task[Any]) -> bool:
    """Return whether a connection is open, or being opened."""
    if not task.done():
        return True
    if task.cancelled() or task.exception():
        return False
    found = task.result()
    return not (found.link if isinstance(found, Primary) else found).closed


async def _connect(address: str) -> RedisConnection:
    async with asyncio.timeout(redis.WITHIN_S):
        return await redis.connect(address, PORTS[BROKER])


async def _members(link: RedisConnection) -> list[Member]:
    return members_in((await link.request("CLUSTER", "NODES")).decode())


# ------------------------------------------------------------------------------------- the service


class RedisCluster(Redis):
    """Three primaries and a replica of each by default: servers 1 and 4 are the first shard."""

    name, client = "redis-cluster", RedisClusterClient
    _stream_client = RedisClusterStreamClient
    roles: ClassVar = {BROKER: 6}
    names: ClassVar = {BROKER: "redis"}
    arbiters, dated = (), ()  # elections are those that servers report when they are asked
    attachable = False  # its shards are those that nodes.conf makes
    words: ClassVar = {**Redis.words, "group": "shard"}
    settings: ClassVar = {
        **{k: v for k, v in Redis.settings.items() if k not in redis.OF_SENTINEL},
        "cluster-node-timeout": 2000,
        "cluster-require-full-coverage": ("yes", "no"),
        "cluster-replica-validity-factor": 10,
        "shards": 3,
    }
    smallest: ClassVar = {
        key: int(key in ("cluster-node-timeout", "lease_s", "ack_wait_s", "shards"))
        for key, value in settings.items()
        if isinstance(value, int)
    }
    _not_of_server = (*redis.OF_CLIENT, *OF_SHARDS)
    _before_reading = (("READONLY",),)
    profiles = (
        Profile(
            name="default",
            about="acknowledged as soon as the shard's primary has it in memory",
            expected={"redis-cluster-split": "LOST_ACKED"},
        ),
        Profile(
            name="wait",
            about="clients wait until a replica has it; reads are verified likewise",
            settings=WAIT_ONE,
            expected={"redis-cluster-split": "valid"},
        ),
        *redis.stream_profiles("redis-cluster-split", WAIT_ONE),
    )

    @classmethod
    def detects_within_s(cls, values: Mapping[str, Any]) -> float:
        return float(values["cluster-node-timeout"] / 1000 + ELECTION_S)

    @classmethod
    def groups(
        cls, values: Mapping[str, Any], nodes: Sequence[str], keys: Sequence[str]
    ) -> dict[str, tuple[Sequence[str], Sequence[str]]]:
        """Return the shards. Raises BadRequest if there are fewer nodes than shards."""
        shards = values["shards"]
        if len(nodes) < shards:
            raise BadRequest(
                f"{shards} shards need at least {shards} nodes, and the trial has {len(nodes)}; "
                f"use more, or the setting shards = {len(nodes)}"
            )
        return {
            _shard(number): (
                nodes[number::shards],
                [key for key in keys if _shard_of(slot_of(key), shards) == number],
            )
            for number in range(shards)
        }

    def files(self, here: NodeAccess, peers: Sequence[Node]) -> dict[str, str]:
        """Return redis.conf, and nodes.conf as it is at the beginning."""
        own = [
            "cluster-enabled yes",
            f"cluster-announce-ip {here.node.address}",
            "cluster-allow-replica-migration no",  # so that a shard keeps its servers
        ]
        return {
            self._config: "\n".join([*self._server_lines(here), *own, ""]),
            f"{self.data}/nodes.conf": nodes_conf(peers, here.node, self._shards, {}),
        }

    @property
    def _shards(self) -> int:
        return int(self.values["shards"])

    def _number(self, node: Node) -> int:
        """Return the number of a server's shard."""
        return self.nodes.index(node) % self._shards

    async def rejoin(self, here: NodeAccess, others: Sequence[NodeAccess]) -> None:
        """Come back as a replica of the server that has the shard's slots, as soon as it is
        another one. If none becomes that, come back as at the beginning: the shard is lost."""
        number = self._number(here.node)
        addresses = {node.address: node for node in self.nodes}
        leads: dict[int, Node] = {}
        detection_s = self.detects_within_s(self.values)
        for _ in range(round(REJOIN_WITHIN * detection_s / REJOIN_LOOK_S)):
            for member in await self._seen_by(others):
                for slots in member.slots if member.address in addresses else ():
                    leads[_shard_of(slots.start, self._shards)] = addresses[member.address]
            if leads.get(number, here.node) != here.node:
                break
            await asyncio.sleep(REJOIN_LOOK_S)
        text = nodes_conf(self.nodes, here.node, self._shards, leads)
        await here.agent.put(f"{here.folder}/{self.data}/nodes.conf", text.encode())

    async def _seen_by(self, others: Sequence[NodeAccess]) -> list[Member]:
        """Return what the server with the highest epoch among these knows; empty if none
        answers."""
        views = []
        for other in others:
            try:
                (text,) = await redis.replies(other, ["CLUSTER", "NODES"])
                views.append(members_in(text.decode()))
            except (BedFailed, OSError, ValueError):
                continue  # it is down
        return max(views, key=lambda view: max(each.epoch for each in view), default=[])

    async def hand_over(self, here: NodeAccess, others: Sequence[NodeAccess]) -> str:
        """Ask a replica of the shard to take its place. It answers at once; meanwhile the primary
        holds its clients' commands, until the replica has all of its data and was elected."""
        why = "it has no replica"
        for other in others:
            if self._number(other.node) != self._number(here.node):
                continue
            try:
                await redis.replies(other, ["CLUSTER", "FAILOVER"])
            except (BedFailed, OSError, ValueError) as e:
                why = f"{other.node.name}: {e}"
            else:
                return ""
        return why

    async def ask(self, here: NodeAccess) -> View:
        nodes, state, replication = await redis.replies(
            here, ["CLUSTER", "NODES"], ["CLUSTER", "INFO"], ["INFO", "replication"]
        )
        shard = _shard(self._number(here.node))
        fields = {**_fields(state), **_fields(replication)}
        return member_view(members_in(nodes.decode()), fields, shard)

    async def copy(self, here: NodeAccess, keys: Sequence[str]) -> list[Copy]:
        groups = self.groups(self.values, [node.name for node in self.nodes], keys)
        own = next(held for names, held in groups.values() if here.node.name in names)
        return await super().copy(here, own)


def _shard(number: int) -> str:
    return f"shard-{number + 1}"


def _shard_of(slot: int, shards: int) -> int:
    """Return the number of the shard that has a slot: those of a shard are in a row."""
    return slot * shards // SLOTS


def _fields(answer: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in answer.decode().splitlines())
    return {name: value for name, found, value in lines if found}


def nodes_conf(nodes: Sequence[Node], own: Node, shards: int, leads: Mapping[int, Node]) -> str:
    """Return the nodes.conf of a server. `leads`: shard -> its primary, if it is not its first
    server."""
    lines = []
    for n, node in enumerate(nodes):
        shard = n % shards
        leader = leads.get(shard, nodes[shard])
        first, end = (-(-each * SLOTS // shards) for each in (shard, shard + 1))
        leads_it = node == leader
        flags = ["myself"] if node == own else []
        flags.append("master" if leads_it else "slave")
        port = PORTS[BROKER]
        words = [_id_of(node), f"{node.address}:{port}@{port + BUS}", ",".join(flags)]
        words += ["-" if leads_it else _id_of(leader), "0", "0", str(shard + 1), "connected"]
        lines.append(" ".join([*words, *([f"{first}-{end - 1}"] if leads_it else [])]))
    return "\n".join([*lines, f"vars currentEpoch {shards} lastVoteEpoch 0", ""])


def _id_of(node: Node) -> str:
    return hashlib.sha1(node.name.encode(), usedforsecurity=False).hexdigest()


def member_view(members: Sequence[Member], fields: Mapping[str, str], shard: str) -> View:
    """Return a server's view, of CLUSTER NODES, and of CLUSTER INFO and INFO replication in one.

    No server leads the others, so those that reach most primaries count as their own leader.
    """
    own = own_of(members)
    there = [member for member in members if not member.flags & GONE]
    primaries = [member for member in members if member.slots]
    reached = sum(member in there for member in primaries)
    leader = MAJORITY if 2 * reached > len(primaries) else ""
    ready = fields["cluster_state"] == "ok"
    if not own.slots:
        ready = ready and fields.get("master_link_status") == "up"
    leads = {shard: own.epoch} if own.slots else {}
    return View(leader, int(fields["cluster_current_epoch"]), MAJORITY, ready, leads)


PLUGIN = plugin(RedisCluster)
