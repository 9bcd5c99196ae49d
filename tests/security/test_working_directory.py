"""What lies in the working directory is not executed, whatever it is called."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import hostile_runs
import page_lab
import pytest

import harness
from harness.campaign.simulation import simulate
from harness.errors import BadRequest
from harness.history.run_files import open_run

ROOT = str(Path(harness.__file__).parents[1])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "run"
    simulate(page_lab.SOUND, page_lab.PLAN, folder)
    return folder


@pytest.fixture
def run(base: Path, tmp_path: Path) -> Path:
    """A run with code in its folder."""
    return hostile_runs.made(base, tmp_path / "run", tmp_path, "code")


def started(run: Path, *argv: str, **env: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "SEATRIAL_TEST_RAN": str(run.parent / "ran"), **env}
    done = subprocess.run(
        argv, cwd=run, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert not (run.parent / "ran").exists(), done.stderr
    return done


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("check", "."), 0),
        (("replay", ".", "--trust-run"), 254),
        (("shrink", ".", "--trust-run"), 254),
        (("bisect", ".", "--versions", "1", "--trust-run"), 254),
    ],
)
def test_a_client_program_that_a_run_names_is_not_started(
    base: Path, tmp_path: Path, command: tuple[str, ...], code: int
) -> None:
    """What would run it asks for its name."""
    shutil.copytree(base, tmp_path / "run")
    trial, ran = tmp_path / "run" / "trial.toml", tmp_path / "ran"
    text = trial.read_text().replace('system = "flotilla"', 'system = "etcd"')
    text = re.sub('workload = ".*"', 'workload = "set"', text)  # it asks which calls there are
    text = re.sub(r"\[load\][^\[]*", "", text)
    trial.write_text(text.replace("client = []", f'client = ["/usr/bin/touch", "{ran}"]'))
    script = str(Path(sys.executable).with_name("seatrial"))
    done = started(tmp_path / "run", script, *command)
    assert (done.returncode == 254) == (code == 254), done.stderr
    assert ("name it yourself: --client COMMAND" in done.stderr) == (code == 254)


@pytest.mark.spark
def test_spark_and_its_workers_import_nothing_of_the_folder(run: Path) -> None:
    """A run on local hosts is judged by Spark: the JVM, the daemon and its workers start here."""
    trial = run / "trial.toml"
    trial.write_text(trial.read_text().replace('hosts = "simulated"', 'hosts = "local"'))
    done = started(run, str(Path(sys.executable).with_name("seatrial")), "check", ".")
    assert done.returncode in (0, 2), done.stderr
    assert "checked" in done.stdout


def test_the_package_started_by_name(run: Path) -> None:
    """`python -m harness` is resolved by Python before any code of ours; where the folder has no
    package of that name, nothing else of it is imported either."""
    shutil.rmtree(run / "harness")
    for name in hostile_runs.CODE_FILES:  # Python itself imports these before it looks at -m
        if name in ("sitecustomize.py", "usercustomize.py", "encodings.py"):
            (run / name).unlink()
    done = started(run, sys.executable, "-m", "harness", "report", ".", PYTHONPATH=ROOT)
    assert done.returncode == 0, done.stderr


def test_processes_of_campaigns_import_nothing_of_the_folder(run: Path) -> None:
    """multiprocessing starts interpreters with `-c`, which look in the working directory first."""
    script = str(Path(sys.executable).with_name("seatrial"))
    done = started(run, script, "simulate", "--seeds", "1", "--time", "1s")
    assert done.returncode in (0, 1, 2, 255), done.stderr


def test_a_run_does_not_set_options(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """seatrial.toml in the run itself, or below it, is refused; elsewhere it is the user's."""
    run = tmp_path / "run"
    shutil.copytree(base, run)
    (run / "nodes").mkdir(exist_ok=True)
    for place in (run, run / "nodes"):
        (place / "seatrial.toml").write_text(hostile_runs.SETTINGS)
        monkeypatch.chdir(place)
        with pytest.raises(BadRequest, match="is part of the run"), open_run(str(run)):
            pass
        (place / "seatrial.toml").unlink()
    (tmp_path / "seatrial.toml").write_text(hostile_runs.SETTINGS)
    monkeypatch.chdir(tmp_path)
    with open_run("run") as opened:
        assert opened.path == run


def test_settings_of_the_compiler_are_not_read(tmp_path: Path) -> None:
    """numba reads .numba_config.yaml of the working directory, and unpickles what it names."""
    (tmp_path / ".numba_config.yaml").write_text("cache_dir: /nowhere\nopt: 0\nboundscheck: 1\n")
    words = "import os; import harness.compiled as c; c.ready(); "
    words += "from numba.core import config; config.reload_config(); "
    words += "print(config.CACHE_DIR, config.OPT, config.BOUNDSCHECK)"
    plain = started(tmp_path, sys.executable, "-P", "-c", words, PYTHONPATH=ROOT).stdout.split()
    assert plain[0].endswith("seatrial/kernels")
    assert plain[1:] == ["_OptLevel(3)", "None"]
