"""Which broker sets a cluster has, and what lives in each of them.

A broker set has a master of its own, elects by itself and acknowledges by itself; so each is judged
for itself. A system that deals its brokers to sets says so before the load, and `names.json` keeps
it under "sets", by the sets' names: `nodes`, `full` (how many a full SyncStateSet has) and `keys`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

from harness.contracts import CLIENT, Node, System

WITHOUT_DATA = (CLIENT, "nameserver")  # roles whose nodes keep nothing that was acknowledged


@dataclass(frozen=True)
class Dealt:
    """What was dealt to one broker set."""

    nodes: tuple[str, ...]
    full: int  # members of its full SyncStateSet
    keys: tuple[str, ...] = ()


@runtime_checkable
class Dealing(Protocol):
    """A system that knows its broker sets."""

    def dealt(self, nodes: Sequence[Node], keys: Sequence[str]) -> Mapping[str, Dealt]:
        """By the sets' names, in their order. A key that lives in none of them is nowhere here."""
        ...


def sets_named(system: System, nodes: Sequence[Node], keys: Sequence[str]) -> dict[str, Any]:
    """For names.json; nothing where the system does not say."""
    if not isinstance(system, Dealing):
        return {}
    return {"sets": {name: asdict(of) for name, of in system.dealt(nodes, keys).items()}}


def dealt_sets(names: Mapping[str, Any]) -> dict[str, Dealt]:
    """What names.json tells of them; empty where it does not."""
    return {
        name: Dealt(tuple(of["nodes"]), of["full"], tuple(of["keys"]))
        for name, of in names.get("sets", {}).items()
    }


def numbers_of_keys(names: Mapping[str, Any]) -> list[int]:
    """For each key of names.json the number of its broker set, from 0 and without gaps; 0 where
    none is told."""
    of_key = {key: name for name, of in dealt_sets(names).items() for key in of.keys}
    sets = sorted(set(of_key.values()))
    return [sets.index(of_key[key]) if key in of_key else 0 for key in names.get("keys", ())]


def replicas_of(names: Mapping[str, Any]) -> list[int]:
    """How many brokers must hold what is written to each key, those of its broker set; at the end
    what holds for keys that are in none, all."""
    brokers = sum(role == "broker" for role in names.get("roles", {}).values())
    of = {key: len(s.nodes) for s in dealt_sets(names).values() for key in s.keys}
    return [*(of.get(key, brokers) for key in names.get("keys", ())), brokers]


def sets_of(names: Mapping[str, Any], keys: Sequence[int]) -> tuple[str, ...]:
    """Return the broker set of each key, by number; empty where none is told."""
    of_key = {key: name for name, of in dealt_sets(names).items() for key in of.keys}
    known = names.get("keys", ())
    return tuple(of_key.get(known[key], "") if 0 <= key < len(known) else "" for key in keys)


def replica_groups(names: Mapping[str, Any]) -> dict[str, str]:
    """Whom each node shares its data with: a broker with its set, any other with its role. A
    nameserver knows what others tell it, and has no data to share."""
    sets = {node: name for name, of in dealt_sets(names).items() for node in of.nodes}
    roles: Mapping[str, str] = names.get("roles", {})
    return {n: sets.get(n, role) for n, role in roles.items() if role not in WITHOUT_DATA}
