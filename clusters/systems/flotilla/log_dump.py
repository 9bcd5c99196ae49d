"""Reads a stopped broker's log on the broker's own node: `log_dump.py STORE OUT`.

It writes a row for each message to OUT, in log order, and prints {"queues": [[topic, queue] ...],
"rows": n}; the first number of a row is an index into `queues`. The script needs Python and the
folder of our packages only. The checksum of a row covers the message's key, body and store time.
"""

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from clusters.flotilla.world.ports import FileSystem

ROW = struct.Struct(">Iqqiq")  # index of the queue, queue offset, value, epoch, crc
NO_VALUE = -1


def rows(
    store: str, queues: dict[tuple[str, int], int], files: "FileSystem | None" = None
) -> Iterator[bytes]:
    """Yield a packed row for each message; queues are numbered in the order of their first
    message."""
    from clusters.flotilla.store.reader import messages

    for m in messages(store, files):
        index = queues.setdefault((m.topic, m.queue), len(queues))
        value = int.from_bytes(m.body[:8]) if len(m.body) >= 8 else NO_VALUE
        value = value if value < 1 << 63 else NO_VALUE
        crc = crc32(m.stored_ms.to_bytes(8), m.crc)
        yield ROW.pack(index, m.queue_offset, value, m.epoch, crc)


def main() -> None:
    store, out = sys.argv[1:]
    queues: dict[tuple[str, int], int] = {}
    count = 0
    with Path(out).open("wb") as file:
        for row in rows(store, queues):
            file.write(row)
            count += 1
    print(json.dumps({"queues": list(queues), "rows": count}))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    main()
