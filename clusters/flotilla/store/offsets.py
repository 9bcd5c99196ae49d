"""How far each consumer group has come, per queue; kept on disk and copied to the slaves.

Merging never goes back (the original overwrites, spec 10.4). An offset that points behind the end
of a queue belongs to a fork that was cut: it is lowered to the end, or the group would skip what
is written there next (apache/rocketmq#4771).
"""

import json
from collections.abc import Callable, Iterable

from ..ports import Files

Row = tuple[str, str, int, int]  # group, topic, queue, offset


class GroupOffsets:
    """The file `consumerOffset.json` in the store."""

    def __init__(self, store: str, files: Files) -> None:
        self._path = f"{store}/consumerOffset.json"
        self._files = files
        self._offsets: dict[tuple[str, str, int], int] = {}
        self.dirty = False
        if files.exists(self._path):
            self.merge(json.loads(files.read(self._path)))
            self.dirty = False

    def query(self, group: str, topic: str, queue: int) -> int:
        return self._offsets.get((group, topic, queue), -1)

    def merge(self, rows: Iterable[Row]) -> None:
        """Take offsets that are further than ours."""
        for group, topic, queue, offset in rows:
            key = (str(group), str(topic), int(queue))
            if offset > self._offsets.get(key, -1):
                self._offsets[key] = int(offset)
                self.dirty = True

    def clamp(self, end_of: Callable[[str, int], int]) -> list[Row]:
        """Lower what points behind its queue's end; the rows that were lowered, as they were."""
        lowered = []
        for (group, topic, queue), offset in self._offsets.items():
            end = end_of(topic, queue)
            if offset > end:
                lowered.append((group, topic, queue, offset))
                self._offsets[group, topic, queue] = end
                self.dirty = True
        return lowered

    def rows(self) -> list[Row]:
        return [(*key, offset) for key, offset in sorted(self._offsets.items())]

    async def save(self) -> None:
        if self.dirty:
            self.dirty = False
            await self._files.replace(self._path, json.dumps(self.rows()).encode())
