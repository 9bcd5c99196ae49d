"""Whole trials by the real command. Those that take long are sailed in the background, once.

A trial mostly waits, so two are under way beside the test that runs: they begin with the session,
if any test that was asked for needs them, and such a test waits for its own.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sailing

PLANS = ("isolate-then-kill", "isolate-from-controllers")
PROFILES = ("unsafe-default", "allack-min2")
MOMENTS = ("check", "drain", "faults", "set-up")
KILLS = sailing.ROOT / "tests" / "acceptance" / "kills.py"
RANDOM = """\
duration_s = 20.0
seed = 5
faults = ["kill", "pause", "partition", "loss"]
[rhythm]
quiet_s = 2.0
fault_s = 4.5
recovery_s = 1.5
"""

Killed = subprocess.CompletedProcess[str]


class Fleet:
    """What is under way in the background, by name."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor) -> None:
        self._folder, self._pool = folder, pool
        self._under_way: dict[str, Future[Any]] = {}

    def launch_plans(self) -> None:
        """Both plans under both profiles, for no longer than a plan takes."""
        for profile in PROFILES:
            for plan in PLANS:
                path = sailing.PLANS / f"{plan}.toml"
                asked = ("--system", "flotilla", "--hosts", "local", "--profile", profile)
                command = ("run", "messages", *asked, "--plan", path, "--duration", "20s")
                self._launch(f"{plan} {profile}", sailing.seatrial, *command)

    def launch_kills(self) -> None:
        for moment in MOMENTS:
            self._launch(moment, _killed, moment)

    def __getitem__(self, name: str) -> Any:
        return self._under_way[name].result()

    def _launch(self, name: str, sail: Callable[..., Any], *arguments: object) -> None:
        runs = self._folder / name.replace(" ", "-")
        self._under_way[name] = self._pool.submit(sail, *arguments, runs=runs)


def _killed(moment: str, runs: Path) -> Killed:
    argv = [sys.executable, str(KILLS), "1", "--at", moment]
    return subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="session", autouse=True)
def fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    asked_for = {item.path.stem for item in request.session.items}
    with ThreadPoolExecutor(2) as pool:
        fleet = Fleet(tmp_path_factory.mktemp("fleet"), pool)
        if "test_plans" in asked_for:
            fleet.launch_plans()
        if "test_killed_command" in asked_for:
            fleet.launch_kills()
        yield fleet
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def storm(tmp_path_factory: pytest.TempPathFactory) -> sailing.Voyage:
    """One random trial with every kind of fault on a safe profile."""
    folder = tmp_path_factory.mktemp("storm")
    (folder / "storm.toml").write_text(RANDOM)
    return sailing.seatrial("run", folder / "storm.toml", runs=folder / "runs")
