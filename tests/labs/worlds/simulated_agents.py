"""Three simulated nodes with nothing on them but their agents."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from clusters.hosts.simulated.hosts import SimulatedHosts
from harness.contracts import Node
from harness.contracts.agent import Agent
from harness.history.rundir import RunDir
from harness.trial import Trial

NODES = [Node(name, "broker") for name in ("a", "b", "c")]
Scene = Callable[[Mapping[str, Agent], Mapping[str, str]], Awaitable[Any]]


def play(folder: Path, scene: Scene) -> Any:
    """What a scene on three nodes gives. Its agents and their addresses are by name."""
    hosts, seen = SimulatedHosts(Trial(hosts="simulated", seed=1), folder), []

    async def main() -> int:
        async with hosts.start_nodes(NODES) as (nodes, agents):
            seen.append(await scene(agents, {node.name: node.address for node in nodes}))
        return 0

    assert hosts.run(main()) == 0, RunDir(folder).state()
    return seen[0]
