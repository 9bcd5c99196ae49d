"""The seam holds: code that a simulated world must be able to run touches no real clock, dice,
thread or file.

Monotonic time and network are the asyncio loop; files, randomness, wall clock and exit go through
ports. A whole trial can then run in virtual time, and the same seed gives the same bytes. What is
scanned is what the code can reach: imports are resolved, so `from time import monotonic as now` is
seen as `time.monotonic`.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

CLOCKS = ("time", "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.date.today")
DICE = ("random", "secrets", "uuid", "os.urandom", "os.getrandom")
THREADS = ("threading", "multiprocessing", "concurrent", "_thread", "subprocess", "signal")
STREAMS = (
    "asyncio.wait_for",  # its internals and order change between versions
    "asyncio.open_connection",
    "asyncio.start_server",
    "asyncio.StreamReader",
    "asyncio.StreamWriter",
    "asyncio.to_thread",
    "asyncio.as_completed",
    "asyncio.create_subprocess_exec",
    "asyncio.create_subprocess_shell",
)
SOCKETS = ("socket", "select", "selectors")
FILES = ("open", "os", "io", "shutil", "tempfile", "mmap", "fcntl", "pathlib")
METHODS = {"read_text", "write_text", "read_bytes", "write_bytes", "run_in_executor"}

# pure data about the system that no simulation needs to replace
HARMLESS = {"os.fsencode", "os.fsdecode", "os.PathLike", "os.path.join", "io.BytesIO"}
# seeded generators are values; the module's own functions are a hidden global
SEEDED = {"random.Random"}


@dataclass(frozen=True)
class Area:
    """Files under one rule. `allowed` names what a file may use although others may not.

    `doors` are functions through which the real world enters: whoever simulates replaces them.
    """

    paths: tuple[str, ...]
    forbidden: tuple[str, ...]
    allowed: frozenset[str] = frozenset()
    exempt: tuple[str, ...] = ()
    doors: frozenset[str] = frozenset()

    def files(self) -> Iterator[Path]:
        for pattern in self.paths:
            for path in sorted(ROOT.glob(pattern)):
                if path.relative_to(ROOT).as_posix() not in self.exempt:
                    yield path


EVERYTHING = (*CLOCKS, *DICE, *THREADS, *STREAMS, *SOCKETS, *FILES)
AREAS = {
    "flotilla": Area(
        ("clusters/flotilla/**/*.py", "clusters/flotilla_mutants/*.py"),
        EVERYTHING,
        frozenset(),
        # the ports are the world; the mains read one configuration file and hand out ports
        (
            "clusters/flotilla/world/ports.py",
            "clusters/flotilla/__main__.py",
            "clusters/flotilla_mutants/__main__.py",
        ),
    ),
    "schedule and workloads": Area(
        ("harness/run/schedule.py", "harness/workloads/*.py"),
        EVERYTHING,
        frozenset(SEEDED),
    ),
    "nemesis": Area(
        ("nemesis/*.py",),
        EVERYTHING,
        frozenset(
            SEEDED | {"signal.SIGKILL", "signal.SIGSTOP", "signal.SIGCONT", "signal.SIGTERM"}
        ),
        (
            "nemesis/_runner/ledger.py",
        ),  # a file by trade: intent must be on disk before the fault is
    ),
    "crew": Area(
        ("harness/run/client_process.py", "clusters/systems/*/client.py"),
        EVERYTHING,
        frozenset(SEEDED | {"pathlib.Path"}),
        doors=frozenset({"main", "_session", "_print", "_die"}),
    ),
    # they write real files in a simulated world too; what must not be real is their timer
    "journal": Area(
        ("harness/history/journal.py", "harness/history/row_stream.py"),
        (*CLOCKS, *DICE, *THREADS, *STREAMS, *SOCKETS),
    ),
}


def uses(source: str, doors: frozenset[str] = frozenset()) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything a module uses of other modules and of builtins."""
    tree = ast.parse(source)
    bound = dict(_imports(tree))
    tree.body = [node for node in tree.body if getattr(node, "name", None) not in doors]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Attribute):
            if node.attr in METHODS:
                yield node.lineno, f".{node.attr}"
            if dotted := _dotted(node, bound):
                yield node.lineno, dotted
        elif isinstance(node, ast.Name) and node.id == "open":
            yield node.lineno, "open"


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Local name -> dotted name, for `import a.b as c` and `from a import b as c`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _dotted(node: ast.expr, bound: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        head = _dotted(node.value, bound)
        return f"{head}.{node.attr}" if head else ""
    return bound.get(node.id, "") if isinstance(node, ast.Name) else ""


def _within(name: str, prefixes: frozenset[str] | tuple[str, ...] | set[str]) -> bool:
    return any(name == p or name.startswith(f"{p}.") for p in prefixes)


def _is_method(name: str, area: Area) -> bool:
    """A method by whose name alone we know what it does."""
    return name.startswith(".") and (name == ".run_in_executor" or "pathlib" in area.forbidden)


def breaches(source: str, area: Area) -> list[tuple[int, str]]:
    found = set()
    for line, name in uses(source, area.doors):
        forbidden = _is_method(name, area) or _within(name, area.forbidden)
        if forbidden and not _within(name, area.allowed | HARMLESS):
            found.add((line, name))
    return sorted(found)


@pytest.mark.parametrize("name", AREAS)
def test_the_seam_holds(name: str) -> None:
    """No clock, dice, thread, stream or file call outside the module that owns them."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {used}"
        for path in AREAS[name].files()
        for line, used in breaches(path.read_text(), AREAS[name])
    ]
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.monotonic()",
        "from time import monotonic as now",
        "import random as dice\ndice.random()",
        "import os\nos.urandom(8)",
        "import threading\nthreading.Thread()",
        "import asyncio\nasyncio.wait_for(x, 1)",
        "from asyncio import open_connection",
        "open('x')",
        "def f(path):\n    return path.read_text()",
        "from datetime import datetime\ndatetime.now()",
        "import socket\nsocket.socket()",
    ],
)
def test_the_scan_sees_a_breach(source: str) -> None:
    """A scan that finds nothing must be one that could have found something."""
    assert breaches(source, AREAS["flotilla"])


def test_a_door_is_open_and_nothing_else() -> None:
    """The real clock may enter through `main`, and through no function beside it."""
    area, now = AREAS["crew"], "    return time.monotonic_ns()\n"
    assert not breaches(f"import time\ndef main():\n{now}", area)
    assert breaches(f"import time\ndef other():\n{now}", area)


@pytest.mark.parametrize(
    "source",
    [
        "from random import Random\nRandom(7).random()",
        "import asyncio\nasyncio.get_running_loop().time()",
        "def f(files):\n    files.open('x')",
    ],
)
def test_the_scan_lets_the_seam_through(source: str) -> None:
    """Seeded generators, the loop's own clock and the ports are what the code is meant to use."""
    assert not breaches(source, AREAS["nemesis"])
