"""Faults that change what a node has on its disk: it is killed, its files are changed, and healing
starts it anew. What was changed is told by who changed it, who read it again.

The work on files is `clusters/hosts/_faults/damage.py`, run by the node's own Python. It touches
only the folder of the node's data; its configuration and its event log stay.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.contracts import Bed, Node, Observation, Scene
from harness.errors import BedFailed
from harness.history.faults_and_events import LOST_COPIES
from nemesis._process.disk_fault import data_of
from nemesis.kill import Kill

DAMAGE = "clusters/hosts/_faults/damage.py"  # below the folder of our packages
WITHIN_S = 30.0


class Stopped(Kill):
    """Nodes killed and their files changed, until it is left. Who ran is started again."""

    def __init__(self, scene: Scene, victims: Sequence[Node]) -> None:
        super().__init__(scene, victims)
        self.changes: dict[str, Mapping[str, Any]] = {}  # what became of each node's files

    async def _kill(self, node: str) -> None:
        await super()._kill(node)
        if node not in self._killed:
            return
        await self._wait(self._gone, node, self.gone_within_s)
        if not await self._gone(node):
            raise BedFailed(f"{node} was not seen to end, so its files were left alone")
        self.changes[node] = await self._change(node)

    async def _change(self, node: str) -> Mapping[str, Any]:
        """Change the files of a node that does not run; what was done."""
        raise NotImplementedError

    def _changed(self, node: str) -> bool:
        """Whether what was done is what was meant."""
        raise NotImplementedError

    async def _told(self, measured: str) -> Observation:
        """As the killing was seen, but for nodes whose files were not changed."""
        seen = await super().observe()
        good = [node for node in self._victims if node in self.changes and self._changed(node)]
        evidence = {**seen.evidence, "files": self.changes}
        if seen.state == "installed" and len(good) == len(self._victims):
            return Observation("installed", evidence, measured)
        return Observation("partial" if good else "failed", evidence, measured)


class Destroying(Stopped):
    """Nodes killed, and what had been synced is taken from their disks. Tells of whom."""

    def __init__(self, scene: Scene, victims: Sequence[Node]) -> None:
        super().__init__(scene, victims)
        self._touched: set[str] = set()  # whose files were changed, or may have been

    async def _damage(self, node: str, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out an order about the files of a node that does not run; what was done."""
        self._touched.add(node)
        return await damaged(self._bed, node, order)

    def _lost_copies(self) -> list[str]:
        """Also of whom nobody knows what became of the files, as when an answer was lost."""
        return sorted(self._touched)

    def _telling(self, seen: Observation) -> Observation:
        return replace(seen, evidence={**seen.evidence, LOST_COPIES: self._lost_copies()})

    async def _told(self, measured: str) -> Observation:
        return self._telling(await super()._told(measured))

    async def observe_healed(self) -> Observation:
        return self._telling(await super().observe_healed())  # if applying it failed halfway, too


async def damaged(bed: Bed, node: str, order: Mapping[str, Any]) -> Mapping[str, Any]:
    """Carry out an order about the files of a node that does not run."""
    python = bed.hosts.python(node)
    argv = [python.executable, "-S", "-s", f"{python.packages}/{DAMAGE}"]
    told = json.dumps({**order, "folder": data_of(bed, node)})
    ran = await bed.agents[node].run([*argv, told], timeout_s=WITHIN_S)
    if ran.code:
        raise BedFailed(f"{node}: its files could not be changed: {ran.err.strip() or 'no reason'}")
    answer: Mapping[str, Any] = ran.answer(node)
    if keep := getattr(bed.agents[node], "keep_unsynced", None):
        await keep()  # what was damaged is no longer what a sync has to cover
    return answer
