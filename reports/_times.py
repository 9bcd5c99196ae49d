"""The times of each fault, computed once for all report formats.

With several broker sets, the checker `availability` measures each set that a fault hit. Reports
show one row a fault: the times of the set that was hit worst. A time that never came counts as
later than all others, also in the median.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

TO_ACK, TO_SUCCESS, SILENCE, TO_FULL_SET = (
    "to_ack_s",
    "failure_to_success_s",
    "silence_s",
    "to_full_set_s",
)
FaultTimesRow = Mapping[str, Any]  # a fault's times by name, in seconds
Durations = Sequence[tuple[Any, float]]  # faults, with how long something took


def times_of_faults(stats: Mapping[str, Any]) -> list[FaultTimesRow]:
    """Return the times of each fault from `availability`, in its order; of several broker sets the
    worst."""
    each: dict[Any, list[FaultTimesRow]] = {}
    for row in stats.get("faults", ()):
        each.setdefault(row.get("fault"), []).append(row)
    return [row[0] if len(row) == 1 else _worst(row) for row in each.values()]


def _worst(sets: Sequence[FaultTimesRow]) -> FaultTimesRow:
    failed = [row for row in sets if row.get("failed")]
    silences = [row[SILENCE] for row in sets if row.get(SILENCE) is not None]
    return {
        **sets[0],
        TO_ACK: _greatest([row.get(TO_ACK) for row in sets]),
        "only_after_healing": any(row.get("only_after_healing") for row in sets),
        "failed": bool(failed),
        TO_SUCCESS: _greatest([row.get(TO_SUCCESS) for row in failed]),
        SILENCE: max(silences, default=None),
        TO_FULL_SET: _greatest([row.get(TO_FULL_SET) for row in sets]),
    }


def _greatest(values: Sequence[float | None]) -> float | None:
    """Return the maximum; None, which means never, is greater than all."""
    numbers = [value for value in values if value is not None]
    return max(numbers) if numbers and len(numbers) == len(values) else None


def durations(faults: Sequence[FaultTimesRow], name: str) -> Durations:
    """Return each fault with a duration, infinite if it never came; faults without a measurement
    are left out."""
    seconds = []
    for row in faults:
        awaited = name == TO_ACK or (name == TO_SUCCESS and row.get("failed"))
        if is_time(row.get(name)):
            seconds.append((row.get("fault"), float(row[name])))
        elif awaited and name in row and row[name] is None:
            seconds.append((row.get("fault"), math.inf))
    return seconds


def is_time(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def usual_and_worst(
    faults: Sequence[FaultTimesRow], name: str
) -> tuple[float | None, float | None] | None:
    """Return the median and the maximum, each None if never; None without faults."""
    values = [value for _, value in durations(faults, name)]
    return (finite(median(values)), finite(max(values))) if values else None


def finite(value: float) -> float | None:
    """Return the value rounded; None if it is infinite."""
    return round(value, 3) if math.isfinite(value) else None
