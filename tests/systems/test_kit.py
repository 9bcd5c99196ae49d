"""The kit: what nodes answer as roles, what logs tell as events, settings, and the client."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from clusters.hosts.local import requirements
from clusters.kit import Copy, Profile, Service, View, plugin
from clusters.kit.clients import ServiceClient
from clusters.kit.driver import declaration_problem, listeners, settings_in_force
from clusters.kit.roles import cluster_state, lacking
from clusters.kit.service import roles_in
from clusters.systems.etcd import Etcd
from clusters.systems.nats import Nats
from harness.cli.options import Request
from harness.contracts import CommandResult
from harness.contracts.calls import (
    CheckedCalls,
    Lease,
    LogEntries,
    Refused,
    Stored,
    call_outcome,
)
from harness.errors import BadRequest, SeatrialError, UnknownName
from harness.operation import Completion, Type
from harness.registry import load
from harness.run.launch import make_plan
from harness.run.preflight import refuse_impossible
from harness.trial import Trial
from nemesis._plan.plan import can_hit, draw


def test_the_leader_of_the_highest_term_leads() -> None:
    views = {"a": View("A", 3, "A"), "b": View("B", 4, "B"), "c": View("B", 4, "C"), "d": None}
    state = cluster_state("etcd", views)
    assert state.masters == {"etcd": "b"}
    assert state.epochs == {"etcd": 4}
    assert state.slaves == ("a", "c", "d")
    assert state.in_set == ("b", "c")
    assert state.serving == ("a", "b", "c")
    assert state.detail == {"stale_leaders": ["a"]}
    assert not state.redundant


def test_all_nodes_that_follow_and_are_ready_are_full_redundancy() -> None:
    views: dict[str, View | None] = {name: View("a", 1, name) for name in "abc"}
    assert cluster_state("nats", views).redundant
    views["b"] = View("a", 1, "b", ready=False)
    state = cluster_state("nats", views)
    assert not state.redundant
    assert state.out_of_set == ("b",)


def test_parts_with_leaders_of_their_own() -> None:
    views: dict[str, View | None] = {
        "a": View("a", -1, "a", True, {"orders-0": -1}),
        "b": View("a", -1, "b", True, {"orders-1": -1}),
    }
    state = cluster_state("nats", views)
    assert state.masters == {"orders-0": "a", "orders-1": "b"}
    assert state.epochs == {}


def test_a_follower_is_there_though_each_node_leads_a_part() -> None:
    """It is the node that leads the fewest parts, and follows in the others."""
    leads: dict[str, dict[str, int]] = {"a": {"q-0": 1, "q-1": 1}, "b": {"q-2": 1}, "c": {}}
    views: dict[str, View | None] = {
        name: View("a", 1, name, True, parts) for name, parts in leads.items()
    }
    assert cluster_state("nats", views).slaves == ("c",)
    leads["c"]["q-3"] = 1
    assert cluster_state("nats", views).slaves == ("b", "c")


def test_a_cluster_without_a_leader_has_no_master() -> None:
    assert cluster_state("etcd", {"a": View("", 1, "A"), "b": None}).masters == {}


def test_arbiters_that_leave_the_answer_to_their_leader() -> None:
    """Two brokers, three controllers of which one leads and knows the members, and a nameserver."""
    arbiters = {"c1", "c2", "c3", "names"}
    defers = View(None, 3, "c2", defers=True)
    views: dict[str, View | None] = {
        "a": View("a", 7, "a"),
        "b": View("a", 7, "b"),
        "c1": View("a", 7, "c1", leads_arbiters=True, members=("a", "b")),
        "c2": defers,
        "c3": defers,
        "names": View("a", -1, "names"),
    }
    state = cluster_state("rocketmq", views, arbiters)
    assert (state.redundant, state.controller_leader, state.epochs) == (True, "c1", {"rocketmq": 7})
    assert (state.masters, state.slaves, state.in_set) == ({"rocketmq": "a"}, ("b",), ("a", "b"))
    assert set(state.serving) == set(views)
    alone = views | {"c1": View("a", 7, "c1", leads_arbiters=True, members=("a",))}
    state = cluster_state("rocketmq", alone, arbiters)
    assert (state.redundant, state.in_set, state.out_of_set) == (False, ("a",), ("b",))
    old_names = views | {"names": View("b", -1, "names")}
    assert not cluster_state("rocketmq", old_names, arbiters).redundant
    alone = views | {"c1": None, "names": View(None, -1, "names", defers=True)}
    state = cluster_state("rocketmq", alone, arbiters)
    assert (state.masters, state.redundant) == ({"rocketmq": "a"}, False)
    before = cluster_state("rocketmq", dict.fromkeys("ab") | {"c1": defers}, {"c1"})
    assert (before.masters, before.serving) == ({}, ("c1",))


def test_roles_that_a_log_tells() -> None:
    log = """{"level":"info","ts":"2026-11-26T04:00:00.250Z","msg":"a became leader at term 7"}
