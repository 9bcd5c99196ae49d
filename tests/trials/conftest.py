"""Whole trials by the real command. Those that take long are sailed in the background, once.

A trial mostly waits, so two are under way beside the test that runs: they begin with the session,
if any test that was asked for needs them, and such a test waits for its own. Those on one kind of
hosts abroad follow each other, because there is one lab for each kind.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import docker_lab as docker_labs
import harbours
import passages
import pytest
import sailing
import ssh_lab as ssh_labs

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

LABS = {"docker": docker_labs, "ssh": ssh_labs}

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

    def launch_abroad(self, harbour: harbours.Harbour, names: Sequence[str], lab: Any) -> None:
        """These passages, one after another."""
        promised: dict[str, Future[Any]] = {name: Future() for name in names}
        self._under_way |= {f"{harbour.kind} {name}": promised[name] for name in names}
        self._pool.submit(self._sail_abroad, harbour, promised, lab)

    def _sail_abroad(
        self, harbour: harbours.Harbour, promised: Mapping[str, Future[Any]], lab: Any
    ) -> None:
        for name, future in promised.items():
            folder = self._folder / f"{harbour.kind}-{name}"
            try:
                future.set_result(passages.BY_NAME[name](harbour, folder, lab))
            except BaseException as e:
                future.set_exception(e)

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
        for kind, labs in LABS.items():
            if (names := _asked_abroad(request.session, kind)) and not labs.lacking():
                lab = request.getfixturevalue(f"{kind}_lab")
                home = tmp_path_factory.mktemp("home")
                fleet.launch_abroad(harbours.BY_KIND[kind](lab, home), names, lab)
        if "test_killed_command" in asked_for:
            fleet.launch_kills()
        if "test_plans" in asked_for:
            fleet.launch_plans()
        yield fleet
        pool.shutdown(cancel_futures=True)


def _asked_abroad(session: pytest.Session, kind: str) -> list[str]:
    """The passages that tests on this kind of hosts look at, in the order of the tests."""
    items = [item for item in session.items if item.path.stem == f"test_{kind}_trials"]
    asked = [name for item in items for name in getattr(item, "fixturenames", ())]
    return list(dict.fromkeys(name for name in asked if name in passages.BY_NAME))


def _passage(name: str) -> Any:
    """A fixture: what a passage on the hosts of the test's kind saw."""

    def seen(request: pytest.FixtureRequest, fleet: Fleet) -> Any:
        kind = request.path.stem.split("_")[1]
        request.getfixturevalue(f"{kind}_lab")  # or the words why there is none
        return fleet[f"{kind} {name}"]

    return pytest.fixture(seen, scope="module", name=name)


globals().update({f"passage_{name}": _passage(name) for name in passages.BY_NAME})


@pytest.fixture
def harbour(request: pytest.FixtureRequest, tmp_path: Path) -> harbours.Harbour:
    """The hosts of the test's kind, for commands that need nobody else to keep away."""
    kind = request.path.stem.split("_")[1]
    return harbours.BY_KIND[kind](request.getfixturevalue(f"{kind}_lab"), tmp_path)


@pytest.fixture(scope="session")
def storm(tmp_path_factory: pytest.TempPathFactory) -> sailing.Voyage:
    """One random trial with every kind of fault on a safe profile."""
    folder = tmp_path_factory.mktemp("storm")
    (folder / "storm.toml").write_text(RANDOM)
    return sailing.seatrial("run", folder / "storm.toml", runs=folder / "runs")
