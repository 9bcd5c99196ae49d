"""Imports that are interrupted end soon, with one sentence, and leave nothing behind."""

import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from terminal_lab import CTRL_C, PATIENCE_S, Terminal, wait_until

from harness.cli.exit_codes import exit_code
from harness.history.rundir import RunDir
from harness.importers import _run_folder
from harness.importers._jepsen import MANY_PIECES, MAX_WAITING
from harness.importers._source import PIECE_BYTES, AbandonedThreads, quiet_processes
from harness.run.interrupts import stop_signals_deferred

SCRIPT = Path(sys.executable).with_name("seatrial")
READ_BYTES = (MANY_PIECES + 3) * PIECE_BYTES  # then threads or processes are at work
FILE_BYTES = READ_BYTES + MAX_WAITING * PIECE_BYTES
LINES = {
    "jepsen-kafka": (
        b"{:type :invoke, :process 1, :f :send, :value [[:send x 7]], :time 14}\n"
        b"{:type :ok, :process 1, :f :send, :value [[:send x [7 7]]], :time 15}\n"
    ),
    "jepsen-register": (
        b"{:type :invoke, :process 1, :f :write, :value 7, :time 14}\n"
        b"{:type :ok, :process 1, :f :write, :value 7, :time 15}\n"
    ),
}
STOPPED = "seatrial: stopped before there was a verdict"
SEND_HALF = """
import os, signal
os.write(result_queue._writer.fileno(), (100).to_bytes(4) + b"some of 100 bytes")
open({!r}, "x").close()
signal.pause()
"""


@dataclass
class LargeImport:
    """The import of a file that takes long to read."""

    folder: Path
    form: str

    @property
    def file(self) -> Path:
        return self.folder / "large.edn"

    def command(self) -> list[str | Path]:
        return [SCRIPT, "import", self.file, "--as", self.form, "--out", self.folder / "run"]

    def environment(self, **more: str) -> Mapping[str, str]:
        return {**os.environ, "TMPDIR": str(self.folder / "tmp"), **more}

    def has_begun(self, pid: int) -> bool:
        """Whether a process has read the beginning of the file."""
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it may be closed meanwhile
                if entry.samefile(self.file):
                    position, *_ = Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text().splitlines()
                    return int(position.split()[1]) >= READ_BYTES
        return False

    def has_left(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("*"))


