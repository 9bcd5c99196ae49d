"""The files `consumequeue/<first offset>`: written, read and removed. See `segment_index`.

They only save time. One that can not be written is left out, one that can not be read is ignored.
"""

from ..world.ports import Files, out_of_files, patiently
from .commit_log import NAME_DIGITS
from .segment_index import SegmentIndex, pack, unpack


class SegmentFiles:
    """What is known of a store's full segments, by their first offsets."""

    def __init__(self, store: str, files: Files) -> None:
        self._folder = f"{store}/consumequeue"
        self._files = files
        self.ends: dict[int, int] = {}  # where each file's stretch ends
        files.makedirs(self._folder)

    def path(self, base: int) -> str:
        return f"{self._folder}/{base:0{NAME_DIGITS}d}"

    def load(self, base: int) -> SegmentIndex | None:
        """None when there is none, or no sound one. OSError: no descriptor to look with."""
        try:
            found = unpack(self._files.read(self.path(base)))
        except ValueError:
            return None
        except OSError as e:
            if out_of_files(e):
                raise
            return None
        if found.base != base:
            return None
        self.ends[base] = found.end
        return found

    async def save(self, index: SegmentIndex) -> bool:
        path = self.path(index.base)
        try:
            await self._files.replace(path, pack(index))
        except OSError:
            self._discard(f"{path}.tmp")
            return False
        self.ends[index.base] = index.end
        return True

    async def remove(self, low: int, high: float) -> None:
        """Durably gone: the files of segments from `low` on, below `high`."""
        gone = [base for base in await patiently(self._bases) if low <= base < high]
        if gone:
            self._forget(gone)
            await self._sync_folder()

    async def prune(self) -> None:
        """Remove what was not loaded: nobody keeps it in step with the log any more. What an
        earlier life removed is durably gone, too."""
        self._forget([base for base in await patiently(self._bases) if base not in self.ends])
        await self._sync_folder()

    def _forget(self, gone: list[int]) -> None:
        for base in gone:
            self.distrust(base)

    async def _sync_folder(self) -> None:
        await patiently(lambda: self._files.sync_folder(self._folder))

    def distrust(self, base: int) -> None:
        """The segment is damaged: the next start shall read it."""
        self.ends.pop(base, None)
        self._discard(self.path(base))

    async def _bases(self) -> list[int]:
        return [int(name) for name in self._files.listdir(self._folder) if name.isdigit()]

    def _discard(self, path: str) -> None:
        if self._files.exists(path):
            self._files.remove(path)
