"""Reads a stopped broker's copy of the log from its folder, without changing anything.

    for topic, queue, queue_offset, physical_offset, epoch, crc, key, body in messages(store): ...

Reading ends at the first place without a sound record, as in the broker's own recovery. The segment
size is not needed: each file ends where the name of the next one says.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ..world.ports import FileSystem, OsFileSystem
from .record import entries, payload


class StoredMessage(NamedTuple):
    """A message in a replica's log. `crc` is that of key and body, as consumers get it."""

    topic: str
    queue: int
    queue_offset: int
    physical_offset: int
    epoch: int
    crc: int
    key: bytes
    body: bytes
    stored_ms: int


def messages(store_path: str, files: FileSystem | None = None) -> Iterator[StoredMessage]:
    """Yield the messages of a store in log order, up to the first bad record."""
    files = files or OsFileSystem()
    folder = f"{store_path}/commitlog"
    end: int | None = None
    for name in files.listdir(folder):
        base = int(name)
        if end is not None and end != base:
            return
        end = base
        data = files.read(f"{folder}/{name}")
        for e in entries(data, base):
            end = e.end
            if e.topic:
                found = payload(data, e.offset - base, e.offset)
                yield StoredMessage(
                    e.topic.decode(),
                    e.queue,
                    e.queue_offset,
                    e.offset,
                    e.epoch,
                    found.crc,
                    found.key,
                    found.body,
                    found.stored_ms,
                )
