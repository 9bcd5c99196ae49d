"""Checkpoints of campaigns, seed by seed, so that `kill -9` loses no finished seed.

A running campaign holds a file in the folder of runs, `campaign-KEY-EDITION-*.part`, with a line
for each finished seed. A campaign of the same kind (the same code, options and plan) that finds
such a file without an owner takes it over, and skips the seeds in it. The file is removed once a
complete campaign is in `campaigns.jsonl`.
"""

import fcntl
import hashlib
import json
import os
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from harness.campaign.features import unpacked
from harness.campaign.tally import SeedResult, check_fields
from harness.errors import BedFailed
from harness.text.parsing import parse_json
from harness.trial import Trial

SUFFIX = ".part"
NEW = ".campaign-"  # such a file is not taken over: it is about to be renamed


def checkpoint_key(base: Trial, *more: object) -> str:
    """Return a hash of a campaign's trial and of what else makes it another campaign."""
    content = json.dumps([tomllib.loads(base.to_toml()), *more], sort_keys=True)
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class FinishedSeed:
    """A finished seed; if it failed, the name of its run, or why that is not kept.

    Of hunts only: `lost`, why there is no result; and of a finding, the names of the runs that show
    it, how many runs its plan had, and when it was found, since the hunt began.
    """

    row: SeedResult
    run: str = ""
    unkept: str = ""
    lost: str = ""
    shown_by: tuple[str, ...] = ()
    tries: int = 0
    after_s: float = 0.0

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> "FinishedSeed":
        """Read a line. Raises TypeError, KeyError or ValueError."""
        shown_by = tuple(plain.get("shown_by", ()))
        one = cls(**{**plain, "row": SeedResult.read(plain["row"]), "shown_by": shown_by})
        check_fields(one, cls(one.row))
        unpacked(one.row.features)
        for name in filter(None, (one.run, *one.shown_by)):
            if name in ("..", ".") or "/" in name or "\0" in name:  # TypeError if it is no text
                raise ValueError(f"{name} is not the name of a run")
        return one

    @property
    def weight(self) -> tuple[int, int]:
        """Of two results of a seed the weightier one counts, of two findings that of more runs."""
        return (-1 if self.lost else self.row.weight), self.tries


class CampaignCheckpoint:
    """The file of one campaign. `found`: what earlier ones had finished. `broken`: why nothing more
    is written; the campaign continues."""

    def __init__(self, path: Path, file: BinaryIO, finished: tuple[FinishedSeed, ...]) -> None:
        self.finished, self.broken = finished, ""
        self._path, self._file = path, file
        for one in finished:
            self.add(one)

    def add(self, one: FinishedSeed) -> None:
        """Append a seed in one write."""
        if self.broken:
            return
        line = json.dumps({**asdict(one), "row": one.row.plain()}).encode() + b"\n"
        try:
            if self._file.write(line) < len(line):
                self.broken = "the disk is full"
        except OSError as e:
            self.broken = e.strerror or str(e)

    def discard(self) -> None:
        """Remove the file: its content is stored elsewhere."""
        self._path.unlink(missing_ok=True)


@contextmanager
def open_checkpoint(key: str, edition: str, runs: Path) -> Iterator[CampaignCheckpoint]:
    """Yield the checkpoint of a new campaign, with the seeds of killed ones of its kind. Raises
    BedFailed if it cannot be written."""
    stem = f"campaign-{key}-{edition}-"
    with ExitStack() as open_files:
        try:
            files = sorted(runs.glob(f"{stem}*{SUFFIX}"))
            left = [path for path in files if _take_over(path, open_files)]
            number, name = tempfile.mkstemp(dir=runs, prefix=NEW)
            file = open_files.enter_context(os.fdopen(number, "wb", buffering=0))
            fcntl.flock(file, fcntl.LOCK_EX)
            path = runs / f"{stem}{name.rpartition(NEW)[2]}{SUFFIX}"
            checkpoint = CampaignCheckpoint(path, file, _finished_seeds(left))
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


def _take_over(path: Path, open_files: ExitStack) -> bool:
    """Lock a file, and return whether that worked: its owner is gone."""
    try:
        file = open_files.enter_context(path.open("rb"))
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _finished_seeds(paths: list[Path]) -> tuple[FinishedSeed, ...]:
    """Return each seed once, without truncated lines: of a file its last result, of several files
    the weightiest one."""
    finished: dict[int, FinishedSeed] = {}
    for path in paths:
        for number, one in _stored_in(path).items():
            if number not in finished or one.weight > finished[number].weight:
                finished[number] = one
    return tuple(finished.values())


def _stored_in(path: Path) -> dict[int, FinishedSeed]:
    stored: dict[int, FinishedSeed] = {}
    for line in path.read_bytes().splitlines():
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            one = FinishedSeed.read(parse_json(line))
            stored[one.row.seed] = one
    return stored
