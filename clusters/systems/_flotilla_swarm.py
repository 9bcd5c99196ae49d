"""What a campaign's seed draws of a Flotilla: sizes, and settings that open rare paths.

A send that is not patient is answered before its copies are there, and one that is very patient
still waits when a reign ends: answers that an average cluster hardly ever gives. But a master whose
patience is shorter than the wires are long would acknowledge nothing, and rightly so.
"""

from collections.abc import Mapping
from random import Random
from typing import Any

SEGMENT_BYTES = (1 << 16, 1 << 18, 1 << 20)  # small: logs roll over, and a world stays small
BATCH_BYTES = (1 << 10, 1 << 12, 1 << 15)  # of replication
PATIENCE_MS = (2000, 3000, 10_000)  # of a send; at timeScale 0.1 even slow wires bring an answer


def swarm(random: Random) -> Mapping[str, Any]:
    """Sizes and settings by lot. Powers are cut, so the profile is the one that survives it."""
    drawn: dict[str, Any] = {
        "profile": "sync-flush",
        "nodes": {
            "controller": random.choice((3, 3, 3, 5)),
            "broker": random.choice((2, 3, 3, 3, 4)),
            "client": random.choice((1, 2)),
        },
        "settings": {
            "mappedFileSizeCommitLog": random.choice(SEGMENT_BYTES),
            "haTransferBatchSize": random.choice(BATCH_BYTES),
            "slaveTimeout": random.choice(PATIENCE_MS),
            "syncFlushTimeout": random.choice(PATIENCE_MS),
        },
    }
    drawn["nodes"]["nameserver"] = random.choice((1, 1, 2))
    drawn["settings"]["liteHeartBeat"] = random.choice((True, True, False))
    return drawn
