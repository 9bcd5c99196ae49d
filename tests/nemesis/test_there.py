"""The programs that are run on nodes, on real processes of this machine."""

import json
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import leftovers
import pytest

from clusters.hosts._faults import rlimits as _limits

PROGRAMS = Path(_limits.__file__).parent
# 5 is the coarse wall clock
TELLS = """
import ctypes, datetime, os, sys, time
libc = ctypes.CDLL(None)
while sys.stdin.readline():
    spec = (ctypes.c_int64 * 2)()
    libc.gettimeofday(spec, None)
    by_time = libc.time(None)
    print(time.time(), time.monotonic(), spec[0] + spec[1] / 1e6, by_time,
          time.clock_gettime(5), flush=True)
"""


class Victim:
    """A process in a group of its own that prints the time on request."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", TELLS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.clocks()

    def clocks(self) -> list[float]:
        """The wall clock, the monotonic one, and the wall clock by three other ways."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return [float(word) for word in self.process.stdout.readline().split()]

    def ahead_s(self, other: "Victim") -> list[float]:
        """Of another process, by each of these clocks."""
        return [own - theirs for own, theirs in zip(self.clocks(), other.clocks(), strict=True)]

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def victim() -> Iterator[Victim]:
    one = Victim()
    yield one
    one.end()


@pytest.fixture
def other() -> Iterator[Victim]:
    """One that nothing is done to."""
    one = Victim()
    yield one
    one.end()


def told(program: str, *words: object) -> Any:
    """Return what the program prints, or its error message if it fails."""
    done = subprocess.run(
        [sys.executable, "-S", "-s", PROGRAMS / f"{program}.py", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the code is for x86-64")


@x86_64
def test_a_wall_clock_is_ahead_however_it_is_asked(victim: Victim, other: Victim) -> None:
    """By clock_gettime, gettimeofday and time; the monotonic one is right. It can be changed."""
    pid = victim.process.pid
    for ahead_s in (5000, -7000):
        shown = told("wall_clock", "set", pid, ahead_s * 10**9, 1.0)
        assert shown[str(pid)]["ahead_s"] == pytest.approx(ahead_s, abs=0.01)
        wall, mono, *others = victim.ahead_s(other)
        assert [wall, *others] == pytest.approx([ahead_s] * 4, abs=600)
        assert mono == pytest.approx(0, abs=600)


@x86_64
def test_a_wall_clock_goes_faster(victim: Victim) -> None:
    """What it shows beyond the true time grows with the true time, at its rate."""
    shown = told("wall_clock", "set", victim.process.pid, 0, 3.0)
    assert shown[str(victim.process.pid)]["rate"] == pytest.approx(3.0, abs=0.1)
    (wall, mono, *_), (later, mono_later, *_) = victim.clocks(), victim.clocks()
    while mono_later - mono < 0.05:
        later, mono_later, *_ = victim.clocks()
    assert (later - wall) / (mono_later - mono) > 2


@x86_64
def test_a_wall_clock_is_given_back(victim: Victim, other: Victim) -> None:
    """It shows the true time, and the next change finds everything in its place."""
    pid = victim.process.pid
    for _ in range(2):
        told("wall_clock", "set", pid, 9000 * 10**9, 1.0)
        assert told("wall_clock", "clear", pid) == {str(pid): {"ahead_s": 0.0, "rate": 1.0}}
        assert victim.ahead_s(other) == pytest.approx([0] * 5, abs=600)
    assert told("wall_clock", "clear", pid)[str(pid)]["ahead_s"] == 0


@x86_64
def test_children_are_in_the_group(victim: Victim) -> None:
    """Children of a process have its clock; other processes do not."""
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        while not any(
            leftovers.command(p).endswith(" input()") for p in _limits.members(parent.pid)
        ):
            pass  # until the child executes its own program
        shown = told("wall_clock", "set", parent.pid, 10**12, 1.0)
        assert len(shown) == 2
        assert {round(each["ahead_s"]) for each in shown.values()} == {1000}
        assert told("wall_clock", "read", victim.process.pid)[str(victim.process.pid)] == {
            "ahead_s": 0.0,
            "rate": 1.0,
        }
    finally:
        parent.communicate(b"\n")


@pytest.mark.parametrize("program", [("wall_clock", "read"), ("rlimits", "look")])
def test_a_missing_process_is_reported(program: tuple[str, str]) -> None:
    ended = subprocess.Popen(["true"], start_new_session=True)
    ended.wait()
    complaint = told(*program, ended.pid, *(["memory"] if program[0] == "rlimits" else []))
    assert complaint == f"no process of group {ended.pid} lives\n"


def test_files_are_limited_and_given_back(victim: Victim) -> None:
    """The kernel then refuses one more, and the process continues."""
    pid = victim.process.pid
    before = told("rlimits", "look", pid, "descriptors")[str(pid)]
    taken = told("rlimits", "take", pid, "descriptors", 2)[str(pid)]
    assert (taken["was"], taken["room"]) == (before["limit"], 2)
    assert told("rlimits", "look", pid, "descriptors")[str(pid)]["room"] == 2
    assert victim.clocks()
    given = told("rlimits", "give", pid, "descriptors", taken["was"])[str(pid)]
    assert given["limit"] == before["limit"]


def test_memory_is_limited_and_given_back(victim: Victim) -> None:
    pid = victim.process.pid
    taken = told("rlimits", "take", pid, "memory", 1_000_000)[str(pid)]
    assert taken["was"] == -1
    assert taken["room"] <= 1_000_000
    assert victim.clocks()
    assert told("rlimits", "give", pid, "memory", -1)[str(pid)]["limit"] == -1


@pytest.mark.parametrize(
    ("used", "room", "limit"), [((0, 1, 2), 0, 3), ((0, 1, 2, 9), 2, 5), ((0, 5), 0, 1), ((), 1, 1)]
)
def test_the_least_limit_with_room(used: Sequence[int], room: int, limit: int) -> None:
    """A new file gets the lowest number that is free."""
    assert _limits.lowest_limit(list(used), room) == limit
