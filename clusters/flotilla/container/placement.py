"""Which brokers a container accepts, and which it starts again. Pure.

A container has one broker of a set at most: two replicas of it in one process would fail together.
(RocketMQ accepts several, with different ids.) Two brokers with one store would mix their data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..config import Config

Table = Mapping[str, Any]  # a configuration, by RocketMQ's keys


class InnerId(NamedTuple):
    """What names a broker inside a container, as in RocketMQ's REMOVE_BROKER."""

    cluster: str
    broker_name: str
    broker_id: int

    def fields(self) -> dict[str, Any]:
        """Return them as requests and events have them."""
        return {
            "cluster": self.cluster,
            "brokerName": self.broker_name,
            "brokerId": self.broker_id,
        }

    def __str__(self) -> str:
        return f"{self.cluster}:{self.broker_name}:{self.broker_id}"


def id_of(config: Config) -> InnerId:
    return InnerId(config.cluster, config.broker_name, config.broker_id)


def inner_refusal(new: Config, present: Sequence[Config]) -> str:
    """Return why a container with these brokers does not accept a new one, "" if it does."""
    if not new.broker_name:
        return "brokerName is missing"
    for other in present:
        if (other.cluster, other.broker_name) == (new.cluster, new.broker_name):
            return f"{id_of(other)} is in this container already"
        one, two = sorted((store_parts(other), store_parts(new)), key=len)
        if one == two:
            return f"storePath {new.store} is the store of {id_of(other)}"
        if two[: len(one)] == one:
            return f"one of storePath {new.store} and the store of {id_of(other)} is in the other"
    return ""


def store_parts(config: Config) -> list[str]:
    """Return the folders of the path of the store in one spelling. Links are not followed: the
    container asks about the paths that they lead to as well."""
    parts = ["/"] if config.store.startswith("/") else []
    for part in config.store.split("/"):
        if part == ".." and parts and parts[-1] not in ("/", ".."):
            parts.pop()
        elif part not in ("", ".") and (part != ".." or parts != ["/"]):
            parts.append(part)
    return parts


@dataclass(frozen=True)
class InnerChanges:
    """What changed a container's brokers at run time: the contents of `container.json`.

    `added`: configurations by InnerId; `removed`: brokers that are not started again although
    brokerConfigPaths names them.
    """

    added: Mapping[InnerId, Table]
    removed: frozenset[InnerId] = frozenset()

    def with_added(self, broker: InnerId, table: Table) -> "InnerChanges":
        return InnerChanges({**self.added, broker: dict(table)}, self.removed - {broker})

    def with_removed(self, broker: InnerId) -> "InnerChanges":
        left = {each: table for each, table in self.added.items() if each != broker}
        return replace(self, added=left, removed=self.removed | {broker})

    def fields(self) -> dict[str, Any]:
        """Return the contents of the file."""
        return {
            "added": [dict(table) for table in self.added.values()],
            "removed": sorted(list(broker) for broker in self.removed),
        }


def changes_to_store(changes: InnerChanges) -> InnerChanges:
    """Return what is written to the disk before a change is answered: all of it."""
    return changes
