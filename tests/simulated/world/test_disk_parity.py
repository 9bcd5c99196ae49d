"""One script of file calls, on the real disk and on the virtual one: the same answers.

An answer is the result, or the class and number of the OSError. The script is drawn from a seed and
does not know which side it runs on; at its end the process is killed, another one reads every file,
and both sides must show the same again.
"""

import ast
import asyncio
import errno
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from clusters.flotilla.world.ports import File, FileSystem, real
from clusters.hosts._world.network import SimNetwork
from clusters.hosts._world.ports import disk_of, ports_of
from clusters.hosts._world.process import SimHost, SimProcess
from clusters.hosts._world.world import World

STEPS = 150
PATHS = ("a", "b", "d/a", "d/b", "d/e/a", "gone/a", "a/x", "a/x/y", "d", "d/e", "d//a", "d/./b")
FOLDERS = ("d", "d/e", "a", "a/x", "a/x/y", "gone", "", "d/f/g")
SIZES = (-1, 0, 1, 5, 500, 512, 700, 1024, 5000)
Answer = tuple[str, Any]


class Script:
    """One process's calls, drawn on the way: both sides draw alike as long as they answer alike."""

    def __init__(self, seed: int, files: FileSystem, root: str) -> None:
        self._random = Random(seed)
        self._files, self._root = files, root
        self._open: list[File] = []
        self.answers: list[Answer] = []

    async def play(self) -> None:
        for _ in range(STEPS):
            name = self._random.choice(sorted(DRAWN))
            self.answers.append((name, await answer(getattr(self, name))))

    def _path(self, names: tuple[str, ...] = PATHS) -> str:
        return f"{self._root}/{self._random.choice(names)}"

    def _bytes(self) -> bytes:
        return self._random.randbytes(max(self._random.choice(SIZES), 0))

    def _file(self) -> File:
        if not self._open:
            raise LookupError("no file is open")
        return self._random.choice(self._open)

    async def do_open(self) -> int:
        self._open.append(self._files.open(self._path()))
        return len(self._open)

    async def do_open_another(self) -> int:
        return await self.do_open()

    async def do_close(self) -> None:
        file = self._file()
        self._open.remove(file)
        file.close()

    async def do_pwrite(self) -> int:
        return self._file().pwrite(self._bytes(), self._random.choice(SIZES))

    async def do_pwrite_a_view(self) -> int:
        return self._file().pwrite(memoryview(bytearray(self._bytes())), 3)

    async def do_pread(self) -> bytes:
        return self._file().pread(self._random.choice(SIZES), self._random.choice(SIZES))

    async def do_size(self) -> int:
        return self._file().size()

    async def do_truncate(self) -> None:
        self._file().truncate(self._random.choice(SIZES))

    async def do_allocate(self) -> None:
        self._file().allocate(self._random.choice(SIZES))

    async def do_sync(self) -> None:
        await self._file().sync()

    async def do_append(self) -> None:
        self._files.append(self._path(), self._bytes())

    async def do_replace(self) -> None:
        await self._files.replace(self._path(), self._bytes())

    async def do_replace_twice_at_once(self) -> None:
        path = self._path()
        writes = (self._files.replace(path, self._bytes()) for _ in range(2))
        for done in await asyncio.gather(*writes, return_exceptions=True):
            if isinstance(done, BaseException):
                raise done

    async def do_remove(self) -> None:
        self._files.remove(self._path())

    async def do_read(self) -> bytes:
        return self._files.read(self._path())

    async def do_exists(self) -> bool:
        return self._files.exists(self._path())

    async def do_listdir(self) -> list[str]:
        return self._files.listdir(self._path(FOLDERS))

    async def do_makedirs(self) -> None:
        self._files.makedirs(self._path(FOLDERS))

    async def do_sync_folder(self) -> None:
        await self._files.sync_folder(self._path(FOLDERS))


DRAWN = frozenset(name for name in vars(Script) if name.startswith("do_"))


