"""The nodes' clocks in run.json: what they read beside ours, and whether that held to the end.

    "clocks": {"client-1": {"offset_ns": 7, "error_ns": 34500000, "off_ns": 1200000}, ...}

Rows are stamped by the offset of the run's start, early and late by its error, which allows for
quartz that drifts. A clock that is slewed by NTP, or stands still while its machine is suspended,
keeps to nothing; so clocks with an error are compared again when the last row is written. `off_ns`
is how far from the offset the clock can have been then; null when that was never asked. Where it
is more than the error, nobody knows who came first, and no finding that may rest on it convicts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from harness import registry
from harness.contracts import Clock, Hosts, Node, Timed
from harness.judge.verdict import Reason, Result

DOUBTFUL = "CLOCKS_DOUBTFUL"


def told(nodes: Sequence[Node], hosts: Hosts) -> dict[str, Any]:
    """For run.json: the nodes' clocks, where any differs from ours."""
    clocks = {node.name: hosts.clock(node.name) for node in nodes}
    if all(clock == Clock() for clock in clocks.values()):
        return {}
    again = isinstance(hosts, Timed)
    return {"clocks": {name: _told(clock, again) for name, clock in clocks.items()}}


def _told(clock: Clock, again: bool) -> dict[str, Any]:
    right = {"rate": Clock().rate}  # goes without saying
    row = {key: value for key, value in asdict(clock).items() if right.get(key) != value}
    return row | {"off_ns": None} if again and clock.error_ns else row


def compared(told: Mapping[str, Any], now: Mapping[str, Clock]) -> dict[str, Any]:
    """The same, where these clocks were compared again."""
    return {name: _compared(row, now.get(name)) for name, row in told.items()}


def _compared(row: Mapping[str, Any], now: Clock | None) -> dict[str, Any]:
    if now is None:
        return dict(row)
    return {**row, "off_ns": abs(now.offset_ns - row["offset_ns"]) + now.error_ns}


def doubts(state: Mapping[str, Any]) -> Iterable[Reason]:
    """One reason for all clocks that did not keep to their error, or were not asked again."""
    clocks = state.get("clocks")
    rows = clocks.items() if isinstance(clocks, dict) else ()
    doubtful = [(node, row) for node, row in rows if _doubtful(row)]
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


def _doubtful(row: Any) -> bool:
    if not isinstance(row, dict) or "off_ns" not in row or not isinstance(row["error_ns"], int):
        return False
    off_ns = row["off_ns"]
    return not isinstance(off_ns, int) or off_ns > row["error_ns"]


def undated(result: Result) -> Result:
    """The result where nobody knows who came first: what may rest on it informs only."""
    if not registry.needs_clocks(result.checker):
        return result
    return replace(result, findings=tuple(replace(f, demand="") for f in result.findings))
