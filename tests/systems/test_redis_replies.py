"""What Redis and its sentinels say, and what it means: answers and logs that were recorded."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from clusters.kit import Event, NodeAccess, View
from clusters.kit.driver import settings_in_force, sort_events
from clusters.kit.roles import cluster_state
from clusters.systems.redis import (
    BROKER,
    CONTROLLER,
    Redis,
    copies,
    sentinel_events,
    sentinel_view,
    server_view,
)
from harness.cli.options import Request
from harness.contracts import CLIENT, Agent, ClusterState, Node
from harness.errors import BadRequest, BedFailed, UnknownName
from harness.registry import load
from harness.run.launch import make_plan
from harness.run.preflight import refuse_impossible
from harness.trial import Trial

NODES = (
    *(Node(f"redis-{n}", BROKER, f"198.18.0.{n + 1}") for n in (1, 2, 3)),
    *(Node(f"sentinel-{n}", CONTROLLER, f"198.18.0.{n + 4}") for n in (1, 2, 3)),
)
RECORDED = Path(__file__).parent / "redis_recorded"  # as redis-cli 7.0.15 printed it, and logs
PRIMARY, REPLICA, LATER_REPLICA, SENTINEL, LATER_SENTINEL, ELECTED, NOT_ELECTED = (
    (RECORDED / name).read_bytes().decode()
    for name in (
        *("primary.txt", "replica.txt", "replica-later.txt", "sentinel.txt", "sentinel-later.txt"),
        *("elected.log", "not-elected.log"),
    )
)
NAMES = {node.address: node.name for node in NODES}
LOGGED_NAMES = {f"198.18.1.{n + 10}": f"redis-{n}" for n in (1, 2, 3)}


def server(name: str, recorded: str) -> View:
    return server_view(name, recorded, NAMES)


def sentinel(name: str, recorded: str) -> View:
    """Of SENTINEL MASTER and, in the last two lines, SENTINEL GET-MASTER-ADDR-BY-NAME."""
    *lines, address, _ = recorded.splitlines()
    fields = dict(zip(lines[::2], lines[1::2], strict=True))
    return sentinel_view(name, fields, NAMES[address], (2, 2))


WHOLE: Mapping[str, View | None] = {
    "redis-1": server("redis-1", PRIMARY),
    "redis-2": server("redis-2", REPLICA),
    "redis-3": server("redis-3", REPLICA),
    **{name: sentinel(name, SENTINEL) for name in ("sentinel-1", "sentinel-2", "sentinel-3")},
}


def state(**changes: View | None) -> ClusterState:
    views = {**WHOLE, **{name.replace("_", "-"): view for name, view in changes.items()}}
    return cluster_state("redis", views, [name for name in views if name.startswith("sentinel")])


def test_a_whole_cluster_is_redundant() -> None:
    """The sentinels' primary is the master, its replicas are in step, the epoch is theirs."""
    now = state()
    assert (now.masters, now.epochs) == ({"redis": "redis-1"}, {"redis": 0})
    assert (now.slaves, now.in_set) == (("redis-2", "redis-3"), ("redis-1", "redis-2", "redis-3"))
    assert now.serving == tuple(WHOLE)
    assert now.redundant
    assert now.controller_leader == ""


def test_after_a_failover_the_highest_epoch_counts() -> None:
    """A sentinel that was cut off still names the old primary; those that follow it are out."""
    now = state(
        redis_2=server("redis-2", LATER_REPLICA),
        redis_3=server("redis-3", PRIMARY),
        sentinel_2=sentinel("sentinel-2", LATER_SENTINEL),
    )
    assert (now.masters, now.epochs) == ({"redis": "redis-3"}, {"redis": 1})
    assert (now.in_set, now.out_of_set) == (("redis-2", "redis-3"), ("redis-1",))
    assert now.detail == {"stale_leaders": ["redis-1"]}
    assert not now.redundant


def test_a_sentinel_at_work_on_a_failover_still_shows_the_old_primary() -> None:
    """Under the new epoch. Where it sends clients is the primary, and the old one is deposed."""
    at_work = SENTINEL.replace("epoch\n0", "epoch\n1")
    at_work = at_work.replace("flags\nmaster", "flags\nmaster,failover_in_progress")
    at_work = at_work.removesuffix("198.18.0.2\n6379\n") + "198.18.0.4\n6379\n"
    assert "ip\n198.18.0.2" in at_work
    now = state(sentinel_1=sentinel("sentinel-1", at_work))
    assert (now.masters, now.epochs) == ({"redis": "redis-3"}, {"redis": 1})


