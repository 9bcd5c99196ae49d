"""Two runs side by side: differences in their trials, and in their results.

Curves share one axis, seconds since each run's load began, and use the same cells as the report.
Plans are aligned line by line, so that a fault of only one of them has a line of its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from reports import _format, _lanes
from reports._cells import BUCKETS, MIN_NS, OCTAVE_BUCKETS, Cells
from reports._run import RunView
from reports.page import ASIDE

MAX_POINTS = 400  # of a curve
MAX_LINES = 1_500  # of a plan
MAX_FIELDS = 200  # lines of a table
MAX_FAULTS = 500
LONGEST = 300
EMPTY: tuple[Any, ...] = ()

Floats = npt.NDArray[np.float64]
Flow = dict[str, list[float | None]]


@dataclass(frozen=True)
class Pair:
    """A line of a table: its name, the value of each run, and whether they are equal."""

    name: str
    one: str
    other: str
    same: bool = False


@dataclass(frozen=True)
class Comparison:
    """All data of the page."""

    numbers: tuple[Pair, ...]
    findings: tuple[Pair, ...]
    checkers: tuple[Pair, ...]
    fields: tuple[Pair, ...]
    plan: tuple[Pair, ...]
    machine: tuple[Pair, ...]
    curves: Mapping[str, Any]
    left_out: tuple[str, ...]  # notes on parts that are too large to be shown


def compare_runs(one: RunView, other: RunView) -> Comparison:
    """Compare two runs. A part that one of them lacks is empty, and among its doubts."""
    view = (one, other)
    tables = {
        "numbers": _of_both(view, "the numbers", _numbers),
        "findings": _of_both(view, "the findings", _findings),
        "checkers": _of_both(view, "the checkers", _checkers),
        "fields": _differing(_of_both(view, "the trial", _fields)),
        "machine": _differing(_of_both(view, "the machine", _machine)),
    }
    return Comparison(
        **{name: pairs[:MAX_FIELDS] for name, pairs in tables.items()},
        plan=tuple(side_by_side(one.plan, other.plan)),
        curves={"one": curves(one), "other": curves(other)},
        left_out=(*_beyond(tables), *_long(view)),
    )


def _beyond(tables: Mapping[str, Sequence[Pair]]) -> Iterator[str]:
    for name, pairs in tables.items():
        if len(pairs) > MAX_FIELDS:
            yield f"of {len(pairs):,} lines of {name} the first {MAX_FIELDS:,} are shown"


def _long(view: tuple[RunView, RunView]) -> Iterator[str]:
    for name, each in zip("AB", view, strict=True):
        if (lines := len(each.plan.splitlines())) > MAX_LINES:
            yield f"of the {lines:,} lines of {name}'s plan the first {MAX_LINES:,} are compared"
        if (faults := len(each.faults)) > MAX_FAULTS:
            yield f"of the {faults:,} faults of {name} the first {MAX_FAULTS:,} are bands"


def _of_both(
    view: tuple[RunView, RunView], what: str, make: Callable[[RunView], dict[str, str]]
) -> tuple[Pair, ...]:
    """Return the table of a part, with a line for each name of either run."""
    one, other = (each.part(what, partial(make, each), dict[str, str]()) for each in view)
    return tuple(
        Pair(name, one.get(name, ""), other.get(name, ""), one.get(name) == other.get(name))
        for name in dict.fromkeys([*one, *other])
    )


def _differing(pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
    return tuple(pair for pair in pairs if not pair.same)


def _fields(view: RunView) -> dict[str, str]:
    return {} if view.trial_unknown else flat(asdict(view.trial))


def _machine(view: RunView) -> dict[str, str]:
    return dict(_format.machine(view.state))


def _numbers(view: RunView) -> dict[str, str]:
    return {
        number.name: f"{number.value} ({number.note})" if number.note else number.value
        for number in _format.key_numbers(view)
    }


def _findings(view: RunView) -> dict[str, str]:
    counts: dict[str, int] = {}
    for _, finding in view.findings():
        name = f"{_format.clip(finding.code, 80)}, {_format.standing_of(finding)} {finding.demand}"
        name = name.removesuffix(" ")
        counts[name] = counts.get(name, 0) + finding.count
    return {name: f"{count:,}" for name, count in counts.items()}


def _checkers(view: RunView) -> dict[str, str]:
    return {_format.clip(r.checker, 60): str(r.judgement) for r in view.verdict.checkers}


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return `{"load": {"rate": 5}}` as `{"load.rate": "5"}`."""
    values: dict[str, str] = {}
    for name, value in table.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            values |= flat(value, f"{path}.")
        elif isinstance(value, list | tuple):
            values[path] = _format.clip(", ".join(map(str, value)), LONGEST)
        else:
            values[path] = _format.clip(value, LONGEST)
    return values


