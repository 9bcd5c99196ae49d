"""Rows of evidence: how many a finding has, and their times."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.history.faults_and_events import FaultInterval
from harness.judge.claims import in_effect
from harness.run.broker_sets import set_name_by_key

SAMPLE = 20  # rows of evidence that a finding may show
MAX_DATED = 5000  # rows that have times, where a fault may excuse them; others convict


def rows_kept(faults: Sequence[FaultInterval]) -> int:
    """Return how many rows of a finding are kept: more than are shown where a fault was observed
    in effect, which may excuse them."""
    return MAX_DATED if any(map(in_effect, faults)) else SAMPLE


def span_fields(
    names: Mapping[str, Any], spans: Iterable[tuple[Iterable[int], tuple[int, int] | None]]
) -> dict[str, Any]:
    """Return the fields `spans` and `broker_sets` of a Finding: the times of its rows, each with
    the broker set of the keys that it is about. Rows without times are left out."""
    of_key = set_name_by_key(names, range(len(names.get("keys", ()))))
    known = [(keys, span) for keys, span in spans if span]
    sets = [{of_key[key] for key in keys if 0 <= key < len(of_key)} for keys, _ in known]
    return {
        "spans": tuple(span for _, span in known),
        "broker_sets": tuple(some.pop() if len(some) == 1 else "" for some in sets),
    }


def seconds(t: int) -> float:
    """Return a time in ns as seconds of the run."""
    return round(t / 1e9, 6)
