"""Features of a run: what happened in it, in words that another run can share.

A guided campaign keeps a plan if its run showed a feature that no run before it had. Features come
from event logs, faults and clients' operations, and from how often each invariant was checked:

- which event of a node followed which other of the same node, and which change of a role, set or
  epoch anywhere preceded it;
- which events occurred while a kind of fault was in force, on a node that it hit or on another, and
  in which condition the nodes were that a fault hit;
- the state of the whole cluster, as the number of nodes of each role in each condition (leading,
  following, behind with its epoch, in or out of the set of in-sync replicas, down), and which event
  led from one state to another;
- how operations of each function ended, in which state of the cluster and under how many kinds of
  faults;
- how often each in-code choice was made.

Names of nodes, times and sizes are no part of a feature, so a run that differs only in these shows
nothing new. Counts are, in buckets (as in AFL, the greybox fuzzer; Mallory, CCS 2023, uses such
features of distributed systems): a feature is a kind of occurrence and a bucket of its count. Each
is a hash of 32 bits.

Besides, when acknowledged writes had the least support, for faults that take it away
(lineage-driven fault injection, Alvaro et al., SIGMOD 2015).
"""

import base64
import re
import struct
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from harness.history.faults_and_events import ClusterEvent, FaultInterval
from harness.history.reader import History
from harness.operation import SENDS, F, Type

BUCKETS = (1, 3, 10, 30, 100, 300)  # lower ends
MOMENTS = 8  # weak moments of a run
WRITES = (*SENDS, F.CREATE, F.LOCK, F.PUT, F.CAS, F.APPEND, F.ADD, F.ENQUEUE, F.ACQUIRE)
SPEAKING = re.compile(r"[a-z][a-z_ -]{0,23}|\d-\d")  # values that are words of the system
CODES = ("status", "code")  # fields whose numbers are words, too
ENDING, BEGINNING = ("exit", "fatal"), "start"
CHANGES = ("role", "raft", "set", "election", "epoch", "truncate", *ENDING, BEGINNING)
DOWN, STARTING, BEHIND, IN_SET = "down", "starting", "behind", "in-set"
NO_COUNTS: Mapping[str, int] = MappingProxyType({})
LOG_BYTES, LOG_LINES, LINE = 1 << 20, 5_000, 120  # of a log, what is read; characters of a line
MESSAGE = re.compile(r'"msg":"([^"]*)"')  # of a log in JSON
PARTICULAR = re.compile(r"\S*[0-9/\\]\S*|\"[^\"]*\"|'[^']*'")  # words with digits, paths, quoted
HIT, ELSEWHERE = "hit", "elsewhere"


@dataclass(frozen=True)
class RunFeatures:
    """The features of a run, each a hash of 32 bits.

    weak_s: up to `MOMENTS` times, in seconds after the load began, at which writes were
    acknowledged with the least support: by the fewest running in-sync replicas, soonest after the
    state of the cluster had changed
    """

    features: frozenset[int] = frozenset()
    weak_s: tuple[float, ...] = ()


def features_of(
    history: History, counts: Mapping[str, int] = NO_COUNTS, *, logs: bool = False
) -> RunFeatures:
    """Return the features of a run. `counts`: what else was counted in it, such as checks of
    invariants; `logs`: kinds of lines in the nodes' logs count, too, for a system that reports few
    events."""
    found = Counter({f"count {what}": n for what, n in counts.items()})
    if logs:
        _from_logs(history.run.path / "nodes", found)
    timeline, ops = _from_events(history, found), _operations(history)
    _from_operations(ops, timeline, found)
    features = frozenset(_hash(word, count) for word, count in found.items() if count > 0)
    return RunFeatures(features, _weak_moments(history, ops, timeline))


def _hash(word: str, count: int) -> int:
    return zlib.crc32(f"{word} x{BUCKETS[bisect_right(BUCKETS, count) - 1]}".encode())


def packed(features: Iterable[int]) -> str:
    """Return features as text, for JSON."""
    numbers = sorted(features)
    return base64.b64encode(struct.pack(f"<{len(numbers)}I", *numbers)).decode()


def unpacked(text: str) -> frozenset[int]:
    """Return what was `packed`. Raises ValueError."""
    data = base64.b64decode(text, validate=True)
    if len(data) % 4:
        raise ValueError("these are no features")
    return frozenset(struct.unpack(f"<{len(data) // 4}I", data))