no date: a became leader at term 8
2026-11-26 04:00:01,500 became follower at term 9
"""
    pattern = r"became (?P<role>leader|follower) at term (?P<term>\d+)"
    assert roles_in(log, pattern) == [
        (1795665600_250_000_000, "leader", 7),
        (1795665601_500_000_000, "follower", 9),
    ]


def test_addresses_on_which_a_node_listens() -> None:
    """Of IPv4 and IPv6, as Linux has them in /proc/net; a connection is none of them."""
    tables = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid
   0: 0100007F:094B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 0B0112C6:094C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2 1
   2: 0100007F:094B 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 3 1
   0: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 00000000
"""
    assert listeners(tables) == ["127.0.0.1:2379", "198.18.1.11:2380", "::1:8080"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"settings": {"snapshots": 3}}, "snapshot-count"),
        ({"settings": {"lease_s": "3"}}, "lease_s must be a whole number"),
        ({"settings": {"serializable": 1}}, "serializable must be true or false"),
        ({"profile": "fast"}, "serializable-reads"),
        ({"nodes": {"broker": 3}}, "server"),
        ({"nodes": {"server": 0}}, "nodes.server must be a whole number from 1 to 100"),
        ({"workload": "topics"}, "the clients of etcd lack create_topic"),
        (
            {"system": "redis", "workload": "pop"},
            "the clients of redis lack acknowledge, hide, pop",
        ),
        *(
            (
                {"system": "zookeeper", "settings": {key: value}},
                f"{key} must be a number from 1, not",
            )
            for key, value in (
                ("syncLimit", 0),
                ("syncLimit", -3),
                ("tickTime", 0),
                ("session_ms", 0),
            )
        ),
        (
            {"system": "zookeeper", "settings": {"snapCount": 1}},
            "snapCount must be a number from 2",
        ),
        ({"system": "zookeeper", "settings": {"heap_mb": 1}}, "heap_mb must be a number from 32"),
        ({"faults": ("handover",), "workload": "set"}, "which lacks a command that hands"),
    ],
)
def test_what_a_service_cannot_do_is_refused_with_the_key(
    changes: dict[str, Any], words: str
) -> None:
    trial = Trial(**({"system": "etcd", "workload": "register"} | changes))
    with pytest.raises(SeatrialError, match=words):
        refuse_impossible(Request(trial))


def test_settings_of_trial_profile_and_defaults() -> None:
    trial = Trial(profile="synced", settings={"replicas": 1})
    values = settings_in_force(Nats, trial)
    known = {"replicas": 1, "storage": "file", "sync_interval": "always"}
    assert {name: values[name] for name in known} == known
    with pytest.raises(BadRequest, match="storage must be one of file, memory"):
        settings_in_force(Nats, Trial(settings={"storage": "tape"}))
    with pytest.raises(UnknownName):
        settings_in_force(Etcd, Trial(profile="none"))


def test_nodes_are_named_by_their_roles() -> None:
    system = load("system", "etcd")(Trial(workload="register", nodes={"server": 5, "client": 1}))
    assert [node.name for node in system.nodes()] == [
        *(f"server-{n}" for n in range(1, 6)),
        "client-1",
    ]


@pytest.mark.parametrize("system", ["etcd", "nats", "redis", "redis-cluster", "zookeeper"])
def test_drawn_plans_aim_at_no_leader_that_a_system_never_has(system: str) -> None:
    """No node of the kit's systems leads controllers, so such a fault would wait in vain."""
    for seed in range(20):
        trial = Trial(system=system, workload="log", hosts="local", seed=seed, faults=("pause",))
        assert "controller-leader" not in make_plan(trial, None)
    plan = '[[fault]]\nkind = "pause"\nat_s = 5.0\nfor_s = 10.0\ntarget = "controller-leader"\n'
    with pytest.raises(BadRequest, match="matches no node"):
        make_plan(trial, plan)


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_drawn_plans_hit_nodes_that_are_there(servers: int) -> None:
    """A single server has no follower, and only the links to its clients can be cut."""
    kinds = ("kill", "pause", "partition", "loss")
    for seed in range(40):
        trial = Trial(system="etcd", workload="register", hosts="local", seed=seed, faults=kinds)
        system = load("system", "etcd")(replace(trial, nodes={"server": servers, "client": 2}))
        faults = draw(replace(trial, duration_s=100.0), 1.5, system.nodes())
        assert all(can_hit(fault, system.nodes()) for fault in faults)
        assert servers > 1 or not any("slave" in fault.target for fault in faults)


