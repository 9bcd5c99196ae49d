"""Flotilla's replicas compared while it serves: digests of what their logs have in common.

Up to the confirm offset every replica must hold the same bytes, for a slave's log is a copy of its
master's, byte by byte. What a broker has not handed to its disk may not be in its files, so the end
is the smallest of the master's confirm offset and what each broker has flushed; the beginning is
that of the log that begins last, since a copy may lack what is oldest.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from clusters.systems._flotilla_standing import BrokerSet
from harness.contracts import Bed, Standing
from harness.errors import BedFailed

DIGEST_WITHIN_S = 60.0


def in_common(now: Standing, broker_set: BrokerSet) -> tuple[int, int]:
    """From where up to where all logs of the set must be the same, and are in files."""
    said = [now.detail.get(node) for node in broker_set.nodes]
    master = now.detail.get(now.masters.get(broker_set.name, ""))
    if master is None or not all(said):
        return 0, 0
    begin = max(int(each["minOffset"]) for each in said if each)
    end = min(int(each["flushedOffset"]) for each in said if each)
    return begin, min(end, int(master["confirmOffset"]))


async def compared(
    bed: Bed, now: Standing, broker_sets: Sequence[BrokerSet], log: str
) -> Mapping[str, Any] | None:
    """By broker set, what `harness.run.replica_comparison` asks for. `log`: its folder, within a
    node's."""
    found = {}
    for broker_set in broker_sets:
        begin, end = in_common(now, broker_set)
        if begin < end:
            digests = (_digest(bed, node, log, begin, end) for node in broker_set.nodes)
            told = dict(zip(broker_set.nodes, await asyncio.gather(*digests), strict=True))
            found[broker_set.name] = {"bytes": end - begin, "digests": told}
    return found or None


async def _digest(bed: Bed, node: str, log: str, begin: int, end: int) -> str:
    python, folder = bed.hosts.python(node), bed.hosts.folder(node)
    script = f"{python.packages}/clusters/systems/_flotilla_digest.py"
    argv = [python.executable, "-S", "-s", script, f"{folder}/{log}", str(begin), str(end)]
    ran = await bed.agents[node].run(argv, timeout_s=DIGEST_WITHIN_S)
    if ran.code:
        words = ran.err.strip().splitlines()[-1:] or ["no reason"]
        raise BedFailed(f"the log of {node} could not be read: {words[0]}")
    return ran.out.strip()
