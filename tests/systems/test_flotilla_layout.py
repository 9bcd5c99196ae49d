"""Profiles, settings and configuration files: checked before anything is started."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusters.flotilla.client.route_cache import RouteSnapshot
from clusters.flotilla.config import loads, table_in
from clusters.kit import View
from clusters.systems.flotilla.driver import system
from clusters.systems.flotilla.ensemble import description
from clusters.systems.flotilla.layout import Layout, broker_sets, cluster_nodes
from clusters.systems.flotilla.modes import MODES
from clusters.systems.flotilla.profiles import profiles, settings
from harness import registry
from harness.contracts import Node
from harness.errors import BadRequest
from harness.run.broker_sets import BrokerSetData
from harness.suite.suite_file import read_suite
from harness.trial import Trial

REPLICATION, FLUSH = ("sync-replication", "async-replication"), ("sync-flush", "async-flush")
PROFILES = {
    *("unsafe-default", "allack-min1", "allack-min2", "quorum2of3", "sync-flush", "unclean"),
    *("semi-sync", "seed-cp", "seed-ap", "fast-failover"),
    *(f"{replication}-{flush}" for replication in REPLICATION for flush in FLUSH),
}
SWITCHLESS = {"switchless-sync", "switchless-async"}  # without controllers
SPECIAL = {"special-reference"}  # as allack-min2, but for special messages
# slaves that act as masters send special messages away
ESCAPE, ESCAPE_REFERENCE = "switchless-escape", "escape-reference"
FAULTS = ("kill", "pause", "cut", "power")
SWITCHLESS_PLANS = ("profile-kill", "profile-pause", "switchless-cut", "profile-power")
ZOOKEEPER = {"zk-ha", "zk-ha-sync-flush"}  # pairs
ZOOKEEPER_PLANS = ("zk-kill", "zk-pause", "zk-cut", "profile-power")
PORT_KEYS = ("listenPort", "haListenPort")
RAFT_LOG = {"raft-log", "raft-log-sync-flush"}  # brokers elect their master by votes
RAFT_LOG_PLANS = ("profile-kill", "profile-pause", "raft-log-cut", "profile-power")
ESCAPING_WORKLOADS = ("delayed", "transactional", "pop")
ESCAPING = {"profile": "switchless-escape", "nodes": {"broker": 4}}
LATE = {"workload": "transactional", "settings": {"transactionTimeOut": 10_000}}
ROOT = Path(__file__).resolve().parents[2]


def addressed(counts: dict[str, int] | None = None, mode: str = "controller") -> list[Node]:
    nodes = cluster_nodes(counts or {}, MODES[mode])
    return [replace(node, address=f"10.0.0.{n}") for n, node in enumerate(nodes, start=1)]


def layout(nodes: list[Node], trial: Trial, topics: dict[str, int]) -> Layout:
    return Layout(nodes, settings(trial), topics, trial.seed)


def test_the_profiles_of_the_design_exist() -> None:
    assert set(profiles()) >= PROFILES | SWITCHLESS
    assert all(p.about for p in profiles().values())
    verdicts = {v for p in profiles().values() for v in p.expected.values()}
    assert verdicts >= {"valid", "LOST_ACKED", "DELAY_LOST"}


def test_the_suite_of_profiles_says_what_the_profiles_say() -> None:
    """Spec 9.4: each profile under each of four faults, with the verdict expected of it."""
    assert cells("profiles.toml") == {
        (name, f"profile-{fault}"): (profiles()[name].expected[f"profile-{fault}"],)
        for name in PROFILES
        for fault in FAULTS
    }


def cells(suite: str, workload: str = "messages") -> dict[tuple[str, str], tuple[str, ...]]:
    """What a suite expects of a workload, by profile and plan."""
    return {
        (e.request.trial.profile, Path(e.request.trial.plan).stem): e.findings or (e.verdict.value,)
        for e in read_suite(ROOT / "suites" / suite)
        if e.request.trial.plan
        and "plans/modes/" not in str(e.request.trial.plan)
        and e.request.trial.workload == workload
    }


def test_the_suite_of_modes_says_what_the_profiles_say() -> None:
    """Each profile of another mode, under each plan of which it says what to expect."""
    of_others = PROFILES | SPECIAL | {ESCAPE, ESCAPE_REFERENCE}
    others = {n: each for n, each in profiles().items() if n not in of_others}
    found = {cell: says for cell, says in cells("modes.toml").items() if cell[0] in others}
    assert found == {
        (name, plan): (verdict,)
        for name, each in others.items()
        for plan, verdict in each.expected.items()
    }


def test_the_suite_of_modes_says_what_becomes_of_delayed_messages() -> None:
    masters = {
        (name, f"profile-{fault}"): (profiles()[name].expected[f"profile-{fault}"],)
        for name in ("allack-min2", *SPECIAL)
        for fault in ("kill", "pause", "cut")
    }
    acting = {
        (name, plan): (verdict,)
        for name in (ESCAPE, ESCAPE_REFERENCE)
        for plan, verdict in profiles()[name].expected.items()
    }
    assert cells("modes.toml", "delayed") == masters | acting


def test_transactions_are_safe_where_no_half_message_is_dropped() -> None:
    masters = {
        (name, f"profile-{fault}"): ("valid",)
        for name in ("allack-min2", *SPECIAL)
        for fault in ("kill", "pause", "cut")
    }
    reference = {(ESCAPE_REFERENCE, "escape-kill"): ("HALF_STUCK",)}
    assert cells("modes.toml", "transactional") == masters | escapes() | reference


def escapes() -> dict[tuple[str, str], tuple[str, ...]]:
    return {(ESCAPE, f"escape-{fault}"): ("valid",) for fault in ("kill", "pause", "cut")}


def test_pop_is_safe_where_groups_wait_for_checkpoints() -> None:
    strict = {("allack-min2", f"profile-{fault}"): ("valid",) for fault in ("kill", "pause", "cut")}
    reference = {("special-reference", "pop-slow-copies"): ("POP_LOST",)}
    assert cells("modes.toml", "pop") == strict | reference | escapes()


def test_the_manual_says_what_the_profiles_say() -> None:
    """Every row of the tables in docs/flotilla*.md, fault by fault."""
    pages = sorted((ROOT / "docs").glob("flotilla*.md"))
    lines = [line for page in pages for line in page.read_text().splitlines()]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    told = {row[0]: [cell.partition(":")[0] for cell in row[2:]] for row in rows if len(row) == 6}
    words = {"valid": "holds", "LOST_ACKED": "loses"}
    usual = [f"profile-{fault}" for fault in FAULTS]
    for name in PROFILES | SWITCHLESS:
        profile = profiles()[name]
        plans = SWITCHLESS_PLANS if name in SWITCHLESS else usual
        plans = RAFT_LOG_PLANS if name in RAFT_LOG else plans
        assert told[name] == [words[profile.expected[plan]] for plan in plans]


def test_the_page_of_the_zookeeper_mode_says_what_its_profiles_say() -> None:
    lines = (ROOT / "docs" / "flotilla-zookeeper.md").read_text().splitlines()
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    verdicts = {row[0]: row[1:] for row in rows if row[0] in ZOOKEEPER}
    assert verdicts == {
        name: [profiles()[name].expected[plan] for plan in ZOOKEEPER_PLANS] for name in ZOOKEEPER
    }


def test_a_semi_synchronous_set_is_whole_with_two() -> None:
    """Its third replica is never a member (spec 5.2), and nothing is missing."""
    nodes = addressed()
    of = {name: layout(nodes, Trial(profile=name), {}).sets[0].full_size for name in PROFILES}
    assert of == {name: 2 if name == "semi-sync" else 3 for name in PROFILES}


@pytest.mark.parametrize("profile", sorted(PROFILES))
@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_every_node_can_read_its_configuration(profile: str, scale: float) -> None:
    """What the driver writes, a node accepts, and it means what the profile says."""
    trial = Trial(profile=profile, settings={"timeScale": scale})
    nodes = addressed()
    made = layout(nodes, trial, {"orders": 4})
    for node in nodes:
        if node.role != "client":
            config = loads(made.config(node, f"/n/{node.name}"))
            assert (config.node, config.role, config.host) == (node.name, node.role, node.address)
            silence_s = 1.5 if profile == "fast-failover" else 10
            assert config.heartbeat_timeout_s == pytest.approx(silence_s * scale)
    chosen = profiles()[profile].settings
    assert config.min_in_sync_replicas == chosen["minInSyncReplicas"]
    assert config.all_ack_in_sync_state_set == chosen["allAckInSyncStateSet"]
    assert config.total_replicas == 3
    assert config.topics == {"orders": 4}


@pytest.mark.parametrize("profile", sorted(ZOOKEEPER))
def test_a_pair_and_those_that_decide_know_the_coordinators(profile: str) -> None:
    nodes = addressed(mode="zookeeper")
    made = layout(nodes, Trial(profile=profile), {"orders": 4})
    configs = [loads(made.config(node, "/n")) for node in nodes if node.role != "client"]
    coordinators = [config for config in configs if config.role == "coordinator"]
    servers = tuple(f"{config.host}:{config.client_port}" for config in coordinators)
    peers = {config.node: config.address for config in coordinators}
    assert len(servers) == 3
    assert all(config.coordinator_peers == peers for config in coordinators)
    for config in configs:
        if config.role in ("broker", "hacontroller"):
            assert config.zk_servers == servers
    assert [config.broker_id for config in configs if config.role == "broker"] == [0, 1]


def containers(count: int) -> list[Node]:
    trial = Trial(profile="container-cross", nodes={"container": count})
    nodes = cluster_nodes(trial.nodes, settings(trial).mode)
    return [replace(node, address=f"10.0.0.{n}") for n, node in enumerate(nodes, start=1)]


def test_a_server_of_an_ensemble_is_described_as_a_coordinator() -> None:
    """One that does not serve, or does not know who leads, is silent."""
    epoch = "epoch 4"
    leads = {"node": "c", "role": "coordinator", "state": "leader", "term": 4}
    assert description("c", View(epoch, 4, epoch)) == leads
    assert description("c", View(epoch, 4, "c")) == {**leads, "state": "follower"}
    assert description("c", View(epoch, 4, epoch, ready=False)) is None
    assert description("c", View("", 4, "c")) is None


@pytest.mark.parametrize("count", [2, 3])
def test_containers_have_the_master_of_one_set_and_slaves_of_the_others(count: int) -> None:
    """Each broker has ports and a store of its own; clients know all of them by their node."""
    nodes = containers(count)
    made = layout(nodes, Trial(profile="container-cross"), {"orders": 4})
    found = {}
    for node in nodes:
        files = made.inner_files(node, "/n") if node.role == "container" else {}
        if files:
            assert loads(made.config(node, "/n")).broker_config_paths == tuple(sorted(files))
        inner = [table_in(text) for text in files.values()]
        assert len({each["storePath"] for each in inner}) == len(inner)
        assert len({each[key] for each in inner for key in PORT_KEYS}) == 2 * len(inner)
        found[node.name] = {each["brokerName"]: each["brokerId"] for each in inner}
    names = [f"container-{n}" for n in range(1, count + 1)]
    for number in range(count):
        ids = {name: found[name][f"set-{number + 1}"] for name in names}
        assert sorted(ids.values()) == list(range(count))
        assert ids[f"container-{number + 1}"] == 0
    known = made.client(nodes)["names"]
    assert sorted(known.values()).count("container-1") == 1 + count


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"nodes": {"container": 1}}, "for 2 or 3 containers"),
        ({"nodes": {"container": 4}}, "for 2 or 3 containers"),
        ({"nodes": {"broker": 3}}, "give nodes.container instead"),
        ({"settings": {"brokerSets": 3}}, "2 containers have a broker set each"),
        ({"settings": {"containerLayout": "pairs"}}, "containerLayout must be 'cross'"),
        (
            {"profile": "raft-log", "settings": {"containerLayout": "cross"}},
            "brokers of a raft-log cluster are not put in containers",
        ),
        ({"profile": "switchless-sync", "nodes": {"container": 2}}, "the profile container-cross"),
    ],
)
def test_impossible_containers_are_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        system(replace(Trial(profile="container-cross"), **wrong))


@pytest.mark.parametrize("profile", sorted(SWITCHLESS))
def test_the_first_broker_of_each_set_is_its_master(profile: str) -> None:
    """Without controllers; none can be asked for, and nothing waits for a set that they keep."""
    trial = Trial(profile=profile, nodes={"broker": 4}, settings={"brokerSets": 2})
    nodes = addressed({"broker": 4}, mode="switchless")
    made = layout(nodes, trial, {"orders": 4})
    brokers = [node for node in nodes if node.role == "broker"]
    configs = [loads(made.config(node, "/n")) for node in brokers]
    assert [(c.broker_name, c.broker_id) for c in configs] == [
        *(("set-1", 0), ("set-1", 1), ("set-2", 0), ("set-2", 1)),
    ]
    assert all(config.switchless and not config.controllers for config in configs)
    assert {node.role for node in nodes} == {"nameserver", "broker", "client"}
    with pytest.raises(BadRequest, match="a switchless cluster has no controllers"):
        system(replace(trial, nodes={"controller": 3}))
    with pytest.raises(BadRequest, match="where haMode is switchless, set inSyncReplicas"):
        system(replace(trial, settings={"allAckInSyncStateSet": True}))
    with pytest.raises(BadRequest, match="learners are for haMode"):
        system(replace(trial, settings={"learners": 1}))
    assert "cas" not in registry.system("flotilla").calls(trial)


@pytest.mark.parametrize("profile", sorted(RAFT_LOG))
def test_the_brokers_of_each_set_are_one_raft_group(profile: str) -> None:
    """With DLedger's times, and no setting that contradicts votes."""
    trial = Trial(profile=profile, nodes={"broker": 6}, settings={"brokerSets": 2})
    nodes = addressed({"broker": 6}, mode="raft-log")
    made = layout(nodes, trial, {"orders": 4})
    brokers = [node for node in nodes if node.role == "broker"]
    configs = [loads(made.config(node, "/n")) for node in brokers]
    assert [c.dleger_self_id for c in configs] == ["n0", "n1", "n2"] * 2
    for group in (configs[:3], configs[3:]):
        peers = {c.dleger_self_id: c.address for c in group}
        assert all(c.dleger_peers == peers for c in group)
    assert all(config.raft_log and not config.controllers for config in configs)
    assert {node.role for node in nodes} == {"nameserver", "broker", "client"}
    assert system(Trial(profile=profile, settings={"timeScale": 1})).detection_s == 8
    refused = {
        "inSyncReplicas": 2,
        "minInSyncReplicas": 2,
        "allAckInSyncStateSet": True,
        "enableAutoInSyncReplicas": True,
        "asyncLearner": True,
        "syncFromLastFile": True,
        "haEpochFencing": False,
        "transientStorePoolEnable": True,
        "strictMetadata": True,
    }
    for key, value in refused.items():
        with pytest.raises(BadRequest, match=f"{key} does not apply where haMode is raft-log"):
            system(replace(trial, settings={key: value}))
    with pytest.raises(BadRequest, match="minVoteIntervalMs must not be more"):
        system(replace(trial, settings={"minVoteIntervalMs": 2000}))
    with pytest.raises(BadRequest, match="a raft-log cluster has no controllers"):
        system(replace(trial, nodes={"controller": 3}))
    with pytest.raises(BadRequest, match="learners are for haMode"):
        system(replace(trial, settings={"learners": 1}))
    assert not {"cas", "create_topic"} & set(registry.system("flotilla").calls(trial))


