"""The broker sets of a cluster, and what each of them holds.

A broker set has a master, elections and acknowledgements of its own, so each is judged on its own.
A system with several sets names them before the load, and `names.json` stores them under "sets", by
name: `nodes`, `full` (the size of a full SyncStateSet) and `keys`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

from harness.contracts import CLIENT, Node, System

BROKER, CONTROLLER = "broker", "controller"
CONTAINER = "container"  # of several brokers
FAILS_OVER = "fails_over"  # of the healthy state in run.json: False where there are no elections
WITHOUT_DATA = (CLIENT, "nameserver")  # roles whose nodes hold no acknowledged data


@dataclass(frozen=True)
class BrokerSetData:
    """The nodes and keys of one broker set."""

    nodes: tuple[str, ...]
    full: int  # members of its full SyncStateSet
    keys: tuple[str, ...] = ()


@runtime_checkable
class BrokerSetSystem(Protocol):
    """A system that knows its broker sets."""

    def broker_sets(
        self, nodes: Sequence[Node], keys: Sequence[str]
    ) -> Mapping[str, BrokerSetData]:
        """Return the broker sets by name, in order. A key that is in no set is left out."""
        ...


def data_role(roles: Mapping[str, str]) -> str:
    """Return the role of the nodes that hold the data: brokers, or where a system has none, the
    first role that it names. `roles`: of each node, in the order of the nodes."""
    for role in (BROKER, CONTAINER):
        if role in roles.values():
            return role
    return next((role for role in roles.values() if role not in WITHOUT_DATA), BROKER)


def data_nodes(roles: Mapping[str, str]) -> frozenset[str]:
    """Return the nodes that hold the data."""
    wanted = data_role(roles)
    return frozenset(node for node, role in roles.items() if role == wanted)


def voting_nodes(roles: Mapping[str, str]) -> frozenset[str]:
    """Return the nodes that elect masters: controllers, or where a system has none, the nodes that
    hold the data."""
    voters = frozenset(node for node, role in roles.items() if role == CONTROLLER)
    return voters or data_nodes(roles)


def broker_sets_entry(system: System, nodes: Sequence[Node], keys: Sequence[str]) -> dict[str, Any]:
    """Return the entry for names.json; empty if the system does not know its sets."""
    if not isinstance(system, BrokerSetSystem):
        return {}
    return {"sets": {name: asdict(of) for name, of in system.broker_sets(nodes, keys).items()}}


def broker_sets_in(names: Mapping[str, Any]) -> dict[str, BrokerSetData]:
    """Return the broker sets that names.json lists; empty if it lists none."""
    return {
        name: BrokerSetData(tuple(of["nodes"]), of["full"], tuple(of["keys"]))
        for name, of in names.get("sets", {}).items()
    }


def broker_sets_of_nodes(names: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Return the broker sets of each node; a container is in several."""
    found: dict[str, frozenset[str]] = {}
    for name, of in broker_sets_in(names).items():
        for node in of.nodes:
            found[node] = found.get(node, frozenset()) | {name}
    return found


def set_number_by_key(names: Mapping[str, Any]) -> list[int]:
    """Return, for each key of names.json, the number of its broker set, from 0 and without gaps; 0
    if it is in none."""
    of_key = {key: name for name, of in broker_sets_in(names).items() for key in of.keys}
    sets = sorted(set(of_key.values()))
    return [sets.index(of_key[key]) if key in of_key else 0 for key in names.get("keys", ())]


def replica_counts(names: Mapping[str, Any]) -> list[int]:
    """Return, for each key, how many brokers must hold what is written to it, which are those of
    its broker set; the last item is for keys that are in no set: all brokers."""
    brokers = len(data_nodes(names.get("roles", {})))
    of = {key: len(s.nodes) for s in broker_sets_in(names).values() for key in s.keys}
    return [*(of.get(key, brokers) for key in names.get("keys", ())), brokers]


def set_name_by_key(names: Mapping[str, Any], keys: Sequence[int]) -> tuple[str, ...]:
    """Return the name of each key's broker set, by key number; empty if it is in none."""
    of_key = {key: name for name, of in broker_sets_in(names).items() for key in of.keys}
    known = names.get("keys", ())
    return tuple(of_key.get(known[key], "") if 0 <= key < len(known) else "" for key in keys)


def replica_groups(names: Mapping[str, Any]) -> dict[str, str]:
    """Return the group with which each node shares its data: the broker set of a broker, else the
    role. A nameserver only knows what others report, so it is in no group. Of a container it is one
    of its sets: containers that share one set share all."""
    sets = {node: name for name, of in broker_sets_in(names).items() for node in of.nodes}
    roles: Mapping[str, str] = names.get("roles", {})
    return {n: sets.get(n, role) for n, role in roles.items() if role not in WITHOUT_DATA}
