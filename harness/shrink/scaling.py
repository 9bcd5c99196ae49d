"""Scales the times of a trial and its plan. Pure.

Published plans have the times of their authors: a minute of fault, a minute of recovery. A cluster
whose timeouts are a tenth of theirs shows the same in a tenth of the time, so the times of a plan,
the intervals of repeated faults, the duration of the load and the timeouts of the system are
multiplied by one factor. A repeated fault may also have a share of its rounds only; the load then
ends earlier.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import tomli_w

from harness import registry
from harness.cli.options import Request
from harness.errors import BadRequest
from harness.text.parsing import MAX_SECONDS, is_number, parse_toml
from harness.trial import Rhythm, Trial

SECONDS = re.compile(r"(\d+(?:\.\d+)?)( ?s\b)")
# parameters of faults: a flapping partition, nodes restarted in turn
RHYTHM = ("on_s", "off_s", "down_s")
ALL = -1  # digits
MANY = 12  # digits of an interval that is added in each round: 0.1 s times 3 are 0.3 s
FLAP_ON_S = 1.0  # default of a flapping partition
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Scale:
    """`by` multiplies all times, and `setting`, a setting of the system. `share`: of the rounds of
    each repeated fault."""

    by: float = 1.0
    setting: str = ""
    share: float = 1.0


def scale_request(request: Request, scale: Scale) -> Request:
    """Scale a trial."""
    if scale.by == 1 and scale.share == 1:
        return request
    trial, text, shorter_s = request.trial, request.plan_text, 0.0
    if text is not None:
        text, shorter_s = scale_plan(text, scale)
    rhythm = trial.rhythm
    settings = dict(trial.settings)
    if scale.setting:
        before = _in_force(trial, scale.setting)
        value = _time(before, scale.by, 6)
        both_whole = isinstance(before, int) and value.is_integer()
        settings[scale.setting] = int(value) if both_whole else value
    trial = replace(
        trial,
        duration_s=_time(trial.duration_s - shorter_s, scale.by),
        rhythm=Rhythm(
            quiet_s=_time(rhythm.quiet_s, scale.by, ALL),
            fault_s=_time(rhythm.fault_s, scale.by, ALL),
            recovery_s=_time(rhythm.recovery_s, scale.by, ALL),
        ),
        settings=settings,
    )
    return replace(request, trial=trial, plan_text=text)


def _time(time_s: float, by: float, digits: int = 3) -> float:
    """Scale a time. Raises BadRequest if the result is not a valid time."""
    paced_s = float(time_s * by if digits == ALL else round(time_s * by, digits))
    if not 0 < paced_s <= MAX_SECONDS:
        raise BadRequest(
            f"{time_s:g} s times {by:g} are {paced_s:g} s, which is not valid; choose a factor "
            "nearer to 1"
        )
    return paced_s


def _in_force(trial: Trial, name: str) -> float | int:
    """Return the value of a setting, by default the system's. Raises BadRequest if that is unknown
    or not a number."""
    known: Row = trial.settings
    if name not in known:
        in_force = registry.system(trial.system).in_force
        known = in_force(trial) if in_force else {}
    if name not in known:
        raise BadRequest(
            f"settings.{name} is to be scaled, but {trial.system} has no default for it; "
            "set it in the trial"
        )
    value: float | int = known[name]
    if not is_number(value):
        raise BadRequest(f"settings.{name} is to be scaled, so it must be a number, not {value!r}")
    return value


def scale_plan(text: str, scale: Scale) -> tuple[str, float]:
    """Scale a plan, and return by how many unscaled seconds it ends earlier."""
    rows = parse_toml(text, "the plan").get("fault", [])
    fewer = [_fewer(row, scale.share) for row in rows]
    shorter_s = max(map(_end_s, rows), default=0.0) - max(map(_end_s, fewer), default=0.0)
    return tomli_w.dumps({"fault": [_faster(row, scale.by) for row in fewer]}), shorter_s


def _fewer(row: Row, share: float) -> Row:
    """Reduce a fault to a share of its rounds, at least one."""
    repeat = row.get("repeat")
    if not repeat:
        return row
    every = {key: value for key, value in repeat.items() if key == "every_s"}
    return {**row, "repeat": {"times": max(1, math.ceil(_times(row) * share)), **every}}


def _times(row: Row) -> int:
    """Return the number of rounds of a fault."""
    repeat = row.get("repeat", {})
    if "until_s" in repeat:
        room_s = repeat["until_s"] - row["at_s"] - row["for_s"]
        return int((room_s + 1e-9) / repeat["every_s"]) + 1
    return int(repeat.get("times", 1))


def _end_s(row: Row) -> float:
    """Return the end of the last round of a fault."""
    every_s = row.get("repeat", {}).get("every_s", 0.0)
    return float(row["at_s"] + row["for_s"] + (_times(row) - 1) * every_s)


def _faster(row: Row, by: float) -> dict[str, Any]:
    changed = dict(row)
    changed["for_s"] = _time(row["for_s"], by)
    changed["at_s"] = round(row["at_s"] * by, 3)
    for key in ("after", "until"):
        if key in row:
            changed[key] = SECONDS.sub(lambda found: _seconds(found, by), row[key])
    if params := row.get("params"):
        changed["params"] = {**params, **_rhythm(params, by)}
    if repeat := row.get("repeat"):
        changed["repeat"] = {
            key: _time(value, by, MANY) if key == "every_s" else value
            for key, value in repeat.items()
        }
    return changed


def _rhythm(params: Row, by: float) -> dict[str, float]:
    """Scale the intervals of what a fault repeats while it lasts, but not other parameters, such as
    the delay of packets."""
    times = {name: params[name] for name in RHYTHM if name in params}
    if params.get("off_s"):
        times.setdefault("on_s", FLAP_ON_S)
    return {name: _time(value, by, 6) if value else value for name, value in times.items()}


def _seconds(match: re.Match[str], by: float) -> str:
    return f"{_time(float(match[1]), by, 6):.6f}".rstrip("0").rstrip(".") + match[2]