def test_unsafe_default_is_what_rocketmq_ships() -> None:
    """Spec 13: one acknowledgement, no demand on the set, asynchronous flush."""
    chosen = profiles()["unsafe-default"].settings
    assert (chosen["inSyncReplicas"], chosen["minInSyncReplicas"]) == (1, 1)
    assert (chosen["allAckInSyncStateSet"], chosen["flushDiskType"]) == (False, "ASYNC_FLUSH")


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_short_pauses_cause_no_election(profile: str) -> None:
    """At timeScale 1 a pause of 200 ms stays far below every timeout that elects somebody."""
    config = loads(
        layout(addressed(), Trial(profile=profile, settings={"timeScale": 1}), {}).config(
            addressed()[4], "/n"
        )
    )
    brokers, controllers = (5, 2) if profile == "fast-failover" else (10, 10)
    assert config.heartbeat_timeout_s - config.broker_heartbeat_interval_s > brokers * 0.2
    assert config.raft_election_timeout_s - config.raft_heartbeat_s > controllers * 0.2
    assert config.ha_max_time_slave_not_catchup_s > 10 * 0.2


def test_detection_is_the_heartbeats_age_and_a_scan() -> None:
    assert system(Trial()).detection_s == pytest.approx(1.5)
    assert system(Trial(settings={"timeScale": 1})).detection_s == pytest.approx(15)


