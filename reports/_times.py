"""How long each fault hurt, fault by fault: what every format tells of it is worked out here.

Where there are several broker sets, the checker `availability` measures each that a fault hit by
itself. For a reader a fault is one: it hurt as long as it hurt the set that was hit worst. What
never came is later than all that did, and the median counts it.
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
Fault = Mapping[str, Any]  # a fault's times by name, in seconds
Lasting = Sequence[tuple[Any, float]]  # faults, with how long something took


def of_faults(stats: Mapping[str, Any]) -> list[Fault]:
    """What `availability` told of each fault, in its order; of several broker sets the worst."""
    each: dict[Any, list[Fault]] = {}
    for told in stats.get("faults", ()):
        each.setdefault(told.get("fault"), []).append(told)
    return [told[0] if len(told) == 1 else _worst(told) for told in each.values()]


def _worst(sets: Sequence[Fault]) -> Fault:
    failed = [told for told in sets if told.get("failed")]
    silences = [told[SILENCE] for told in sets if told.get(SILENCE) is not None]
    return {
        **sets[0],
        TO_ACK: _greatest([told.get(TO_ACK) for told in sets]),
        "only_after_healing": any(told.get("only_after_healing") for told in sets),
        "failed": bool(failed),
        TO_SUCCESS: _greatest([told.get(TO_SUCCESS) for told in failed]),
        SILENCE: max(silences, default=None),
        TO_FULL_SET: _greatest([told.get(TO_FULL_SET) for told in sets]),
    }


def _greatest(values: Sequence[float | None]) -> float | None:
    """None, which is never, is the greatest of all."""
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


def lasting(faults: Sequence[Fault], name: str) -> Lasting:
    """Infinite where it never came; of what only may have come later nothing is known."""
    found = []
    for told in faults:
        awaited = name == TO_ACK or (name == TO_SUCCESS and told.get("failed"))
        if is_time(told.get(name)):
            found.append((told.get("fault"), float(told[name])))
        elif awaited and name in told and told[name] is None:
            found.append((told.get("fault"), math.inf))
    return found


def is_time(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def usual_and_worst(faults: Sequence[Fault], name: str) -> tuple[float | None, float | None] | None:
    """The median and the greatest, None where that is never; None of no fault."""
    values = [value for _, value in lasting(faults, name)]
    return (finite(median(values)), finite(max(values))) if values else None


def finite(value: float) -> float | None:
    """None: it never came."""
    return round(value, 3) if math.isfinite(value) else None
