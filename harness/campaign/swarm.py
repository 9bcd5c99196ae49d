"""What a seed draws: a trial and its plan, each different from those of all other seeds.

A base trial says what is common to a campaign; whatever it sets stays as it is. The rest is drawn,
by those who know it: the hosts' options by the hosts, sizes and settings by the system, the load by
the workload, the faults by the nemesis. Each has a function `swarm(random)`, or nothing to draw. A
system's, `swarm(random, trial, planned)`, is told what is set, for its sizes depend on each other,
and whether a plan is given, which was written for some cluster.
The plan is explicit, so that it can be replayed and shrunk whatever becomes of the drawing.
"""

from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

from harness import registry
from harness.errors import BadRequest
from harness.run.launch import Stage
from harness.trial import Trial

DRAWS = 100  # of a load that fits what is set of it; one in three does, at the worst that is known
HOSTS = "simulated"  # where a trial costs so little that there can be thousands


def drawn(seed: int, base: Trial, plan: str | None = None) -> tuple[Trial, str]:
    """The trial of a seed and its plan, as TOML; with a plan given, that one.

    BadRequest or Unsupported when the base trial makes no sense or can not be simulated.
    """
    random = Random(f"{seed}/swarm")
    trial = replace(base, name=f"seed-{seed}", seed=seed, plan="", hosts=HOSTS, short_faults=True)
    trial = _sized(trial, random, plan is not None)
    nemesis = registry.nemesis()
    stage = Stage.of(trial)
    if plan is None:
        faults = nemesis.swarm(random, trial, stage.detection_s, stage.nodes, stage.can)
    else:
        by_hand = replace(trial, plan=base.plan)  # and so held to what somebody writes
        faults = nemesis.plan_for_trial(by_hand, plan, stage.detection_s, stage.nodes, stage.can)
    kinds = tuple(sorted({fault.kind for fault in faults}))
    return replace(trial, faults=kinds), nemesis.dump(faults)


def _sized(trial: Trial, random: Random, planned: bool) -> Trial:
    """The trial with all that is drawn of it but the faults."""
    load = _load(trial, Random(random.getrandbits(64)))
    system = _drawn("system", trial.system, random, trial, planned)
    return replace(
        trial,
        profile=trial.profile or str(system.get("profile", "")),
        nodes={**system.get("nodes", {}), **trial.nodes},
        bed={**_drawn("hosts", trial.hosts, random), **trial.bed},
        load=load,
        settings={**system.get("settings", {}), **trial.settings},
    )


def _load(trial: Trial, own: Random) -> dict[str, Any]:
    """Drawn again until it fits what is set: ordered sends want a queue for each producer."""
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


def _drawn(kind: str, name: str, random: Random, *told: Any) -> dict[str, Any]:
    swarm = (registry.system(name) if kind == "system" else registry.hosts(name)).swarm
    own = Random(random.getrandbits(64))  # what one draws is nothing to the others
    return dict(swarm(own, *told)) if swarm else {}
