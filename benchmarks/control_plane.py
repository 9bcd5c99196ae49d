"""Controllers may fail, brokers serve: `python benchmarks/control_plane.py [--rounds 2] [--quick]`.

All three controllers are killed, paused, cut off, or lose 80 % of their packets, each way, for some
seconds, with as long a quiet between two faults, at timeScale 0.1: such a window is longer than any
timeout. Twice: at 2,000 sends a second for latency, and at full load for throughput. Each faulty
window is compared with the quiet ones before and after it, so what drifts is the same for both, and
the table says how far quiet ones differ from each other. A window begins when the fault has been
observed, or was seen healed, and its dust has settled, since the harness's probes and new processes
share the processors; sends that fail are counted all the time.

Then the controllers are killed, and meanwhile brokers too, which start again to find nobody who
could tell them what they are. Told is the time from the controllers' start to the first send that
was invoked after it and acknowledged.

`--simulated`: the latencies alone, at 200 sends a second, in the simulated world. Its processors
are never busy, so what differs there is the protocol's doing, and nothing else is.
"""

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import median

from _figures import quantile, table
from _recorded import Sends, faults, sends

from harness.history.rundir import RunDir
from harness.run import launch
from harness.trial import Trial

WITHIN = 0.10  # of fault-free
KINDS = {
    "killed": 'kind = "kill"',
    "paused": 'kind = "pause"',
    "cut off": 'kind = "partition"\nparams = { shape = "isolate" }',
    "losing 80 %": 'kind = "loss"\nparams = { probability = 0.8, direction = "both" }',
}
RESTARTED = {"one slave": "one slave", "the master": "master", "all brokers": "all broker"}
LEAD_S, LASTS_S, QUIET_S, SETTLE_S = 3.0, 5.0, 5.0, 1.5
GONE_S, STRIKE_S, DOWN_S, APART_S = 6.0, 1.5, 2.0, 12.0  # of the third trial
TRIAL = Trial(
    name="control-plane",
    profile="allack-min2",
    nodes={"client": 1},
    settings={"timeScale": 0.1},
    short_faults=True,
    recover_within_s=10.0,
)
PACED = {"rate": 2000, "producers": 4, "concurrency": 256, "groups": 0}
FULL = {"rate": 0, "producers": 4, "concurrency": 32, "groups": 0}
LIGHT = {"rate": 400, "producers": 4, "concurrency": 64, "groups": 0}

Span = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """One fault: its own steady span, the quiet ones on both sides, and all until the next."""

    faulty: Span
    quiet: tuple[Span, ...]
    whole: Span


# ------------------------------------------------------------------------------------- plans


def plan(rounds: int) -> tuple[str, float]:
    """Every fault in turn, and how long the load must last."""
    texts, at_s = [], LEAD_S + SETTLE_S
    for _ in range(rounds):
        for fault in KINDS.values():
            texts.append(_fault(fault, "all controller", at_s, LASTS_S))
            at_s += LASTS_S + QUIET_S
    return "\n".join(texts), at_s + 1.0


def restarts(rounds: int) -> tuple[str, float]:
    """Controllers gone, and brokers restarted before they are back."""
    texts, at_s = [], LEAD_S
    for _ in range(rounds):
        for target in RESTARTED.values():
            texts.append(_fault(KINDS["killed"], "all controller", at_s, GONE_S))
            texts.append(_fault(KINDS["killed"], target, at_s + STRIKE_S, DOWN_S))
            at_s += APART_S
    return "\n".join(texts), at_s


def _fault(fault: str, target: str, at_s: float, for_s: float) -> str:
    return f'[[fault]]\n{fault}\ntarget = "{target}"\nat_s = {at_s}\nfor_s = {for_s}\n'


# ----------------------------------------------------------------------------------- windows


def windows(run: RunDir) -> Mapping[str, list[Window]]:
    """Every fault's, by kind. SystemExit when one was not what it was meant to be."""
    rows, settle = faults(run), round(SETTLE_S * 1e9)
    for row in rows:
        if row["state"] != "installed" or row["healed"] is None:
            seen = "seen" if row["healed"] else "not seen"
            sys.exit(f"fault {row['id']} ({row['kind']}) was {row['state']}, {seen} healed")
    state = run.state()
    last = state["load_began_ns"] + round(run.trial().duration_s * 1e9)
    ends = [state["load_began_ns"], *(row["healed"] for row in rows)]
    begins = [*(row["begin"] for row in rows), last]
    gaps = [(end + settle, begin) for end, begin in zip(ends, begins, strict=True)]
    found = defaultdict(list)
    for number, (row, until) in enumerate(zip(rows, begins[1:], strict=True)):
        faulty = (row["observed"] + settle, row["heal"])
        around = tuple(gap for gap in gaps[number : number + 2] if gap[0] < gap[1])
        if faulty[0] >= faulty[1] or not around:
            sys.exit(f"fault {number} took longer than its window: is this machine busy?")
        kind = list(KINDS)[number % len(KINDS)]
        found[kind].append(Window(faulty, around, (row["begin"], until)))
    return found


def p99_ms(all_sends: Sends, *spans: Span) -> float:
    return quantile(all_sends.begun_in(*spans).ms, 0.99)


@dataclass(frozen=True)
class Compared:
    """Medians over the windows of one kind. `ratio`: of each pair's ratios."""

    faulty: float
    quiet: float
    ratio: float