@pytest.fixture(params=LINES)
def large(request: pytest.FixtureRequest, tmp_path: Path) -> LargeImport:
    """One of threads, and one of processes."""
    (tmp_path / "tmp").mkdir()
    large = LargeImport(tmp_path, request.param)
    lines = LINES[large.form]
    large.file.write_bytes(lines * (FILE_BYTES // len(lines)))
    return large


@pytest.mark.parametrize(
    ("send", "number"),
    [(os.kill, signal.SIGINT), (os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM)],
    ids=["process", "group", "terminated"],
)
def test_an_import_that_is_interrupted_leaves_nothing_behind(
    large: LargeImport, send: Callable[[int, int], None], number: signal.Signals
) -> None:
    """Exit code 2 and one sentence, whether the signal is sent to the command or, as by a terminal,
    to all of its processes, none of which is left."""
    with subprocess.Popen(
        large.command(),
        env=large.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        wait_until(lambda: large.has_begun(process.pid))
        send(process.pid, number)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (2, "", f"{STOPPED}\n")
    assert large.has_left() == ["large.edn", "tmp"]
    wait_until(lambda: not _is_group(process.pid))


def test_the_first_compilation_is_not_waited_for(large: LargeImport, tmp_path: Path) -> None:
    """It takes many seconds, in threads or processes, and nothing in them can be interrupted: their
    work is abandoned, and no compiled function is stored."""
    cache = tmp_path / "tmp" / "kernels"
    cache.mkdir()
    seen = large.environment(NUMBA_CACHE_DIR=str(cache), NUMBA_DUMP_BYTECODE="1")
    with closing(Terminal(large.command(), seen, columns=200)) as terminal:
        terminal.wait_for("LOAD_FAST")
        terminal.press(CTRL_C)
        assert terminal.exit_code() == 2
        wait_until(lambda: not _is_group(terminal.process.pid))
    assert terminal.text.count(STOPPED) == 1
    assert "Traceback" not in terminal.text
    assert not list(cache.rglob("*.nbc"))
    assert not (tmp_path / "run").exists()


def test_threads_are_not_waited_for() -> None:
    """The pool is shut down while one works."""
    is_over = Event()
    pool = AbandonedThreads(1)
    work = pool.submit(is_over.wait, PATIENCE_S)
    pool.shutdown()
    is_waiting = not work.done()
    is_over.set()
    assert is_waiting


def test_the_rest_of_half_a_result_is_not_waited_for(tmp_path: Path) -> None:
    """A process is killed while it sends its result to the thread that reads results."""
    sent = tmp_path / "sent"
    pool = quiet_processes(1, None)
    results: Any = pool._result_queue
    pool.submit(exec, SEND_HALF.format(str(sent)))  # with the variables of the pool's own loop
    wait_until(sent.exists)
    reader: Any = pool._executor_manager_thread
    try:
        pool.shutdown(wait=False)
        wait_until(lambda: not reader.is_alive())
    finally:
        results._writer.close()


def test_a_stop_is_deferred_to_the_end_of_a_block() -> None:
    """A join in it is not interrupted."""
    joined: list[bool] = []

    def join() -> None:
        with stop_signals_deferred():
            os.kill(os.getpid(), signal.SIGINT)
            joined.append(True)

    with pytest.raises(KeyboardInterrupt):
        join()
    assert joined


def _is_group(number: int) -> bool:
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_import_shows_that_it_reads_until_ctrl_c_is_pressed(large: LargeImport) -> None:
    """On a terminal."""
    with closing(Terminal(large.command(), large.environment(), columns=200)) as terminal:
        terminal.wait_for("importing large.edn: reading")
        wait_until(lambda: large.has_begun(terminal.process.pid))
        terminal.press(CTRL_C)
        assert terminal.exit_code() == 2
    assert terminal.text.splitlines()[-1] == STOPPED
    assert "Traceback" not in terminal.text
    assert large.has_left() == ["large.edn", "tmp"]


@pytest.mark.parametrize("was_there", [False, True])
@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 2), (OSError(28, "full"), 255)])
def test_an_import_that_fails_while_it_writes_leaves_no_half_of_a_run(
    tmp_path: Path,
    error: BaseException,
    code: int,
    was_there: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An empty folder is there afterwards if it was before."""
    out = tmp_path / "run"
    if was_there:
        out.mkdir()
    (tmp_path / "small.edn").write_bytes(LINES["jepsen-register"])

    def fail(path: Path, table: object) -> None:
        path.write_bytes(b"half of it")
        raise error

    monkeypatch.setattr(_run_folder, "_write_table", fail)
    command = ("import", str(tmp_path / "small.edn"), "--as", "jepsen-register", "--out", str(out))
    assert exit_code(command) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("seatrial: ")
    assert code == 2 or f"cannot write {out}: full; " in line
    assert out.exists() is was_there
    assert sorted(path.name for path in tmp_path.rglob("*")) == [*["run"] * was_there, "small.edn"]


def test_an_import_to_a_full_disk_names_the_folder(tmp_path: Path) -> None:
    """A disk of four pages."""
    disk, file = tmp_path / "disk", tmp_path / "small.edn"
    disk.mkdir()
    file.write_bytes(LINES["jepsen-register"])
    mounted = 'mount -t tmpfs -o size=16k none "$0" || exit 99; "$@"; test $? = 255 && ls "$0"'
    ran = subprocess.run(
        [
            *("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mounted, disk),
            *(SCRIPT, "import", file, "--as", "jepsen-register", "--out", disk / "run"),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "")
    (line,) = ran.stderr.splitlines()
    assert line.startswith(f"seatrial: cannot write {disk / 'run'}: No space left on device; ")


def test_a_state_that_cannot_be_written_names_its_file(tmp_path: Path) -> None:
    """A write does not know the name of its file."""
    (tmp_path / ".run.json.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match=re.escape(str(tmp_path / "run.json"))) as failed:
        RunDir(tmp_path).update_state(ended=True)
    assert failed.value.errno == errno.ENOSPC


def test_an_import_does_not_load_pandas(tmp_path: Path) -> None:
    """pyarrow would load it in a callback, where an interrupt is lost."""
    file = tmp_path / "small.edn"
    file.write_bytes(LINES["jepsen-register"])
    command = ["import", str(file), "--as", "jepsen-register", "--out", str(tmp_path / "run")]
    program = (
        "import sys; from harness.cli.exit_codes import exit_code;"
        f" print(exit_code({command!r}), 'pandas' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.splitlines()[-1] == "0 False", ran.stderr
