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
from harness.trial import Trial

DRAWS = 100  # of a load that fits the options; at worst one in three is known to fit
# of draw_few: how many, and how many times as long
FEW_FAULTS, STRETCH = (1, 2, 3, 5, 8), (1.0, 2.0, 5.0, 20.0)
REPEATED, REPEATS = 0.25, (4, 8, 12)  # share of them that repeat one fault, and how often
FIRST_S, OUTLASTS, WITH_SHORT = 1.0, (1.1, 1.6), 0.4  # of draw_standing
RECOVERED = 5  # detection times, after which a simulated cluster has recovered
HOSTS = "simulated"  # cheap enough for thousands of trials


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


def draw_few(seed: int, base: Trial) -> tuple[Trial, tuple[PlannedFault, ...]]:
    """Draw a trial and a plan with a few faults of those that `draw_faults` draws, some of them
    longer, or with one of them again and again: real systems need seconds to overcome one, and
    others may hide what one does."""
    trial, drawn = draw_faults(seed, base, hosts=base.hosts)
    random = Random(f"{seed}/few")
    few = random.sample(drawn, min(len(drawn), random.choice(FEW_FAULTS)))
    if few and random.random() < REPEATED:
        times = random.choice(REPEATS)
        every_s = trial.duration_s / (times + 1)
        few = [replace(few[0], at_s=round(every_s * (n + 0.5), 3)) for n in range(times)]
    factor, end_s = random.choice(STRETCH), trial.duration_s - 1
    faults = tuple(
        replace(fault, for_s=round(max(0.1, min(fault.for_s * factor, end_s - fault.at_s)), 3))
        for fault in sorted(few, key=lambda fault: fault.at_s)
    )
    return with_kinds(trial, faults), faults


def draw_standing(seed: int, base: Trial) -> tuple[Trial, tuple[PlannedFault, ...]]:
    """Draw a trial and faults that outlast the time to recover, one after another, some of them
    with a short one around their beginning: the cluster has to overcome them while they last. If
    the load is too short for one, as `draw_few`."""
    trial, drawn = draw_faults(seed, base, hosts=base.hosts)
    random, faults, at_s = Random(f"{seed}/standing"), [], FIRST_S
    while drawn:
        for_s, more = trial.recover_within_s * random.uniform(*OUTLASTS), []
        begin_s = at_s
        if random.random() < WITH_SHORT:
            begin_s += random.uniform(0, 1)
            short_s = begin_s - at_s + random.uniform(0.2, 4)
            more, for_s = [_at(random.choice(drawn), at_s, short_s)], for_s + short_s
        if begin_s + for_s > trial.duration_s - 1:
            break
        faults += [*more, _at(random.choice(drawn), begin_s, for_s)]
        at_s = begin_s + for_s + trial.recover_within_s * random.uniform(0.1, 0.5)
    return (with_kinds(trial, faults), tuple(faults)) if faults else draw_few(seed, base)


def _at(fault: PlannedFault, at_s: float, for_s: float) -> PlannedFault:
    return replace(fault, at_s=round(at_s, 3), for_s=round(for_s, 3))


def recover_within_s(trial: Trial) -> float:
    """Return how long a simulated cluster may take to recover, unless the user says: five times as
    long as it takes to notice a silent node, at most as long as a real one. No machine is slow in a
    world, and more patience would hide a cluster that does not recover by itself."""
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
