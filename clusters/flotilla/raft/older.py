"""The log of the first edition, which knew neither snapshots nor changes of the members.

Its file has no head: it begins with the first record, and its entries have no kind, since all were
the state machine's. The records and what they mean are today's (see `wal`), and so are the events
in the entries.

A member that starts makes it a log of today, as a whole or not at all, before it says anything to
anybody. The first edition does not read that one any more: there is no way back. What is damaged
is refused, as in a log of today; a file that begins with no sound record is nobody's log.
"""

import struct

from ..world.ports import Files
from .log import START
from .wal import RecoveredWal, head, pack, record_at, replay

_ENTRY = struct.Struct(">QI")  # term, size of the data


def parse(data: bytes) -> RecoveredWal:
    """WalDamaged: what was surely synced is unreadable."""
    return replay(data, 0, START, _ENTRY, least=0)


async def renew(files: Files, path: str) -> bool:
    """Make the log there one of today; False: it is none of the first edition. WalDamaged."""
    data = files.read(path) if files.exists(path) else b""
    if record_at(data, 0) is None:
        return False
    found = parse(data)
    record = pack(found.vote, 1, found.entries)
    await files.replace(path, head(START, len(record)) + record)
    return True