# --------------------------------------------------------------------------------------- plans


def side_by_side(one: str, other: str) -> Iterator[Pair]:
    """Yield the lines of two texts, with equal lines beside each other."""
    left, right = one.splitlines()[:MAX_LINES], other.splitlines()[:MAX_LINES]
    for word, i, j, k, n in SequenceMatcher(None, left, right, autojunk=True).get_opcodes():
        mine, yours = left[i:j], right[k:n]
        for at in range(max(len(mine), len(yours))):
            yield Pair(
                "",
                _format.clip(_at(mine, at), LONGEST),
                _format.clip(_at(yours, at), LONGEST),
                word == "equal",
            )


def _at(lines: Sequence[str], number: int) -> str:
    return lines[number] if number < len(lines) else ""


# --------------------------------------------------------------------------------------- curves


def curves(view: RunView) -> dict[str, Any]:
    """Return a run's curves and faults, in seconds since its load began."""
    counted = view.counted
    begin = view.phases.get("load", counted.begin)
    return {
        "flow": view.part("the curves", lambda: flow(counted, begin), Flow()),
        "faults": view.part("the faults", lambda: _faults(view, begin), EMPTY),
    }


def flow(counted: Cells, begin: int) -> Flow:
    """Return rates and quantiles of latency, in at most MAX_POINTS steps."""
    while counted.count > MAX_POINTS:
        counted = counted.coarser()
    done = np.zeros((counted.count, BUCKETS))
    undone = np.zeros(counted.count)
    for layer in counted.layers:
        if layer.f in ASIDE:
            continue
        bins, buckets = np.divmod(layer.at, BUCKETS)
        if layer.outcome == "ok":
            np.add.at(done, (bins, buckets), layer.n)
        else:
            np.add.at(undone, bins, layer.n)
    width_s = counted.bin_ns / 1e9
    steps = np.arange(counted.count, dtype=np.float64)
    middles = (counted.begin - begin) / 1e9 + (steps + 0.5) * width_s
    return {
        "t": _rounded(middles),
        "ok": _rounded(done.sum(axis=1) / width_s),
        "undone": _rounded(undone / width_s),
        "p50": _quantile(done, 0.5),
        "p99": _quantile(done, 0.99),
    }


def _quantile(done: Floats, share: float) -> list[float | None]:
    """Return a quantile of each step, in milliseconds; None for an empty step."""
    total = done.sum(axis=1)
    reached = done.cumsum(axis=1) >= share * total[:, None] - 1e-9
    bucket = reached.argmax(axis=1) + 0.5
    ms = MIN_NS / 1e6 * 2 ** (bucket / OCTAVE_BUCKETS)
    return [round(float(v), 4) if n else None for v, n in zip(ms, total, strict=True)]


def _rounded(values: Floats) -> list[float | None]:
    return [round(float(value), 4) for value in values]


def _faults(view: RunView, begin: int) -> tuple[dict[str, Any], ...]:
    lines = []
    for fault in view.faults[:MAX_FAULTS]:
        if fault.begin is not None:
            at, _, _, healed = _lanes.stages(fault, view.end)
            lines.append(
                {
                    "from": (at - begin) / 1e9,
                    "to": (healed - begin) / 1e9,
                    "style": _lanes.fault_style(fault),
                    "words": _format.clip(f"fault {fault.id}: {fault.label}", 120),
                }
            )
    return tuple(lines)
