"""Which hosts a run occupies: a registry of this user's, written before the first host is touched.

Cleaning up after a run that was killed needs to know its hosts, even if the inventory has changed
since. A run's folder may come from another person, so the registry is not there: hosts, folders,
keys and interpreters come from the user's state folder, signed with the user's key
(`harness.user_folders`), one file per run. A host that holds nothing of the run any more is removed
from it; with the last one the file is removed, and there is nothing to heal.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clusters.hosts._agent.machine_id import driver_id
from clusters.hosts.ssh.inventory import InventoryHost
from harness.errors import BedFailed
from harness.user_folders import private_folder, read_signed, state_folder, write_signed

FOLDER = re.compile(r"/.*/seatrial-[^/]+")


@dataclass(frozen=True)
class HostClaim:
    """A node's host, the run's folder there, and the content of its owner.json."""

    node: str
    host: InventoryHost
    folder: str
    owner: Mapping[str, str]


def owner(run: Path) -> dict[str, str]:
    """Return the content of owner.json of a run of this machine."""
    return {"driver": driver_id(), "run": str(run)}


def write(run: Path, held: Sequence[HostClaim]) -> None:
    """Write which hosts hold something of the run."""
    path = _file(run)
    if held:
        write_signed(path, {"run": str(run), "hosts": [asdict(each) for each in held]})
    else:
        path.unlink(missing_ok=True)


def read(run: Path) -> list[HostClaim]:
    """Return the hosts that a run of this user occupies."""
    path = _file(run)
    content = read_signed(path)
    try:
        return [_claim(each) for each in content["hosts"]] if content else []
    except (ValueError, TypeError, KeyError) as e:
        raise BedFailed(
            f"{path} cannot be read ({e}), so the hosts of this run are not known; look for "
            f"seatrial-{run.name}-* in the folders that its inventory names"
        ) from e


def _file(run: Path) -> Path:
    folder = private_folder(state_folder() / "hosts")
    return folder / f"{hashlib.sha256(str(run).encode()).hexdigest()[:32]}.json"


def _claim(entry: Mapping[str, Any]) -> HostClaim:
    plain = entry["host"]
    lists = {key: tuple(plain[key]) for key in ("jump", "roles")}
    if not FOLDER.fullmatch(entry["folder"]):
        raise ValueError(f"{entry['folder']!r} is not the folder of a run")
    return HostClaim(
        entry["node"], InventoryHost(**{**plain, **lists}), entry["folder"], entry["owner"]
    )
