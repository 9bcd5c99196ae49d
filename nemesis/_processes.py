"""What `kill` and `pause` share: whom the faults of processes aim at, and their hold on them."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from harness.contracts import PlannedFault
from harness.errors import BadRequest

TARGETS = (
    "master",
    "one slave",
    "one broker",
    "majority broker",
    "controller-leader",
    "majority controller",
    "minority",
)


def check(planned: PlannedFault) -> None:
    """BadRequest when nobody is named."""
    if not planned.target:
        raise BadRequest(f"{planned.kind} needs a target, such as 'master' or 'one broker'")


def drawn(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """A target by lot; `targets` restrict whom it may hit."""
    return random.choice(targets or TARGETS), {}


class Hold:
    """Nodes whose process belongs to one fault: from its entering until its healing was looked
    for, which it is even when undoing failed, so that no other fault touches them meanwhile. It may
    be let go twice."""

    def __init__(self, held: set[str], nodes: Sequence[str]) -> None:
        self._held, self._nodes = held, nodes
        self._mine: set[str] = set()

    def take(self) -> None:
        self._mine = set(self._nodes)
        self._held |= self._mine

    def let_go(self) -> None:
        """Only what is still ours: somebody else may have it by now."""
        self._held -= self._mine
        self._mine = set()