def test_a_primary_that_does_not_answer_is_still_the_primary() -> None:
    """Until the sentinels name another."""
    now = state(redis_1=None)
    assert now.masters == {"redis": "redis-1"}
    assert "redis-1" in now.out_of_set
    assert not now.redundant


@pytest.mark.parametrize(
    ("node", "recorded", "in_step"),
    [
        ("sentinel-3", None, 3),
        ("sentinel-1", SENTINEL.replace("slaves\n2", "slaves\n1"), 3),
        ("sentinel-1", SENTINEL.replace("sentinels\n2", "sentinels\n1"), 3),
        ("sentinel-2", SENTINEL.replace("flags\nmaster", "flags\ns_down,master"), 3),
        ("redis-1", LATER_REPLICA, 2),
        ("redis-2", REPLICA.replace("status:up", "status:down"), 2),
        ("redis-3", REPLICA.replace("18.0.2", "18.0.3"), 2),
        ("redis-3", PRIMARY, 2),
    ],
)
def test_what_makes_a_cluster_less_than_redundant(
    node: str, recorded: str | None, in_step: int
) -> None:
    read = server if node.startswith("redis") else sentinel
    now = state(**{node.replace("-", "_"): recorded and read(node, recorded)})
    assert len(now.in_set) == in_step
    assert not now.redundant


def test_no_node_answers() -> None:
    """Then none is master, which is not an error."""
    now = state(**dict.fromkeys(WHOLE))
    assert (now.masters, now.epochs, now.redundant) == ({}, {}, False)


