"""The folder of runs: what it contains, and which files may be opened.

A run may come from an untrusted archive. A symbolic link in it could lead to any file of this
machine, and a named pipe could block its reader. So a run is exactly one folder of the index, links
are not followed, and a report is rendered only if the folder holds nothing but folders and regular
files, and links that stay within it.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from harness.cli.cluster import FOLDER as CLUSTERS
from harness.errors import BadRequest
from harness.history import run_files as openable
from harness.history.runs import LATEST
from harness.suite.store import FOLDER as SUITES
from reports._run import LOGS

MAX_FILES = 100_000  # of one run
OWN = (CLUSTERS, SUITES)  # our own folders, which are not runs


class RunNotFound(Exception):
    """There is no such run."""


@dataclass(frozen=True)
class RunIndex:
    """A folder with runs in it."""

    path: Path

    @classmethod
    def of(cls, path: Path) -> "RunIndex":
        """Open a folder of runs. Raises BadRequest if it is no folder, or is a run itself."""
        if not path.is_dir():
            raise BadRequest(f"there is no folder {path}; seatrial run creates runs/")
        if (path / "trial.toml").is_file():
            raise BadRequest(f"{path} is a run: name its parent folder")
        return cls(path.resolve())

    def names(self) -> list[str]:
        """Return all folders, and links to folders except `latest`, newest first."""
        with os.scandir(self.path) as entries:
            names = [entry.name for entry in entries if _shown(entry)]
        return sorted(names, reverse=True)

    def find(self, name: str) -> Path:
        """Return a listed folder. Raises RunNotFound if there is none, or it is one of our own
        folders."""
        if not name or name.startswith(".") or name in OWN or "/" in name or "\0" in name:
            raise RunNotFound
        path = self.path / name
        try:
            if stat.S_ISDIR(path.lstat().st_mode):
                return path
        except (OSError, ValueError) as e:
            raise RunNotFound from e
        raise RunNotFound

    def run(self, name: str) -> Path:
        """Return the folder of a run. Raises RunNotFound if it is something else."""
        folder = self.find(name)
        if not is_run(folder):
            raise RunNotFound
        return folder

    def log(self, name: str, node: str, file: str) -> Path:
        """Return a log of a run's node. Raises RunNotFound unless it is a regular file in the
        node's own folder, and no part of its path is a link."""
        path = self.run(name)
        if not file.endswith(LOGS):
            raise RunNotFound
        for part, is_kind in (("nodes", stat.S_ISDIR), (node, stat.S_ISDIR), (file, stat.S_ISREG)):
            if part.startswith(".") or "/" in part or "\0" in part:
                raise RunNotFound
            path = path / part
            try:
                if not is_kind(path.lstat().st_mode):
                    raise RunNotFound
            except (OSError, ValueError) as e:
                raise RunNotFound from e
        return path

    def latest(self) -> str:
        """Return the run that `latest` links to. Raises RunNotFound if it links elsewhere."""
        try:
            name = os.readlink(self.path / LATEST)
        except OSError as e:
            raise RunNotFound from e
        return self.find(name).name


def is_run(folder: Path) -> bool:
    """Return whether a folder has a trial, which each run has from its start; it may be
    unreadable."""
    return os.path.lexists(folder / "trial.toml")


def _shown(entry: "os.DirEntry[str]") -> bool:
    if entry.name.startswith(".") or entry.name in OWN:
        return False
    if entry.name == LATEST and entry.is_symlink():
        return False
    return entry.is_dir()


def trouble(path: Path, most_bytes: int) -> str:
    """Return why a small file cannot be read; empty if it can, or does not exist."""
    try:
        known = path.lstat()
    except FileNotFoundError:
        return ""
    except OSError as e:
        return f"{path.name} cannot be read: {e.strerror}"
    if not stat.S_ISREG(known.st_mode):
        return f"{path.name} is not a plain file, and is not opened"
    if known.st_size > most_bytes:
        return f"{path.name} has {known.st_size / 1e6:,.0f} MB, too many to be shown"
    return ""


def unfit(folder: Path) -> str:
    """Return why a run gets no report; empty if it gets one."""
    return openable.unsafe_reason(folder, MAX_FILES)
