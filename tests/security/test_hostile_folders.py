"""A run folder in which every file was replaced by hostile content does no harm.

Every command that takes a run is started on it as a user would start it. It ends with one of our
exit codes and a sentence; nothing outside the folder is written, nothing in it is executed, what is
printed has no letters that a terminal obeys, and no process takes more than 1.5 GB.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hostile_runs
import page_lab
import pytest
from hostile_runs import KINDS
from site_lab import get
from table_sizes import EXHAUSTIVE

from harness.campaign.simulation import simulate
from harness.text.sanitize import UNPRINTABLE

pytestmark = [pytest.mark.bed, pytest.mark.timeout(1800)]  # it measures memory of processes

CODES = {0, 1, 2, 254, 255}
MAX_KB = 1_500_000
WITHIN_S = 240
SCRIPT = Path(sys.executable).with_name("seatrial")
KEPT = ("trial.toml", "plan.toml", "run.json", "names.json", "verdict.json")
MIXED = ("mixed-1", "mixed-2", "mixed-3") if EXHAUSTIVE else ("mixed-1",)
COMMANDS = (
    *(("check", "."), ("report", ".", "--format", "page,summary,junit,badge,terminal")),
    *(("explain", "."), ("heal", "."), ("replay", ".", "--runs", "../more", "--no-report")),
    ("shrink", ".", "--time", "5s", "--runs", "../more"),
)
MEASURED = """\
import json, resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))  # the machine outlives a mistake
child = subprocess.Popen(sys.argv[2:])
while True:
    try:
        code = child.wait()
        break
    except KeyboardInterrupt:
        pass  # the child ends by itself
with open(sys.argv[1], "w") as file:
    json.dump(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file)
sys.exit(code)
"""


@dataclass(frozen=True)
class Stage:
    """A place with a sound run, something that must not change, and a home folder."""

    path: Path
    base: Path

    @property
    def outside(self) -> Path:
        return self.path / "outside"

    def run(self, folder: Path, *words: str) -> "subprocess.CompletedProcess[bytes]":
        """Start the console script in this folder; it harms nothing."""
        before, figure = self._state(), self.path / "maxrss"
        argv = [sys.executable, "-P", "-c", MEASURED, figure, SCRIPT, *words]
        done = subprocess.run(
            argv, cwd=folder, env=self.environment, capture_output=True, timeout=WITHIN_S
        )
        told = (done.stdout + done.stderr).decode("utf-8", "replace")
        assert done.returncode in CODES, (words, told)
        assert "Traceback" not in told, (words, told)
        assert not UNPRINTABLE.search(re.sub("[\ufffd]", "", told)), (words, told)
        assert json.loads(figure.read_text()) < MAX_KB, words
        assert self._state() == before, words
        return done

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "HOME": str(self.path / "home"),
            "SEATRIAL_TEST_RAN": str(self.outside / "ran"),
            "COLUMNS": "200",
        }

    def _state(self) -> dict[str, str]:
        """All files that are no run's: those of a user, and where links lead to."""
        roots = (self.outside, self.path / "home")
        files = [path for root in roots for path in root.rglob("*") if path.is_file()]
        return {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
            if ".cache" not in path.parts  # ours: archives of classes, compiled kernels
        }


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "run"
    run = simulate(page_lab.SOUND, page_lab.PLAN, folder).run
    (run.path / "nodes" / "n1").mkdir(parents=True, exist_ok=True)
    (run.path / "nodes" / "n1" / "broker.log").write_text("a line\n")
    run.verdict_file.write_text(run.verdict_file.read_text())
    return folder


@pytest.fixture
def stage(tmp_path: Path, base: Path) -> Stage:
    for name in ("outside", "home", "runs"):
        (tmp_path / name).mkdir()
    (tmp_path / "outside" / "secret").write_text("not to be shown or changed\n")
    (tmp_path / "home" / ".bashrc").write_text("# mine\n")
    return Stage(tmp_path, base)


@pytest.mark.parametrize("kind", [*KINDS, *MIXED, "code"])
def test_no_command_is_harmed(stage: Stage, kind: str) -> None:
    """With every file replaced, and with all but those without which nothing else is read."""
    for name, keep in _replaced(kind).items():
        folder = hostile_runs.made(
            stage.base, stage.path / "runs" / name, stage.outside, kind, keep
        )
        again = name == "all" or kind in ("mixed-1", "code")  # they read no history
        for words in COMMANDS if again else COMMANDS[:4]:
            done = stage.run(folder, *words)
            assert b"not to be shown" not in done.stdout + done.stderr
    for number, (path, form) in enumerate(_importable(folder)):
        stage.run(stage.path, "import", str(path), "--as", form, "--out", f"imported{number}")


def _replaced(kind: str) -> dict[str, tuple[str, ...]]:
    """What is kept in each folder of this kind; code lies beside the files, and replaces none."""
    return {"all": ()} if kind == "code" else {"all": (), "rest": KEPT}


def _importable(folder: Path) -> Iterator[tuple[Path, str]]:
    """Files of a hostile run as histories of other tools."""
    chosen = {"history/*.parquet": "parquet", "*.log": "porcupine", "ledger.jsonl": "jepsen-append"}
    for pattern, form in {**chosen, "nodes/*/*.log": "csv"}.items():
        yield from ((path, form) for path in sorted(folder.glob(pattern))[:1])


def test_a_site_over_all_of_them(stage: Stage) -> None:
    """The list, each report, comparisons, suites and archives are answered by one server."""
    names = []
    for kind in [*KINDS, *MIXED, "code"]:
        for name, keep in _replaced(kind).items():
            names.append(f"{kind}-{name}")
            to = stage.path / "runs" / names[-1]
            hostile_runs.made(stage.base, to, stage.outside, kind, keep)
    before, figure = stage._state(), stage.path / "maxrss"
    argv = [sys.executable, "-P", "-c", MEASURED, figure, SCRIPT, "serve", "runs", "--port", "0"]
    server = subprocess.Popen(
        argv, cwd=stage.path, env=stage.environment, stdout=subprocess.PIPE, start_new_session=True
    )
    assert server.stdout is not None
    found = re.search(rb"http://127\.0\.0\.1:(\d+)/", server.stdout.readline())
    assert found is not None
    port = int(found[1])
    pages = [f"/runs/{name}{part}" for name in names for part in ("", "/live")]
    pages += [f"/compare?run={name}&run=letters-rest" for name in names]
    for page in ("/", "/runs.json", "/suites", "/trial?name=sound", *pages, "/"):
        answer = get(port, page)
        assert answer.split(b"\r\n", 1)[0].split()[1] in (b"200", b"404"), page
        assert b"not to be shown" not in answer
        assert b"Traceback" not in answer
    os.killpg(server.pid, signal.SIGINT)
    server.communicate(timeout=WITHIN_S)
    assert json.loads(figure.read_text()) < MAX_KB
    assert stage._state() == before
