"""`seatrial list faults --verify`: tests that every fault takes effect on this machine.

It is an ordinary run under a light load, whose plan has all faults one after the other, each on a
recovered cluster (`nemesis.demo_plan`). The result is read from the observations in its history;
the run is not judged. Kinds that the hosts do not support are listed with the reason, and are no
failure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from harness import registry
from harness.cli.console import standard_output
from harness.cli.options import Request
from harness.contracts import CLIENT
from harness.errors import (
    EXIT_BED_FAILED,
    EXIT_INVALID,
    EXIT_UNKNOWN,
    EXIT_VALID,
    BadRequest,
)
from harness.history.faults_and_events import FaultInterval
from harness.history.reader import History
from harness.run import launch
from harness.run.preflight import missing_calls, refuse_unrunnable
from harness.trial import Trial

FOR_S = 1.0
LOAD = {"rate": 20.0}
NOT_REACHED = "the run ended before it"
HEADINGS = ("", "fault", "on", "applied", "seen", "healed", "measured")


@dataclass(frozen=True)
class FaultCheck:
    """The observations of one fault; times are None if not observed."""

    kind: str
    target: str
    params: Mapping[str, Any]
    nodes: tuple[str, ...]
    state: str
    applied_s: float | None  # from its begin until it was applied
    observed_s: float | None  # ... until its effect was observed
    healed_s: float | None  # from the begin of healing until that was observed
    measured: str
    why: str = ""  # reason of a failure

    @property
    def works(self) -> bool:
        return self.state == "installed" and self.healed_s is not None

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "works": self.works}


@dataclass(frozen=True)
class FaultVerification:
    """All faults, and for other kinds the reason why these hosts do not support them."""

    hosts: str
    faults: Sequence[FaultCheck] = ()
    lacking: Mapping[str, str] = field(default_factory=dict)
    run: str = ""
    error: str = ""  # of the test bed

    @property
    def exit_code(self) -> int:
        """A fault that was not observed outweighs faults that were not tried."""
        if self.error:
            return EXIT_BED_FAILED
        whys = {seen.why for seen in self.faults if not seen.works}
        if whys - {NOT_REACHED}:
            return EXIT_INVALID
        return EXIT_UNKNOWN if whys else EXIT_VALID

    def plain(self) -> dict[str, Any]:
        return {
            "hosts": self.hosts,
            "works": self.exit_code == EXIT_VALID,
            "faults": [seen.plain() for seen in self.faults],
            "lacking": dict(self.lacking),
            "run": self.run,
            "error": self.error or None,
        }


def verify_faults(
    trial: Trial, kinds: Sequence[str], runs: Path, watch: Callable[[Mapping[str, Any]], None]
) -> FaultVerification:
    """Start a cluster, inject and heal each kind (by default all), and return the observations.

    Raises BadRequest or BedFailed before anything is injected.
    """
    request, lacking = verification_plan(trial, kinds)
    hosts = request.trial.hosts
    if not request.plan_text:
        return FaultVerification(hosts, lacking=lacking)
    refuse_unrunnable(request, runs)
    run = launch.run(request.trial, request.plan_text, watch, runs)
    seen = tuple(map(fault_check, History.open(run).faults))
    error = str(run.state().get("error") or "")
    return FaultVerification(hosts, seen, lacking, str(run.path), error)


def verification_plan(asked: Trial, kinds: Sequence[str]) -> tuple[Request, Mapping[str, str]]:
    """Return the trial with a plan of these kinds, and the reasons for unsupported kinds.

    The plan is None if no kind is supported.
    """
    trial = replace(
        asked,
        workload=_workload(asked),
        plan="",
        faults=(),
        nodes={CLIENT: 1, **asked.nodes},
        load={**LOAD, **asked.load},
        short_faults=True,
        duration_s=2 * FOR_S,
    )
    stage = launch.PlanLimits.of(trial)
    nemesis = registry.nemesis()
    names = kinds or registry.names("fault")
    plan, lacking = nemesis.demo_plan(names, stage.nodes, stage.can, trial.hosts, FOR_S)
    if kinds and not plan:
        why = "; ".join(f"{kind}: {why}" for kind, why in lacking.items())
        raise BadRequest(why or f"{', '.join(kinds)} breaks nothing, so nothing can be verified")
    longest_s = max((fault.at_s + fault.for_s for fault in plan), default=0.0)
    trial = replace(trial, duration_s=max(trial.duration_s, longest_s))
    return Request(trial, nemesis.dump(plan) if plan else None), lacking


def _workload(trial: Trial) -> str:
    """Return the trial's workload, or another where the clients of the system lack its calls."""
    for name in (trial.workload, *registry.names("workload")):
        if not missing_calls(replace(trial, workload=name)):
            return name
    return trial.workload


