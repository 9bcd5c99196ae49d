"""A process of the node that the agent did not start, found by its pid or its command line.

A signal reaches the process and its descendants, by pid, and nothing else on the node: the process
group may hold others. What this agent has stopped is recorded with its start time, so that it is
resumed when the agent leaves, and no process that got the same pid later is hit.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from typing import Any, NamedTuple

OURS = "/clusters/hosts/_agent/"  # in command lines of agents and their relays
ROUNDS = 3  # a process may have a new child while its descendants are signalled

Json = dict[str, Any]


class ProcessLine(NamedTuple):
    """What /proc says of a process: `started` is its start time, in ticks since the boot."""

    parent: int
    letter: str
    started: int


class AmbiguousName(ValueError):
    """A name that more than one process has."""


class ExistingProcesses:
    """The processes that this agent looks at, and those that it has stopped."""

    def __init__(self) -> None:
        self.stopped: dict[int, int] = {}  # pid -> start time

    def look(self, pid: int, started: int, name: str) -> Json:
        """Return the state of the process with this pid and start time (0: any), else of the one
        that is called `name`; pid 0: there is none."""
        line = process_line(pid)
        if line is None or (started and line.started != started):
            pid = find(name) if name else 0
            line = process_line(pid)
        if line is None:
            return {"pid": 0, "started": 0, "threads": ""}
        threads = "".join(_thread_letters(each) for each in descendants(pid, line))
        return {"pid": pid, "started": line.started, "threads": threads}

    def signal(self, pid: int, started: int, number: int) -> None:
        """Signal a process and its descendants; do nothing if it has ended."""
        done: set[int] = set()
        for _ in range(ROUNDS):
            line = process_line(pid)
            if line is None or (started and line.started != started):
                return
            new = {k: v for k, v in descendants(pid, line).items() if k not in done}
            for each, found in new.items():
                _send(each, number)
                done.add(each)
                if number == signal.SIGSTOP:
                    self.stopped[each] = found.started
                elif number in (signal.SIGCONT, signal.SIGKILL):
                    self.stopped.pop(each, None)
            if not new:
                return

    def resume(self) -> None:
        """Resume everything that is still stopped."""
        for pid, started in self.stopped.items():
            line = process_line(pid)
            if line and line.started == started:
                _send(pid, signal.SIGCONT)
        self.stopped.clear()


def find(name: str) -> int:
    """Return the pid of the process with this name, or else whose command line matches this
    pattern; 0: there is none. Raises AmbiguousName if several match and none is the parent of the
    others."""
    lines, named, matching = _all_lines(), set(), set()
    for pid in lines:
        words = _command_line(pid)
        if not words or OURS in " ".join(words):
            continue
        if name in (os.path.basename(words[0]), _comm(pid)):
            named.add(pid)
        if re.search(name, " ".join(words)):
            matching.add(pid)
    found = named or matching
    tops = sorted(pid for pid in found if lines[pid].parent not in found)
    if len(tops) > 1:
        pids = ", ".join(map(str, tops))
        raise AmbiguousName(
            f"{name!r} means {len(tops)} processes here ({pids}); write more of its command line"
        )
    return tops[0] if tops else 0


def descendants(pid: int, line: ProcessLine) -> dict[int, ProcessLine]:
    """Return the process and all its descendants."""
    found = {pid: line}
    lines = _all_lines()
    news = {pid}
    while news:
        news = {each for each, one in lines.items() if one.parent in news and each not in found}
        found.update({each: lines[each] for each in news})
    return found


def process_line(pid: int) -> ProcessLine | None:
    """Return what /proc says of a process; None if it has ended, reaped or not."""
    if pid <= 0:
        return None
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else ProcessLine(int(fields[1]), fields[0], int(fields[19]))


def _all_lines() -> dict[int, ProcessLine]:
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return {pid: line for pid in pids if pid != os.getpid() and (line := process_line(pid))}


def _thread_letters(pid: int) -> str:
    letters = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/stat") as file:
                letters.append(file.read().rpartition(")")[2].split()[0])
    return "".join(letters)


def _command_line(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().rstrip(b"\0").split(b"\0") if word]
    except OSError:
        return []


def _comm(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
