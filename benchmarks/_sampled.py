"""What a run's own processes use while it goes on, by what they are for, looked at through /proc.

*Runner*: `harness.run.runner` and what it starts. *Agents*: the agent of each node with its tools
(`iptables`, what changes files, the helper that holds packets back) and, on ssh hosts, the relay of
a channel. *Gates*: those between nodes and their disks, which every write passes, fault or none.
The cluster and its clients, which agents start, belong to nobody.

The time of a living process is the scheduler's, in nanoseconds (its CPU clock, which anybody may
read); that of a tool that came and went between two looks is what its parent has reaped, which the
kernel tells in ticks, rounded down, so one difference of two looks may be wrong by a tick (10 ms)
or two for each agent that ran tools, in either direction. A process of the cluster that ends is
reaped by its agent, too: what it had used at the last look is taken off, what it used afterwards,
while it died, can not be told from a tool. `ended` counts them.
"""

import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import TracebackType

EVERY_S = 0.1  # a look takes some milliseconds of a processor
RUNNER, AGENTS, GATES, CLUSTER = "runner", "agents", "gates", "cluster"
OURS = (RUNNER, AGENTS, GATES)
PROGRAM = "harness.run.runner"
AGENT = tuple(f"clusters/hosts/_agent/{name}.py" for name in ("agent", "daemon", "relay"))
GATE = "clusters/hosts/_faults/syscall_tracer.py"
OF_CLUSTER = ("clusters.flotilla", "harness.run.client_process")
PARENT, REAPED, START = 1, slice(13, 15), 19  # of /proc/PID/stat, behind the name
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
STRANGE_AFTER = 20  # looks


@dataclass(frozen=True)
class Process:
    pid: int
    start: int  # which with the pid is never used again
    parent: int
    words: tuple[str, ...]
    used_ns: int  # by itself and by those it has reaped
    role: str = ""


@dataclass(frozen=True)
class Sample:
    """All that was used until then. A look takes a while, from `began_ns` to `over_ns`."""

    began_ns: int
    over_ns: int
    used_ns: Mapping[str, int]
    ended: int


@dataclass(frozen=True)
class Used:
    """Between two looks."""

    seconds: float
    ms: Mapping[str, float]
    ended: int

    def above(self, rate: "Used") -> Mapping[str, float]:
        """Milliseconds beyond what is used at that rate in as long a time."""
        share = self.seconds / rate.seconds
        return {role: ms - share * rate.ms[role] for role, ms in self.ms.items()}


class Sampled:
    """Looks, from a thread of its own while it is entered. Times are of CLOCK_MONOTONIC.

    `apart`: agents are no children of the runner, as in containers and on ssh hosts; then all are
    taken for the run's own but those that the runners of local hosts have started.
    """

    def __init__(self, apart: bool) -> None:
        self._apart = apart
        self.samples: list[Sample] = []
        self._known: dict[tuple[int, int], Process] = {}
        self._strange: Counter[int] = Counter()  # how often a pid was seen that is nobody's here
        self._kept: Counter[str] = Counter()  # of those that are gone
        self._ended = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)

    def __enter__(self) -> "Sampled":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def between(self, begin_ns: int, end_ns: int) -> Used:
        """From the last look that was over by then to the first that began after the end."""
        first = bisect_right(self.samples, begin_ns, key=lambda sample: sample.over_ns) - 1
        last = bisect_left(self.samples, end_ns, key=lambda sample: sample.began_ns)
        if first < 0 or last == len(self.samples):
            raise ValueError("nobody looked before and after that")
        one, other = self.samples[first], self.samples[last]
        return Used(
            (other.began_ns - one.began_ns) / 1e9,
            {role: (other.used_ns[role] - one.used_ns[role]) / 1e6 for role in OURS},
            other.ended - one.ended,
        )

    def _go_on(self) -> None:
        while not self._over.wait(EVERY_S):
            self.samples.append(self._look())

    def _look(self) -> Sample:
        began_ns = time.monotonic_ns()
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self._strange = Counter({p: n for p, n in self._strange.items() if p in pids})
        near = (_process(pid) for pid in sorted(pids) if self._strange[pid] < STRANGE_AFTER)
        living = roles({each.pid: self._named(each) for each in near if each}, self._apart)
        self._strange.update(
            pid for pid, each in living.items() if not each.role and "python" not in each.words[0]
        )
        known = {(each.pid, each.start): each for each in living.values() if each.role}
        for key in self._known.keys() - known.keys():
            self._settle(self._known[key], living.get(self._known[key].parent))
        self._known = known
        used = Counter(self._kept)
        for each in known.values():
            used[each.role] += each.used_ns
        return Sample(
            began_ns, time.monotonic_ns(), {role: used[role] for role in OURS}, self._ended
        )

    def _named(self, process: Process) -> Process:
        """One that is dead and not yet reaped has no words any more."""
        before = self._known.get((process.pid, process.start))
        return process if any(process.words) or not before else replace(process, words=before.words)

    def _settle(self, gone: Process, parent: Process | None) -> None:
        """What it used is in its parent's account from now on, if that lives to reap it."""
        reaper = parent.role if parent else ""
        if gone.role == CLUSTER:
            self._ended += reaper == AGENTS
            self._kept[reaper] -= gone.used_ns
        elif not reaper:
            self._kept[gone.role] += gone.used_ns


def roles(living: Mapping[int, Process], apart: bool) -> dict[int, Process]:
    """The same, each with its role; with none, if it does not belong to a run of ours."""
    found: dict[int, str] = {os.getpid(): ""}

    def role(pid: int) -> str:
        if pid not in found and pid in living:
            found[pid] = ""  # whoever is its own ancestor
            each = living[pid]
            found[pid] = _role(each, living.get(each.parent), role(each.parent), apart)
        return found.get(pid, "")

    return {pid: replace(process, role=role(pid)) for pid, process in living.items()}


def _role(process: Process, parent: Process | None, parents: str, apart: bool) -> str:
    words = process.words
    if parents == CLUSTER or (parents and any(word.startswith(OF_CLUSTER) for word in words)):
        return CLUSTER
    if parents and "watch" in words and any(word.endswith(GATE) for word in words):
        return GATES
    if PROGRAM in words:
        return RUNNER if parents == RUNNER or process.parent == os.getpid() else ""
    if "python" in words[0] and any(word.endswith(AGENT) for word in words[1:-1]):
        of_another_run = parent is not None and PROGRAM in parent.words
        return AGENTS if parents == RUNNER or (apart and not of_another_run) else ""
    return parents


def _process(pid: int) -> Process | None:
    """None when it is gone, or has no words, as the kernel's own."""
    try:
        stat = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        words = tuple(_read(f"/proc/{pid}/cmdline").split("\0")[:-1])
        own_ns = time.clock_gettime_ns(~pid << 3 | 2)  # CLOCK: MAKE_PROCESS_CPUCLOCK(pid, SCHED)
    except OSError:
        return None
    reaped_ns = sum(map(int, stat[REAPED])) * TICK_NS
    return Process(pid, int(stat[START]), int(stat[PARENT]), words or ("",), own_ns + reaped_ns)


def _read(path: str) -> str:
    with open(path, "rb", buffering=0) as file:
        return file.read().decode(errors="replace")