def fault_check(fault: FaultInterval) -> FaultCheck:
    """Return the observations of one fault."""
    observation = fault.observation
    return FaultCheck(
        kind=fault.kind,
        target=fault.selector,
        params=fault.params,
        nodes=fault.names,
        state=fault.state,
        applied_s=_between(fault.begin, fault.applied),
        observed_s=_between(fault.begin, fault.observed),
        healed_s=_between(fault.heal, fault.healed) if fault.applied is not None else None,
        measured=registry.nemesis().describe_effect(observation),
        why=_why(fault),
    )


def words(seen: FaultCheck) -> str:
    """Return a fault without default parameters: `loss, direction both`."""
    params = registry.fault(seen.kind).params
    changed = [f"{k} {v}" for k, v in seen.params.items() if v != params[k].default]
    return ", ".join((seen.kind, *changed))


def _why(fault: FaultInterval) -> str:
    healing = fault.observation.get("healing", {})
    if error := fault.observation.get("error") or healing.get("error"):
        return str(error)
    if fault.begin is None:
        return NOT_REACHED
    if broke_off := fault.observation.get("broke_off"):
        return f"it did not last: {broke_off}"
    if fault.state != "installed":
        return f"its effect was observed to be {fault.state}"
    return "" if fault.healed is not None else "it was not observed healed"


def _between(begin: int | None, end: int | None) -> float | None:
    return None if begin is None or end is None else round((end - begin) / 1e9, 3)


# ---------------------------------------------------------------------------------------- table


def show(verified: FaultVerification) -> None:
    """Print a row for each fault, the kinds that are not supported, and a conclusion."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold")
    for seen in verified.faults:
        table.add_row(*map(escape, row(seen)), style="" if seen.works else "red")
    console = standard_output()
    if verified.faults:
        console.print(table)
    for kind, why in verified.lacking.items():
        console.print(f"not here  {kind}: {why}", markup=False, soft_wrap=True)
    console.print(conclusion(verified), markup=False, soft_wrap=True)


def row(seen: FaultCheck) -> tuple[str, ...]:
    times = (seen.applied_s, seen.observed_s, seen.healed_s)
    result = seen.measured if seen.works else ": ".join(filter(None, (seen.why, seen.measured)))
    return (
        "ok" if seen.works else "FAILED",
        words(seen),
        ", ".join(seen.nodes) or seen.target,
        *("-" if time is None else f"{1000 * time:.0f} ms" for time in times),
        result,
    )


def conclusion(verified: FaultVerification) -> str:
    """Return the last line."""
    if verified.error:
        return f"The run ended early: {verified.error} ({verified.run})"
    if not verified.faults:
        return f"{verified.hosts} hosts support none of these faults."
    failed = [seen for seen in verified.faults if not seen.works]
    if not failed:
        count = len(verified.faults)
        return f"All {count} faults were observed in effect on {verified.hosts} hosts, and healed."
    kinds = ", ".join(dict.fromkeys(seen.kind for seen in failed))
    return (
        f"Not observed in effect, or not healed, on {verified.hosts} hosts: {kinds}."
        f" The run is in {verified.run}."
    )
