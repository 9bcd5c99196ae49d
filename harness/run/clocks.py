"""The nodes' clocks in run.json: their offsets from the driver's clock, and whether these held.

    "clocks": {"client-1": {"offset_ns": 7, "error_ns": 34500000, "off_ns": 1200000}, ...}

Rows are stamped by the offset at the run's start, early and late by its error, which allows for the
drift of quartz. A clock that NTP slews, or that stands still while its machine is suspended,
exceeds that; so clocks with an error are compared again when the last row is written. `off_ns` is
how far the clock may have been from the offset then; null if it was not measured. Where it is more
than the error, the order of events is uncertain, and no finding that may depend on it convicts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from harness import registry
from harness.contracts import ClockComparingHosts, ClockOffset, Hosts, Node
from harness.judge.verdict import Reason, Result

DOUBTFUL = "CLOCKS_DOUBTFUL"


def clocks_json(nodes: Sequence[Node], hosts: Hosts) -> dict[str, Any]:
    """Return the clocks for run.json; empty if all equal the driver's."""
    clocks = {node.name: hosts.clock(node.name) for node in nodes}
    if all(clock == ClockOffset() for clock in clocks.values()):
        return {}
    again = isinstance(hosts, ClockComparingHosts)
    return {"clocks": {name: _clock_json(clock, again) for name, clock in clocks.items()}}


def _clock_json(clock: ClockOffset, again: bool) -> dict[str, Any]:
    right = {"rate": ClockOffset().rate}  # left out
    row = {key: value for key, value in asdict(clock).items() if right.get(key) != value}
    return row | {"off_ns": None} if again and clock.error_ns else row


def with_final_comparison(
    rows: Mapping[str, Any], now: Mapping[str, ClockOffset]
) -> dict[str, Any]:
    """Return the rows of run.json with the result of a second comparison."""
    return {name: _compared(row, now.get(name)) for name, row in rows.items()}


def _compared(row: Mapping[str, Any], now: ClockOffset | None) -> dict[str, Any]:
    if now is None:
        return dict(row)
    return {**row, "off_ns": abs(now.offset_ns - row["offset_ns"]) + now.error_ns}


def clock_reasons(state: Mapping[str, Any]) -> Iterable[Reason]:
    """Yield one reason for all clocks that exceeded their error, or were not compared again."""
    clocks = state.get("clocks")
    rows = clocks.items() if isinstance(clocks, dict) else ()
    doubtful = [(node, row) for node, row in rows if _is_doubtful(row)]
    for node, row in doubtful[:1]:
        off_ns, error_s = row["off_ns"], row["error_ns"] / 1e9
        what = "was not compared again at the end"
        if off_ns is not None:
            what = f"may have been off by {off_ns / 1e9:.3f} s at the end"
        more = f" (and those of {len(doubtful) - 1} more nodes)" if len(doubtful) > 1 else ""
        yield Reason(
            DOUBTFUL,
            f"the clock of {node}{more} {what}, and was taken to be right to {error_s:.3f} s, so "
            "the order of events on different nodes is uncertain; make sure that no machine is "
            "suspended and no clock slewed during a run, and run it again",
        )


def _is_doubtful(row: Any) -> bool:
    if not isinstance(row, dict) or "off_ns" not in row or not isinstance(row["error_ns"], int):
        return False
    off_ns = row["off_ns"]
    return not isinstance(off_ns, int) or off_ns > row["error_ns"]


def without_demands(result: Result) -> Result:
    """Return the result with findings that only inform, if they may depend on the order of
    events."""
    if not registry.needs_clocks(result.checker):
        return result
    return replace(result, findings=tuple(replace(f, demand="") for f in result.findings))
