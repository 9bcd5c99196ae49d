"""What a campaign has finished, written down seed by seed, so that `kill -9` takes nothing of it.

While a campaign goes on it holds a file of its own in the folder of runs,
`campaign-KEY-EDITION-*.part`: a line for each seed that is finished. One of the same kind (the same
code, options and plan) that finds such a file whose owner is gone takes it over, and does not do
again what is in it. The file goes when the campaign is among the others in `campaigns.jsonl`.
"""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from harness.campaign.tally import Row
from harness.errors import BedFailed
from harness.text.parsing import json_of

SUFFIX = ".part"
NEW = ".campaign-"  # nobody takes such a file over: it is about to get its name


@dataclass(frozen=True)
class Finished:
    """A seed that is done; of one that failed, the name of its run, or why that is not kept."""

    row: Row
    run: str = ""
    unkept: str = ""

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> "Finished":
        """From a line. TypeError or KeyError when it is none."""
        return cls(**{**plain, "row": Row.read(plain["row"])})


class Checkpoint:
    """The file of one campaign. `found`: what those before it had finished. `broken`: why no more
    is written down; the campaign goes on all the same."""

    def __init__(self, path: Path, file: BinaryIO, found: tuple[Finished, ...]) -> None:
        self.found, self.broken = found, ""
        self._path, self._file = path, file
        for one in found:
            self.add(one)

    def add(self, one: Finished) -> None:
        """In one piece, for whoever is killed next."""
        if self.broken:
            return
        line = json.dumps({**asdict(one), "row": one.row.plain()}).encode() + b"\n"
        try:
            if self._file.write(line) < len(line):
                self.broken = "the disk is full"
        except OSError as e:
            self.broken = e.strerror or str(e)

    def discard(self) -> None:
        """What is in it is noted elsewhere."""
        self._path.unlink(missing_ok=True)


@contextmanager
def checkpointed(key: str, edition: str, runs: Path) -> Iterator[Checkpoint]:
    """A checkpoint of a new campaign, with what is left of those of its kind that were killed.
    BedFailed when there can be none."""
    stem = f"campaign-{key}-{edition}-"
    with ExitStack() as open_files:
        try:
            left = [
                path for path in sorted(runs.glob(f"{stem}*{SUFFIX}")) if _owned(path, open_files)
            ]
            number, name = tempfile.mkstemp(dir=runs, prefix=NEW)
            file = open_files.enter_context(os.fdopen(number, "wb", buffering=0))
            fcntl.flock(file, fcntl.LOCK_EX)
            path = runs / f"{stem}{name.rpartition(NEW)[2]}{SUFFIX}"
            checkpoint = Checkpoint(path, file, _all_of(left))
            os.rename(name, path)
        except OSError as e:
            raise BedFailed(
                f"the progress of a campaign cannot be recorded in {runs}: {e.strerror or e}; "
                "free space or choose another folder with --runs"
            ) from e
        if not checkpoint.broken:
            for old in left:
                old.unlink(missing_ok=True)
        yield checkpoint


def _owned(path: Path, open_files: ExitStack) -> bool:
    """Is it ours now, since whoever wrote it is gone?"""
    try:
        file = open_files.enter_context(path.open("rb"))
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _all_of(paths: list[Path]) -> tuple[Finished, ...]:
    """Each seed once; not a line that was cut short."""
    found: dict[int, Finished] = {}
    for line in (line for path in paths for line in path.read_bytes().splitlines()):
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            one = Finished.read(json_of(line))
            found[one.row.seed] = one
    return tuple(found.values())
