"""Does every fault do here what it says? Each is injected into a small cluster and healed.

It is an ordinary run under a light load, whose plan is all faults one after the other, each on a
cluster that is whole again (`nemesis.demo_plan`). What was observed is read from its history: what
counts is what was seen in the world, and nothing is judged. Kinds that the hosts can not do are
named with the reason, and are no failure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from harness import registry
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
from harness.run.preflight import refuse
from harness.trial import Trial

FOR_S = 1.0
LOAD = {"rate": 20.0}
NOT_REACHED = "the run ended before it"


@dataclass(frozen=True)
class Seen:
    """What was observed of one fault; seconds, None for what was not seen."""

    kind: str
    target: str
    params: Mapping[str, Any]
    nodes: tuple[str, ...]
    state: str
    applied_s: float | None  # from its moment until it was in the world
    observed_s: float | None  # ... until its effect was seen
    healed_s: float | None  # from the beginning of its healing until that was seen
    measured: str
    why: str = ""  # it did not work

    @property
    def works(self) -> bool:
        return self.state == "installed" and self.healed_s is not None

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "works": self.works}


@dataclass(frozen=True)
class Verified:
    """All of them, and by kind why others can not be had on these hosts."""

    hosts: str
    faults: Sequence[Seen] = ()
    lacking: Mapping[str, str] = field(default_factory=dict)
    run: str = ""
    error: str = ""  # of the test bed

    @property
    def exit_code(self) -> int:
        """A fault that was tried and not seen weighs more than those that nobody tried."""
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


def verified(
    asked: Trial, kinds: Sequence[str], runs: Path, watch: Callable[[Mapping[str, Any]], None]
) -> Verified:
    """Raise a cluster, inject and heal each kind (all when none is named), tell what was seen.

    BadRequest or BedFailed when that can not be: nothing has been injected then.
    """
    request, lacking = planned(asked, kinds)
    hosts = request.trial.hosts
    if not request.plan_text:
        return Verified(hosts, lacking=lacking)
    refuse(request, runs)
    run = launch.run(request.trial, request.plan_text, watch, runs)
    seen = tuple(map(seen_of, History.open(run).faults))
    error = str(run.state().get("error") or "")
    return Verified(hosts, seen, lacking, str(run.path), error)


def planned(asked: Trial, kinds: Sequence[str]) -> tuple[Request, Mapping[str, str]]:
    """The trial with a plan that shows these kinds; and which can not be shown, with the reason.

    There is no text when none can.
    """
    trial = replace(
        asked,
        plan="",
        faults=(),
        nodes={CLIENT: 1, **asked.nodes},
        load={**LOAD, **asked.load},
        short_faults=True,
        duration_s=2 * FOR_S,
    )
    stage = launch.Stage.of(trial)
    nemesis = registry.nemesis()
    names = kinds or registry.names("fault")
    plan, lacking = nemesis.demo_plan(names, stage.nodes, stage.can, trial.hosts, FOR_S)
    if kinds and not plan:
        why = "; ".join(f"{kind}: {why}" for kind, why in lacking.items())
        raise BadRequest(why or f"{', '.join(kinds)} breaks nothing, so nothing can be verified")
    longest_s = max((fault.at_s + fault.for_s for fault in plan), default=0.0)
    trial = replace(trial, duration_s=max(trial.duration_s, longest_s))
    return Request(trial, nemesis.dump(plan) if plan else None), lacking


def seen_of(fault: FaultInterval) -> Seen:
    """What the history tells of one fault."""
    observation = fault.observation
    return Seen(
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


def words(seen: Seen) -> str:
    """The fault as one would write it, without what goes without saying: `loss, direction both`."""
    params = registry.fault(seen.kind).params
    said = [f"{k} {v}" for k, v in seen.params.items() if v != params[k].default]
    return ", ".join((seen.kind, *said))


def _why(fault: FaultInterval) -> str:
    healing = fault.observation.get("healing", {})
    if error := fault.observation.get("error") or healing.get("error"):
        return str(error)
    if fault.begin is None:
        return NOT_REACHED
    if broke_off := fault.observation.get("broke_off"):
        return f"it was not kept up: {broke_off}"
    if fault.state != "installed":
        return f"its effect was seen to be {fault.state}"
    return "" if fault.healed is not None else "it was not seen healed"


def _between(begin: int | None, end: int | None) -> float | None:
    return None if begin is None or end is None else round((end - begin) / 1e9, 3)