def test_fast_failover_means_the_seconds_of_a_clock() -> None:
    """Its own timeScale is 1, and a silent master is noticed in less than two of them."""
    assert system(Trial(profile="fast-failover")).detection_s == pytest.approx(1.75)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"profile": "save"}, "unknown profile 'save'.*allack-min2"),
        ({"settings": {"inSyncReplica": 2}}, "inSyncReplica'.*did you mean inSyncReplicas"),
        ({"settings": {"inSyncReplicas": "two"}}, "inSyncReplicas"),
        ({"settings": {"flushDiskType": "NEVER"}}, "flushDiskType"),
        ({"settings": {"slaveTimeout": 0}}, "slaveTimeout"),
        ({"settings": {"sendMsgTimeout": "3 s"}}, "sendMsgTimeout"),
        ({"settings": {"storePath": "/"}}, "storePath"),
        ({"settings": {"brokerSets": 2}, "nodes": {"broker": 3}}, "3 brokers .* 2 broker sets"),
        ({"settings": {"timeScale": "fast"}}, "timeScale"),
        ({"settings": {"timeScale": 0}}, "timeScale"),
        ({"settings": {"timeScale": float("nan")}}, "timeScale"),
        ({"settings": {"slaveTimeout": float("inf")}}, "slaveTimeout"),
        (
            {"settings": {"minInSyncReplicas": 4}},
            "minInSyncReplicas is 4, but .* has 3.*nodes.broker",
        ),
        ({"settings": {"minInSyncReplicas": 0}}, "minInSyncReplicas must be at least 1, not 0"),
        ({"nodes": {"broker": 1}}, "minInSyncReplicas is 2, but a broker set here has 1"),
        (
            {"nodes": {"broker": 6}, "settings": {"brokerSets": 2, "minInSyncReplicas": 4}},
            "minInSyncReplicas is 4, but a broker set here has 3",
        ),
        (
            {"settings": {"inSyncReplicas": 4, "allAckInSyncStateSet": False}},
            "inSyncReplicas is 4, but a broker set here has 3",
        ),
        (
            {"settings": {"mappedFileSizeCommitLog": 100}},
            "CommitLog must be from 65536 to .* not 100",
        ),
        ({"settings": {"mappedFileSizeCommitLog": 1 << 40}}, "CommitLog must be .* to 1073741824 "),
        (
            {"settings": {"mappedFileSizeCommitLog": 100_000}, "load": {"body_bytes": 100_000}},
            "CommitLog must be from 100512 ",
        ),
        ({"settings": {"maxMessageSize": 1}}, "maxMessageSize must be from 64 to 8388096 .* not 1"),
        ({"settings": {"maxMessageSize": 8388608}}, "maxMessageSize must be .* not 8388608"),
        (
            {"settings": {"maxMessageSize": 999}, "load": {"body_bytes": 1000}},
            "maxMessageSize must be from 1000 ",
        ),
        (
            {"settings": {"haTransferBatchSize": 0}},
            "haTransferBatchSize must be at least 1024",
        ),
        ({"settings": {"haTransferBatchSize": 1 << 24}}, "haTransferBatchSize must be"),
        (
            {"settings": {"brokerHeartbeatInterval": 10_000}},
            r"brokerHeartbeatInterval \(10000 ms\) must be less than controllerHeartBeatTimeout",
        ),
        (
            {"settings": {"raftElectionTimeout": 500}},
            "raftHeartbeatInterval .* raftElectionTimeout",
        ),
        ({"settings": {"haHousekeepingInterval": 1}}, "haSendHeartbeatInterval .* cut off"),
        ({"nodes": {"brokers": 3}}, "unknown role 'brokers'"),
        (
            {"profile": "switchless-escape", "nodes": {"broker": 3}},
            "3 brokers .* over 2 broker sets; set nodes.broker to 4, or to another multiple of 2",
        ),
        ({"settings": {"racks": {"broker-9": "r"}}}, "unknown broker in racks 'broker-9'"),
        ({"settings": {"racks": {"broker-1": 2}}}, "racks must be a table of nodes and their rack"),
        ({"settings": {"racks": "r1"}}, "racks must be a table"),
        (
            {"workload": "transactional", "settings": {"transactionTimeOut": 450_000}},
            r"transactionTimeOut \(450000 ms, which are 45 s at timeScale 0.1\) must be less than "
            r"load.asked_within_s \(45 s\)",
        ),
        (
            {**LATE, "load": {"asked_within_s": 1.0}},
            r"must be less than load.asked_within_s \(1 s\)",
        ),
        ({"settings": {"coordinators": "zookeeper"}}, 'coordinators are for haMode = "zookeeper"'),
        (
            {"profile": "zk-ha", "settings": {"coordinators": "java"}},
            "coordinators must be one of flotilla, zookeeper, not 'java'",
        ),
        (
            {"profile": "zk-ha", "settings": {"zkSyncLimit": 3}},
            'zkSyncLimit is for coordinators = "zookeeper"',
        ),
        (
            {"profile": "zk-ha", "settings": {"coordinators": "zookeeper", "zkSyncLimit": 0}},
            "zkSyncLimit must be a whole number from 1",
        ),
        (
            {"profile": "zk-ha", "settings": {"coordinators": "zookeeper", "zkTickTime": 2000}},
            r"zkSyncLimit \(3\) times zkTickTime \(2000 ms\) must be less than zkSessionTimeout "
            r"\(4000 ms\), or a leader of ZooKeeper that was paused ends",
        ),
        (
            {
                "profile": "zk-ha",
                "settings": {"coordinators": "zookeeper"},
                "hosts": "simulated",
            },
            "needs hosts that run Java, and simulated hosts run no programs",
        ),
        ({"nodes": {"broker": 0}}, "nodes.broker"),
        ({"nodes": {"broker": "3"}}, "nodes.broker"),
        ({"nodes": {"broker": 10**9}}, "nodes.broker must be .* from 1 to 100"),
    ],
)
def test_nonsense_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        system(Trial(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        *({"profile": name} for name in sorted(PROFILES)),
        {"settings": {"minInSyncReplicas": 3, "inSyncReplicas": 3}},
        {"settings": {"inSyncReplicas": 9}},  # nobody asks it when all must acknowledge
        {"nodes": {"broker": 1}, "profile": "unsafe-default"},
        {"settings": {"mappedFileSizeCommitLog": 65536}},
        {"settings": {"maxMessageSize": 64}},
        {"settings": {"haTransferBatchSize": 1024}},
        {"load": {"body_bytes": 1 << 20}},
        {**LATE, "load": {"asked_within_s": 1.1}},
        {**LATE, "workload": "delayed"},  # which is asked about nothing
        *({"profile": ESCAPE, "workload": name} for name in ESCAPING_WORKLOADS),
        {**ESCAPING, "workload": "delayed", "load": {"queues": 3}},
        {**ESCAPING, "workload": "pop", "load": {"queues": 1}},
        {"profile": "container-cross", "nodes": {"container": 3}, "workload": "pop"},
    ],
    ids=str,
)
def test_what_can_work_is_not_refused(fields: dict[str, Any]) -> None:
    """Every profile, and settings at the edge of what is refused."""
    assert system(Trial(**fields)).nodes()


