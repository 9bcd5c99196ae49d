"""What can be known of a cluster while it runs: who plays which part, what nodes tell and do.

A system asks its nodes. Hosts whose whole world lies open to us offer more, each by a method that
others do not have: nobody has to be asked there.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

Observed = tuple[int, str, str, Mapping[str, Any]]  # when, where, kind, fields


@dataclass(frozen=True)
class Standing:
    """Who plays which part right now, by node name; the parts that faults can aim at."""

    masters: Mapping[str, str] = field(default_factory=dict)  # broker set -> node
    slaves: tuple[str, ...] = ()
    in_set: tuple[str, ...] = ()
    out_of_set: tuple[str, ...] = ()
    controller_leader: str = ""
    epochs: Mapping[str, int] = field(default_factory=dict)  # broker set -> master's epoch
    redundant: bool = False  # every broker set has its master and its full SyncStateSet
    detail: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Overseen(Protocol):
    """Hosts whose whole world lies open to us, with a time of its own. Nobody has to be asked who
    he is; and since the run can be had again, its journals are written when they are full."""

    def standing(self) -> Standing:
        """Who plays which part right now."""
        ...

    def packets(self, source: str, sink: str, count: int) -> tuple[int, int]:
        """Of so many packets sent now from node to node: how many arrive, how many rules drop."""
        ...

    def way_ns(self, source: str, sink: str) -> int:
        """How long the quickest packet takes from node to node while nothing is wrong."""
        ...

    def observed(self) -> Iterable[Observed]:
        """Events that nobody wrote down but the world: what was watched, what was broken."""
        ...


@dataclass(frozen=True)
class Told:
    """A line that a node wrote into its event log (`System.log`)."""

    node: str
    kind: str
    fields: Mapping[str, Any]


@runtime_checkable
class Telling(Protocol):
    """Hosts that can tell of `events`, so that a plan may wait for what the cluster does."""

    def hear(self, told: Callable[[Told], object]) -> None:
        """From now on tell of every event when it is written, on the driver's loop: whatever is
        done at once in return is done at the very instant of the event."""
        ...
