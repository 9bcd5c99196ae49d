"""A ZooKeeper ensemble in the place of Flotilla's coordinators: `coordinators = "zookeeper"`.

Jars, zoo.cfg, command line and questions are those of the system `zookeeper`. Brokers and HA
controllers do not know the difference: both kinds speak ZooKeeper's protocol at the same port.
A server writes no events, and its log is its output.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from clusters.kit import NodeAccess, View
from clusters.kit.placing import place
from clusters.supply import Supplied, resolve
from clusters.systems.flotilla.modes import COORDINATOR
from clusters.systems.flotilla.profiles import FlotillaSettings
from clusters.systems.zookeeper import ZooKeeper
from harness.contracts import Node, TestBed
from harness.errors import BedFailed

ANSWER_WITHIN_S = 0.5  # a paused server never answers
HEAP_MB = 64
PROGRAMS = ZooKeeper.programs


class EnsembleServer(ZooKeeper):
    """A server with Flotilla's names in its folder, so that faults of disks find its data."""

    data: ClassVar[str] = "store"


def fetched() -> dict[str, Supplied]:
    """Return ZooKeeper's jars and Java, fetched if need be. Raises BedFailed, with the ways to get
    them."""
    return {program.name: resolve(program) for program in PROGRAMS}


class Ensemble:
    """The servers of one cluster."""

    def __init__(self, settings: FlotillaSettings) -> None:
        values = {
            **EnsembleServer.defaults(),
            "tickTime": settings.zk_tick_ms,
            "syncLimit": settings.zk_sync_limit,
            "session_ms": settings.zk_session_ms,
            "heap_mb": HEAP_MB,
        }
        self._server = EnsembleServer(values, {})
        self._paths: dict[str, dict[str, str]] = {}  # node -> program -> its path there

    @property
    def start_s(self) -> float:
        """How long the servers may need until they serve."""
        return self._server.start_s

    async def install(self, bed: TestBed) -> None:
        """Put programs and configuration on the nodes."""
        found = await asyncio.to_thread(fetched)
        await asyncio.gather(
            *(self._install(bed, node, found) for node in bed.of_role(COORDINATOR))
        )

    async def _install(self, bed: TestBed, node: Node, found: Mapping[str, Supplied]) -> None:
        folder = bed.hosts.folder(node.name)
        self._paths[node.name] = {
            program.name: await place(bed, node, program, found[program.name], "", f"{folder}/bin")
            for program in PROGRAMS
        }
        await self.configure(bed, node.name)

    async def configure(self, bed: TestBed, node: str) -> None:
        """Write a server's files; a disk that was lost gets its number back."""
        here = self._here(bed, node)
        for path, text in self._server.files(here, bed.of_role(COORDINATOR)).items():
            await here.agent.put(f"{here.folder}/{path}", text.encode())

    def argv(self, bed: TestBed, node: str) -> Sequence[str]:
        """Return the command line of a server."""
        return self._server.argv(self._here(bed, node), bed.of_role(COORDINATOR), True)

    async def describe(self, bed: TestBed, node: str) -> Mapping[str, Any] | None:
        """Return a server's role, in the words of a coordinator; None if it does not serve."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                view = await self._server.ask(self._here(bed, node))
        except (BedFailed, OSError, ValueError):  # TimeoutError is an OSError
            return None
        return description(node, view)

    def _here(self, bed: TestBed, node: str) -> NodeAccess:
        paths = self._paths.get(node, {})
        return NodeAccess(bed.node(node), bed.agents[node], bed.hosts.folder(node), paths)


def description(node: str, view: View) -> Mapping[str, Any] | None:
    """Return what a coordinator would answer to `describe`; None if the server does not serve."""
    if not view.leader or not view.ready:
        return None
    state = "leader" if view.leader == view.own else "follower"
    return {"node": node, "role": COORDINATOR, "state": state, "term": view.term}
