"""Draws a trial and its plan from a seed (swarm testing).

A base trial is common to a campaign; what it sets is kept. The rest is drawn by the plug-ins: the
hosts' options by the hosts, sizes and settings by the system, the load by the workload, the faults
by the nemesis, each by a function `swarm(random)`, if it has one. A system's, `swarm(random, trial,
planned)`, gets the trial, since its sizes depend on each other, and whether a plan is given, which
was written for a certain cluster. The drawn plan is explicit, so it can be replayed and shrunk even
if the drawing changes.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

from harness import registry
from harness.contracts import PlannedFault
from harness.errors import BadRequest
from harness.run.launch import PlanLimits
from harness.trial import SIMULATED, Trial

DRAWS = 100  # of a load that fits the options; at worst one in three is known to fit
RECOVERED = 5  # detection times, after which a simulated cluster has recovered
HOSTS = SIMULATED


def draw_trial(seed: int, base: Trial, plan: str | None = None) -> tuple[Trial, str]:
    """Return the trial of a seed and its plan as TOML; a given plan is used unchanged.

    Raises BadRequest or Unsupported if the base trial is invalid or cannot be simulated.
    """
    trial, faults = draw_faults(seed, base, plan)
    return trial, registry.nemesis().dump(faults)


def draw_faults(
    seed: int, base: Trial, plan: str | None = None, hosts: str = HOSTS
) -> tuple[Trial, tuple[PlannedFault, ...]]:
    """Return the same with the plan as faults, perhaps for other hosts."""
    random = Random(f"{seed}/swarm")
    trial = replace(base, name=f"seed-{seed}", seed=seed, plan="", hosts=hosts, short_faults=True)
    trial = _draw_sizes(trial, random, plan is not None)
    nemesis = registry.nemesis()
    stage = PlanLimits.of(trial)
    if plan is None:
        faults = nemesis.swarm(random, trial, stage.detection_s, stage.nodes, stage.can)
    else:
        by_hand = replace(trial, plan=base.plan)  # checked as a written plan
        faults = nemesis.plan_for_trial(by_hand, plan, stage.detection_s, stage.nodes, stage.can)
    return with_kinds(trial, faults), faults


def recover_within_s(trial: Trial) -> float:
    """Return how long a simulated cluster may take to recover, unless the user says: five times as
    long as it takes to notice a silent node, at most as long as a real one. No machine is slow in a
    world, and more patience would hide a cluster that does not recover by itself. A silent member
    of a consumer group is noticed much later, so its workloads have as long as on real machines."""
    if "member" in registry.workload(trial.workload).client:
        return Trial.recover_within_s
    stage = PlanLimits.of(replace(trial, hosts=HOSTS))
    return min(Trial.recover_within_s, RECOVERED * stage.detection_s)


def with_kinds(trial: Trial, faults: Sequence[PlannedFault]) -> Trial:
    """Return the trial with the kinds of these faults."""
    return replace(trial, faults=tuple(sorted({fault.kind for fault in faults})))


def _draw_sizes(trial: Trial, random: Random, planned: bool) -> Trial:
    """Return the trial with everything drawn except the faults."""
    load = _draw_load(trial, Random(random.getrandbits(64)))
    system = _draw("system", trial.system, random, trial, planned)
    return replace(
        trial,
        profile=trial.profile or str(system.get("profile", "")),
        nodes={**system.get("nodes", {}), **trial.nodes},
        bed={**_draw("hosts", trial.hosts, random), **trial.bed},
        load=load,
        settings={**system.get("settings", {}), **trial.settings},
    )


def _draw_load(trial: Trial, own: Random) -> dict[str, Any]:
    """Draw a load until it fits the options: ordered sends need a queue for each producer."""
    make = registry.load("workload", trial.workload)
    swarm = registry.workload(trial.workload).swarm
    if swarm is None:
        return dict(trial.load)

    def draw() -> dict[str, Any]:
        load = {**swarm(own), **trial.load}
        make(replace(trial, load=load)).check_options()
        return load

    for _ in range(DRAWS - 1):
        with suppress(BadRequest):
            return draw()
    return draw()


def _draw(kind: str, name: str, random: Random, *context: Any) -> dict[str, Any]:
    swarm = (registry.system(name) if kind == "system" else registry.hosts(name)).swarm
    own = Random(random.getrandbits(64))  # independent of what others draw
    return dict(swarm(own, *context)) if swarm else {}
