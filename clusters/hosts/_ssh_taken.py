"""Which hosts a run has taken, written down in its folder before the first of them is touched.

Whoever cleans up after a run that was killed needs to know where it was, even when the inventory
has changed since. A host that holds nothing of the run any more is crossed out; with the last one
the file goes, and then there is nothing to heal.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from clusters.hosts._ssh_inventory import Host
from harness.errors import BedFailed
from harness.reading import json_of

FILE = "ssh_hosts.json"


@dataclass(frozen=True)
class Taken:
    """A node's host, and the run's folder there."""

    node: str
    host: Host
    folder: str


def write(run: Path, taken: Sequence[Taken]) -> None:
    """These are the hosts that hold something of the run."""
    path = run / FILE
    if not taken:
        path.unlink(missing_ok=True)
        return
    run.mkdir(parents=True, exist_ok=True)
    temporary = run / f".{FILE}.tmp"
    temporary.write_text(json.dumps([asdict(each) for each in taken], indent=2) + "\n")
    os.replace(temporary, path)


def read(run: Path) -> list[Taken]:
    path = run / FILE
    if not path.exists():
        return []
    try:
        return [_taken(each) for each in json_of(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError, KeyError) as e:
        raise BedFailed(
            f"{path} cannot be read ({e}), so nobody knows which hosts this run took; look for "
            f"seatrial-{run.name} in the folders that its inventory names"
        ) from e


def _taken(entry: dict[str, object]) -> Taken:
    plain = entry["host"]
    if not isinstance(plain, dict):
        raise TypeError("a host is no table")
    lists = {key: tuple(plain[key]) for key in ("jump", "roles")}
    return Taken(str(entry["node"]), Host(**{**plain, **lists}), str(entry["folder"]))
