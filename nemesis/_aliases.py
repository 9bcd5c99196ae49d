"""OpenChaos's names for faults, with their meaning done right.

There `minor` is fewer than half of the nodes and `major` more than half; `suspend` is SIGSTOP; a
loss is 80 % of what a node receives; partitions spare the clients. What is ours: a partition cuts
both ways (theirs dropped only what one side receives), `bridge` and the ring divide all servers,
not exactly five, and every one of them is healed by taking away its own rules and no others.
Nodes are brokers, unless the trial's targets say otherwise; `fixed-` needs them to.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Alias:
    """A fault kind with its target and parameters settled; without a target: the trial's.

    A kind by its own name is not settled: its module draws target and parameters.
    """

    kind: str
    target: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    settled: bool = True


_VICTIMS = {
    "minor": "minority broker",
    "major": "majority broker",
    "random": "random broker",
    "fixed": "",
    "leader": "master",
}

ALIASES: Mapping[str, Alias] = {
    **{f"{who}-kill": Alias("kill", target) for who, target in _VICTIMS.items()},
    **{f"{who}-suspend": Alias("pause", target) for who, target in _VICTIMS.items()},
    "random-partition": Alias("partition", "all broker", {"shape": "halves"}),
    "fixed-partition": Alias("partition", "", {"shape": "isolate"}),
    "leader-partition": Alias("partition", "master", {"shape": "isolate"}),
    "partition-majorities-ring": Alias("partition", "server", {"shape": "ring"}),
    "bridge": Alias("partition", "server", {"shape": "bridge"}),
    "random-loss": Alias("loss", "random broker", {"probability": 0.8}),
}