def compared(pairs: Sequence[tuple[float, float]]) -> Compared:
    faulty, quiet = zip(*pairs, strict=True)
    return Compared(median(faulty), median(quiet), median(f / q for f, q in pairs))


# --------------------------------------------------------------------------------- measuring


def sail(
    load: Mapping[str, object],
    planned: tuple[str, float],
    runs: Path,
    what: str,
    hosts: str = "local",
) -> RunDir:
    text, seconds = planned
    print(f"{what}: {seconds:g} s of load", file=sys.stderr, flush=True)
    trial = TRIAL.with_({"load": load, "duration_s": seconds, "hosts": hosts})
    return launch.run(trial, text, runs=runs)


def measure_simulated(rounds: int, runs: Path) -> bool:
    """The table of latencies in the simulated world; whether all was as wanted."""
    run = sail(LIGHT | {"rate": 200}, plan(rounds), runs, "simulated", hosts="simulated")
    latency, lines, good = sends(run), [], True
    for kind, some in windows(run).items():
        during = latency.begun_in(*(w.whole for w in some))
        p99 = _p99(latency, some)
        good &= during.failed == 0 and p99.ratio <= 1 + WITHIN
        lines.append((kind, f"{during.failed} of {len(during.ok):,}", *_cells(p99, ".2f")))
    print(table(("all controllers", "failed sends", "p99 ms", "quiet", "ratio"), lines))
    return good


def _p99(latency: Sends, some: Sequence[Window]) -> Compared:
    return compared([(p99_ms(latency, w.faulty), p99_ms(latency, *w.quiet)) for w in some])


def _cells(one: Compared, form: str) -> tuple[str, str, str]:
    return f"{one.faulty:{form}}", f"{one.quiet:{form}}", f"{one.ratio:.2f}"


def measure(rounds: int, runs: Path) -> bool:
    """The table of faults; whether all was as wanted."""
    paced = sail(PACED, plan(rounds), runs, "latency at 2,000 sends a second")
    full = sail(FULL, plan(rounds), runs, "throughput at full load")
    latency, speed = sends(paced), sends(full)
    by_kind, by_kind_full = windows(paced), windows(full)
    lines, good = [], True
    for kind in KINDS:
        some, fast = by_kind[kind], by_kind_full[kind]
        whole = [w.whole for w in some]
        during = latency.begun_in(*whole), speed.begun_in(*(w.whole for w in fast))
        failed, of = sum(d.failed for d in during), sum(len(d.ok) for d in during)
        p99 = _p99(latency, some)
        per_s = compared(
            [(speed.acknowledged_in(w.faulty), speed.acknowledged_in(*w.quiet)) for w in fast]
        )
        good &= failed == 0 and p99.ratio <= 1 + WITHIN and per_s.ratio >= 1 - WITHIN
        lines.append(
            (
                kind,
                f"{failed} of {of:,}",
                *_cells(p99, ".2f"),
                f"{max(during[0].ms):.0f}",
                *_cells(per_s, ",.0f"),
            )
        )
    headings = ("all controllers", "failed sends", "p99 ms", "quiet", "ratio", "slowest ms")
    print(table((*headings, "sends/s", "quiet", "ratio"), lines))
    print(f"quiet windows among each other, p99: {apart(by_kind, partial(p99_ms, latency))}")
    print(f"the same, sends/s: {apart(by_kind_full, speed.acknowledged_in)}")
    return good


def apart(by_kind: Mapping[str, list[Window]], figure: Callable[[Span], float]) -> str:
    """How far two quiet windows on either side of a fault differ: least, median, most."""
    ratios = []
    for window in (w for some in by_kind.values() for w in some):
        ratios += [figure(a) / figure(b) for a, b in pairwise(window.quiet)]
    if not ratios:
        return "not known"
    return f"ratio {min(ratios):.2f} to {max(ratios):.2f}, median {median(ratios):.2f}"


def measure_restarts(rounds: int, runs: Path) -> bool:
    """The table of restarted brokers; whether all of them came back."""
    run = sail(LIGHT, restarts(rounds), runs, "brokers restarted without controllers")
    all_sends, took_s, never = sends(run), defaultdict(list), 0
    rows = faults(run)
    for gone, struck in zip(rows[::2], rows[1::2], strict=True):
        if {gone["state"], struck["state"]} != {"installed"}:
            sys.exit(f"fault {struck['id']} was {struck['state']}, {gone['id']} {gone['state']}")
        served = all_sends.served_ns(gone["heal"])
        took_s[struck["selector"]].append(inf if served is None else (served - gone["heal"]) / 1e9)
        never += served is None
    print(
        table(
            ("restarted while no controller was there", "served after, s: median", "most"),
            [
                (name, f"{median(took_s[who]):.2f}", f"{max(took_s[who]):.2f}")
                for name, who in RESTARTED.items()
            ],
        )
    )
    if never:
        print(f"{never} of {len(rows) // 2} times nothing was served again")
    return never == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2, help="of each fault in each trial")
    parser.add_argument("--quick", action="store_true", help="one round: to see that it works")
    parser.add_argument("--simulated", action="store_true", help="latencies, without processors")
    asked = parser.parse_args()
    rounds = 1 if asked.quick else asked.rounds
    with tempfile.TemporaryDirectory() as folder:
        if asked.simulated:
            return 0 if measure_simulated(rounds, Path(folder)) else 1
        good = measure(rounds, Path(folder))
        good &= measure_restarts(rounds, Path(folder))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
