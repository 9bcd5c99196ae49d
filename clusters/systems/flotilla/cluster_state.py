"""The roles of all nodes, from the nodes' answers to `describe`. Pure.

Every node is asked through its own agent, so a partition hides none; a node that is paused or dead
gives no answer (None). Brokers may disagree, since an old master that does not know its successor
keeps its role, and controllers may lag behind. The highest epoch is the latest election, whichever
node reports it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusters.flotilla.ha_machine.machine import Phase
from harness.contracts import ClusterState

AGREEING = ("controller", "coordinator")  # roles that elect a leader among themselves
INSIDE = "/"  # container-1/set-1 is the broker of set-1 in container-1
Descriptions = Mapping[str, Mapping[str, Any] | None]  # node -> its `describe`


@dataclass(frozen=True)
class BrokerSetLayout:
    """A broker set of the layout. `addresses`: "ip:port" -> node.

    `full_size`: the size of a full SyncStateSet, 2 for a semi-synchronous set; 0: all brokers.
    `inner_port`: where its brokers listen if they are in containers, which are in several sets; 0:
    each has a process of its own.
    """

    name: str
    nodes: Sequence[str]
    addresses: Mapping[str, str]
    full_size: int = 0
    inner_port: int = 0

    def replica(self, node: str) -> str:
        """Return the name of the node's broker of this set: the node's, except in containers."""
        return f"{node}{INSIDE}{self.name}" if self.inner_port else node

    def store(self, node: str) -> str:
        """Return where that broker's store is, in the node's folder."""
        return f"store/{self.name}" if self.inner_port else "store"

    def is_full(self, in_set: frozenset[str]) -> bool:
        return len(in_set & frozenset(self.nodes)) == (self.full_size or len(self.nodes))


@dataclass(frozen=True)
class _SetView:
    """A node's view of a set; the greatest is the latest."""

    epoch: int
    set_epoch: int
    master: str
    in_set: frozenset[str]


def cluster_state(described: Descriptions, broker_sets: Sequence[BrokerSetLayout]) -> ClusterState:
    views = {s.name: _latest(described, s) for s in broker_sets}
    masters = {name: view.master for name, view in views.items() if view.master}
    members = {name: view.in_set for name, view in views.items()}
    slaves, in_set, out_of_set = parts_of_nodes(broker_sets, masters, members)
    return ClusterState(
        masters=masters,
        slaves=slaves,
        in_set=in_set,
        out_of_set=out_of_set,
        controller_leader=_leader(described),
        epochs={name: view.epoch for name, view in views.items()},
        holding=tuple(s.name for s in broker_sets if _holds(described, s)),
        redundant=all(_redundant(described, s, views[s.name]) for s in broker_sets),
        serving=tuple(node for node in described if _serves(described, node)),
        detail=described,
    )


