"""The syscall tracer between a program and its disk: which calls pass, and which programs are
affected.

The traced program can be of any kind; here it is a Python shell that does what the test sends.
Supervisor and programs are real, and so is the kernel's filter.
"""

import errno
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from clusters.hosts._faults import syscall_tracer as _gate
from clusters.hosts._faults import syscalls as _gate_calls

HELD_S = 0.3
GATE = [sys.executable, "-I", "-S", _gate.__file__]
OBEDIENT = """
import ctypes, errno, json, mmap, os, sys, time
fds = {}
def called(name, *args):
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*args) < 0:
        raise OSError(ctypes.get_errno(), name)
def mapped(name):
    return mmap.mmap(opened(name), 100)
def opened(name):
    if name not in fds:
        fds[name] = os.open(name, os.O_RDWR | os.O_CREAT)
    return fds[name]
for line in sys.stdin:
    began, answer = time.monotonic(), ""
    try:
        answer = repr(eval(line))
    except OSError as e:
        answer = errno.errorcode[e.errno]
    print(json.dumps([answer, time.monotonic() - began]), flush=True)
"""


class Fence:
    """A supervisor, and traced programs."""

    def __init__(self, folder: Path, *ledger: str) -> None:
        self.folder, self.name = folder, f"seatrial-test-{os.getpid()}-{id(self):x}"
        self.programs: list[subprocess.Popen[str]] = []
        self.warden = self._begun("watch", self.name, *ledger)
        assert self._line(self.warden) == "0 ready"

    def program(self, *argv: str) -> "subprocess.Popen[str]":
        program = self._begun("enter", self.name, "--", *(argv or (sys.executable, "-c", OBEDIENT)))
        self.programs.append(program)
        return program

    def order(self, **order: Any) -> None:
        whole = {"below": str(self.folder), **order} if order else {}
        self._say(self.warden, json.dumps(whole))
        assert self._line(self.warden) == "0 obeyed"

    def loses_all(self, files: int, names: int) -> dict[str, Any]:
        """Return the supervisor's answer once the programs are dead and everything at stake is
        lost."""
        for program in self.programs:
            program.kill()
            program.wait()
        self._say(self.warden, json.dumps({"lose": unlucky(files, names)}))
        told: dict[str, Any] = json.loads(self._line(self.warden).removeprefix("0 "))
        assert (told["files"], told["names"]) == (files, names), told
        return told

    def does(self, program: "subprocess.Popen[str]", deed: str) -> tuple[str, float]:
        self._say(program, deed)
        answer, seconds = json.loads(self._line(program))
        return answer, seconds

    def tried(self, patience_s: float = 10.0) -> dict[str, Any]:
        argv = [*GATE, "try", self.name, str(self.folder), str(patience_s)]
        out = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=600).stdout
        told: dict[str, Any] = json.loads(out)
        return told

    def end(self) -> None:
        for process in (*self.programs, self.warden):
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe
                pipe.close()

    def _begun(self, *argv: str) -> "subprocess.Popen[str]":
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen([*GATE, *argv], text=True, cwd=self.folder, **pipes)  # type: ignore[call-overload,no-any-return]

    def _say(self, process: "subprocess.Popen[str]", line: str) -> None:
        assert process.stdin
        process.stdin.write(f"{line}\n")
        process.stdin.flush()

    def _line(self, process: "subprocess.Popen[str]") -> str:
        assert process.stdout
        return process.stdout.readline().strip()


@pytest.fixture
def fence(tmp_path: Path) -> Iterator[Fence]:
    folder = tmp_path / "store"
    folder.mkdir()
    fence = Fence(folder)
    yield fence
    fence.end()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Fence]:
    """One whose supervisor records unsynced changes."""
    folder = tmp_path / "store"
    folder.mkdir()
    fence = Fence(folder, str(folder))
    yield fence
    fence.end()