@pytest.mark.parametrize(
    ("fields", "brokers"),
    [
        ({}, 3),
        ({"settings": {"brokerSets": 2}}, 4),
        ({"profile": "allack-min1", "settings": {"brokerSets": 3}}, 3),
        ({"profile": "switchless-escape"}, 4),
        ({"profile": "zk-ha"}, 2),
        ({"profile": "zk-ha", "settings": {"brokerSets": 2}}, 4),
        ({"profile": "converting", "settings": {"brokerSets": 2}}, 4),
        ({"profile": "switchless-escape", "nodes": {"broker": 6}}, 6),
    ],
)
def test_brokers_fill_their_sets_if_no_number_is_set(fields: dict[str, Any], brokers: int) -> None:
    roles = [node.role for node in system(Trial(**fields)).nodes()]
    assert roles.count("broker") == brokers


def test_queues_keep_their_names_across_broker_sets() -> None:
    """Six brokers in two sets: the client numbers queues through the sets, and so do replicas."""
    trial = Trial(nodes={"broker": 6}, settings={"brokerSets": 2})
    nodes = addressed({"broker": 6})
    made = layout(nodes, trial, {"orders": 4})
    first, second = made.sets
    assert [len(s.nodes) for s in made.sets] == [3, 3]
    assert [made.queue_key(first, "orders", q) for q in (0, 1)] == ["orders-0", "orders-1"]
    assert [made.queue_key(second, "orders", q) for q in (0, 1)] == ["orders-2", "orders-3"]
    config = loads(made.config(next(n for n in nodes if n.name == "broker-4"), "/n"))
    assert (config.broker_name, config.total_replicas, config.topics) == ("set-2", 3, {"orders": 2})