async def answer(call: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await call()
    except OSError as e:
        return type(e).__name__, e.errno
    except LookupError:
        return "no file is open"


def everything(files: FileSystem, root: str, path: str = "") -> dict[str, bytes | None]:
    """Return every path under `root` with its bytes; folders have none."""
    found: dict[str, bytes | None] = {}
    for name in files.listdir(f"{root}/{path}"):
        try:
            found[f"{path}/{name}"] = files.read(f"{root}/{path}/{name}")
        except IsADirectoryError:
            found[f"{path}/{name}"] = None
            found |= everything(files, root, f"{path}/{name}")
    return found


def on_the_real_disk(seed: int, folder: Path) -> tuple[list[Answer], dict[str, bytes | None]]:
    script = Script(seed, real().files, str(folder))
    asyncio.run(script.play())
    return script.answers, everything(real().files, str(folder))


def on_the_virtual_disk(seed: int, root: str) -> tuple[list[Answer], dict[str, bytes | None]]:
    world = World(seed)
    host = SimHost(world, SimNetwork(world), "broker-1", "10.0.0.1")
    disk, scripts = disk_of(host), []
    disk.make_folders(root)

    async def play(process: SimProcess) -> None:
        scripts.append(Script(seed, ports_of(process, disk).files, root))
        await scripts[0].play()
        await asyncio.get_running_loop().create_future()

    async def look(process: SimProcess) -> None:
        found.update(everything(ports_of(process, disk).files, root))

    found: dict[str, bytes | None] = {}
    first = host.start("first", play)
    world.run()
    first.kill()
    host.start("second", look)
    world.run()
    return scripts[0].answers, found


@pytest.mark.parametrize("seed", range(12))
def test_both_disks_give_the_same_answers(seed: int, tmp_path: Path) -> None:
    """Call by call; and after the death of the process the same files with the same bytes."""
    root = "/var/lib/node"
    there, here = on_the_real_disk(seed, tmp_path), on_the_virtual_disk(seed, root)
    for number, (a, b) in enumerate(zip(there[0], here[0], strict=True)):
        assert a == b, f"step {number} of {STEPS}"
    assert there[1] == here[1]


@pytest.mark.bed
@pytest.mark.parametrize("seed", range(100, 103))
def test_a_real_process_that_is_killed_leaves_what_a_simulated_one_leaves(
    seed: int, tmp_path: Path
) -> None:
    """kill -9 after the last call of the script, on both sides: the kernel keeps every byte."""
    process = subprocess.Popen(
        [sys.executable, __file__, str(seed), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    answers = ast.literal_eval(process.stdout.readline())
    process.kill()
    process.communicate()
    assert (answers, everything(real().files, str(tmp_path))) == on_the_virtual_disk(seed, "/var")


PAGE = 4096  # a file system gives room by the page


async def fill(files: FileSystem, root: str) -> list[Any]:
    """Return the answers of a disk with space for 16 pages, call by call."""
    a, b = files.open(f"{root}/a"), files.open(f"{root}/b")

    calls: list[Callable[[], Any]] = [
        lambda: a.allocate(8 * PAGE),
        lambda: b.pwrite(bytes(4 * PAGE), 0),
        lambda: b.pwrite(bytes(8 * PAGE), 4 * PAGE),
        b.size,
        lambda: a.pwrite(bytes(8 * PAGE), 0),
        lambda: a.allocate(9 * PAGE),
        a.size,
        lambda: files.append(f"{root}/c", b"x"),
        lambda: b.truncate(7 * PAGE),
        lambda: files.append(f"{root}/c", bytes(3 * PAGE)),
        lambda: len(files.read(f"{root}/c")),
        lambda: files.remove(f"{root}/c"),
        lambda: a.allocate(9 * PAGE),
    ]
    answers = []
    for call in calls:
        try:
            answers.append(call())
        except OSError as e:
            answers.append(e.errno)
    return answers


@pytest.mark.bed
def test_full_disks_say_the_same(tmp_path: Path) -> None:
    """ENOSPC where the real one has it, after what fitted; preallocated space is still there."""
    mount = f"mount -t tmpfs -o size={16 * PAGE} tmpfs {tmp_path}"
    played = f"{mount} && exec {sys.executable} {__file__} full {tmp_path}"
    ran = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", played],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    world = World(1)
    host = SimHost(world, SimNetwork(world), "a", "10.0.0.1")
    disk, answers = disk_of(host), list[Any]()
    disk.room_bytes = 16 * PAGE

    async def play(process: SimProcess) -> None:
        answers.extend(await fill(ports_of(process, disk).files, ""))

    host.start("p", play)
    world.run()
    assert ast.literal_eval(ran.stdout) == answers
    assert answers.count(errno.ENOSPC) == 3


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_the_scripts_reach_every_answer(tmp_path: Path) -> None:
    """The parity of scripts that only fail, or never fail, would prove little."""
    folders = [made(tmp_path / str(seed)) for seed in range(12)]
    answers = [a for n, folder in enumerate(folders) for a in on_the_real_disk(n, folder)[0]]
    said = {(name, what[0]) for name, what in answers if isinstance(what, tuple)}
    assert {name for name, what in answers if not isinstance(what, tuple)} >= DRAWN
    for name in ("do_open", "do_append", "do_read", "do_remove", "do_replace"):
        assert (name, "FileNotFoundError") in said
        assert (name, "IsADirectoryError") in said
        assert (name, "NotADirectoryError") in said


if __name__ == "__main__":
    if sys.argv[1] == "full":
        print(asyncio.run(fill(real().files, sys.argv[2])))
    else:
        print(on_the_real_disk(int(sys.argv[1]), Path(sys.argv[2]))[0], flush=True)
        sys.stdin.read()