def unlucky(files: int, names: int) -> int:
    """A seed with which a power cut keeps nothing of so many files and names."""
    for seed in itertools.count():
        dice = Random(seed)
        if all(dice.random() < 0.25 and dice.random() >= 0 for _ in range(files)) and not (
            names and dice.randint(0, names)
        ):
            return seed
    raise AssertionError


WRITE = "os.pwrite(opened('f'), b'x' * 100, 0)"
SYNC = "os.fdatasync(opened('f'))"


def test_without_orders_everything_passes(fence: Fence) -> None:
    """The program runs, writes, syncs, renames, and gets its answers."""
    program = fence.program()
    for deed, answer in (
        (WRITE, "100"),
        (SYNC, "None"),
        ("os.rename('f', 'g')", "None"),
        ("os.mkdir('sub')", "None"),
        ("os.read(opened('g'), 3)", "b'xxx'"),
    ):
        assert fence.does(program, deed)[0] == answer, deed
    assert sorted(os.listdir(fence.folder)) == ["g", "sub"]
    told = fence.tried()
    assert (told["write"], told["sync"]) == ("", "")
    assert sorted(os.listdir(fence.folder)) == ["g", "sub"], "the prober leaves nothing"


def test_a_full_disk_refuses_what_needs_room(fence: Fence) -> None:
    """Not what was allocated before, and nothing elsewhere; healed, it accepts everything again."""
    program = fence.program()
    fence.does(program, "os.posix_fallocate(opened('f'), 0, 8192)")
    fence.order(full=True)
    assert fence.does(program, WRITE)[0] == "100"
    for deed in (
        "os.pwrite(opened('f'), b'x' * 100, 8192 - 50)",
        "os.write(opened('new'), b'x')",
        "os.writev(opened('new'), [b'x', b'y'])",
        "os.posix_fallocate(opened('f'), 0, 65536)",
    ):
        assert fence.does(program, deed)[0] == "ENOSPC", deed
    assert fence.does(program, "os.write(opened('../beside'), b'x')")[0] == "1"
    assert fence.tried()["write"] == "ENOSPC"
    fence.order()
    assert fence.does(program, "os.write(opened('new'), b'x')")[0] == "1"
    assert fence.tried()["write"] == ""


def test_nothing_changes_below_a_read_only_folder(fence: Fence) -> None:
    """By descriptor, by path, and by a path with detours; reads work."""
    program = fence.program()
    fence.does(program, WRITE)
    fence.does(program, "opened('../beside')")
    fence.order(read_only=True)
    for deed in (
        WRITE,
        "os.write(opened('f'), b'x')",
        "os.ftruncate(opened('f'), 0)",
        "os.truncate('f', 0)",
        "os.open('f', os.O_WRONLY)",
        "os.open('new', os.O_WRONLY | os.O_CREAT)",
        "os.open('../store/new', os.O_WRONLY | os.O_CREAT)",
        "os.unlink('f')",
        "os.rename('f', 'g')",
        "os.replace('../beside', 'g')",
        "os.link('f', 'g')",
        "os.symlink('f', 'g')",
        "os.mkdir('sub')",
    ):
        assert fence.does(program, deed)[0] == "EROFS", deed
    assert fence.does(program, "os.pread(os.open('f', os.O_RDONLY), 3, 0)")[0] == "b'xxx'"
    assert fence.does(program, "os.write(opened('../beside'), b'x')")[0] == "1"
    assert fence.tried()["write"] == "EROFS"
    fence.order()
    assert fence.does(program, "os.unlink('f')")[0] == "None"