@pytest.mark.parametrize("queues", range(1, 8))
def test_each_queue_of_a_set_is_a_queue_of_the_load(queues: int) -> None:
    """So messages that escape to a set land in a queue that has a reader, also if its set has fewer
    than others, or the topic is not on all sets."""
    nodes = addressed({"broker": 6})
    made = layout(nodes, Trial(nodes={"broker": 6}, settings={"brokerSets": 3}), {"orders": queues})
    configs = [loads(made.config(node, "/n")) for node in nodes if node.role == "broker"]
    shares = {config.broker_name: config.topics for config in configs}
    keys = [
        made.queue_key(each, "orders", queue)
        for each in made.sets
        for queue in range(shares[each.name].get("orders", 0))
    ]
    assert keys == [f"orders-{n}" for n in range(queues)]
    of_clients = made.client(nodes)["topicQueues"]["orders"]
    assert {name: {"orders": count} for name, count in of_clients.items()} == {
        name: topics for name, topics in shares.items() if topics
    }


def test_clients_know_nodes_by_address() -> None:
    """A broker's address names the node whose index stands in the history."""
    nodes = addressed()
    found = layout(nodes, Trial(), {}).client(nodes)
    broker = next(n for n in nodes if n.name == "broker-2")
    assert nodes[found["nodes"][f"{broker.address}:10911"]].name == "broker-2"
    assert found["names"][f"{broker.address}:10911"] == "broker-2"
    of_two = Trial(nodes={"broker": 4}, settings={"brokerSets": 2})
    more = layout(addressed({"broker": 4}), of_two, {"orders": 3}).client(nodes)
    assert more["topicQueues"] == {"orders": {"set-1": 2, "set-2": 1}}
    assert found["namesrvAddr"] == [f"{nodes[0].address}:9876"]


