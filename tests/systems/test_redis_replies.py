"""What Redis and its sentinels say, and what it means: answers and logs that were recorded."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from clusters.systems.redis import driver as redis
from clusters.systems.redis.replies import (
    BROKER,
    CONTROLLER,
    Event,
    Reply,
    cluster_state,
    events,
    missing_redundancy,
    parse_copy,
    parse_reply,
    sort_events,
)
from harness.contracts import CLIENT, Node
from harness.errors import BadRequest, BedFailed, UnknownName
from harness.run.launch import make_plan
from harness.trial import Trial

NODES = (
    *(Node(f"redis-{n}", BROKER, f"198.18.0.{n + 1}") for n in (1, 2, 3)),
    *(Node(f"sentinel-{n}", CONTROLLER, f"198.18.0.{n + 4}") for n in (1, 2, 3)),
)
RECORDED = Path(__file__).parent / "redis_recorded"  # as redis-cli 7.0.15 told it, and logs
PRIMARY, REPLICA, LATER_REPLICA, SENTINEL, LATER_SENTINEL, ELECTED, NOT_ELECTED = (
    (RECORDED / name).read_bytes().decode()
    for name in (
        *("primary.txt", "replica.txt", "replica-later.txt", "sentinel.txt", "sentinel-later.txt"),
        *("elected.log", "not-elected.log"),
    )
)
LOGGED_NAMES = {f"198.18.1.{n + 10}:6379": f"redis-{n}" for n in (1, 2, 3)}
WHOLE: Mapping[str, Reply | None] = {
    "redis-1": parse_reply(BROKER, PRIMARY),
    "redis-2": parse_reply(BROKER, REPLICA),
    "redis-3": parse_reply(BROKER, REPLICA),
    **{f"sentinel-{n}": parse_reply(CONTROLLER, SENTINEL) for n in (1, 2, 3)},
}


def test_a_whole_cluster_is_redundant() -> None:
    """The sentinels' primary is the master, its replicas are in step, the epoch is theirs."""
    now = cluster_state(WHOLE, NODES)
    assert (now.masters, now.epochs) == ({"main": "redis-1"}, {"main": 0})
    assert (now.slaves, now.in_set) == (("redis-2", "redis-3"), ("redis-1", "redis-2", "redis-3"))
    assert now.redundant
    assert now.controller_leader == ""


def test_after_a_failover_the_highest_epoch_counts() -> None:
    """A sentinel that was cut off still names the old primary; those that follow it are out."""
    told = {
        **WHOLE,
        "redis-2": parse_reply(BROKER, LATER_REPLICA),
        "redis-3": parse_reply(BROKER, PRIMARY),
        "sentinel-2": parse_reply(CONTROLLER, LATER_SENTINEL),
    }
    now = cluster_state(told, NODES)
    assert (now.masters, now.epochs) == ({"main": "redis-3"}, {"main": 1})
    assert (now.in_set, now.out_of_set) == (("redis-2", "redis-3"), ("redis-1",))
    assert not now.redundant
    assert (
        missing_redundancy(told, NODES)
        == "sentinel-1 does not name the primary that the others name"
    )


def test_a_sentinel_at_work_on_a_failover_still_shows_the_old_primary() -> None:
    """Under the new epoch. Whom it sends clients to is the primary, and the old one is deposed."""
    at_work = SENTINEL.replace("epoch\n0", "epoch\n1")
    at_work = at_work.replace("flags\nmaster", "flags\nmaster,failover_in_progress")
    at_work = at_work.removesuffix("198.18.0.2\n6379\n") + "198.18.0.4\n6379\n"
    assert "ip\n198.18.0.2" in at_work
    now = cluster_state({**WHOLE, "sentinel-1": parse_reply(CONTROLLER, at_work)}, NODES)
    assert (now.masters, now.epochs) == ({"main": "redis-3"}, {"main": 1})


def test_half_an_answer_is_none() -> None:
    """A sentinel that ended between its two answers."""
    assert parse_reply(CONTROLLER, SENTINEL.removesuffix("198.18.0.2\n6379\n")) is None


@pytest.mark.parametrize(
    ("node", "says", "why"),
    [
        ("sentinel-3", None, "sentinel-3 did not answer"),
        ("sentinel-1", SENTINEL.replace("slaves\n2", "slaves\n1"), "sentinel-1 knows 1 replicas"),
        ("sentinel-2", SENTINEL.replace("flags\nmaster", "flags\ns_down,master"), "s_down,master"),
        ("redis-1", REPLICA, "redis-1 is not the primary that it should be"),
        ("redis-2", REPLICA.replace("status:up", "status:down"), "redis-2 does not follow"),
        ("redis-3", REPLICA.replace("18.0.2", "18.0.3"), "redis-3 does not follow"),
        ("redis-3", PRIMARY, "redis-3 does not follow"),
    ],
)
def test_what_is_missing_is_said(node: str, says: str | None, why: str) -> None:
    """And then the cluster is not redundant."""
    role = BROKER if node.startswith("redis") else CONTROLLER
    told = {**WHOLE, node: says and parse_reply(role, says)}
    assert why in missing_redundancy(told, NODES)
    assert not cluster_state(told, NODES).redundant


