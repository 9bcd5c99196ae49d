"""Who plays which part, from what the nodes say of themselves: pure.

Every node is asked over its own agent, so a partition hides nothing; a node that is paused or dead
says nothing (None). Brokers may disagree, since an old master that nobody told keeps its role, and
controllers may be behind; the highest epoch is the latest election, whoever reports it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.contracts import Standing

Described = Mapping[str, Mapping[str, Any] | None]  # node -> its `describe`


@dataclass(frozen=True)
class BrokerSet:
    """A broker set as it was laid out. `addresses`: "ip:port" -> node.

    `whole`: how many a full SyncStateSet has, of a semi-synchronous one two; 0: everybody.
    """

    name: str
    nodes: Sequence[str]
    addresses: Mapping[str, str]
    whole: int = 0

    def is_full(self, in_set: frozenset[str]) -> bool:
        return len(in_set & frozenset(self.nodes)) == (self.whole or len(self.nodes))


@dataclass(frozen=True)
class _Claim:
    """Somebody's view of a set; the greatest is the latest."""

    epoch: int
    set_epoch: int
    master: str
    in_set: frozenset[str]


def standing(described: Described, broker_sets: Sequence[BrokerSet]) -> Standing:
    views = {s.name: _latest(described, s) for s in broker_sets}
    masters = {name: view.master for name, view in views.items() if view.master}
    brokers = [node for s in broker_sets for node in s.nodes]
    members = {node for view in views.values() for node in view.in_set}
    return Standing(
        masters=masters,
        slaves=tuple(node for node in brokers if node not in masters.values()),
        in_set=tuple(node for node in brokers if node in members),
        out_of_set=tuple(node for node in brokers if node not in members),
        controller_leader=_leader(described),
        epochs={name: view.epoch for name, view in views.items()},
        redundant=all(_redundant(described, s, views[s.name]) for s in broker_sets),
        detail=described,
    )


def _latest(described: Described, broker_set: BrokerSet) -> _Claim:
    """The latest view of a set. Of equal ones a broker's own goes first: it knows it is master."""
    claims = [*_own_claims(described, broker_set), *_controllers_claims(described, broker_set)]
    nobody = _Claim(0, 0, "", frozenset())
    return max(claims, key=lambda c: (c.epoch, c.set_epoch, c.master != ""), default=nobody)


def _own_claims(described: Described, broker_set: BrokerSet) -> list[_Claim]:
    """A master names the members of its set by number. Whose number it is, controllers tell also of
    those who say nothing now."""
    ids: dict[int, str] = {}
    for row in _rows(described, broker_set):
        ids |= _ids(row, broker_set)
    for node in broker_set.nodes:
        said = described.get(node)
        if said:
            ids[said["controllerBrokerId"]] = node
    return [
        _Claim(said["masterEpoch"], said["setEpoch"], node, _named(said["set"], ids))
        for node in broker_set.nodes
        if (said := described.get(node)) and said["role"] == "master"
    ]


def _controllers_claims(described: Described, broker_set: BrokerSet) -> list[_Claim]:
    claims = []
    for row in _rows(described, broker_set):
        ids = _ids(row, broker_set)
        master, in_set = ids.get(row["masterId"], ""), _named(row["set"], ids)
        claims.append(_Claim(row["masterEpoch"], row["setEpoch"], master, in_set))
    return claims


def _rows(described: Described, broker_set: BrokerSet) -> list[Mapping[str, Any]]:
    """What each controller says of the set."""
    said = [each["sets"] for each in described.values() if each and each["role"] == "controller"]
    return [sets[broker_set.name] for sets in said if sets.get(broker_set.name)]


def _ids(row: Mapping[str, Any], broker_set: BrokerSet) -> dict[int, str]:
    """Who has which number, as a controller says."""
    return {
        int(number): broker_set.addresses.get(member["addr"], "")
        for number, member in row["members"].items()
    }


def _named(numbers: Sequence[int], ids: Mapping[int, str]) -> frozenset[str]:
    return frozenset(ids[number] for number in numbers if ids.get(number))


def _redundant(described: Described, broker_set: BrokerSet, view: _Claim) -> bool:
    """The master says so itself, the set is full, and every slave follows this epoch."""
    if not view.master or not broker_set.is_full(view.in_set):
        return False
    said = [described.get(node) for node in broker_set.nodes]
    roles = [s["role"] for s in said if s and s["masterEpoch"] == view.epoch]
    return sorted(roles) == ["master", *["slave"] * (len(broker_set.nodes) - 1)]


def _leader(described: Described) -> str:
    """The controller that leads; of two that say so, the one of the later term."""
    leaders = {
        node: said["term"]
        for node, said in described.items()
        if said and said["role"] == "controller" and said["state"] == "leader"
    }
    return max(leaders, key=lambda node: leaders[node], default="")


def missing(now: Standing, broker_sets: Sequence[BrokerSet]) -> str:
    """What keeps the cluster from full redundancy, in words; empty: nothing."""
    silent = [node for node, said in now.detail.items() if said is None]
    if silent:
        return f"{', '.join(silent)} did not answer"
    if not now.controller_leader:
        return "no controller leads"
    for broker_set in broker_sets:
        if broker_set.name not in now.masters:
            return f"{broker_set.name} has no master"
        out = [node for node in broker_set.nodes if node in now.out_of_set]
        if out and not broker_set.is_full(frozenset(now.in_set)):
            return f"{', '.join(out)} is not in the SyncStateSet of {broker_set.name}"
    return "" if now.redundant else "a broker does not follow the current epoch"