def parts_of_nodes(
    broker_sets: Sequence[BrokerSetLayout],
    masters: Mapping[str, str],
    in_set: Mapping[str, Collection[str]],
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the nodes that are slaves, in their SyncStateSets, and outside of one.

    A container has a part in several sets: it is a slave if it is one in any of them, and in the
    SyncStateSets only if it is a member of all of its sets.
    """
    brokers = dict.fromkeys(node for s in broker_sets for node in s.nodes)
    slaves = {n for s in broker_sets for n in s.nodes if n != masters.get(s.name)}
    out = {n for s in broker_sets for n in s.nodes if n not in in_set.get(s.name, ())}
    return (
        tuple(node for node in brokers if node in slaves),
        tuple(node for node in brokers if node not in out),
        tuple(node for node in brokers if node in out),
    )


def host_of(replica: str) -> str:
    """Return the node of a broker."""
    return replica.partition(INSIDE)[0]


def _serves(described: Descriptions, node: str) -> bool:
    """Return whether this is a node that answered, and so did all brokers inside."""
    return INSIDE not in node and all(
        answer for name, answer in described.items() if host_of(name) == node
    )


def _latest(described: Descriptions, broker_set: BrokerSetLayout) -> _SetView:
    """Return the latest view of a set. Among equal ones a broker's takes precedence: it knows its
    own role."""
    claims = [*_broker_views(described, broker_set), *_controller_views(described, broker_set)]
    none = _SetView(0, 0, "", frozenset())
    return max(claims, key=lambda c: (c.epoch, c.set_epoch, c.master != ""), default=none)


def _broker_views(described: Descriptions, broker_set: BrokerSetLayout) -> list[_SetView]:
    """Return the masters' views. A master reports the members of its set by number; controllers
    know the numbers of nodes that do not answer now, too."""
    ids: dict[int, str] = {}
    for row in _rows(described, broker_set):
        ids |= _ids(row, broker_set)
    for node in broker_set.nodes:
        answer = described.get(broker_set.replica(node))
        if answer:
            ids[answer["controllerBrokerId"]] = node
    return [
        _SetView(answer["masterEpoch"], answer["setEpoch"], node, _names_of(answer["set"], ids))
        for node in broker_set.nodes
        if (answer := described.get(broker_set.replica(node))) and answer["role"] == "master"
    ]


def _controller_views(described: Descriptions, broker_set: BrokerSetLayout) -> list[_SetView]:
    claims = []
    for row in _rows(described, broker_set):
        ids = _ids(row, broker_set)
        master, in_set = ids.get(row["masterId"], ""), _names_of(row["set"], ids)
        claims.append(_SetView(row["masterEpoch"], row["setEpoch"], master, in_set))
    return claims


def _rows(described: Descriptions, broker_set: BrokerSetLayout) -> list[Mapping[str, Any]]:
    """Return what each controller knows of the set."""
    deciders = ("controller", "hacontroller")
    rows = [each["sets"] for each in described.values() if each and each["role"] in deciders]
    return [sets[broker_set.name] for sets in rows if sets.get(broker_set.name)]


def _holds(described: Descriptions, broker_set: BrokerSetLayout) -> bool:
    """Return whether a pair is in SEMI, by the HA controller that knows its latest state."""
    rows = [row for row in _rows(described, broker_set) if "state" in row]
    latest = max(rows, key=lambda row: int(row["setEpoch"]), default=None)
    return latest is not None and latest["state"] == Phase.SEMI


def _ids(row: Mapping[str, Any], broker_set: BrokerSetLayout) -> dict[int, str]:
    """Return the broker of each number, as a controller knows them."""
    return {
        int(number): broker_set.addresses.get(member["addr"], "")
        for number, member in row["members"].items()
    }


def _names_of(numbers: Sequence[int], ids: Mapping[int, str]) -> frozenset[str]:
    return frozenset(ids[number] for number in numbers if ids.get(number))


def _redundant(described: Descriptions, broker_set: BrokerSetLayout, view: _SetView) -> bool:
    """Return whether the set has a master, is full, and every slave follows the master's epoch."""
    if not view.master or not broker_set.is_full(view.in_set):
        return False
    answers = [described.get(broker_set.replica(node)) for node in broker_set.nodes]
    roles = [s["role"] for s in answers if s and s["masterEpoch"] == view.epoch]
    return sorted(roles) == ["master", *["slave"] * (len(broker_set.nodes) - 1)]


def _leader(described: Descriptions) -> str:
    """Return the controller, or coordinator, that leads; of two that claim it, the later one."""
    leaders = {
        node: answer["term"]
        for node, answer in described.items()
        if answer and answer["role"] in AGREEING and answer["state"] == "leader"
    }
    return max(leaders, key=lambda node: leaders[node], default="")


def missing_redundancy(now: ClusterState, broker_sets: Sequence[BrokerSetLayout]) -> str:
    """Return what the cluster lacks for full redundancy, as a sentence, or an empty string."""
    silent = [node for node, answer in now.detail.items() if answer is None]
    if silent:
        return f"{', '.join(silent)} did not answer"
    if not now.controller_leader and _has_controllers(now):
        return "no controller leads"  # or no coordinator
    for broker_set in broker_sets:
        if broker_set.name not in now.masters:
            return f"{broker_set.name} has no master"
        out = [node for node in broker_set.nodes if node in now.out_of_set]
        if out and not broker_set.is_full(frozenset(now.in_set)):
            return f"{', '.join(out)} is not in the SyncStateSet of {broker_set.name}"
    return "" if now.redundant else "a broker does not follow the current epoch"


def _has_controllers(now: ClusterState) -> bool:
    return any(answer and answer["role"] in AGREEING for answer in now.detail.values())


def common_range(now: ClusterState, broker_set: BrokerSetLayout) -> tuple[int, int]:
    """Return the range in which all logs of the set must be equal, and are on disk.

    A slave's log is a byte-for-byte copy of its master's, so up to the confirm offset all replicas
    must hold the same bytes. Bytes that a broker has not flushed may be missing in its files, so
    the range ends at the smallest of the master's confirm offset and all flushed offsets. It begins
    where the log that begins last does, since a copy may lack the oldest bytes.
    """
    answers = [now.detail.get(broker_set.replica(node)) for node in broker_set.nodes]
    master = now.detail.get(broker_set.replica(now.masters.get(broker_set.name, "")))
    if master is None or not all(answers):
        return 0, 0
    begin = max(int(each["minOffset"]) for each in answers if each)
    end = min(int(each["flushedOffset"]) for each in answers if each)
    return begin, min(end, int(master["confirmOffset"]))