def test_broker_sets_are_blocks() -> None:
    sets = broker_sets(cluster_nodes({"broker": 4}), settings(Trial(settings={"brokerSets": 2})))
    assert [s.nodes for s in sets] == [["broker-1", "broker-2"], ["broker-3", "broker-4"]]


def test_sets_are_dealt_brokers_and_queues() -> None:
    """What names.json says of each: five queues are three and two, and a register is nowhere."""
    trial = Trial(nodes={"broker": 6}, settings={"brokerSets": 2})
    keys = [*(f"orders-{n}" for n in range(5)), "register-0"]
    first, second = (
        layout(addressed({"broker": 6}), trial, {"orders": 5}).broker_sets_of_keys(keys).items()
    )
    assert first == (
        "set-1",
        BrokerSetData(("broker-1", "broker-2", "broker-3"), 3, tuple(keys[:3])),
    )
    assert second == (
        "set-2",
        BrokerSetData(("broker-4", "broker-5", "broker-6"), 3, tuple(keys[3:5])),
    )


def test_a_full_set_is_as_large_as_the_profile_says() -> None:
    """Of a semi-synchronous one, two."""
    of = {
        name: layout(addressed(), Trial(profile=name), {}).broker_sets_of_keys(())
        for name in PROFILES
    }
    assert {name: dealt["set-1"].full for name, dealt in of.items() if name == "semi-sync"} == {
        "semi-sync": 2
    }
    assert {dealt["set-1"].full for name, dealt in of.items() if name != "semi-sync"} == {3}