def test_nobody_answers() -> None:
    """Then nobody is master, which is not an error."""
    now = cluster_state(dict.fromkeys(WHOLE), NODES)
    assert (now.masters, now.epochs, now.redundant) == ({}, {}, False)


def test_an_error_is_no_answer() -> None:
    """What a server says while it loads its data, or a sentinel of a name that it does not know."""
    assert parse_reply(BROKER, "LOADING Redis is loading the dataset in memory\n\n") is None
    assert parse_reply(CONTROLLER, "ERR No such master with that name\n\n") is None


@pytest.mark.parametrize("between", ["", "98:X 22 Nov 2026 17:19:45.200 # +new-epoch 2\n"])
def test_a_sentinels_log_becomes_events(between: str) -> None:
    """Who was missed, who was elected in the epoch that the sentinel had tried, who was made a
    replica; times by its wall clock. An epoch that another begins meanwhile is not the elected
    one's."""
    elected = "98:X 22 Nov 2026 17:19:45.214 # +selected-slave"
    assert ELECTED.count(elected) == 1
    told = list(events(ELECTED.replace(elected, between + elected), "sentinel-1", LOGGED_NAMES))
    assert [(teller, kind) for _, teller, kind, _ in told] == [
        ("sentinel-1", "expired"),
        ("sentinel-1", "election"),
        ("redis-3", "role"),
        ("redis-1", "role"),
    ]
    missed, election, master, slave = (fields for *_, fields in told)
    assert missed == {"brokerName": "main", "brokerId": 1}
    assert election == {"brokerName": "main", "masterId": 3, "epoch": 1}
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
    told = list(events(NOT_ELECTED, "sentinel-3", LOGGED_NAMES))
    assert [(teller, kind) for _, teller, kind, _ in told] == [("sentinel-3", "expired")]


def test_a_copy_is_read_line_by_line() -> None:
    """Values and digests, with offsets from where the reading began; anything else is refused."""
    one, two = 7 << 32 | 1, 7 << 32 | 2
    rows = parse_copy(f"{one:016x}{'a' * 15}\n{two:016x}{'b' * 15}\n", "orders-0", 10)
    assert [row[:3] for row in rows] == [("orders-0", 10, one), ("orders-0", 11, two)]
    assert rows[0][4] == int("a" * 15, 16)
    assert parse_copy("\n", "orders-0", 0) == []
    with pytest.raises(BedFailed, match="WRONGTYPE"):
        parse_copy(
            "WRONGTYPE Operation against a key holding the wrong kind of value\n", "orders-0", 0
        )


# ---------------------------------------------------------------------------------- the trial


def test_the_nodes_have_the_harnesss_roles() -> None:
    """So that plans written for others mean something here."""
    nodes = redis.system(Trial(system="redis")).nodes()
    assert [(node.name, node.role) for node in nodes] == [
        *((f"redis-{n}", BROKER) for n in (1, 2, 3)),
        *((f"sentinel-{n}", CONTROLLER) for n in (1, 2, 3)),
        *((f"client-{n}", CLIENT) for n in (1, 2)),
    ]


def test_settings_go_over_the_profiles() -> None:
    """And keep Redis's names; what a sentinel is told stands in no server's file."""
    trial = Trial(system="redis", profile="min-replicas", settings={"failover-timeout": 9000})
    values = redis.settings(trial)
    assert (values["min-replicas-to-write"], values["failover-timeout"]) == (1, 9000)
    first, second = NODES[:2]
    config = redis.server_config(second, first, "/folder", values).splitlines()
    assert "min-replicas-to-write 1" in config
    assert "replicaof 198.18.0.2 6379" in config
    assert not any("failover-timeout" in line for line in config)
    assert "replicaof" not in redis.server_config(first, first, "/folder", values)
    config = redis.sentinel_config(NODES[3], first, 2, "/folder", values).splitlines()
    assert "sentinel monitor main 198.18.0.2 6379 2" in config
    assert "sentinel failover-timeout main 9000" in config


@pytest.mark.parametrize(
    ("more", "error", "says"),
    [
        ({"profile": "safe"}, UnknownName, "profile 'safe'"),
        ({"settings": {"appendonly": True}}, BadRequest, "appendonly must be one of yes, no"),
        ({"settings": {"failover-timeout": 0}}, BadRequest, "failover-timeout must be a whole"),
        ({"settings": {"save": ""}}, UnknownName, "setting 'save'"),
        ({"nodes": {"nameserver": 1}}, UnknownName, "role 'nameserver'"),
        ({"nodes": {"broker": 0}}, BadRequest, "nodes.broker must be"),
        ({"workload": "register"}, BadRequest, "no clients for the workload register"),
        ({"load": {"client_selects": True}}, BadRequest, "no clients that select queues"),
    ],
)
def test_what_makes_no_sense_is_refused(
    more: dict[str, object], error: type[Exception], says: str
) -> None:
    """By the name of the key, before anything is begun."""
    with pytest.raises(error, match=says):
        redis.system(Trial(system="redis").with_(more))


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
