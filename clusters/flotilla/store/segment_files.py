"""The files `consumequeue/<first offset>`: written, read and removed (see `segment_index`).

They only save time. A file that cannot be written is left out; one that cannot be read is ignored.
"""

from ..world.ports import FileSystem, is_out_of_files, retry_when_out_of_files
from .commit_log import NAME_DIGITS
from .segment_index import SegmentIndex, pack, unpack


class SegmentFiles:
    """The index files of a store's full segments, by first offset."""

    def __init__(self, store: str, files: FileSystem) -> None:
        self._folder = f"{store}/consumequeue"
        self._files = files
        self.ends: dict[int, int] = {}  # first offset -> end of the indexed part
        files.makedirs(self._folder)

    def path(self, base: int) -> str:
        return f"{self._folder}/{base:0{NAME_DIGITS}d}"

    def load(self, base: int) -> SegmentIndex | None:
        """Return the index of a segment, None if there is no sound file.

        Raises OSError if file descriptors are short.
        """
        try:
            found = unpack(self._files.read(self.path(base)))
        except ValueError:
            return None
        except OSError as e:
            if is_out_of_files(e):
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
        """Remove durably the files of segments from `low` on, below `high`."""
        gone = [base for base in await retry_when_out_of_files(self._bases) if low <= base < high]
        if gone:
            self._forget(gone)
            await self._sync_folder()

    async def prune(self) -> None:
        """Remove the files that were not loaded, since they are not kept consistent with the log.

        Removals by an earlier process become durable, too.
        """
        self._forget(
            [base for base in await retry_when_out_of_files(self._bases) if base not in self.ends]
        )
        await self._sync_folder()

    def _forget(self, gone: list[int]) -> None:
        for base in gone:
            self.distrust(base)

    async def _sync_folder(self) -> None:
        await retry_when_out_of_files(lambda: self._files.sync_folder(self._folder))

    def distrust(self, base: int) -> None:
        """Remove the file of a damaged segment, so that the next start reads the segment."""
        self.ends.pop(base, None)
        self._discard(self.path(base))

    async def _bases(self) -> list[int]:
        return [int(name) for name in self._files.listdir(self._folder) if name.isdigit()]

    def _discard(self, path: str) -> None:
        if self._files.exists(path):
            self._files.remove(path)
