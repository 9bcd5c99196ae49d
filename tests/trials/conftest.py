"""Whole trials by the real command. Those that take long run in the background, once.

A trial mostly waits, so two run beside the current test. They start with the first test of this
folder, if any selected test needs them, and such a test waits for its own trial. Trials on Docker
and on SSH hosts follow each other, because there is one lab for each kind.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import docker_lab as docker_labs
import host_labs
import pytest
import run_command
import ssh_lab as ssh_labs
import trial_scenarios

from harness.spark.master import DEFAULT, VARIABLE

PLAN = "isolate-then-kill"
PROFILES = ("unsafe-default", "allack-min2")
SHORT = ("--duration", "20s", "--load", "rate=300")
MOMENTS = ("check", "drain", "set-up")  # test_killed_suite.py kills under a fault
KILLS = run_command.ROOT / "tests" / "acceptance" / "kills.py"
RANDOM = """\
duration_s = 39.0
load = { rate = 100 }
seed = 5
faults = ["kill", "pause", "partition", "loss"]
[rhythm]
quiet_s = 3.0
fault_s = 6.0
recovery_s = 6.0
"""

LABS = {"docker": docker_labs, "ssh": ssh_labs}

Killed = subprocess.CompletedProcess[str]


class Fleet:
    """What is under way in the background, by name."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor) -> None:
        self._folder, self._pool = folder, pool
        self._under_way: dict[str, Future[Any]] = {}

    def launch_plans(self) -> None:
        """Start a plan under each profile, for no longer than the plan takes."""
        path = run_command.PLANS / f"{PLAN}.toml"
        for profile in PROFILES:
            asked = ("--system", "flotilla", "--hosts", "local", "--profile", profile)
            command = ("run", "messages", *asked, "--plan", path, *SHORT)
            self._launch(f"{PLAN} {profile}", run_command.seatrial, *command)

    def launch_kills(self) -> None:
        for moment in MOMENTS:
            self._launch(moment, _killed, moment)

    def launch_on_hosts(self, host_lab: host_labs.HostLab, names: Sequence[str], lab: Any) -> None:
        """These trial_scenarios, one after another."""
        promised: dict[str, Future[Any]] = {name: Future() for name in names}
        self._under_way |= {f"{host_lab.kind} {name}": promised[name] for name in names}
        self._pool.submit(self._run_on_hosts, host_lab, promised, lab)

    def _run_on_hosts(
        self, host_lab: host_labs.HostLab, promised: Mapping[str, Future[Any]], lab: Any
    ) -> None:
        for name, future in promised.items():
            folder = self._folder / f"{host_lab.kind}-{name}"
            try:
                future.set_result(trial_scenarios.BY_NAME[name](host_lab, folder, lab))
            except BaseException as e:
                future.set_exception(e)

    def __getitem__(self, name: str) -> Any:
        return self._under_way[name].result()

    def _launch(self, name: str, sail: Callable[..., Any], *arguments: object) -> None:
        runs = self._folder / name.replace(" ", "-")
        self._under_way[name] = self._pool.submit(sail, *arguments, runs=runs)


def _killed(moment: str, runs: Path) -> Killed:
    argv = [sys.executable, str(KILLS), "1", "--at", moment]
    env = {**os.environ, VARIABLE: DEFAULT}  # whichever test is running meanwhile
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=800, check=False)


@pytest.fixture(scope="session", autouse=True)
def fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    asked_for = {item.path.stem for item in request.session.items}
    with ThreadPoolExecutor(2) as pool:
        fleet = Fleet(tmp_path_factory.mktemp("fleet"), pool)
        for kind, labs in LABS.items():
            if (names := _scenarios_of(request.session, kind)) and not labs.lacking():
                lab = request.getfixturevalue(f"{kind}_lab")
                home = tmp_path_factory.mktemp("home")
                fleet.launch_on_hosts(host_labs.BY_KIND[kind](lab, home), names, lab)
        if "test_killed_command" in asked_for:
            fleet.launch_kills()
        if "test_plans" in asked_for:
            fleet.launch_plans()
        yield fleet
        pool.shutdown(cancel_futures=True)


def _scenarios_of(session: pytest.Session, kind: str) -> list[str]:
    """The trial_scenarios that tests on this kind of hosts look at, in the order of the tests."""
    items = [item for item in session.items if item.path.stem == f"test_{kind}_trials"]
    asked = [name for item in items for name in getattr(item, "fixturenames", ())]
    return list(dict.fromkeys(name for name in asked if name in trial_scenarios.BY_NAME))


def _scenario(name: str) -> Any:
    """A fixture: what a scenario on the hosts of the test's kind saw."""

    def seen(request: pytest.FixtureRequest, fleet: Fleet) -> Any:
        kind = request.path.stem.split("_")[1]
        request.getfixturevalue(f"{kind}_lab")  # or the words why there is none
        return fleet[f"{kind} {name}"]

    return pytest.fixture(seen, scope="module", name=name)


globals().update({f"scenario_{name}": _scenario(name) for name in trial_scenarios.BY_NAME})


@pytest.fixture
def host_lab(request: pytest.FixtureRequest, tmp_path: Path) -> host_labs.HostLab:
    """The hosts of the test's kind, for commands that need nobody else to keep away."""
    kind = request.path.stem.split("_")[1]
    return host_labs.BY_KIND[kind](request.getfixturevalue(f"{kind}_lab"), tmp_path)


@pytest.fixture(scope="session")
def storm(tmp_path_factory: pytest.TempPathFactory) -> run_command.FinishedCommand:
    """One random trial with every kind of fault on a safe profile."""
    folder = tmp_path_factory.mktemp("storm")
    (folder / "storm.toml").write_text(RANDOM)
    return run_command.seatrial("run", folder / "storm.toml", runs=folder / "runs")
