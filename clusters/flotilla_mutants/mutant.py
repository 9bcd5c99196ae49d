"""What a known-bad variant is."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from clusters.flotilla import node
from clusters.flotilla.client import outcomes
from clusters.flotilla.client.producer import Overall
from clusters.flotilla.rules import RULES, Rules
from clusters.flotilla.world.ports import Ports


def _unchanged(ports: Ports) -> Ports:
    return ports


@dataclass(frozen=True)
class Mutant:
    """One flaw.

    `ports`: replaces the ports of a node; `overall`: replaces how clients decide the outcome of
    several attempts; `stops`: a node may notice the damage and stop, so a crash beside the finding
    does not mean that the rule itself failed.
    """

    name: str
    about: str
    finding: str
    rules: Rules = RULES
    ports: Callable[[Ports], Ports] = _unchanged
    stops: bool = False
    overall: Overall = outcomes.overall

    def serve(
        self, arguments: Sequence[str], ports_of: Callable[[int | None], Ports]
    ) -> Coroutine[Any, Any, int]:
        """Run a node with the flaw and this command line. Return its exit code."""
        return node.serve(list(arguments), lambda seed: self.ports(ports_of(seed)), self.rules)
