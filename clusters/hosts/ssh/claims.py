"""Which hosts a run has taken: a registry of this user's, written before the first is touched.

Whoever cleans up after a run that was killed needs to know where it was, even when the inventory
has changed since. A run's folder may have been sent by another person, so nothing of this is kept
there: hosts, folders, keys and interpreters come from the user's state folder, signed with the
user's key (`harness.user_folders`), one file a run. A host that holds nothing of the run any more
is crossed out; with the last one the file goes, and then there is nothing to heal.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clusters.hosts._agent.machine_id import driver
from clusters.hosts.ssh.inventory import Host
from harness.errors import BedFailed
from harness.user_folders import private, read_signed, state_folder, write_signed

FOLDER = re.compile(r"/.*/seatrial-[^/]+")


@dataclass(frozen=True)
class Taken:
    """A node's host, the run's folder there, and what its owner.json says."""

    node: str
    host: Host
    folder: str
    owner: Mapping[str, str]


def owner(run: Path) -> dict[str, str]:
    """Return what owner.json of a run of this machine says."""
    return {"driver": driver(), "run": str(run)}


def write(run: Path, taken: Sequence[Taken]) -> None:
    """These are the hosts that hold something of the run."""
    path = _file(run)
    if taken:
        write_signed(path, {"run": str(run), "hosts": [asdict(each) for each in taken]})
    else:
        path.unlink(missing_ok=True)


def read(run: Path) -> list[Taken]:
    """Return the hosts that this user's run in a folder holds; none if there are none."""
    path = _file(run)
    content = read_signed(path)
    try:
        return [_taken(each) for each in content["hosts"]] if content else []
    except (ValueError, TypeError, KeyError) as e:
        raise BedFailed(
            f"{path} cannot be read ({e}), so the hosts of this run are not known; look for "
            f"seatrial-{run.name}-* in the folders that its inventory names"
        ) from e


def _file(run: Path) -> Path:
    folder = private(state_folder() / "hosts")
    return folder / f"{hashlib.sha256(str(run).encode()).hexdigest()[:32]}.json"


def _taken(entry: Mapping[str, Any]) -> Taken:
    plain = entry["host"]
    lists = {key: tuple(plain[key]) for key in ("jump", "roles")}
    if not FOLDER.fullmatch(entry["folder"]):
        raise ValueError(f"{entry['folder']!r} is not the folder of a run")
    return Taken(entry["node"], Host(**{**plain, **lists}), entry["folder"], entry["owner"])
