"""Recovery times of a master's faults at timeScale 1: `python benchmarks/recovery.py`.

    --fault kill pause partition kill+leader pause+leader partition+leader   all
    --flavour dledger jraft                    of the controllers            both
    --profile fast-failover rocketmq NAME      or any profile of Flotilla    fast-failover
    --route-interval 1 3 10 30                 of the clients, in seconds    the profile's own
    --client asks waits    for a fresh route when a send fails, or for the timer; RocketMQ's waits,
                           and so does the client of the profile rocketmq unless told otherwise
    --hosts local simulated                    simulated: no machine disturbs, CPU seconds only
    --all                  both profiles, all route intervals
    --times 20             faults of each kind
    --quick                one each of the two most different, to see that it works

`rocketmq` is `unsafe-default` with all of RocketMQ's own times. What was measured is kept in
runs/recovery.json and not measured again (--again does, or another number of --times), so a long
matrix may be interrupted and gone on with. A run that failed, or in which not all faults were in
force, is told and not kept. The exit code is 1 then, and when `fast-failover` misses its goals:
half of the kills recover in 1 s, half of the pauses and partitions in 3 s, and all of them in 5 s.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

from _outages import (
    ASKS,
    FAULTS,
    FLAVOURS,
    KILL,
    LOCAL,
    OURS,
    PAUSE,
    ROCKETMQ,
    SIMULATED,
    WAITS,
    Cell,
    Incomplete,
    Measured,
    measure,
)

from harness.cli.live_view import TrialScreen

RESULTS = Path("runs/recovery.json")
INTERVALS_S = (1.0, 3.0, 10.0, 30.0)
AROUND_S = 8.0  # to raise a cluster, to read all of it and to take it down
SIMULATED_SPEED = 15.0  # simulated seconds in a CPU second, about
HALF_WITHIN_S = {KILL: 1.0}
ELSE_HALF_WITHIN_S, ALL_WITHIN_S = 3.0, 5.0

Kept = dict[str, Any]


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--fault", nargs="+", choices=FAULTS, default=FAULTS)
    parser.add_argument("--flavour", nargs="+", choices=FLAVOURS, default=FLAVOURS)
    parser.add_argument("--profile", nargs="+", default=[OURS])
    parser.add_argument("--route-interval", nargs="+", type=float, default=[0.0])
    parser.add_argument("--client", nargs="+", choices=(ASKS, WAITS))
    parser.add_argument("--hosts", choices=(LOCAL, SIMULATED), default=LOCAL)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--results", type=Path, default=RESULTS)
    for switch in ("--all", "--quick", "--again"):
        parser.add_argument(switch, action="store_true")
    asked = parser.parse_args(words)
    if asked.all:
        asked.profile, asked.route_interval = [OURS, ROCKETMQ], INTERVALS_S
    if asked.quick:
        asked.fault, asked.flavour = (KILL, f"{PAUSE}+leader"), FLAVOURS[:1]
        asked.times, asked.again = 1, True
        asked.results = asked.results.with_stem(f"{asked.results.stem}-quick")
    return asked


def cells(asked: argparse.Namespace) -> Iterator[Cell]:
    """The quickest profile first."""
    for profile, interval_s, flavour, fault in product(
        asked.profile, asked.route_interval, asked.flavour, asked.fault
    ):
        for client in asked.client or [WAITS if profile == ROCKETMQ else ASKS]:
            yield Cell(fault, flavour, profile, client, interval_s, asked.hosts)


def takes_s(cell: Cell, times: int) -> float:
    """By the clock of this machine."""
    plan_s = cell.moments(times)[-1]
    return plan_s / SIMULATED_SPEED if cell.hosts == SIMULATED else plan_s + AROUND_S


def there(kept: Kept, cell: Cell, times: int) -> bool:
    """Was this measured, with so many faults?"""
    return len(kept.get(cell.key, {}).get("times", ())) == times


def run(wanted: Sequence[Cell], times: int, kept: Kept, results: Path) -> Iterator[str]:
    """Measure what is not there; every cell is kept as soon as it is done. What could not be
    measured is told, and not kept."""
    for number, cell in enumerate(wanted, start=1):
        words = f"{number} of {len(wanted)}: {cell.key}, {duration(takes_s(cell, times))}"
        print(words, file=sys.stderr, flush=True)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            shown = sys.stderr.isatty() and cell.hosts == LOCAL
            live = stack.enter_context(TrialScreen(cell.trial(1.0))) if shown else None
            told = live.update if live else lambda status: None
            try:
                kept[cell.key] = measure(cell, times, folder, told).fields()
            except Incomplete as e:
                yield f"not measured: {cell.key}: {e}"
                continue
        results.parent.mkdir(parents=True, exist_ok=True)
        results.write_text(json.dumps(kept, indent=1) + "\n")


def table(rows: Mapping[Cell, Measured]) -> Iterator[str]:
    """As Markdown. Seconds: half of the faults recovered in p50, 99 % in p99, all in most."""
    yield (
        "| fault | controllers | profile | route, client | faults"
        " | applied to acknowledged: p50, p99, most | failure to success: p50, p99, most |"
    )
    yield "|" + " --- |" * 7
    for cell, found in rows.items():
        times = " | ".join(
            ", ".join(f"{found.quantile(which, q):.2f}" for q in (0.5, 0.99, 1.0))
            for which in (0, 1)
        )
        route = f"{cell.route_s:g} s, {cell.client}"
        yield (
            f"| {cell.fault} | {cell.flavour} | {cell.profile} | {route}"
            f" | {len(found.times)}{_doubts(found)} | {times} |"
        )


def _doubts(found: Measured) -> str:
    late = f", {found.late} only after healing" if found.late else ""
    return late + (f", {found.maimed} not whole before the next" if found.maimed else "")


def missed(rows: Mapping[Cell, Measured]) -> Iterator[str]:
    """Goals that are not reached."""
    for cell, found in rows.items():
        half_s, most_s = found.quantile(0, 0.5), found.quantile(0, 1.0)
        half_within_s = HALF_WITHIN_S.get(cell.kind, ELSE_HALF_WITHIN_S)
        if cell.profile == OURS and (half_s > half_within_s or most_s > ALL_WITHIN_S):
            yield f"{cell.key}: p50 {half_s:.2f} s of {half_within_s:g}, most {most_s:.2f} s of 5"


def duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{seconds / 60:.1f} min"


def main() -> int:
    asked = arguments(sys.argv[1:])
    every = list(cells(asked))
    kept: Kept = json.loads(asked.results.read_text()) if asked.results.exists() else {}
    wanted = [cell for cell in every if asked.again or not there(kept, cell, asked.times)]
    total_s = sum(takes_s(cell, asked.times) for cell in wanted)
    print(
        f"{len(every)} rows, {len(every) - len(wanted)} of them measured before;"
        f" the rest takes {duration(total_s)}",
        file=sys.stderr,
        flush=True,
    )
    failures = list(run(wanted, asked.times, kept, asked.results))
    measured = [cell for cell in every if there(kept, cell, asked.times)]
    rows = {cell: Measured.of(kept[cell.key]) for cell in measured}
    print("\n".join(table(rows)))
    failures += [f"goal missed: {words}" for words in missed(rows)]
    print("\n".join(failures) or "all goals are reached")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
