"""What servers of a Redis Cluster say and what it means, by recorded answers, and what the client
makes of redirections, on real sockets."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import redis_scene
from redis_scene import patient as patient  # a fixture

from clusters.kit import NodeAccess, View
from clusters.kit.driver import settings_in_force
from clusters.kit.roles import cluster_state
from clusters.systems import redis
from clusters.systems.redis import BROKER, decode, encode
from clusters.systems.redis_cluster import (
    RedisCluster,
    RedisClusterClient,
    member_view,
    members_in,
    nodes_conf,
    own_of,
    slot_of,
)
from clusters.systems.valkey import Valkey
from harness.contracts import Agent, ClusterState, Node
from harness.contracts.calls import Refused, Stored
from harness.registry import load
from harness.trial import Trial

RECORDED = Path(__file__).parent / "redis_cluster_recorded"  # as CLUSTER NODES of 7.0.15 answered
WHOLE, ELECTED = (
    (RECORDED / name).read_text() for name in ("nodes-primary.txt", "nodes-elected.txt")
)
SERVERS = tuple(Node(f"redis-{n}", BROKER, f"127.1.0.{n}") for n in range(1, 7))
NODES = [node.name for node in SERVERS]


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        ("123456789", 0x31C3),  # the check value of CRC16/XMODEM
        ("foo", 12182),  # MOVED 12182, said 7.0.15
        ("{foo}settled", 12182),
        ("{}foo", 9500),  # as CLUSTER KEYSLOT of 7.0.15 says
        ("a{b", 13340),
    ],
)
def test_a_key_has_a_slot(key: str, slot: int) -> None:
    """By CRC16 of the key, or of what is between its first braces."""
    assert slot_of(key) == slot


def view(number: int, nodes: str = WHOLE, **fields: str) -> View:
    """The view of a server that sees these nodes."""
    text = nodes.replace("myself,", "").replace(
        *(f"127.1.0.{number}:6379@16379 {new}" for new in ("", "myself,"))
    )
    own = {"cluster_state": "ok", "cluster_current_epoch": "3", "master_link_status": "up"}
    return member_view(members_in(text), {**own, **fields}, f"shard-{(number - 1) % 3 + 1}")


def state(**changes: View | None) -> ClusterState:
    views: dict[str, View | None] = {name: view(n) for n, name in enumerate(NODES, 1)}
    return cluster_state(
        "redis-cluster", views | {k.replace("_", "-"): v for k, v in changes.items()}
    )


def test_each_shard_has_its_primary() -> None:
    now = state()
    assert now.masters == {"shard-1": "redis-1", "shard-2": "redis-2", "shard-3": "redis-3"}
    assert now.epochs == {"shard-1": 1, "shard-2": 2, "shard-3": 3}
    assert now.slaves == ("redis-4", "redis-5", "redis-6")
    assert now.redundant


def elected(number: int) -> View:
    """What a server says after redis-4 was elected, in epoch 4."""
    return view(number, ELECTED, cluster_current_epoch="4")


def test_an_elected_replica_leads_its_shard() -> None:
    """While the old primary, which reaches no other primary, takes itself for it."""
    cut_off = WHOLE.replace(" master - ", " master,fail? - ")
    old = view(1, cut_off, cluster_state="fail")
    now = state(redis_1=old, **{f"redis_{n}": elected(n) for n in range(2, 7)})
    assert now.masters["shard-1"] == "redis-4"
    assert now.epochs["shard-1"] == 4
    assert now.in_set == tuple(NODES[1:])
    assert not now.redundant


def test_an_old_primary_that_has_not_heard_of_it_is_not_in_step() -> None:
    """It reaches the others again, and has the slots by what it knows."""
    now = state(redis_1=view(1), **{f"redis_{n}": elected(n) for n in range(2, 7)})
    assert now.masters["shard-1"] == "redis-4"
    assert now.detail == {"stale_leaders": ["redis-1"]}
    assert "redis-1" in now.out_of_set
    assert not now.redundant


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("redis_2", None),
        ("redis_2", view(2, cluster_state="fail")),
        ("redis_5", view(5, master_link_status="down")),
        ("redis_6", view(6, WHOLE.replace(" master - ", " master,fail? - "))),
    ],
)
def test_what_makes_a_cluster_less_than_redundant(name: str, changed: View | None) -> None:
    """A server that is down, that refuses commands, is not in step, or reaches no majority."""
    now = state(**{name: changed})
    assert not now.redundant
    assert name.replace("_", "-") in now.out_of_set


def test_half_a_line_is_no_server() -> None:
    with pytest.raises(ValueError, match="unpack"):
        members_in(WHOLE[:60])
    with pytest.raises(ValueError, match="know itself"):
        own_of(members_in(WHOLE.replace("myself,", "")))


def test_slots_that_are_moved_count_for_none() -> None:
    """They are in brackets, behind those that the server has."""
    (member,) = members_in(
        "id 1.2.3.4:6379@16379,host myself,master - 0 0 7 connected 5 7-9 [6->-x]"
    )
    assert [slot for slot in range(12) if member.has(slot)] == [5, 7, 8, 9]
    assert (member.address, member.epoch) == ("1.2.3.4", 7)


# ----------------------------------------------------------------------------- its configuration


@pytest.mark.parametrize(("servers", "shards"), [(6, 3), (9, 3), (4, 3), (3, 1), (7, 7)])
def test_nodes_conf_has_every_slot_once(servers: int, shards: int) -> None:
    """And each key is in the shard whose primary has its slot there."""
    nodes = [Node(f"redis-{n}", BROKER, f"127.1.0.{n}") for n in range(1, servers + 1)]
    groups = RedisCluster.groups({"shards": shards}, [n.name for n in nodes], ["a", "b", "c"])
    text = nodes_conf(nodes, nodes[-1], len(groups), {})
    members = members_in(text.rpartition("vars")[0])
    assert sorted(slot for each in members for r in each.slots for slot in r) == [*range(16_384)]
    assert own_of(members).address == nodes[-1].address
    for group, keys in groups.values():
        (leads,) = [m for m, n in zip(members, nodes, strict=True) if n.name in group and m.slots]
        assert all(leads.has(slot_of(key)) for key in keys)
    assert sorted(key for _, keys in groups.values() for key in keys) == ["a", "b", "c"]


def test_the_shards_are_the_harness_groups() -> None:
    """Keys go by the slots that they have with the prefix of the run."""
    trial = Trial(system="redis-cluster", workload="log")
    system = load("system", "redis-cluster")(trial)
    keys = [f"log-{n}" for n in range(8)]
    plain = system.broker_sets(SERVERS, keys)
    assert [each.nodes for each in plain.values()] == [(NODES[n], NODES[n + 3]) for n in range(3)]
    assert sorted(key for each in plain.values() for key in each.keys) == keys
    prefixed = load("system", "redis-cluster")(
        trial.with_({"bed": {"key_prefix": "other-"}})
    ).broker_sets(SERVERS, keys)
    assert sorted(key for each in prefixed.values() for key in each.keys) == keys
    assert prefixed != plain


class Others:
    """An agent: what other servers answer, and the file that is put."""

    def __init__(self, answers: Sequence[str]) -> None:
        self.answers, self.text = list(answers), ""

    async def ask(self, port: int, frame: bytes, timeout_s: float, *, to_end: bool) -> bytes:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return redis_scene.spoken(answer.encode())

    async def put(self, path: str, data: bytes) -> None:
        assert path == "/folder/data/nodes.conf"
        self.text = data.decode()


def rejoined(node: Node, answers: Sequence[str]) -> Sequence[str]:
    """The addresses of the primaries in the nodes.conf that a server comes back with, and its own
    flags."""
    values = settings_in_force(RedisCluster, Trial(system="redis-cluster"))
    agent = Others(answers)
    access = [NodeAccess(each, cast(Agent, agent), "/folder", {}) for each in SERVERS]
    here = access.pop(SERVERS.index(node))
    asyncio.run(RedisCluster(values, {}, SERVERS).rejoin(here, access[:1]))
    members = members_in(agent.text.rpartition("vars")[0])
    leads = [member.address[-1] for member in members if member.slots]
    return [*leads, *sorted(own_of(members).flags)]


def test_a_server_without_its_disk_comes_back_as_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the one that was elected, for which it waits: an empty primary would empty its replicas.
    If none is elected, it is the shard's primary again, with nothing."""
    assert rejoined(SERVERS[0], [WHOLE, WHOLE, ELECTED]) == ["2", "3", "4", "myself", "slave"]
    assert rejoined(SERVERS[3], [WHOLE]) == ["1", "2", "3", "myself", "slave"]
    monkeypatch.setattr("clusters.systems.redis_cluster.REJOIN_WITHIN", 0.1)
    assert rejoined(SERVERS[0], [WHOLE]) == ["1", "2", "3", "master", "myself"]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"+OK\r\n", ""),
        (b"-ERR You should send CLUSTER FAILOVER to a replica\r\n", "redis-5: ERR Yo"),
    ],
)
def test_the_replica_of_the_shard_is_asked_to_take_over(answer: bytes, says: str) -> None:
    asked = []

    class Replica:
        def __init__(self, name: str) -> None:
            self.name = name

        async def ask(self, port: int, frame: bytes, timeout_s: float, *, to_end: bool) -> bytes:
            asked.append((self.name, frame))
            return answer

    values = settings_in_force(RedisCluster, Trial(system="redis-cluster"))
    access = [NodeAccess(n, cast(Agent, Replica(n.name)), "/folder", {}) for n in SERVERS]
    here = access.pop(1)
    why = asyncio.run(RedisCluster(values, {}, SERVERS).hand_over(here, access))
    assert why.startswith(says or "!") == bool(says)
    assert asked == [("redis-5", encode("CLUSTER", "FAILOVER") + redis.END)]


