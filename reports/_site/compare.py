"""Two runs side by side: what differs in what was tried, and in what came of it.

Curves lie on one axis, seconds since each run's load began, from the same cells as the report's.
Plans are aligned line by line, so that a fault which only one of them has stands alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from reports import _lanes, _words
from reports._cells import BUCKETS, LEAST_NS, OCTAVE_BUCKETS, Cells
from reports._run import Told
from reports.page import ASIDE

MOST_POINTS = 400  # of a curve
MOST_LINES = 1_500  # of a plan
MOST_FIELDS = 200  # of a table, those that are shown
MOST_FAULTS = 500
LONGEST = 300
EMPTY: tuple[Any, ...] = ()

Floats = npt.NDArray[np.float64]
Flow = dict[str, list[float | None]]


@dataclass(frozen=True)
class Pair:
    """A line of a table: its name, what each run has there, and whether that differs."""

    name: str
    one: str
    other: str
    same: bool = False


@dataclass(frozen=True)
class Compared:
    """Everything the page shows of two runs."""

    numbers: tuple[Pair, ...]
    findings: tuple[Pair, ...]
    checkers: tuple[Pair, ...]
    fields: tuple[Pair, ...]
    plan: tuple[Pair, ...]
    machine: tuple[Pair, ...]
    curves: Mapping[str, Any]
    left_out: tuple[str, ...]  # what is not shown of it, because it would be too much


def compared(one: Told, other: Told) -> Compared:
    """Two runs that were read. What one of them lacks is empty, and among its doubts."""
    told = (one, other)
    tables = {
        "numbers": _of_both(told, "the numbers", _numbers),
        "findings": _of_both(told, "the findings", _findings),
        "checkers": _of_both(told, "the checkers", _checkers),
        "fields": _differing(_of_both(told, "the trial", _fields)),
        "machine": _differing(_of_both(told, "the machine", _machine)),
    }
    return Compared(
        **{name: pairs[:MOST_FIELDS] for name, pairs in tables.items()},
        plan=tuple(side_by_side(one.plan, other.plan)),
        curves={"one": curves(one), "other": curves(other)},
        left_out=(*_beyond(tables), *_long(told)),
    )


def _beyond(tables: Mapping[str, Sequence[Pair]]) -> Iterator[str]:
    for name, pairs in tables.items():
        if len(pairs) > MOST_FIELDS:
            yield f"of {len(pairs):,} lines of {name} the first {MOST_FIELDS:,} are shown"


def _long(told: tuple[Told, Told]) -> Iterator[str]:
    for name, each in zip("AB", told, strict=True):
        if (lines := len(each.plan.splitlines())) > MOST_LINES:
            yield f"of the {lines:,} lines of {name}'s plan the first {MOST_LINES:,} are compared"
        if (faults := len(each.faults)) > MOST_FAULTS:
            yield f"of the {faults:,} faults of {name} the first {MOST_FAULTS:,} are bands"


def _of_both(
    told: tuple[Told, Told], what: str, make: Callable[[Told], dict[str, str]]
) -> tuple[Pair, ...]:
    """The table of a part, with a line for whatever either has."""
    one, other = (each.part(what, partial(make, each), dict[str, str]()) for each in told)
    return tuple(
        Pair(name, one.get(name, ""), other.get(name, ""), one.get(name) == other.get(name))
        for name in dict.fromkeys([*one, *other])
    )


def _differing(pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
    return tuple(pair for pair in pairs if not pair.same)


def _fields(told: Told) -> dict[str, str]:
    return {} if told.untold else flat(asdict(told.trial))


def _machine(told: Told) -> dict[str, str]:
    return dict(_words.machine(told.state))


def _numbers(told: Told) -> dict[str, str]:
    return {
        number.name: f"{number.value} ({number.note})" if number.note else number.value
        for number in _words.numbers(told)
    }


def _findings(told: Told) -> dict[str, str]:
    counts: dict[str, int] = {}
    for _, finding in told.findings():
        name = f"{_words.clip(finding.code, 80)}, {_words.standing_of(finding)} {finding.demand}"
        name = name.removesuffix(" ")
        counts[name] = counts.get(name, 0) + finding.count
    return {name: f"{count:,}" for name, count in counts.items()}


def _checkers(told: Told) -> dict[str, str]:
    return {_words.clip(r.checker, 60): str(r.judgement) for r in told.verdict.checkers}


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """`{"load": {"rate": 5}}` as `{"load.rate": "5"}`."""
    found: dict[str, str] = {}
    for name, value in table.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{path}.")
        elif isinstance(value, list | tuple):
            found[path] = _words.clip(", ".join(map(str, value)), LONGEST)
        else:
            found[path] = _words.clip(value, LONGEST)
    return found


# --------------------------------------------------------------------------------------- plans


def side_by_side(one: str, other: str) -> Iterator[Pair]:
    """The lines of two texts, equal ones beside each other."""
    left, right = one.splitlines()[:MOST_LINES], other.splitlines()[:MOST_LINES]
    for word, i, j, k, n in SequenceMatcher(None, left, right, autojunk=True).get_opcodes():
        mine, yours = left[i:j], right[k:n]
        for at in range(max(len(mine), len(yours))):
            yield Pair(
                "",
                _words.clip(_at(mine, at), LONGEST),
                _words.clip(_at(yours, at), LONGEST),
                word == "equal",
            )


def _at(lines: Sequence[str], number: int) -> str:
    return lines[number] if number < len(lines) else ""


# --------------------------------------------------------------------------------------- curves


def curves(told: Told) -> dict[str, Any]:
    """A run's curves and faults, in seconds since its load began."""
    counted = told.counted
    begin = told.phases.get("load", counted.begin)
    return {
        "flow": told.part("the curves", lambda: flow(counted, begin), Flow()),
        "faults": told.part("the faults", lambda: _faults(told, begin), EMPTY),
    }


def flow(counted: Cells, begin: int) -> Flow:
    """Rates and quantiles of latency, in so many steps as a picture is wide."""
    while counted.count > MOST_POINTS:
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
    """Of each step, in milliseconds; None where nothing was done."""
    total = done.sum(axis=1)
    reached = done.cumsum(axis=1) >= share * total[:, None] - 1e-9
    bucket = reached.argmax(axis=1) + 0.5
    ms = LEAST_NS / 1e6 * 2 ** (bucket / OCTAVE_BUCKETS)
    return [round(float(v), 4) if n else None for v, n in zip(ms, total, strict=True)]


def _rounded(values: Floats) -> list[float | None]:
    return [round(float(value), 4) for value in values]


def _faults(told: Told, begin: int) -> tuple[dict[str, Any], ...]:
    found = []
    for fault in told.faults[:MOST_FAULTS]:
        if fault.begin is not None:
            at, _, _, healed = _lanes.stages(fault, told.end)
            found.append(
                {
                    "from": (at - begin) / 1e9,
                    "to": (healed - begin) / 1e9,
                    "style": _lanes.fault_style(fault),
                    "words": _words.clip(f"fault {fault.id}: {fault.words}", 120),
                }
            )
    return tuple(found)
