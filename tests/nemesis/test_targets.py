"""Selectors against a cluster whose parts are known."""

from random import Random
from typing import Any

import pytest

from harness.contracts import ClusterState, Node, PlannedFault
from harness.errors import BadRequest, UnknownName
from nemesis._plan import targets as _targets
from nemesis.partition import SHAPES


def hit(world: Any, selector: str, seed: int = 1) -> list[str]:
    nodes = _targets.resolve(selector, world.bed.nodes, world.standing, Random(seed))
    return [node.name for node in nodes]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("master", ["broker-1"]),
        ("slave", ["broker-2", "broker-3"]),
        ("in-set", ["broker-1", "broker-2"]),
        ("out-of-set", ["broker-3"]),
        ("controller-leader", ["controller-2"]),
        ("nameserver", ["nameserver-1"]),
        ("broker", ["broker-1", "broker-2", "broker-3"]),
        ("all broker", ["broker-1", "broker-2", "broker-3"]),
        ("client", ["client-1", "client-2"]),
        ("broker-3", ["broker-3"]),
        ("broker-3, broker-2", ["broker-2", "broker-3"]),
        ("one broker-3", ["broker-3"]),
        ("controller-leader, master", ["controller-2", "broker-1"]),
    ],
)
def test_parts_roles_and_names(world: Any, selector: str, expected: list[str]) -> None:
    """A selector without a count means all nodes with that part, in the order of the nodes."""
    assert hit(world, selector) == expected


@pytest.mark.parametrize("selector", ["broker", "container", "slave", "all broker but container-1"])
def test_a_container_of_brokers_is_a_broker(selector: str) -> None:
    """So plans that name brokers fit clusters whose brokers are in containers, and only these
    nodes are brokers."""
    roles = ("nameserver", "controller", "container", "container", "client")
    nodes = [Node(f"{role}-{n}", role) for n, role in enumerate(roles)]
    nodes[2], nodes[3] = Node("container-1", "container"), Node("container-2", "container")
    containers = {"container-1", "container-2"}
    wanted = containers - {"container-1"} if "but" in selector else containers
    _targets.check(selector, nodes)
    assert _targets.possible_names(selector, nodes) == wanted
    now = ClusterState(slaves=("container-1", "container-2"))
    assert {n.name for n in _targets.resolve(selector, nodes, now, Random(1))} == wanted


@pytest.mark.parametrize(
    ("selector", "sizes"),
    [
        ("one broker", {1}),
        ("one slave", {1}),
        ("minority broker", {1}),
        ("majority broker", {2}),
        ("random broker", {1, 2, 3}),
        ("minority", {2}),
        ("majority", {4}),
        ("all", {6}),
        ("one", {1}),
        ("minority client", {1}),
        ("2 broker", {2}),
        ("3 broker", {3}),
        ("1 controller", {1}),
        ("2", {2}),
        ("5 slave", {2}),  # no more than there are now
    ],
)
def test_counts(world: Any, selector: str, sizes: set[int]) -> None:
    """A count takes that many, alone among brokers and controllers, and never none."""
    hits = [hit(world, selector, seed) for seed in range(60)]
    assert {len(names) for names in hits} == sizes
    if sizes == {1} and "client" not in selector:
        assert len({names[0] for names in hits}) > 1, "the same node is always drawn"


def test_the_seed_decides(world: Any) -> None:
    """The same seed hits the same nodes."""
    assert hit(world, "random", 5) == hit(world, "random", 5)


def test_spared_nodes_are_not_drawn(world: Any) -> None:
    """The count is of all nodes, the choice among those left."""

    def hit_of_those_left(selector: str, *spare: str) -> list[str]:
        nodes = _targets.resolve(selector, world.bed.nodes, world.standing, Random(1), spare)
        return [node.name for node in nodes]

    assert hit_of_those_left("one broker", "broker-1", "broker-3") == ["broker-2"]
    assert hit_of_those_left("majority broker", "broker-2") == ["broker-1", "broker-3"]
    assert hit_of_those_left("majority broker", "broker-1", "broker-2") == ["broker-3"]
    assert hit_of_those_left("master", "broker-1") == []


def test_servers_are_neither_clients_nor_nameservers(world: Any) -> None:
    """`server` means nodes with replicated state, `cluster` all nodes except clients."""
    assert not {"nameserver-1", "client-1"} & set(hit(world, "server"))
    assert set(hit(world, "cluster")) == set(hit(world, "server")) | {"nameserver-1"}


def test_a_part_without_nodes_means_none(world: Any) -> None:
    """Between two elections there is no master to hit."""
    world.standing = ClusterState()
    assert hit(world, "master") == []
    assert hit(world, "one slave") == []


def test_unknown_names_list_the_known(world: Any) -> None:
    """A typing error is reported with the nearest name."""
    with pytest.raises(UnknownName, match=r"'mastre' \(did you mean master\?\)"):
        _targets.check("one mastre", world.bed.nodes)
    with pytest.raises(BadRequest, match="selector is empty"):
        _targets.check(" , ", world.bed.nodes)
    for selector in ("master,, slave", ", slave", "master, "):
        with pytest.raises(BadRequest, match="names no node before or after a comma"):
            _targets.check(selector, world.bed.nodes)


def test_the_part_a_node_plays(world: Any) -> None:
    """Targets are recorded by part, so that faults on the master can be recognised."""
    parts = {n.name: _targets.part(n, world.standing) for n in world.bed.nodes}
    assert parts["broker-1"] == "master"
    assert parts["broker-2"] == "slave"
    assert parts["controller-2"] == "controller-leader"
    assert parts["controller-1"] == "controller"


@pytest.mark.parametrize(
    ("selector", "says"),
    [
        ("0 broker", "'0 broker' hits no node; write 1 or more"),
        ("4 broker", "'4 broker' asks for 4, and there are 3; write a lower number"),
        ("7", "'7' asks for 7, and there are 6"),
        ("2 broker-1", "asks for 2, and there are 1"),
        ("2 brokers", "unknown target 'brokers'"),
    ],
)
def test_a_number_that_is_never_there_is_refused(world: Any, selector: str, says: str) -> None:
    """Before the run; parts are known only at the moment, so `5 slave` is allowed."""
    with pytest.raises(BadRequest, match=says):
        _targets.check(selector, world.bed.nodes)
    _targets.check("5 slave, 2 broker, 3", world.bed.nodes)


def test_a_number_is_a_random_choice() -> None:
    """So its targets are not known beforehand."""
    nodes = [Node(f"broker-{n}", "broker") for n in (1, 2, 3)]
    assert not _targets.is_fixed("2 broker", nodes)
    with pytest.raises(BadRequest, match="depends on current roles or on chance"):
        _targets.check_fixed("2 broker", nodes, ())


@pytest.mark.parametrize("role", ["server", "store", "broker"])
def test_a_partition_from_the_clients_hits_the_nodes_with_the_data(role: str) -> None:
    """Whatever a system calls them, if the plan names no target."""
    data = [Node(f"{role}-{n}", role) for n in (1, 2, 3)]
    # the word `server` means the nodes of all roles, so a system has it beside no other role
    others = [] if role == "server" else [Node("witness-1", "witness")]
    nodes = [*data, *others, Node("client-1", "client")]
    planned = PlannedFault("partition", 1.0, 9.0, "", {"shape": "clients"})

    def aim(selector: str, *_: Any) -> tuple[Node, ...]:
        return _targets.resolve(selector, nodes, ClusterState(), Random(1))

    victims, _ = SHAPES["clients"].select(planned, nodes, aim, Random(1))
    assert list(victims) == data
