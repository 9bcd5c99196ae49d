"""The folder of runs as the site sees it: what is there, and what of it may be opened.

A run may have come from elsewhere, in an archive that somebody sent. A link in it could lead to any
file of this machine, a pipe could stop whoever reads it. So a run is named by exactly one folder of
the shelf, links are not followed, and a report is only made of a folder that holds nothing but
folders and plain files, and links that stay within it.
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

MOST_FILES = 100_000  # of one run
OWN = (CLUSTERS, SUITES)  # folders of ours that are no runs


class Missing(Exception):
    """There is no such run."""


@dataclass(frozen=True)
class Shelf:
    """A folder with runs in it."""

    path: Path

    @classmethod
    def of(cls, path: Path) -> "Shelf":
        """BadRequest when that is no folder, or is a run itself."""
        if not path.is_dir():
            raise BadRequest(f"there is no folder {path}; seatrial run makes runs/")
        if (path / "trial.toml").is_file():
            raise BadRequest(f"{path} is a run: name the folder it is in")
        return cls(path.resolve())

    def names(self) -> list[str]:
        """Every folder, and every link to one that is not called `latest`; the newest first."""
        with os.scandir(self.path) as entries:
            found = [entry.name for entry in entries if _shown(entry)]
        return sorted(found, reverse=True)

    def find(self, name: str) -> Path:
        """A folder that is listed. Missing when there is none of that name, or it is ours."""
        if not name or name.startswith(".") or name in OWN or "/" in name or "\0" in name:
            raise Missing
        path = self.path / name
        try:
            if stat.S_ISDIR(path.lstat().st_mode):
                return path
        except (OSError, ValueError) as e:
            raise Missing from e
        raise Missing

    def run(self, name: str) -> Path:
        """The folder of a run. Missing when it is something else, which is nobody's to take."""
        folder = self.find(name)
        if not is_run(folder):
            raise Missing
        return folder

    def log(self, name: str, node: str, file: str) -> Path:
        """A log of a run's node. Missing unless it is a plain file in the node's own folder, and no
        part of its path is a link."""
        path = self.run(name)
        if not file.endswith(LOGS):
            raise Missing
        for part, is_kind in (("nodes", stat.S_ISDIR), (node, stat.S_ISDIR), (file, stat.S_ISREG)):
            if part.startswith(".") or "/" in part or "\0" in part:
                raise Missing
            path = path / part
            try:
                if not is_kind(path.lstat().st_mode):
                    raise Missing
            except (OSError, ValueError) as e:
                raise Missing from e
        return path

    def latest(self) -> str:
        """The run that `latest` leads to. Missing when it leads elsewhere."""
        try:
            name = os.readlink(self.path / LATEST)
        except OSError as e:
            raise Missing from e
        return self.find(name).name


def is_run(folder: Path) -> bool:
    """Every run has a trial, from its first moment; whether it can be read is another question."""
    return os.path.lexists(folder / "trial.toml")


def _shown(entry: "os.DirEntry[str]") -> bool:
    if entry.name.startswith(".") or entry.name in OWN:
        return False
    if entry.name == LATEST and entry.is_symlink():
        return False
    return entry.is_dir()


def trouble(path: Path, most_bytes: int) -> str:
    """Why a small file is not read; empty when it can be. One that is not there is no trouble."""
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
    """Why no report is made of a run; empty when one can be."""
    return openable.unfit(folder, MOST_FILES)
