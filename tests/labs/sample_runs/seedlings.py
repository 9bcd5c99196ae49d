"""What workers do in tests of campaigns: rows without a world, deaths, and greed.

They are here, in a module, because a worker imports what it does by name.
"""

import os
import resource
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

from harness.campaign.features import packed
from harness.campaign.guided import SearchCandidate
from harness.campaign.simulation import STOPPED
from harness.campaign.tally import SeedResult
from nemesis import load

WORLD_S = 10.0


@dataclass(frozen=True)
class Sow:
    """A row for each seed; those in `failing` fail, in `deadly` kill their process, in `greedy`
    want more memory than there is, in `broken` raise, in `endless` wait for ever, and in `spinning`
    compute for ever; those in `stopping` fail with the class `stopped`, and in `doubtful` prove
    nothing. What is sown in another `world` has other digests."""

    failing: tuple[int, ...] = ()
    deadly: tuple[int, ...] = ()
    greedy: tuple[int, ...] = ()
    broken: tuple[int, ...] = ()
    endless: tuple[int, ...] = ()
    spinning: tuple[int, ...] = ()
    stopping: tuple[int, ...] = ()
    stopped: str = STOPPED
    doubtful: tuple[int, ...] = ()
    world: str = ""

    def __call__(self, seed: int, scratch: Path) -> tuple[SeedResult, Path | None]:
        if seed in self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        if seed in self.greedy:
            bytearray(2 * resource.getrlimit(resource.RLIMIT_DATA)[0])
        if seed in self.broken:
            raise RuntimeError("the lead was brought about too hard")
        while seed in self.endless:
            time.sleep(0.05)
        while seed in self.spinning:
            pass
        row = SeedResult(
            seed,
            digest=f"{self.world}{seed}",
            unproven=("CREW_LOST", "NO_FINAL_READ") if seed in self.doubtful else (),
            seconds=WORLD_S,
            planned={"kill": 3},
            counted={"kill": 2},
            acknowledged=5,
            looks={"ONE_LEADER": 4, "CUT_TOO_LOW": 0},
            unseen=1,
            choices={"ack-late": 300, "pull-fewer": 1, "sync-late": 0},
        )
        if seed in self.stopping:
            return replace(row, failure=(self.stopped,), why="it spins"), None
        if seed not in self.failing:
            return row, None
        folder = scratch / f"seed-{seed}"
        folder.mkdir()
        (folder / "trial.toml").write_text(f"seed = {seed}\n")
        return replace(row, failure=("LOST_ACKED",), why="5 were lost"), folder


def whose(item: int, scratch: Path) -> int:
    """The process id of the worker."""
    return os.getpid()


@dataclass(frozen=True)
class Gated:
    """Any item is done once the file `gate` is there."""

    gate: Path

    def __call__(self, item: int, scratch: Path) -> None:
        while not self.gate.exists():
            time.sleep(0.01)


@dataclass(frozen=True)
class Explorer:
    """What a guided campaign's candidate would show: a feature for each kind of fault at each
    second of its plan, and one for each setting. `deadly` candidates kill their process, `failing`
    ones fail."""

    deadly: tuple[int, ...] = ()
    failing: tuple[int, ...] = ()

    def __call__(self, candidate: SearchCandidate, scratch: Path) -> tuple[SeedResult, Path | None]:
        if candidate.number in self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        faults = load(candidate.plan, "the plan").faults
        words = [f"{fault.kind} {int(fault.at_s)}" for fault in faults]
        words += [f"{key} {value}" for key, value in candidate.trial.settings.items()]
        failed = candidate.number in self.failing
        row = SeedResult(
            candidate.number,
            failure=("LOST_ACKED",) if failed else (),
            events={"election": 1, "truncate": 2},
            steps=100 + len(faults),
            features=packed(crc32(word.encode()) for word in {*words}),
            weak_s=(1.0, 2.5),
            tried=candidate.digest,
        )
        return row, None
