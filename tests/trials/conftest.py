"""Whole trials by the real command. Those that many tests look at are sailed once a session.

A trial mostly waits, so two are under way at a time; a test waits for the one that it is about.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import sailing

PLANS = ("isolate-then-kill", "isolate-from-controllers")
PROFILES = ("unsafe-default", "allack-min2")
RANDOM = """\
duration_s = 26.0
seed = 5
faults = ["kill", "pause", "partition", "loss"]
[rhythm]
quiet_s = 2.0
fault_s = 4.5
recovery_s = 1.5
"""

Planned = Callable[[str, str], sailing.Voyage]


class Fleet:
    """Trials under way in the background, each in a folder of its own."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor) -> None:
        self._folder, self._pool = folder, pool
        self._sailing: dict[str, Future[sailing.Voyage]] = {}

    def launch(self, name: str, *arguments: object) -> None:
        runs = self._folder / name
        self._sailing[name] = self._pool.submit(sailing.seatrial, *arguments, runs=runs)

    def __getitem__(self, name: str) -> sailing.Voyage:
        return self._sailing[name].result()


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with ThreadPoolExecutor(2) as pool:
        yield Fleet(folder, pool)
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def planned(fleet: Fleet) -> Planned:
    """Both plans under both profiles, for no longer than a plan takes."""
    for plan in PLANS:
        for profile in PROFILES:
            path = sailing.PLANS / f"{plan}.toml"
            asked = ("--system", "flotilla", "--hosts", "local", "--profile", profile)
            command = ("run", "messages", *asked, "--plan", path, "--duration", "20s")
            fleet.launch(f"{plan}-{profile}", *command)
    return lambda plan, profile: fleet[f"{plan}-{profile}"]


@pytest.fixture(scope="session")
def storm(tmp_path_factory: pytest.TempPathFactory) -> sailing.Voyage:
    """One random trial with every kind of fault on a safe profile."""
    folder = tmp_path_factory.mktemp("storm")
    (folder / "storm.toml").write_text(RANDOM)
    return sailing.seatrial("run", folder / "storm.toml", runs=folder / "runs")
