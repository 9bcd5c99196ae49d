"""The progress of a running trial: the runner's status lines, folded into one value.

The runner sends one JSON object a line: a phase, counts so far, a stage of a fault, the cluster
state, or why it failed. Counts are cumulative, so rates are differences over a short window and a
lost line costs nothing. Pure: the time of each line is an argument.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from harness.text.own_words import IN_STATE, OwnWords

RATE_WINDOW_S = 2.0
HISTORY_S = 60.0
OUTCOMES = ("ok", "fail", "info")


@dataclass
class Sample:
    """Cumulative counts at one moment."""

    at_s: float
    counts: Mapping[str, float]

    def of(self, name: str) -> float:
        return float(self.counts.get(name) or 0)


@dataclass
class ActiveFault:
    """A fault as the runner last reported it."""

    id: int
    kind: str
    targets: tuple[str, ...]
    stage: str
    state: str
    since_s: float

    @property
    def label(self) -> str:
        on = f" on {', '.join(self.targets)}" if self.targets else ""
        return f"{self.kind}{on}"


@dataclass
class TrialProgress:
    """Everything that a view needs to draw."""

    began_s: float
    phase: str = "starting"
    phases: list[str] = field(default_factory=list)
    load_began_s: float | None = None
    load_ended_s: float | None = None
    faults: dict[int, ActiveFault] = field(default_factory=dict)  # not healed yet
    done: list[ActiveFault] = field(default_factory=list)  # healed, in order
    masters: Mapping[str, str] = field(default_factory=dict)
    epochs: Mapping[str, str] = field(default_factory=dict)
    in_set: tuple[str, ...] = ()
    controller_leader: str = ""
    words: OwnWords = field(default_factory=OwnWords)  # the system's
    checker: str = ""  # the one running now
    failed: str = ""
    samples: deque[Sample] = field(default_factory=deque)

    def update(self, status: Mapping[str, Any], at_s: float) -> list[str]:
        """Fold one status line in; return lines for a plain log of what happened."""
        lines: list[str] = []
        if "phase" in status:
            lines += self._phase(str(status["phase"]), at_s)
        self.checker = str(status.get("checker") or self.checker)
        if isinstance(status.get("stats"), Mapping):
            self._count(status["stats"], at_s)
        if isinstance(status.get("fault"), Mapping):
            lines += self._fault(status["fault"], at_s)
        if isinstance(status.get("standing"), Mapping):
            lines += self._cluster_state(status["standing"])
        if status.get("alarm"):
            lines.append(str(status["alarm"]))
        if status.get("said"):
            lines.append(str(status["said"]))
        if status.get("lost"):
            lines.append(f"lost: {status['lost']}; ending early")
        if status.get("failed"):
            self.failed = str(status["failed"])
            lines.append(f"failed: {self.failed}")
        return lines

    def rate(self, name: str) -> float:
        """Return the rate per second over the last moments."""
        if len(self.samples) < 2:
            return 0.0
        last = self.samples[-1]
        first = next(s for s in self.samples if s.at_s >= last.at_s - RATE_WINDOW_S or s is last)
        span_s = last.at_s - first.at_s
        return (last.of(name) - first.of(name)) / span_s if span_s > 0 else 0.0

    def latest(self, name: str) -> float | None:
        value = self.samples[-1].counts.get(name) if self.samples else None
        return None if value is None else float(value)

    def rates(self, name: str, width: int) -> list[float]:
        """Return the last minute as `width` rates, oldest first."""
        if len(self.samples) < 2:
            return []
        step_s = HISTORY_S / width
        newest = self.samples[-1].at_s
        edges = [newest - step_s * (width - i) for i in range(width + 1)]
        at = [_value_at(self.samples, name, edge) for edge in edges]
        return [max(0.0, (b - a) / step_s) for a, b in pairwise(at)]

    def load_s(self, now_s: float) -> float | None:
        """Return the seconds of load so far; None before it begins."""
        if self.load_began_s is None:
            return None
        end = self.load_ended_s if self.load_ended_s is not None else now_s
        return end - self.load_began_s

    def _phase(self, phase: str, at_s: float) -> list[str]:
        self.phase = phase
        self.phases.append(phase)
        if phase == "load":
            self.load_began_s = at_s
        elif self.load_began_s is not None and self.load_ended_s is None and phase != "healed":
            self.load_ended_s = at_s
        return [f"phase: {phase}"]

    def _count(self, counts: Mapping[str, float], at_s: float) -> None:
        numbers = {k: v for k, v in counts.items() if isinstance(v, int | float)}
        self.samples.append(Sample(at_s, numbers))
        while self.samples[0].at_s < at_s - HISTORY_S:
            self.samples.popleft()

    def _fault(self, row: Mapping[str, Any], at_s: float) -> list[str]:
        number = row["id"] if isinstance(row.get("id"), int) else -1
        stage = str(row.get("stage", ""))
        known = self.faults.get(number)
        fault = ActiveFault(
            number,
            str(row.get("kind") or "") or (known.kind if known else "fault"),
            node_names(row.get("targets")) or (known.targets if known else ()),
            stage,
            str(row.get("state") or (known.state if known else "")),
            known.since_s if known else at_s,
        )
        if stage == "planned":
            return []
        if stage == "healed":
            self.faults.pop(number, None)
            self.done.append(fault)
        else:
            self.faults[number] = fault
        doubt = f" ({fault.state})" if fault.state in ("partial", "failed") else ""
        return [f"fault {number}: {fault.label}: {stage}{doubt}"]

    def _cluster_state(self, row: Mapping[str, Any]) -> list[str]:
        masters = _text_values(row.get("masters"))
        epochs = _text_values(row.get("epochs"))
        self.words = OwnWords(row.get(IN_STATE))
        lines = [
            self.words(
                f"{name}: master {masters[name]}{_epoch(epochs.get(name), bool(self.words))}"
            )
            for name in sorted(masters)
            if (masters[name], epochs.get(name)) != (self.masters.get(name), self.epochs.get(name))
        ]
        self.masters, self.epochs = masters, epochs
        self.in_set = node_names(row.get("in_set"))
        self.controller_leader = str(row.get("controller_leader") or "")
        return lines


def _epoch(epoch: str | None, own_words: bool) -> str:
    """Return an epoch after a comma; nothing for a system that may have none."""
    return "" if epoch is None and own_words else f", epoch {'?' if epoch is None else epoch}"


def node_names(targets: Any) -> tuple[str, ...]:
    """Return node names from {role: [names]}, [names] or a name."""
    if isinstance(targets, str):
        return (targets,) if targets else ()
    if isinstance(targets, Mapping):
        return tuple(dict.fromkeys(n for group in targets.values() for n in node_names(group)))
    if isinstance(targets, Sequence):
        return tuple(str(name) for name in targets)
    return ()


def _text_values(values: Any) -> dict[str, str]:
    """Return a mapping with its values as text; empty for anything else."""
    if not isinstance(values, Mapping):
        return {}
    return {str(name): "" if value is None else str(value) for name, value in values.items()}


def _value_at(samples: Sequence[Sample], name: str, at_s: float) -> float:
    """Return the cumulative count at a time, interpolated between two samples."""
    before = samples[0]
    for sample in samples:
        if sample.at_s > at_s:
            span_s = sample.at_s - before.at_s
            part = (at_s - before.at_s) / span_s if span_s > 0 else 1.0
            return before.of(name) + max(0.0, part) * (sample.of(name) - before.of(name))
        before = sample
    return before.of(name)