def test_valkey_is_configured_as_redis() -> None:
    values = settings_in_force(Valkey, Trial(system="valkey"))
    here = NodeAccess(
        Node("valkey-1", BROKER, "127.1.0.1"),
        cast(Agent, None),
        "/folder",
        {"valkey-server": "/cache/valkey-server"},
    )
    valkey = Valkey(values, {}, [here.node])
    assert [*valkey.files(here, [here.node])] == ["valkey.conf"]
    assert valkey.argv(here, [here.node], True) == ["/cache/valkey-server", "/folder/valkey.conf"]


# ------------------------------------------------------------------------------------ the client


def table(**epochs: int) -> str:
    """CLUSTER NODES where 127.0.0.2 (`one`) or 127.0.0.3 (`two`) has all slots, the later wins."""
    leader = max(epochs, key=lambda name: epochs[name])
    rows = []
    for name, address in (("one", "127.0.0.2"), ("two", "127.0.0.3")):
        slots = " 0-16383" if name == leader else ""
        rows.append(f"{name} {address}:1@2 master - 0 0 {epochs.get(name, 0)} connected{slots}")
    return "\n".join(rows)


def asked(
    monkeypatch: pytest.MonkeyPatch,
    answers: redis_scene.Answers,
    tables: Mapping[str, str],
    call: Callable[[RedisClusterClient], Awaitable[Any]],
) -> Any:
    """Return what a call of a client answers or raises; `tables`: what a server says of all."""

    def answer(address: str, words: Sequence[bytes]) -> bytes:
        if words[0] == b"CLUSTER":
            own = tables[address].replace(f" {address}:1@2 ", f" {address}:1@2 myself,")
            return redis_scene.spoken(own.encode())
        return answers(address, words)

    def make(port: int) -> RedisClusterClient:
        monkeypatch.setattr(redis, "SEEK_AGAIN_S", 0.0)
        monkeypatch.setitem(redis.PORTS, BROKER, port)
        addresses = ["127.0.0.2", "127.0.0.3"]
        nodes = [("redis-1", BROKER, "127.0.0.2"), ("redis-2", BROKER, "127.0.0.3")]
        values = {"wait-replicas": 0, "lease_s": 3}
        return RedisClusterClient({"servers": addresses, "nodes": nodes, "settings": values}, 1)

    return redis_scene.asked(answer, make, call)