def test_learners_are_the_last_brokers_of_their_set() -> None:
    """They are fed, and are not missed in a full SyncStateSet; somebody is left to be elected."""
    trial = Trial(nodes={"broker": 6}, settings={"brokerSets": 2, "learners": 1})
    nodes = addressed({"broker": 6})
    made = layout(nodes, trial, {})
    brokers = [node for node in nodes if node.role == "broker"]
    learners = [n.name for n in brokers if loads(made.config(n, "/f")).async_learner]
    assert learners == ["broker-3", "broker-6"]
    assert [dealt.full for dealt in made.broker_sets_of_keys(()).values()] == [2, 2]
    with pytest.raises(BadRequest, match="learners is 3, but a broker set here has 3"):
        system(Trial(settings={"learners": 3}))
    with pytest.raises(BadRequest, match="minInSyncReplicas is 2, but a broker set here has 1"):
        system(Trial(settings={"learners": 2}, profile="allack-min2"))


def test_more_than_nine_sets_are_numbered_as_clients_number_them() -> None:
    """By their names as text: set-10 comes after set-1."""
    trial = Trial(nodes={"broker": 10}, settings={"brokerSets": 10})
    made = layout(addressed({"broker": 10}), trial, {"orders": 10})
    owners = [{"brokerName": each.name, "queues": 1} for each in made.sets]
    brokers = {s.name: {"addrs": {"0": "a:1"}, "stateVersion": 1} for s in made.sets}
    client = RouteSnapshot().updated({"topics": {"orders": owners}, "brokers": brokers})
    dealt = made.broker_sets_of_keys([f"orders-{n}" for n in range(10)])
    of = {key: name for name, here in dealt.items() for key in here.keys}
    assert of == {f"orders-{n}": place.broker_name for (_, n), place in client.places().items()}