# ------------------------------------------------------------------------ events, states of nodes


class _ClusterModel:
    """An abstract model of the cluster: the condition of each node, from the events so far."""

    def __init__(self) -> None:
        self._role: dict[str, str] = {}  # node -> the role that it has now
        self._epoch: dict[str, int] = {}
        self._newest: dict[str, int] = {}  # set -> epoch
        self._set_of: dict[str, tuple[str, Any]] = {}  # node -> set, number in it
        self._members: dict[str, Sequence[Any]] = {}
        self.state = ""

    def take(self, event: ClusterEvent) -> bool:
        """Take an event; return whether the state changed."""
        if event.kind not in CHANGES:
            return False
        node, fields = event.node, event.fields
        if event.kind == BEGINNING:
            self._role[node] = STARTING
        elif event.kind in ENDING:
            self._role[node] = DOWN
        elif event.kind in ("role", "raft"):
            self._role[node] = str(fields.get("role") or fields.get("state") or "")
            self._epoch[node] = _number(fields.get("epoch", fields.get("term")))
        name = str(fields.get("brokerName", ""))
        if event.kind == "role" and "brokerId" in fields:
            self._set_of[node] = (name, fields["brokerId"])
        if event.kind in ("set", "election") and isinstance(fields.get("set"), list):
            self._members[name or self._set_of.get(node, ("",))[0]] = fields["set"]
        group = self._group(node)
        self._newest[group] = max(self._newest.get(group, 0), self._epoch.get(node, 0))
        before, self.state = self.state, self._described()
        return before != self.state

    def _group(self, node: str) -> str:
        """Return the broker set of a node, else its role; epochs of a group are compared."""
        return self._set_of.get(node, (role_of(node),))[0]

    def _described(self) -> str:
        counts = Counter(self.condition(node) for node in self._role)
        return ", ".join(f"{min(n, 3)} {what}" for what, n in sorted(counts.items()))

    def condition(self, node: str) -> str:
        """Return the condition of a node: `broker master in-set`."""
        role = self._role.get(node, DOWN)
        words = [role_of(node), role]
        if role not in (DOWN, STARTING):
            name, number = self._set_of.get(node, ("", None))
            if self._epoch.get(node, 0) < self._newest.get(self._group(node), 0):
                words.append(BEHIND)
            if number is not None and number in self._members.get(name, ()):
                words.append(IN_SET)
        return " ".join(words)

    def support(self) -> int:
        """Return the number of members of the smallest set of in-sync replicas that run."""
        running: Counter[str] = Counter()
        for node, (name, number) in self._set_of.items():
            if self._role.get(node) != DOWN and number in self._members.get(name, ()):
                running[name] += 1
        return min((running[name] for name in self._members), default=0)


Timeline = tuple[list[int], list[str], list[int]]  # ns; the cluster's state from then on; support


def _from_events(history: History, found: Counter[str]) -> Timeline:
    model, forces = _ClusterModel(), _Forces(history.faults)
    names = {event.node for event in history.events}
    last: dict[str, str] = {}  # node -> its last event
    change = ""  # the last change anywhere
    times, states, supports = [0], [""], [0]
    for event in history.events:
        if not event.node:
            continue
        word = f"{role_of(event.node)} {event_word(event, names)}"
        before = model.condition(event.node)
        for fault in forces.until(event.t):
            hit = sorted({model.condition(name) for name in fault.names})
            found[f"{fault.kind} {fault.params.get('shape', '')} on {', '.join(hit)}"] += 1
        found[f"{last.get(event.node, '')} > {word}"] += 1
        found[f"{change} ~ {word}"] += 1
        for kind, where in forces.at(event):
            found[f"{word} | {kind} {where}"] += 1
        last[event.node] = word
        old = model.state
        if model.take(event):
            found[f"state {model.state}"] += 1
            found[f"from {old} by {word}"] += 1
        if event.kind in CHANGES:
            times.append(event.t)
            states.append(model.state)
            supports.append(model.support())
            change = f"{word} ({before})"
    return times, states, supports


