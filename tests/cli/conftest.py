"""The real console script, with plug-ins of an outside package that misbehave in every way."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

OUTSIDE = '''
"""Hosts that fail in a way of their own choosing."""
import os
from harness.contracts import BadRequest, BedFailed, HostsPlugin, Unsupported

ENDINGS = {
    "bad request": BadRequest("the request makes no sense"),
    "bed failed": BedFailed("the bed broke down"),
    "unsupported": Unsupported("these hosts cannot pause"),
    "bug": ZeroDivisionError("division by zero"),
    "no space": OSError(28, "No space left on device"),
    "ctrl-c": KeyboardInterrupt(),
    "library": SystemExit(0),
}

def problems(bed):
    if error := ENDINGS.get(os.environ["OUTSIDE"]):
        raise error
    damage = bed.get("damage", "the hull leaks")
    return [(damage, "ships float better without", "sudo apt-get install tar")]

class Hosts:
    can = frozenset({"links", "loss", "signal", "restart"})

    def check(self, nodes):
        pass

    def __getattr__(self, name):
        return None  # the rest of the contract, which is not used

def hosts(trial, folder):
    return Hosts()

PLUGIN = HostsPlugin(hosts=hosts, problems=problems)
'''

Script = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder with an installed package `outside` that offers hosts of that name."""
    folder = tmp_path / "site"
    info = folder / "outside-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "outside_hosts.py").write_text(OUTSIDE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[seatrial.hosts]\noutside = outside_hosts\n")
    return folder


@pytest.fixture
def seatrial(tmp_path: Path, outside: Path) -> Script:
    """Run the console script in an empty folder: `seatrial("run", "--seed", "x")`."""

    def run(*arguments: str, ending: str = "", cwd: Path = tmp_path) -> object:
        script = Path(sys.executable).with_name("seatrial")
        path = os.pathsep.join(filter(None, (str(outside), os.environ.get("PYTHONPATH"))))
        env = {**os.environ, "PYTHONPATH": path, "OUTSIDE": ending}
        return subprocess.run(
            [script, *arguments],
            cwd=cwd,
            env=env,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    return run  # type: ignore[return-value]