def test_syncs_fail_are_slow_and_hang(fence: Fence) -> None:
    """With EIO; for the set time; and until they are released, while the program's other threads go
    on. Beside the folder they work as usual."""
    program = fence.program()
    fence.does(program, WRITE)
    fence.order(sync_fails=True)
    assert fence.does(program, SYNC)[0] == "EIO"
    assert fence.does(program, "os.fsync(opened('../beside'))")[0] == "None"
    assert fence.tried()["sync"] == "EIO"
    fence.order(sync_s=HELD_S)
    answer, seconds = fence.does(program, SYNC)
    assert answer == "None"
    assert seconds >= HELD_S
    assert fence.tried()["sync_s"] >= HELD_S
    fence.order(sync_s=HELD_S, sync_fails=True)
    answer, seconds = fence.does(program, SYNC)
    assert (answer, seconds >= HELD_S) == ("EIO", True), "late, and in vain"
    fence.order(sync_s=None)
    assert fence.tried(patience_s=0.2)["sync_s"] == -1
    answers: list[tuple[str, float]] = []
    waiting = threading.Thread(target=lambda: answers.append(fence.does(program, SYNC)))
    waiting.start()
    assert fence.does(fence.program(), WRITE)[0] == "100"
    assert not answers
    fence.order()
    waiting.join(30)
    assert answers[0][0] == "None"
    assert fence.tried()["sync"] == ""


def test_when_nobody_gives_orders_any_more_all_passes(fence: Fence) -> None:
    """The tracer of a driver that died allows everything, and its supervisor stays as long as it is
    needed."""
    program = fence.program()
    fence.order(read_only=True, sync_s=None)
    assert fence.does(program, WRITE)[0] == "EROFS"
    assert fence.warden.stdin
    fence.warden.stdin.close()
    assert fence.warden.stdout
    while fence.does(program, WRITE)[0] != "100":
        pass
    assert fence.does(program, SYNC)[0] == "None"
    assert fence.warden.poll() is None
    program.kill()
    assert fence.warden.wait(30) == 0


def test_a_program_of_another_language_is_held_as_well(fence: Fence) -> None:
    """The kernel asks, so nothing is preloaded into any program."""
    fence.order(read_only=True)
    shell = fence.program("sh", "-c", "read line; echo x > f; echo $?")
    fence._say(shell, "go")
    assert fence._line(shell) != "0"
    assert not (fence.folder / "f").exists()