@pytest.mark.parametrize("between", ["", "98:X 22 Nov 2026 17:19:45.200 # +new-epoch 2\n"])
def test_a_sentinels_log_becomes_events(between: str) -> None:
    """Who was missed, who was elected in the epoch that the sentinel had tried, who was made a
    replica; times by its wall clock. An epoch that another begins meanwhile is not the elected
    one's."""
    elected = "98:X 22 Nov 2026 17:19:45.214 # +selected-slave"
    assert ELECTED.count(elected) == 1
    told = list(
        sentinel_events(ELECTED.replace(elected, between + elected), "sentinel-1", LOGGED_NAMES)
    )
    assert [(teller, kind) for _, teller, kind, _ in told] == [
        ("sentinel-1", "expired"),
        ("redis-3", "role"),
        ("sentinel-1", "election"),
        ("redis-1", "role"),
    ]
    missed, master, election, slave = (fields for *_, fields in told)
    assert missed == {"brokerName": "redis", "brokerId": 1}
    assert election == {"brokerName": "redis", "masterId": 3, "epoch": 1}
    assert (master["role"], master["epoch"]) == ("master", 1)
    assert slave["role"] == "slave"
    times_ms = [(t - told[0][0]) // 1_000_000 for t, *_ in told]
    assert times_ms == [0, 1_831, 1_831, 17_375]
    assert told[0][0] == 1_795_367_985_006_000_000


def test_what_was_told_in_one_millisecond_keeps_its_order() -> None:
    """A sentinel misses the primary before it elects another, whatever the words for it."""
    one: list[Event] = [(5, "redis-2", kind, {}) for kind in ("role", "epoch")]
    other: list[Event] = [(5, "sentinel-1", kind, {}) for kind in ("expired", "election")]
    later: Event = (6, "redis-1", "role", {})
    earlier: Event = (4, "sentinel-2", "expired", {})
    assert sort_events([[*other, later], [earlier], one]) == [earlier, *one, *other, later]


def test_a_sentinel_that_is_not_elected_elects_nobody() -> None:
    """It has tried, in the same epoch; another had more votes."""
    assert "+try-failover" in NOT_ELECTED
    told = list(sentinel_events(NOT_ELECTED, "sentinel-3", LOGGED_NAMES))
    assert [(teller, kind) for _, teller, kind, _ in told] == [("sentinel-3", "expired")]


def test_a_copy_is_read_row_by_row() -> None:
    """Values and digests, with offsets from where the reading began; anything else is refused."""
    one, two = 7 << 32 | 1, 7 << 32 | 2
    found = [(10, f"{one:016x}{'a' * 15}".encode()), (11, f"{two:016x}{'b' * 15}".encode())]
    rows = copies(found, "orders-0")
    assert [row[:3] for row in rows] == [("orders-0", 10, one), ("orders-0", 11, two)]
    assert rows[0].crc == int("a" * 15, 16)
    assert copies([], "orders-0") == []
    with pytest.raises(BedFailed, match="fewer than 8 bytes at 10"):
        copies([(10, b"7f" + b"c" * 15)], "orders-0")


class Server:
    """An agent whose node's server answers this."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    async def ask(self, port: int, frame: bytes, timeout_s: float, *, to_end: bool) -> bytes:
        return self._answer


@pytest.mark.parametrize(
    "answer",
    [
        b"-LOADING Redis is loading the dataset in memory\r\n-ERR Protocol error\r\n",
        b"-ERR No such master with that name\r\n",
        b"$-1\r\n",
        b"$50\r\nhalf an answer",
        b"",
    ],
)
def test_an_error_or_half_an_answer_is_none(answer: bytes) -> None:
    here = NodeAccess(NODES[0], cast(Agent, Server(answer)), "/folder", {})
    with pytest.raises(ConnectionError):
        asyncio.run(Redis({}, {}, NODES).ask(here))


# ---------------------------------------------------------------------------------- the trial


def test_the_nodes_have_the_harnesss_roles() -> None:
    """So that plans written for others mean something here."""
    nodes = load("system", "redis")(Trial(system="redis")).nodes()
    assert [(node.name, node.role) for node in nodes] == [
        *((f"redis-{n}", BROKER) for n in (1, 2, 3)),
        *((f"sentinel-{n}", CONTROLLER) for n in (1, 2, 3)),
        *((f"client-{n}", CLIENT) for n in (1, 2)),
    ]


def configuration(values: Mapping[str, Any], node: Node) -> list[str]:
    here = NodeAccess(node, cast(Agent, Server(b"")), "/folder", {})
    (text,) = Redis(values, {}, NODES).files(here, NODES[:3]).values()
    return text.splitlines()


def test_settings_go_over_the_profiles() -> None:
    """And keep Redis's names; settings of sentinels and clients are in no server's file."""
    trial = Trial(system="redis", profile="min-replicas", settings={"failover-timeout": 9000})
    values = settings_in_force(Redis, trial)
    assert (values["min-replicas-to-write"], values["failover-timeout"]) == (1, 9000)
    config = configuration(values, NODES[1])
    assert "min-replicas-to-write 1" in config
    assert "replicaof 198.18.0.2 6379" in config
    assert not any("failover-timeout" in line or "wait" in line for line in config)
    assert not any("replicaof" in line for line in configuration(values, NODES[0]))
    config = configuration(values, NODES[3])
    assert "sentinel monitor main 198.18.0.2 6379 2" in config
    assert "sentinel failover-timeout main 9000" in config


def test_how_long_detection_takes_follows_from_the_settings() -> None:
    slow = Trial(system="redis", settings={"down-after-milliseconds": 20_000})
    assert load("system", "redis")(slow).detection_s == 21.0


@pytest.mark.parametrize(
    ("more", "error", "says"),
    [
        ({"profile": "safe"}, UnknownName, "profile 'safe'"),
        ({"settings": {"appendonly": True}}, BadRequest, "appendonly must be one of yes, no"),
        ({"settings": {"failover-timeout": 0}}, BadRequest, "failover-timeout must be a number fr"),
        ({"settings": {"min-replicas-to-write": -1}}, BadRequest, "must be a number from 0, not"),
        ({"settings": {"save": ""}}, UnknownName, "setting 'save'"),
        ({"nodes": {"nameserver": 1}}, UnknownName, "role 'nameserver'"),
        ({"nodes": {"broker": 0}}, BadRequest, "nodes.broker must be"),
        ({"workload": "append"}, BadRequest, "the clients of redis lack transact"),
        ({"load": {"client_selects": True}}, BadRequest, "no clients that select queues"),
    ],
)
def test_what_makes_no_sense_is_refused(
    more: dict[str, object], error: type[Exception], says: str
) -> None:
    """By the name of the key, before anything is begun."""
    with pytest.raises(error, match=says):
        refuse_impossible(Request(Trial(system="redis").with_(more)))


CLOCK = '[[fault]]\nkind = "clock"\nat_s = 5.0\nfor_s = 10.0\ntarget = "{}"\n'


@pytest.mark.parametrize(
    "target", ["sentinel-2", "one controller", "minority", "all server", "redis-1, controller"]
)
def test_a_sentinels_clock_stays_right(target: str) -> None:
    """Its log tells of elections by that clock, so the history would hold them at wrong times."""
    with pytest.raises(BadRequest, match="clock cannot hit sentinel-"):
        make_plan(Trial(system="redis", hosts="local"), CLOCK.format(target))


@pytest.mark.parametrize("target", ["redis-1", "one broker", "master", "server but controller"])
def test_a_servers_clock_may_be_wrong(target: str) -> None:
    """Servers tell nothing that is dated."""
    assert "clock" in make_plan(Trial(system="redis", hosts="local"), CLOCK.format(target))
