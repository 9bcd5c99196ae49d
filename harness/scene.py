"""What a fault is given at its moment: the stage it plays on, and the parameters it may have.

A fault's function takes one line of a plan and a `Scene`, and gives an `Injection`
(`harness.contracts`). It changes the network through the scene's `links` alone, so that faults that
meet do not undo each other.
"""

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from harness.contracts import Bed, Distance, Node

Link = tuple[str, str]  # names of the sending and the receiving node


class Effect(NamedTuple):
    """What is wrong with a link, as `harness.contracts.LinkRule` says it; by default nothing."""

    drop: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    reorder: float = 0.0
    bytes_per_s: float = 0.0  # 0: as many as it can
    node_bytes_per_s: float = 0.0

    def worse(self, other: "Effect") -> "Effect":
        """Both at once: of each kind of harm the greater."""
        return Effect(
            max(self.drop, other.drop),
            max(self.delay_s, other.delay_s),
            max(self.jitter_s, other.jitter_s),
            max(self.reorder, other.reorder),
            _narrower(self.bytes_per_s, other.bytes_per_s),
            _narrower(self.node_bytes_per_s, other.node_bytes_per_s),
        )

    @property
    def narrow(self) -> bool:
        return self.bytes_per_s > 0 or self.node_bytes_per_s > 0


NOTHING, CUT = Effect(), Effect(drop=1.0)


def _narrower(one: float, other: float) -> float:
    return min(filter(None, (one, other)), default=0.0)


class Links(Protocol):
    """The network rules of all faults in force, merged: where two meet, the worse one wins.

    ways_s   how long the quickest packet took on a link that somebody measured, by itself
    """

    ways_s: MutableMapping[Link, float]

    async def lay(self, owner: object, effects: Mapping[Link, Effect]) -> None:
        """Put a fault's effects in force."""
        ...

    async def lift(self, owner: object) -> None: ...

    def effect(self, link: Link) -> Effect:
        """What all faults together want of the link."""
        ...

    def distance(self, link: Link) -> Distance:
        """What is between its ends for the whole trial, by rules that are no fault's."""
        ...

    def version(self, node: str) -> int:
        """Rises when the node's rules begin to be replaced, and when that is over, which resets
        their counters."""
        ...


class Aim(Protocol):
    def __call__(self, selector: str, spare: Collection[str] = ()) -> Sequence[Node]:
        """Whom a selector means now, of those not spared."""
        ...


@dataclass(frozen=True)
class Scene:
    """What a fault is given at its moment."""

    bed: Bed
    links: Links
    aim: Aim
    part: Callable[[Node], str]  # the part a node plays now (`master`), else its role
    held: set[str]  # nodes whose process some fault has hold of: it adds and takes away its own
    random: Any  # a `random.Random` of its own

    def parts(self, nodes: Sequence[Node]) -> Mapping[str, Sequence[str]]:
        """Nodes by the part they play: an injection's `targets`."""
        found: dict[str, list[str]] = {}
        for node in nodes:
            found.setdefault(self.part(node), []).append(node.name)
        return found


@dataclass(frozen=True)
class Param:
    """A parameter of a fault, in its module's `PARAMS: Mapping[str, Param]`.

    `default` gives its type; `unit` is the unit of a number, or `selector`.
    """

    default: Any
    meaning: str
    unit: str = ""
    among: Sequence[str] = ()  # a word must be one of these
    low: float = 0.0  # a number must lie in [low, high]
    high: float = float("inf")
