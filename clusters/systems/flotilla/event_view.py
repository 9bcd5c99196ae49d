"""The roles of nodes, from their event logs: no node has to be asked.

The events contain what `cluster_state` learns from the nodes' answers, only earlier: elections and
sets from the controllers, roles and sets from the brokers, terms from the controllers. Of several
views the latest counts, by epoch and set epoch. A node that is dead or paused keeps its last role.
`redundant` stays False: events do not show that a slave follows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusters.flotilla.ha_machine.machine import Phase
from clusters.systems.flotilla.cluster_state import BrokerSetLayout, parts_of_nodes
from harness.contracts import ClusterState

LEADER = "leader"


@dataclass(frozen=True, order=True)
class _View:
    """A view of a broker set; the greatest is the latest. Ids are the controllers' numbers of
    brokers."""

    epoch: int = 0
    set_epoch: int = 0
    master: int = 0
    members: tuple[int, ...] = ()


class EventView:
    """The state of the cluster, as far as its events show it."""

    def __init__(self, sets: Sequence[BrokerSetLayout]) -> None:
        self._sets = sets
        self._set_of = {node: each.name for each in sets for node in each.nodes}
        self._ids: dict[str, dict[int, str]] = {each.name: {} for each in sets}
        self._views = {each.name: _View() for each in sets}
        self._phases: dict[str, tuple[int, str]] = {}  # of pairs: SequenceID and state
        self._terms: dict[str, int] = {}  # by controller that leads, as far as its events show
        self._standing: ClusterState | None = None

    def read(self, node: str, kind: str, fields: Mapping[str, Any]) -> None:
        """Read a line of the node's event log."""
        mine = str(fields.get("inner") or self._set_of.get(node, ""))  # of a container's broker
        match kind:
            case "role" if mine in self._views:
                self._role(node, mine, fields)
            case "election" | "set":
                self._election_or_set(str(fields.get("brokerName") or mine), fields)
            case "machine":
                name, latest = str(fields["brokerName"]), (int(fields["seq"]), str(fields["state"]))
                self._phases[name] = max(self._phases.get(name, latest), latest)
            case "raft" if node not in self._set_of:
                self._raft(node, fields)
            case "start":
                self._terms.pop(node, None)
            case _:
                return
        self._standing = None

    def cluster_state(self) -> ClusterState:
        if self._standing is None:
            self._standing = self._now()
        return self._standing

    def _role(self, node: str, name: str, fields: Mapping[str, Any]) -> None:
        self._ids[name][int(fields["brokerId"])] = node
        if fields["role"] == "master" and int(fields["epoch"]) > self._views[name].epoch:
            me = int(fields["brokerId"])
            self._views[name] = _View(int(fields["epoch"]), 0, me, (me,))

    def _election_or_set(self, name: str, fields: Mapping[str, Any]) -> None:
        if name not in self._views:
            return
        before, members = self._views[name], tuple(sorted(fields.get("set") or ()))
        if "masterId" in fields:
            epoch, master = int(fields["epoch"] or 0), int(fields["masterId"] or 0)
            new = _View(epoch, int(fields.get("setEpoch") or 0), master, members)
        else:
            new = _View(before.epoch, int(fields.get("setEpoch") or 0), before.master, members)
        self._views[name] = max(before, new, key=lambda view: (view.epoch, view.set_epoch))

    def _raft(self, node: str, fields: Mapping[str, Any]) -> None:
        if fields["state"] == LEADER:
            self._terms[node] = int(fields["term"])
        else:
            self._terms.pop(node, None)

    def _now(self) -> ClusterState:
        masters, epochs, members = {}, {}, {}
        for name, view in self._views.items():
            ids = self._ids[name]
            epochs[name] = view.epoch
            members[name] = {ids[one] for one in view.members if one in ids}
            if view.master in ids:
                masters[name] = ids[view.master]
        slaves, in_set, out_of_set = parts_of_nodes(self._sets, masters, members)
        return ClusterState(
            masters=masters,
            slaves=slaves,
            in_set=in_set,
            out_of_set=out_of_set,
            controller_leader=max(self._terms, key=lambda node: self._terms[node], default=""),
            epochs=epochs,
            holding=tuple(name for name, (_, phase) in self._phases.items() if phase == Phase.SEMI),
        )