class Calls:
    """A client of plain calls whose answers the test chooses."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer

    async def act(self, *_: Any) -> Any:
        return self._answer()

    read = write = cas = append = entries = acquire = release = members = act


def raising(error: Exception) -> Callable[[], Any]:
    def answer() -> Any:
        raise error

    return answer


def ended(answer: Callable[[], Any], call: Callable[[ServiceClient], Awaitable[Any]]) -> Any:
    async def play() -> Any:
        nodes = [("server-1", "server", "10.0.0.1"), ("server-2", "server", "10.0.0.2")]
        return await call(ServiceClient(lambda settings, number: Calls(answer), {"nodes": nodes}))

    return asyncio.run(play())


async def sent(client: ServiceClient) -> Completion:
    done: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
    client.send("orders", 0, b"", b"body", done.set_result)
    return await done


def test_a_call_that_was_refused_failed_and_any_other_error_is_unknown() -> None:
    assert ended(lambda: 7, sent) == Completion(Type.OK, offset=7)
    assert ended(raising(Refused("full")), sent) == Completion(Type.FAIL, error="full")
    unknown = ended(raising(OSError("reset")), sent)
    assert unknown == Completion(Type.INFO, error="OSError: reset")


def test_an_acknowledgement_may_say_which_node_gave_it_in_which_term() -> None:
    known = ended(lambda: Stored(7, 3, "server-2"), sent)
    assert known == Completion(Type.OK, offset=7, epoch=3, node=1)
    assert ended(lambda: Stored(7), sent) == Completion(Type.OK, offset=7)


def test_a_log_that_has_become_shorter_is_read_on_where_the_client_says() -> None:
    shorter = ended(lambda: LogEntries([], 5, 5), lambda c: c.poll("orders", 0, 9, 10, 0.0))
    assert shorter.next_offset == 5
    empty = ended(lambda: LogEntries([], 5), lambda c: c.poll("orders", 0, 9, 10, 0.0))
    assert empty.next_offset == 9


def test_a_read_never_has_an_unknown_outcome() -> None:
    done, value = ended(raising(TimeoutError()), lambda c: c.registers(1).get("x"))
    assert (done.type, value) == (Type.FAIL, -1)


@pytest.mark.parametrize(
    ("answer", "call", "says"),
    [
        (None, "cas", "cas must return True or False, not None"),
        ([1], "read", "read must return a whole number of 64 bits or None, not list '[1]'"),
        ("7", "read", "read must return a whole number of 64 bits or None, not str '7'"),
        (["7"], "members", "members must return a list or set of whole numbers, not list"),
        (b"7", "append", "append must return an offset, as a whole number, or Stored, not bytes"),
        ([], "entries", "entries must return LogEntries, not list '[]'"),
    ],
)
def test_an_answer_of_the_wrong_kind_is_an_error_of_the_client(
    answer: Any, call: str, says: str
) -> None:
    """It counts as no answer: a `cas` that returns nothing is no refused comparison."""
    done, _ = asyncio.run(call_outcome(getattr(CheckedCalls(Calls(lambda: answer)), call)("x")))
    assert done.type is Type.INFO
    assert done.error.startswith(f"TypeError: {says}")


def test_the_kits_clients_check_their_answers() -> None:
    done = ended(lambda: None, lambda c: c.registers(1).cas("x", 1, 2))
    assert (done.type, done.error[:10]) == (Type.INFO, "TypeError:")


def test_an_error_of_the_client_names_its_line_and_one_of_the_network_does_not() -> None:
    mistake, _ = ended(lambda: {}["x"], lambda c: c.registers(1).get("x"))
    assert re.fullmatch(r"KeyError: 'x' \(test_kit\.py:\d+\)", mistake.error)
    broken, _ = ended(raising(ConnectionResetError("reset")), lambda c: c.registers(1).get("x"))
    assert broken.error == "ConnectionResetError: reset"


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"claim": {}}, "has 'claim', which no service has: begin names of your own with _; did"),
        ({"detects_s": 3.0}, "has 'detects_s', which no service has"),
        ({"ask": Service.ask}, "has no 'ask', which each service needs"),
        ({"profiles": {"weak": {}}}, "has 'weak' among its profiles: each must be Profile("),
        (
            {"profiles": [Profile(name="weak", about="", settings={"raeds": 1})]},
            "has a profile 'weak' with the setting 'raeds'; its settings are: serializable, ",
        ),
        ({"_own": 1}, ""),
    ],
)
def test_a_wrong_declaration_is_refused(declared: dict[str, Any], says: str) -> None:
    problem = declaration_problem(type("Wrong", (Etcd,), declared))
    assert problem.startswith(says)
    assert bool(problem) == bool(says)


def test_a_wrong_declaration_makes_no_plugin() -> None:
    with pytest.raises(BadRequest, match="Wrong has 'claim', which no service has"):
        plugin(type("Wrong", (Etcd,), {"claim": {}}))


def test_a_leader_that_no_node_calls_itself_is_named() -> None:
    views = {"a": View("server-2", 1, "x"), "b": View("server-2", 1, "y")}
    why = lacking(cluster_state("etcd", views), (), views)
    assert why == (
        "its nodes name 'server-2' as the leader, and none of them calls itself that "
        "(View.own: 'x', 'y')"
    )


def test_a_comparison_that_refused_a_change() -> None:
    done = ended(lambda: False, lambda c: c.registers(1).cas("x", 1, 2))
    assert (done.type, done.pos) == (Type.FAIL, 0)


def test_a_lock_has_a_lease_and_a_token() -> None:
    done = ended(lambda: Lease(2.5, 9), lambda c: c.lock("g", "client-3", "locks", 0))
    assert (done.type, done.offset, done.arg) == (Type.OK, 2500, 9)


def test_a_poll_goes_on_behind_its_last_message() -> None:
    entries = LogEntries([(4, b"x"), (6, b"y")], 9)
    result = ended(lambda: entries, lambda c: c.poll("orders", 0, 4, 10, 0.0))
    assert [m.offset for m in result.messages] == [4, 6]
    assert (result.next_offset, result.max_offset) == (7, 9)


class EmptyNode:
    """An agent of a node whose folder of data has no file; it keeps what was started."""

    def __init__(self) -> None:
        self.started: list[str] = []

    async def run(self, argv: Sequence[str], _stdin: bytes, *, timeout_s: float) -> CommandResult:
        return CommandResult(0, "False\n", "")

    async def start(self, _name: str, argv: Sequence[str], **_more: Any) -> None:
        self.started += argv


def test_a_node_without_data_is_started_again_where_a_system_has_no_rejoin() -> None:
    """A power cut may take all that it had written, if nothing was synced."""
    trial = Trial(system="nats")
    driver = load("system", "nats")(trial)
    nodes, agent = tuple(driver.nodes()), EmptyNode()
    bed: Any = SimpleNamespace(
        agents=dict.fromkeys((node.name for node in nodes), agent),
        hosts=SimpleNamespace(
            folder=lambda name: f"/nodes/{name}",
            python=lambda _: SimpleNamespace(executable="python"),
        ),
        node=lambda name: next(node for node in nodes if node.name == name),
        of_role=lambda role: tuple(node for node in nodes if node.role == role),
    )
    driver._service = Nats(settings_in_force(Nats, trial), {}, nodes)
    driver._programs = {node.name: {"nats-server": "/bin/nats-server"} for node in nodes}
    for _ in range(2):
        asyncio.run(driver.start_node(bed, "server-1"))
    assert agent.started.count("/bin/nats-server") == 2


@pytest.mark.parametrize("fault", ["clock", "starve-memory", "disk-full", "unsynced"])
def test_a_fault_that_would_miss_the_processes_is_refused(fault: str) -> None:
    """PostgreSQL's processes leave the process group that these faults act on."""
    trial = Trial(workload="log", system="postgres", faults=(fault,), duration_s=120.0)
    with pytest.raises(SeatrialError, match="which lack"):
        make_plan(trial)
    assert "kill" in make_plan(replace(trial, faults=("kill",)))


def test_a_power_cut_of_the_disk_needs_no_hold_of_the_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So PostgreSQL can have one, where the hosts can."""
    monkeypatch.setattr(requirements, "why_no_own_disks", lambda **_: "")
    plan = """
[[fault]]
kind = "unsynced"
at_s = 1.0
for_s = 70.0
target = "one server"
params = { keeps = "nothing" }
"""
    trial = Trial(workload="log", system="postgres", duration_s=120.0)
    assert 'by = "auto"' in make_plan(trial, plan)
    monkeypatch.setattr(requirements, "why_no_own_disks", lambda **_: "no root")
    with pytest.raises(SeatrialError, match="which lack"):
        make_plan(trial, plan)


def test_a_copy_has_the_value_that_its_message_begins_with() -> None:
    assert Copy.of("q", 3, (7).to_bytes(8, "big") + b"rest", 2)[:4] == ("q", 3, 7, 2)
    assert Copy.of("q", 3, b"\xfe" * 16).value == -1, "it is no message of ours"
