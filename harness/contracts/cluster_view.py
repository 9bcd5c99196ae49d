"""What can be known of a cluster while it runs: the roles of its nodes, what they log and do.

A system queries its nodes. Hosts whose whole world is observable offer more, each by a method that
other hosts lack: no query is needed there.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

WorldEvent = tuple[int, str, str, Mapping[str, Any]]  # when, where, kind, fields


@dataclass(frozen=True)
class ClusterState:
    """Which node has which role now, by node name: the roles that faults can target."""

    masters: Mapping[str, str] = field(default_factory=dict)  # broker set -> node
    slaves: tuple[str, ...] = ()
    in_set: tuple[str, ...] = ()
    out_of_set: tuple[str, ...] = ()
    controller_leader: str = ""
    epochs: Mapping[str, int] = field(default_factory=dict)  # broker set -> master's epoch
    redundant: bool = False  # every broker set has its master and its full SyncStateSet
    holding: tuple[str, ...] = ()  # broker sets whose master holds sends, so a slave catches up
    serving: tuple[str, ...] = ()  # nodes that answered, and serve as far as they know
    detail: Mapping[str, Any] = field(default_factory=dict)  # the driver's own


@runtime_checkable
class Omniscient(Protocol):
    """Hosts whose whole world is observable, with a time of its own. No node needs to be queried;
    and since the run can be repeated, its journals are written when they are full."""

    def cluster_state(self) -> ClusterState:
        """Return which node has which role now."""
        ...

    def packets(self, source: str, sink: str, count: int) -> tuple[int, int]:
        """Return how many of `count` packets sent now from node to node arrive, and how many the
        rules drop."""
        ...

    def min_latency_ns(self, source: str, sink: str) -> int:
        """Return how long the quickest packet takes from node to node while nothing is wrong."""
        ...

    def world_events(self) -> Iterable[WorldEvent]:
        """Return events that no node logged: violations of watched laws, and injected damage."""
        ...


@dataclass(frozen=True)
class LoggedEvent:
    """A line that a node wrote to its event log (`System.log`)."""

    node: str
    kind: str
    fields: Mapping[str, Any]


@runtime_checkable
class EventSource(Protocol):
    """Hosts that can deliver `events`, so that a plan may wait for what the cluster does."""

    def subscribe(self, listener: Callable[[LoggedEvent], object]) -> None:
        """Call `listener` for every event from now on, on the driver's loop, when it is written:
        what it does at once happens at the very instant of the event."""
        ...


class Frame(NamedTuple):
    """A message as its sender writes it. `routine`: it repeats, and changes nothing."""

    size_bytes: int
    kind: str
    routine: bool = False


class FrameReader(Protocol):
    """Reads one direction of a connection; a system whose programs are simulated may have it."""

    def read(self, data: bytes) -> Frame | None:
        """Return the frame that begins these bytes; None if more are needed to tell its size."""
        ...
