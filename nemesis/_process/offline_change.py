"""Faults that change a node's files: it is killed, its files are changed, and healing starts it
again.

The program `clusters/hosts/_faults/damage.py` changes the files, run by the node's own Python, and
reads them again to report what it changed. It touches only the folder of the node's data; its
configuration and its event log stay.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.contracts import FaultContext, Node, Observation, TestBed
from harness.errors import BedFailed
from harness.history.faults_and_events import LOST_COPIES
from nemesis._process.disk_fault import data_of
from nemesis._process.remote_program import run_program
from nemesis.kill import Kill

DAMAGE_TIMEOUT_S = 30.0


class OfflineChange(Kill):
    """Nodes killed and their files changed. Healing starts those again that ran before."""

    def __init__(self, scene: FaultContext, victims: Sequence[Node]) -> None:
        super().__init__(scene, victims)
        self.changes: dict[str, Mapping[str, Any]] = {}  # to each node's files

    async def _kill(self, node: str) -> None:
        await super()._kill(node)
        if node not in self._killed:
            return
        await self._wait(self._gone, node, self.gone_within_s)
        if not await self._gone(node):
            raise BedFailed(f"{node} was not seen to exit, so its files were left alone")
        self.changes[node] = await self._change(node)

    async def _change(self, node: str) -> Mapping[str, Any]:
        """Change the files of a stopped node; return what was done."""
        raise NotImplementedError

    def _changed(self, node: str) -> bool:
        """Return whether the files were changed as intended."""
        raise NotImplementedError

    async def _observe_changes(self, measured: str) -> Observation:
        """Return the observation of the kill, reduced if files of a node were not changed."""
        seen = await super().observe()
        good = [node for node in self._victims if node in self.changes and self._changed(node)]
        evidence = {**seen.evidence, "files": self.changes}
        everywhere = seen.state == "installed" and len(good) == len(self._victims)
        return Observation.graded(everywhere, good, evidence, measured)


class DataDestruction(OfflineChange):
    """Nodes killed, and synced data removed from their disks. Its evidence names the nodes."""

    def __init__(self, scene: FaultContext, victims: Sequence[Node]) -> None:
        super().__init__(scene, victims)
        self._touched: set[str] = set()  # nodes whose files were, or may have been, changed

    async def _damage(self, node: str, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change the files of a stopped node as ordered; return what was done."""
        self._touched.add(node)
        return await damaged(self._bed, node, order)

    def _lost_copies(self) -> list[str]:
        """Return the nodes that lost data, or may have, for example when an answer was lost."""
        return sorted(self._touched)

    def _with_lost_copies(self, seen: Observation) -> Observation:
        return replace(seen, evidence={**seen.evidence, LOST_COPIES: self._lost_copies()})

    async def _observe_changes(self, measured: str) -> Observation:
        return self._with_lost_copies(await super()._observe_changes(measured))

    async def observe_healed(self) -> Observation:
        # also if applying the fault failed halfway
        return self._with_lost_copies(await super().observe_healed())


async def damaged(bed: TestBed, node: str, order: Mapping[str, Any]) -> Mapping[str, Any]:
    """Change the files of a stopped node as ordered; return what was done."""
    text = json.dumps({**order, "folder": data_of(bed, node)})
    done: Mapping[str, Any] = await run_program(
        bed, node, "damage", text, timeout_s=DAMAGE_TIMEOUT_S
    )
    if keep := getattr(bed.agents[node], "keep_unsynced", None):
        await keep()  # damaged bytes no longer count as unsynced
    return done
