"""Whom the faults of processes aim at: what `kill` and `pause` share."""

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
