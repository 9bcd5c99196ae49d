"""Choice points: places where a node may legally be slow, short, reordered or early.

Real machines rarely do what a protocol permits: a flush almost never starts late, a batch is almost
never cut short. At each point the code asks the `Choices` of its `Ports`. In production the answer
is always the usual one (`Usual`), and the point does nothing. A simulated world may answer
otherwise, so that rare orders of events become frequent. This is FoundationDB's BUGGIFY (Zhou et
al., "FoundationDB: A Distributed Unbundled Transactional Key Value Store", SIGMOD 2021, 4), limited
to what the protocol permits: whatever is chosen, a sound node breaks no law.

`POINTS` lists every point with the reason why it is legal. "Design" is docs/flotilla-design.md.
"""

import asyncio
from collections.abc import Mapping
from typing import Protocol

MAX_SYNC_DELAY_S = 0.02  # as long as a slow disk's sync

POINTS: Mapping[str, str] = {
    "ack-late": "a slave acknowledges what it holds at any time after it holds it, and a later ack "
    "covers earlier ones (design, Replication: Acks)",
    "answer-late": "a controller's answer may travel for any time; a caller that no longer waits "
    "takes the outcome as unknown (design, Controllers)",
    "batch-late": "a link to a slave may be slower than others, as flow control makes it (design, "
    "Replication: Batches)",
    "batch-short": "a batch holds any number of whole records of one epoch, up to "
    "haTransferBatchSize bytes (design, Replication: Batches)",
    "checkpoint-skipped": "the checkpoint may be older than the log, never newer "
    "(store/checkpoint.py); only a truncation needs a new one",
    "election-soon": "an election timeout is random, from one to two times raftElectionTimeout; "
    "the shortest is one of them (paper 5.2), and the lease allows it (design, Raft)",
    "notice-late": "a notice of a role may arrive at any time; one of an earlier epoch is ignored, "
    "and a broker that receives none polls (design, States and roles)",
    "promotion-late": "an elected broker serves when its log is flushed and indexed, however long "
    "that takes (design, Log and epochs)",
    "pull-fewer": "a pull returns any number of messages up to the number that it asks for, at "
    "least one if there is any (broker/pulls.py)",
    "raft-late": "a Raft message may be delayed and overtaken by later ones: Raft needs no order "
    "and no reliable delivery (paper 5; raft/links.py)",
    "raft-sync-late": "a sync may take long; the messages that depend on it are sent after it "
    "(design, Raft: the driver syncs to disk first)",
    "review-late": "a member that should enter or leave is proposed at the next review, which is "
    "an event or a timer (design, SyncStateSet: Entering, Leaving)",
    "snapshot-early": "a snapshot may be taken after any applied entry (paper 7)",
    "sync-late": "a sync of the log may begin late: nothing counts as flushed before it has ended "
    "(design, Log and epochs)",
}


class Choices(Protocol):
    """Answers at the points, named as in `POINTS`."""

    def chance(self, point: str) -> bool:
        """Return whether to take the unusual way; usually False."""
        ...

    def moment_s(self, point: str, most_s: float) -> float:
        """Return a delay from 0.0, the usual one, to `most_s` seconds."""
        ...

    def fewer(self, point: str, most: int, least: int = 1) -> int:
        """Return a number from `least` to `most`, the usual one; `most` if `least` is larger."""
        ...


class Usual:
    """The choices of production: always the usual ones."""

    def chance(self, point: str) -> bool:
        return False

    def moment_s(self, point: str, most_s: float) -> float:
        return 0.0

    def fewer(self, point: str, most: int, least: int = 1) -> int:
        return most


USUAL = Usual()


async def delay(choices: Choices, point: str, most_s: float) -> None:
    """Wait for the moment chosen at this point; usually return without a turn of the loop."""
    if late_s := choices.moment_s(point, most_s):
        await asyncio.sleep(late_s)