def test_a_command_goes_to_the_slots_primary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever server is asked for it; the epoch is the primary's."""
    tables = dict.fromkeys(("127.0.0.2", "127.0.0.3"), table(one=1, two=7))
    done = asked(monkeypatch, lambda *_: b":8\r\n", tables, lambda c: c.append("orders-0", b"body"))
    assert done == Stored(7, 7, "redis-2")


def test_a_redirected_command_is_sent_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, to the server that is named, whose epoch is read then."""
    seen = []

    def answers(address: str, words: Sequence[bytes]) -> bytes:
        seen.append((address, words[0]))
        return b":8\r\n" if address == "127.0.0.3" else b"-MOVED 1 127.0.0.3:6379\r\n"

    tables = {"127.0.0.2": table(one=1), "127.0.0.3": table(one=1, two=7)}

    async def twice(client: RedisClusterClient) -> Any:
        return await client.append("orders-0", b"1"), await client.append("orders-0", b"2")

    assert asked(monkeypatch, answers, tables, twice) == (Stored(7, 7, "redis-2"),) * 2
    assert seen == [("127.0.0.2", b"RPUSH"), *[("127.0.0.3", b"RPUSH")] * 2]


def test_servers_that_name_each_other_end_in_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(address: str, words: Sequence[bytes]) -> bytes:
        other = {"127.0.0.2": "127.0.0.3", "127.0.0.3": "127.0.0.2"}[address]
        return f"-MOVED 1 {other}:6379\r\n".encode()

    tables = {"127.0.0.2": table(one=1), "127.0.0.3": table(two=1)}
    refused = asked(monkeypatch, answers, tables, lambda c: c.write("x", 1))
    assert isinstance(refused, Refused)
    assert "was moved 5 times" in str(refused)


@pytest.mark.parametrize("text", ["CLUSTERDOWN The cluster is down", "TRYAGAIN", "ASK 1 1.2.3.4:1"])
def test_a_refusal_makes_the_client_ask_again(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Another server is asked who has the slot: this one may be cut off."""
    tables = {"127.0.0.2": table(one=1), "127.0.0.3": table(one=1, two=7)}

    def answers(address: str, words: Sequence[bytes]) -> bytes:
        return b"+OK\r\n" if address == "127.0.0.3" else f"-{text}\r\n".encode()

    async def twice(client: RedisClusterClient) -> Any:
        with pytest.raises(Refused, match=text.split()[0]):
            await client.write("x", 1)
        return await client.write("x", 1)

    assert asked(monkeypatch, answers, tables, twice) is None


def test_an_unknown_outcome_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def answers(address: str, words: Sequence[bytes]) -> bytes:
        seen.append(words)
        return b"-ERR what\r\n"

    tables = dict.fromkeys(("127.0.0.2", "127.0.0.3"), table(one=1))
    found = asked(monkeypatch, answers, tables, lambda c: c.write("x", 1))
    assert (type(found), len(seen)) == (ConnectionError, 1)
    assert decode(encode(*seen[0]))  # as it was sent