class _Forces:
    """The kinds of faults in force, event after event in order of time."""

    def __init__(self, faults: Iterable[FaultInterval]) -> None:
        began = [f for f in faults if f.applied is not None]
        self._to_come = sorted(began, key=lambda f: f.applied or 0, reverse=True)
        self._now: list[FaultInterval] = []

    def until(self, t: int) -> Iterator[FaultInterval]:
        """Yield the faults that came into force since the last call."""
        while self._to_come and (self._to_come[-1].applied or 0) <= t:
            self._now.append(self._to_come.pop())
            yield self._now[-1]

    def at(self, event: ClusterEvent) -> Iterator[tuple[str, str]]:
        """Yield kinds, and whether they hit the node of the event."""
        self._now = [f for f in self._now if f.heal is None or f.heal >= event.t]
        hit = {f.kind for f in self._now if event.node in f.names}
        for kind in sorted({f.kind for f in self._now}):
            yield kind, HIT if kind in hit else ELSEWHERE


def role_of(node: str) -> str:
    """Return the role in a node's name: of `broker-1`, `broker`."""
    return node.rstrip("0123456789").rstrip("-")


def event_word(event: ClusterEvent, names: Iterable[str]) -> str:
    """Return an event's kind and those of its fields that are words of the system.

    Of numbers and lists only that they are zero or empty; names, which are in `names`, addresses
    and other texts are left out.
    """
    words = [event.kind]
    for key, value in sorted(event.fields.items()):
        if isinstance(value, str):
            if SPEAKING.fullmatch(value) and value not in names:
                words.append(f"{key}={value}")
        elif key in CODES or isinstance(value, bool) or value is None:
            words.append(f"{key}={value}")
        elif not value:
            words.append(f"no {key}")
    return " ".join(words)


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


# -------------------------------------------------------------------------------------- operations


Operations = tuple[np.ndarray[Any, Any], ...]  # times in ns, functions, types


def _operations(history: History) -> Operations:
    ops = history.read("ops")
    return tuple(np.asarray(ops[name]) for name in ("t", "f", "type"))


def _from_operations(ops: Operations, timeline: Timeline, found: Counter[str]) -> None:
    """Add how operations of each function ended, by the state of the cluster."""
    t, f, kind = ops
    place = np.searchsorted(np.asarray(timeline[0]), t, "right") - 1
    ended = kind != Type.INVOKE
    rows = np.stack([place, f, kind], 1)[ended]
    for (at, function, outcome), count in zip(
        *map(np.ndarray.tolist, np.unique(rows, axis=0, return_counts=True)), strict=True
    ):
        found[f"f{function} t{outcome} in {timeline[1][at]}"] += count


def _weak_moments(history: History, ops: Operations, timeline: Timeline) -> tuple[float, ...]:
    began = history.run.state().get("load_began_ns")
    if not isinstance(began, int):
        return ()
    times, _, supports = timeline
    t, f, kind = ops
    acked = np.sort(t[(kind == Type.OK) & np.isin(f, WRITES) & (t >= began)])
    place = np.searchsorted(np.asarray(times), acked, "right") - 1
    _, first = np.unique(place, return_index=True)  # the first write in each state
    weakest = sorted(
        (supports[place[i]], int(acked[i]) - times[place[i]], int(acked[i])) for i in first
    )
    return tuple(sorted(round((t - began) / 1e9, 3) for _, _, t in weakest[:MOMENTS]))


# ------------------------------------------------------------------------------------------- logs


def _from_logs(nodes: Path, found: Counter[str]) -> None:
    """Add the kinds of lines in the logs of each role: a line without what is particular to it."""
    for file in sorted(nodes.glob("*/*.log")):
        if file.is_symlink() or not file.is_file():
            continue  # what nodes left behind is not trusted
        try:
            with file.open("rb") as log:
                lines = log.read(LOG_BYTES).decode(errors="replace").splitlines()[:LOG_LINES]
        except OSError:
            continue  # a node's own user may be the only one who can read it
        found.update(f"log {role_of(file.parent.name)} {log_word(line)}" for line in lines)


def log_word(line: str) -> str:
    """Return the kind of a log's line: its message if it is JSON, without words with digits, paths
    and quoted texts."""
    message = MESSAGE.search(line)
    text = message[1] if message else line
    return " ".join(PARTICULAR.sub(" ", text[: 4 * LINE]).split())[:LINE]
