"""What a run has in the world, and what of it is left: processes, namespaces, mounts, rules.

Everything is looked at from outside, through /proc. A process belongs to a run when it descends
from its command, carries the run's mark in its environment, or lives in one of its namespaces.
Zombies are nobody.
"""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MARK = "SEATRIAL_ACCEPTANCE"
KINDS = ("user", "mnt", "net", "pid")
Process = tuple[int, int]  # pid and start time, which together are never used again


def processes() -> Iterator[tuple[Process, int]]:
    """Every live process, and its parent's pid."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (found := _stat(int(entry))):
            yield found


def _stat(pid: int) -> tuple[Process, int] | None:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    if not fields or fields[0] in (b"Z", b"X"):
        return None
    return (pid, int(fields[19])), int(fields[1])


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def state(pid: int) -> str:
    """A letter, as in `ps`; empty if there is no such process."""
    return b"".join(_read(pid, "stat").rpartition(b")")[2].split()[:1]).decode()


def alive(pid: int) -> bool:
    return state(pid) not in ("", "Z", "X")


def command(pid: int) -> str:
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def namespaces(pid: int) -> set[str]:
    """`net:[4026531840]` and the like."""
    found = set()
    for kind in KINDS:
        try:
            found.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
        except OSError:
            continue
    return found


def machine() -> dict[str, str]:
    """What no run may touch: the machine's own links, rules, and mounts of ours."""
    rules = ["iptables", "-w", "-S"] if os.geteuid() == 0 else ["true"]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "rules": _output(rules),
        "links": _output(["ip", "-o", "link", "show", "type", "bridge"]),
        "mounts": "\n".join(line for line in mounts if "nsfs" in line or "seatrial" in line),
    }


def _output(argv: list[str]) -> str:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "PATH": path})
    return done.stdout


@dataclass
class Belongings:
    """A run's processes and namespaces: those seen at one moment, and all that its mark finds."""

    command_pid: int
    mark: str
    seen: set[Process] = field(default_factory=set)
    own: set[str] = field(default_factory=set)

    def look(self) -> None:
        """Remember what the run has now."""
        outside = namespaces(os.getpid())
        living = dict(processes())
        below = {self.command_pid}
        while new := {p[0] for p, parent in living.items() if parent in below} - below:
            below |= new
        self.seen |= {p for p in living if p[0] in below}
        for pid in below:
            self.own |= namespaces(pid) - outside

    def left(self) -> list[str]:
        """What is still there, in words; nothing: it is all gone."""
        newest = max((start for _, start in self.seen), default=0)
        found = []
        for process, _ in processes():
            pid, start = process
            # numbers of namespaces are used again, so one that began later is somebody else's
            inside = start <= newest and namespaces(pid) & self.own
            if process in self.seen or inside or self._marked(pid):
                found.append(f"{pid} {command(pid)} {sorted(inside or [])}")
        return found

    def _marked(self, pid: int) -> bool:
        return f"{MARK}={self.mark}".encode() in _read(pid, "environ").split(b"\0")
