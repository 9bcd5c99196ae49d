"""The cost of finding where two logs diverge: `python benchmarks/fork_cost.py`.

Three ways, for logs of 1 and 100 GB that diverge in their last percent:

    byte by byte   one replica sends its log, and the other one compares
    hashes         they compare a hash of each MiB, which each computes over its log once, and then
                   the bytes of the first block that differs
    epochs         a handshake with the epoch tables, of 100 masters, and Flotilla's own function

Prints a JSON object: the bytes that are sent, `bytes_*`, `hashes_*`, `epochs_*`; and seconds:
comparing 100 GB in memory (`scan_s_100gb`) and hashing 100 GB (`hash_s_100gb`), from the time of 64
MiB, so for orders of magnitude only, and finding the point by epochs (`epochs_s`, measured). Disks
would add their own time to the first two.
"""

import hashlib
import json
import sys
import time
from collections.abc import Callable

from clusters.flotilla.net.wire import Status
from clusters.flotilla.replication.divergence import LogShape, plan_cut
from clusters.flotilla.replication.epochs import EpochTable, find_consistent_point
from clusters.flotilla.replication.ha_protocol import HandshakeReply, HandshakeRequest

GB, BLOCK = 10**9, 1 << 20
EPOCHS, SAMPLE, SEGMENT_BYTES = 100, 64 << 20, 1 << 30
DIGEST_BYTES = hashlib.sha256().digest_size


def shapes(size_bytes: int) -> tuple[LogShape, LogShape]:
    """Return a master's and a slave's log: the last master of the slave is another one."""
    starts = [(epoch, size_bytes * (epoch - 1) // EPOCHS) for epoch in range(1, EPOCHS + 1)]
    fork = starts[-1][1]
    master = EpochTable((*starts[:-1], (EPOCHS + 1, fork)))
    return LogShape(0, size_bytes, master), LogShape(0, size_bytes, EpochTable(tuple(starts)))


def by_epochs(size_bytes: int) -> tuple[int, float]:
    """Return the bytes of a handshake and its answer, and the seconds to find the point."""
    master, slave = shapes(size_bytes)
    asked = HandshakeRequest(2, EPOCHS, slave.max_offset, slave).pack()
    answer = HandshakeReply(Status.SUCCESS, EPOCHS + 1, SEGMENT_BYTES, master).pack()
    began = time.perf_counter()
    point = plan_cut(slave, master, 0, find_consistent_point).point
    took_s = time.perf_counter() - began
    if point != size_bytes * (EPOCHS - 1) // EPOCHS:
        raise SystemExit(f"the logs diverge elsewhere than at {point}")
    return len(asked) + len(answer), took_s


def rate(work: Callable[[bytes], object]) -> float:
    """Return the bytes a second that a function of bytes takes in."""
    sample = bytes(SAMPLE)
    began = time.perf_counter()
    work(sample)
    return SAMPLE / (time.perf_counter() - began)


def main() -> int:
    other = bytes(SAMPLE)
    figures: dict[str, float] = {}
    for gb in (1, 100):
        size = gb * GB
        figures[f"bytes_{gb}gb"] = size
        figures[f"hashes_{gb}gb"] = -(-size // BLOCK) * DIGEST_BYTES + BLOCK
        figures[f"epochs_{gb}gb"], figures["epochs_s"] = by_epochs(size)
    figures["scan_s_100gb"] = 100 * GB / rate(lambda sample: sample == other)
    figures["hash_s_100gb"] = 100 * GB / rate(lambda sample: hashlib.sha256(sample).digest())
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