def test_what_can_not_be_started_says_so(fence: Fence) -> None:
    """The error contains the program's name."""
    argv = [*GATE, "enter", fence.name, "--", "/no/such/program"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 1
    assert "/no/such/program: No such file" in done.stderr


KEPT = b"k" * 100


@pytest.mark.parametrize(
    "deed",
    [
        "os.pwrite(opened('f'), b'x' * 50, 75)",
        "os.write(opened('f'), b'x' * 50)",
        "os.lseek(opened('f'), 30, 0) and os.write(opened('f'), b'x' * 50)",
        "os.writev(opened('f'), [b'x' * 50, b'y' * 70])",
        "os.pwritev(opened('f'), [b'x' * 50, b'y' * 70], 20)",
        "os.write(os.open('f', os.O_WRONLY | os.O_APPEND), b'x' * 50)",
        "os.ftruncate(opened('f'), 10)",
        "os.truncate('f', 1000)",
        "os.open('f', os.O_WRONLY | os.O_TRUNC)",
        "os.posix_fallocate(opened('f'), 0, 8192)",
    ],
)
def test_what_was_not_synced_is_taken_away(ledger: Fence, deed: str) -> None:
    """By whatever call it was written: the file is as it was when it was synced."""
    (ledger.folder / "f").write_bytes(KEPT)
    program = ledger.program()
    assert not ledger.does(program, deed)[0].startswith("E"), deed
    assert (ledger.folder / "f").read_bytes() != KEPT
    told = ledger.loses_all(files=1, names=0)
    assert told["lost_bytes"] == told["size_bytes"]
    assert (ledger.folder / "f").read_bytes() == KEPT
    assert told["unseen"] == []


@pytest.mark.parametrize(
    "cover",
    [
        "os.fsync(opened('f'))",
        "os.fdatasync(opened('f'))",
        "os.sync()",
        "os.write(os.open('f', os.O_WRONLY | os.O_DSYNC), b'x')",
        "mapped('f').flush()",
    ],
)
def test_what_was_synced_is_kept(ledger: Fence, cover: str) -> None:
    """By whatever call; later changes are at stake again, and before those of any other file."""
    (ledger.folder / "f").write_bytes(KEPT)
    program = ledger.program()
    ledger.does(program, WRITE)
    assert not ledger.does(program, cover)[0].startswith("E"), cover
    ledger.does(program, "os.pwrite(opened('f'), b'y' * 100, 50)")
    told = ledger.loses_all(files=1, names=0)
    assert (ledger.folder / "f").read_bytes() == b"x" * 100
    assert told["unseen"] == (["f is mapped into memory"] if "mapped" in cover else [])


def test_names_that_no_sync_of_their_folder_covered_are_taken_away(ledger: Fence) -> None:
    """Made, linked, renamed and removed, by path or from a folder's descriptor."""
    for name in ("a", "b", "c"):
        (ledger.folder / name).write_text(name)
    program = ledger.program()
    deeds = (
        "os.mkdir('sub')",
        "os.open('sub/new', os.O_WRONLY | os.O_CREAT)",
        "os.link('a', 'a2')",
        "os.symlink('a', 'a3')",
        "os.rename('a', 'sub/a')",
        "os.replace('b', 'c')",
        "os.unlink('c', dir_fd=os.open('.', os.O_RDONLY))",
    )
    for deed in deeds:
        assert not ledger.does(program, deed)[0].startswith("E"), deed
    told = ledger.loses_all(files=0, names=len(deeds))
    assert (told["lost_names"], told["unseen"]) == (len(deeds), [])
    assert {path.name: path.read_text() for path in ledger.folder.iterdir()} == {
        "a": "a",
        "b": "b",
        "c": "c",
    }


def test_a_folder_that_was_synced_keeps_its_names(ledger: Fence) -> None:
    """And calls that failed, or are beside the folder, are not at stake."""
    program = ledger.program()
    ledger.does(program, "opened('new')")
    ledger.does(program, "os.fsync(os.open('.', os.O_RDONLY))")
    ledger.does(program, "os.open('new', os.O_CREAT | os.O_EXCL)")
    ledger.does(program, "os.write(opened('../beside'), b'x')")
    ledger.loses_all(files=0, names=0)
    assert os.listdir(ledger.folder) == ["new"]


def test_a_sync_that_failed_or_hung_covers_nothing(ledger: Fence) -> None:
    """The disk did not do it, so a power cut takes what it should have covered."""
    (ledger.folder / "f").write_bytes(KEPT)
    program = ledger.program()
    ledger.does(program, WRITE)
    ledger.order(sync_fails=True)
    assert ledger.does(program, SYNC)[0] == "EIO"
    ledger.order(sync_s=None)
    ledger._say(program, SYNC)
    told = ledger.loses_all(files=1, names=0)
    assert (ledger.folder / "f").read_bytes() == KEPT
    assert told["unseen"] == []


def test_a_sync_after_one_that_failed_covers_pages_written_since(ledger: Fence) -> None:
    """Other pages can still be read, since the kernel marks them as clean; a power cut
    takes them."""
    (ledger.folder / "f").write_bytes(b"-" * 8192)
    program = ledger.program()
    ledger.does(program, "[os.pwrite(opened('f'), b'one', at) for at in (0, 4096)]")
    ledger.order(sync_fails=True)
    assert ledger.does(program, SYNC)[0] == "EIO"
    ledger.order()
    ledger.does(program, "os.pwrite(opened('f'), b'two', 4096 + 3)")
    assert ledger.does(program, SYNC)[0] == "None"
    told = ledger.loses_all(files=1, names=0)
    assert (told["size_bytes"], told["lost_bytes"]) == (3, 3)
    assert (ledger.folder / "f").read_bytes()[4090:4102] == b"------onetwo"


def test_what_was_done_from_elsewhere_is_settled(ledger: Fence) -> None:
    """Nothing of what is there then is taken."""
    program = ledger.program()
    ledger.does(program, WRITE)
    ledger._say(ledger.warden, json.dumps({"settle": True}))
    assert ledger._line(ledger.warden) == "0 obeyed"
    ledger.loses_all(files=0, names=0)
    assert (ledger.folder / "f").read_bytes() == b"x" * 100


def test_the_prober_makes_nothing_durable(ledger: Fence) -> None:
    """It syncs the folder as a probe; the node has asked for no sync."""
    program = ledger.program()
    ledger.does(program, "opened('new')")
    assert ledger.tried()["sync"] == ""
    told = ledger.loses_all(files=0, names=1)
    assert (told["lost_names"], os.listdir(ledger.folder)) == (1, [])


ABSURD = {
    "os.ftruncate(opened('f'), -1)": "EINVAL",
    "os.pwrite(opened('f'), b'x', -1)": "EINVAL",
    "called('open', ctypes.c_void_p(-1), os.O_RDWR)": "EFAULT",
    "called('writev', opened('f'), ctypes.c_void_p(-1), 1)": "EFAULT",
}


@pytest.mark.parametrize("order", [{}, {"read_only": True}, {"full": True}])
def test_the_gate_outlives_absurd_calls(ledger: Fence, order: dict[str, bool]) -> None:
    """Whatever a program asks for, the kernel or the order answers it, and the tracer goes on."""
    program = ledger.program()
    ledger.does(program, WRITE)
    ledger.order(**order)
    for deed, error in ABSURD.items():
        assert ledger.does(program, deed)[0] in (error, "EROFS", "ENOSPC"), deed
    ledger.order()
    assert ledger.does(program, WRITE)[0] == "100"


def test_who_is_killed_while_his_words_are_read_has_none(tmp_path: Path) -> None:
    """The memory of a process that died after it was opened is empty: reading it ends."""

    class Dying(_gate_calls.Call):
        @property
        def proc(self) -> str:
            return str(tmp_path)

    (tmp_path / "mem").touch()
    (tmp_path / "cwd").symlink_to(tmp_path)
    call = Dying(0, 0, 0, "mkdir", (4096, 0, 0, 0, 0, 0))
    assert not _gate_calls.is_below(call, str(tmp_path))


def test_what_the_prober_left_is_no_fault_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk became read-only between the probe's writing and removing, and is healed."""
    probe = tmp_path / "probe"

    def refused(_path: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as read_only:
        read_only.setattr(os, "unlink", refused)
        assert _gate._write(str(probe)) == ""
        assert probe.exists()
    assert _gate._write(str(probe)) == ""
    assert not probe.exists()


def test_the_filter_asks_about_every_call_that_it_knows() -> None:
    """Each number once, and each name has a rule that decides it."""
    calls = _gate_calls
    for _, numbers, _ in calls.MACHINES.values():
        assert len(set(numbers.values())) == len(numbers)
        of_paths = {name for name in numbers if name in calls.PATHS}
        assert set(numbers) == (
            of_paths | calls.SYNCS | calls.WRITES | calls.ALWAYS_ALLOWED | {"ftruncate"}
        )
    assert set(calls.PATHS) - calls.REMOVING - calls.RENAMING - calls.MAKING == (
        {"open", "openat", "creat", "truncate"}
    )
    assert len(_gate.program()) % 8 == 0
    assert errno.errorcode[errno.EROFS] == "EROFS"


@pytest.mark.parametrize("by_signal", [True, False])
def test_a_call_of_an_ended_process_is_none_that_was_missed(by_signal: bool) -> None:
    """Its folder in /proc is there until its parent has asked how it ended."""
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    proc = f"/proc/{child.pid}"
    assert not _gate.was_killed(proc)
    if by_signal:
        child.kill()
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still there
    assert Path(proc).exists()
    assert _gate.was_killed(proc)
    child.wait()
    assert _gate.was_killed(proc)
