"""Drawn plans: dense random mixtures of faults for campaigns, and a demonstration of each kind.

Swarm: a plan that always contains some of everything tests the same average again and again. So
each seed omits kinds and targets, and draws how many faults are in force at once and how long they
last: from a fraction of the time in which the system notices a silent node to several times as
much. Faults come in storms with calms between them, because a cluster that makes no progress has
nothing to lose. The end of the load is always without faults. (Groce et al., Swarm Testing, 2012;
FoundationDB and TigerBeetle draw their worlds in the same way.)

Demonstration: every fault, one after the other, each on a cluster that is whole again. A fault's
plug-in lists what is injected (`verify_examples`: target and parameters, and seconds if it needs
longer than others); for one that does not, a fault is drawn that hits a single slave if it can.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from harness import registry
from harness.contracts import CLIENT, FaultPlugin, Node, PlannedFault
from harness.errors import BadRequest
from harness.trial import Trial
from nemesis._plan import targets as _targets
from nemesis._plan.aliases import Alias
from nemesis._plan.conditions import WHOLE
from nemesis._plan.kinds import aims_at_clients, alias_of, suitable_targets, with_defaults
from nemesis._plan.plan import AT_CLIENTS, ONE_CLIENT, SYSTEM_ABILITIES, Plan, check, in_words

FIRST_S = 0.5  # of load without faults
LAST = 1.0  # minimum detection times without faults at the end
MIN_GAP_S, MIN_FOR_S = 0.01, 0.02
WITH_CLIENTS = 0.25  # the share of network faults that include clients
SKEW = 0.6  # of durations around their mean: a factor of 2 either way is common

# All of these are drawn uniformly on a logarithmic scale.
LASTING = (0.03, 1.2)  # mean duration of a fault, in detection times
LONG_LASTING = (2.0, 15.0)  # ... of a few seeds: longer than kernels and clients wait
LONG = 0.05  # the share of these seeds
TOGETHER = (1.0, 6.0)  # faults in force at once in a storm, on average
STORM = (0.7, 8.0)  # in detection times
CALM = (0.2, 2.0)
LIKELY = (0.2, 1.0)  # relative probability of a kind
# Expensive kinds are less likely: a loss needs 200 probes of each link. A handover is an operator's
# command, and rarer than failures.
WEIGHT = {"loss": 0.4, "handover": 0.3}

TargetAndParams = tuple[str, Mapping[str, Any]]  # target, parameters
Draw = Callable[[Random], TargetAndParams]

# Drawn unless kinds are named, as far as the profile claims to survive them. Adding a kind changes
# the plans of all seeds.
USUAL = ("handover", "kill", "loss", "partition", "pause", "power")

BROKERS = ("master", "one slave", "one broker", "in-set", "out-of-set", "majority broker")
CONTROLLERS = ("controller-leader", "one controller", "majority controller", "all controller")
ANY_NODE = ("one server", "minority", "all broker", "all")
# Each seed uses one of these groups: rare events coincide sooner if fewer targets are possible.
TARGET_GROUPS = (BROKERS, CONTROLLERS, BROKERS + CONTROLLERS, BROKERS + CONTROLLERS + ANY_NODE)
SIDES = ("broker", "controller", "nameserver", "master", "slave", "controller-leader", "client")


@dataclass(frozen=True)
class SwarmProfile:
    """What one seed has drawn: kinds with functions that draw targets, and times in seconds."""

    ways: Sequence[tuple[str, Draw]]
    weights: Sequence[float]
    for_s: float
    gap_s: float
    storm_s: float
    calm_s: float


def swarm(
    random: Random, trial: Trial, detection_s: float, nodes: Sequence[Node], can: frozenset[str]
) -> Plan:
    """Draw a plan for the trial's load, of its kinds of faults, or of all that its hosts `can` do.

    Raises BadRequest or Unsupported if the kinds make no sense or are impossible.
    """
    if trial.faults and not any(alias_of(name).kind for name in trial.faults):
        return ()  # `noop` of OpenChaos is no fault
    profile = _draw_profile(random, trial, detection_s, nodes, can)
    plan = tuple(_faults(random, profile, trial.duration_s - LAST * detection_s))
    if not plan:
        raise BadRequest(
            f"a load of {trial.duration_s:g} s has no room for a fault, because the first"
            f" {FIRST_S:g} s and the last {LAST * detection_s:g} s stay without faults; use a"
            " longer --duration (duration_s in a trial file)"
        )
    check(plan, trial, detection_s, nodes, can)
    return plan


def _draw_profile(
    random: Random, trial: Trial, detection_s: float, nodes: Sequence[Node], can: frozenset[str]
) -> SwarmProfile:
    kinds = tuple(name for name in trial.faults if alias_of(name).kind) or tuple(
        kind for kind in claimed_kinds(trial) if can >= registry.fault(kind).needs
    )
    own = () if trial.targets else _targets_of(random, nodes)
    lasting = LONG_LASTING if random.random() < LONG else LASTING
    for_s = detection_s * _log(random, *lasting)
    aliases = [alias_of(kind) for kind in _some(random, kinds)]
    ways = [_way(each, _for(each.kind, trial, own, nodes), nodes) for each in aliases]
    ways = [(kind, _or_client(way) if aims_at_clients(kind, trial) else way) for kind, way in ways]
    return SwarmProfile(
        ways,
        [WEIGHT.get(kind, 1.0) * _log(random, *LIKELY) for kind, _ in ways],
        for_s,
        max(MIN_GAP_S, for_s / _log(random, *TOGETHER)),
        detection_s * _log(random, *STORM),
        detection_s * _log(random, *CALM),
    )


def claimed_kinds(trial: Trial) -> tuple[str, ...]:
    """Return the usual kinds that the trial claims to survive wherever they hit, and those that
    may break nothing, which need no claim."""
    from harness.judge.claims import claims_in_force  # imports pyarrow, which a node does not have

    claims = claims_in_force(trial)
    return tuple(
        kind
        for kind in USUAL
        if claims.get(kind) == "all" or not registry.fault(kind).effects.may_break
    )


def _faults(random: Random, profile: SwarmProfile, until_s: float) -> Iterator[PlannedFault]:
    """Draw faults up to this time; at least one, if there is time for any."""
    at_s = storm_s = FIRST_S
    while at_s + MIN_FOR_S <= until_s:
        for_s = max(MIN_FOR_S, profile.for_s * random.lognormvariate(0, SKEW))
        ((kind, way),) = random.choices(profile.ways, profile.weights)
        target, params = way(random)
        defaults = {name: p.default for name, p in registry.fault(kind).params.items()}
        for_s = min(for_s, until_s - at_s)
        yield PlannedFault(kind, round(at_s, 3), round(for_s, 3), target, {**defaults, **params})
        at_s += random.expovariate(1 / profile.gap_s)
        if at_s > storm_s + profile.storm_s:
            at_s = storm_s = at_s + profile.calm_s


def _targets_of(random: Random, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Draw some of the selectors that match nodes here, and perhaps nodes by name."""
    about = [way for way in random.choice(TARGET_GROUPS) if has_target(way, nodes)]
    named = [node.name for node in nodes if node.role != CLIENT]
    few = random.sample(named, random.choice((0, 0, 1, 2))) if len(named) > 1 else named
    return tuple(_some(random, about) + few) if about else tuple(few or named)


def _for(kind: str, trial: Trial, own: Sequence[str], nodes: Sequence[Node]) -> Sequence[str]:
    """Return the targets for a kind: the trial's that it can hit, or those of the seed."""
    if trial.targets:
        return suitable_targets(kind, trial.targets, nodes)
    return registry.fault(kind).campaign_targets(own)


def has_target(selector: str, nodes: Sequence[Node]) -> bool:
    """Return whether a selector can match one of the nodes."""
    try:
        _targets.check(selector, nodes)
    except BadRequest:
        return False
    return True


def _way(alias: Alias, targets: Sequence[str], nodes: Sequence[Node]) -> tuple[str, Draw]:
    """Return the kind and the function that draws its target and parameters."""
    if alias.settled:
        return alias.kind, lambda random: (alias.target or random.choice(targets), alias.params)
    drawn = registry.fault(alias.kind).draw
    if alias.kind == "partition":
        sides = [side for side in SIDES if has_target(side, nodes)]
        return alias.kind, lambda random: _cut(random, targets, sides)
    if alias.kind == "loss":
        return alias.kind, lambda random: _lossy(random, targets)
    return alias.kind, lambda random: drawn(random, targets)


def _or_client(way: Draw) -> Draw:
    """Aim some of the faults at a client instead."""
    return lambda random: (ONE_CLIENT, {}) if random.random() < AT_CLIENTS else way(random)


def _cut(random: Random, targets: Sequence[str], sides: Sequence[str]) -> TargetAndParams:
    """Draw a partition of any shape and direction, with or without clients."""
    clients = random.random() < WITH_CLIENTS
    shape = random.choice(("isolate", "isolate", "one-way", "one-way", "between", "divide"))
    a, b = random.sample(sides, 2)
    if shape == "divide":
        shape = random.choice(("halves", "majority", "one", "bridge", "ring"))
        return random.choice(("server", "cluster")), {"shape": shape, "clients": clients}
    if shape == "between":
        return "", {"shape": shape, "a": a, "b": b}
    params: dict[str, Any] = {"shape": shape, "from": random.choice(("", "", a))}
    if shape == "one-way":
        params["direction"] = random.choice(("out", "in"))
    return random.choice(targets), {**params, "clients": clients}


def _lossy(random: Random, targets: Sequence[str]) -> TargetAndParams:
    return random.choice(targets), {
        "probability": round(_log(random, 0.05, 0.95), 2),
        "direction": random.choice(("in", "out", "both")),
        "clients": random.random() < WITH_CLIENTS,
    }


def _some(random: Random, items: Sequence[str]) -> list[str]:
    """Draw at least one item; every number of items is equally likely."""
    return random.sample(items, random.randint(1, len(items)))


def _log(random: Random, low: float, high: float) -> float:
    return math.exp(random.uniform(math.log(low), math.log(high)))


# ------------------------------------------------------------------------------ the demonstration

GENTLE = "one slave"
DEMO_FIRST_S = 1.0
WHOLE_WITHIN_S = 60.0

DemoCase = TargetAndParams | tuple[str, Mapping[str, Any], float]  # the last: minimum seconds


class DemoPlan(NamedTuple):
    """A plan, and the kinds that cannot be shown on these hosts, with the reason."""

    plan: Plan
    lacking: Mapping[str, str]


def demo_plan(
    names: Sequence[str], nodes: Sequence[Node], can: frozenset[str], hosts: str, for_s: float
) -> DemoPlan:
    """Plan these kinds one after the other, each for at least `for_s`.

    Raises UnknownName for a kind that does not exist.
    """
    plan: list[PlannedFault] = []
    lacking = {}
    for kind in filter(None, dict.fromkeys(alias_of(name).kind for name in names)):
        plugin = registry.fault(kind)
        if missing := plugin.needs - can:
            lacking[kind] = _lacking(missing, hosts)
            continue
        try:
            cases = [*_demo_cases(kind, plugin, nodes)]
        except BadRequest as e:  # it is not drawn
            lacking[kind] = str(e)
            continue
        for target, params, *min_s in cases:
            after = f"{WHOLE} within {WHOLE_WITHIN_S:g} s" if plan else ""
            fault = PlannedFault(kind, DEMO_FIRST_S, max([for_s, *min_s]), target, params, after)
            fault = with_defaults(fault, plugin)
            if missing := plugin.needs_for(fault, can) - can:
                words = (f"{key} {value}" for key, value in sorted(params.items()))
                lacking[", ".join([kind, *words])] = _lacking(missing, hosts)
            else:
                plan.append(fault)
    return DemoPlan(tuple(plan), lacking)


def _lacking(missing: Collection[str], hosts: str) -> str:
    own = [name for name in missing if name in SYSTEM_ABILITIES]
    who = "the system lacks" if own else f"{hosts} hosts lack"
    return f"{who} {in_words(own)}" if own else f"{who}: {', '.join(sorted(missing))}"


def _demo_cases(kind: str, plugin: FaultPlugin, nodes: Sequence[Node]) -> Iterator[DemoCase]:
    for target, *rest in plugin.verify_examples:
        yield (_there(target, nodes), *rest)
    if plugin.verify_examples:
        return
    target, params = plugin.draw(Random(f"{kind}/shown"), (GENTLE,))
    if not _is_valid(kind, plugin, target, params, nodes):
        target, params = plugin.draw(Random(f"{kind}/shown"), ())
    yield target, params


def _there(target: str, nodes: Sequence[Node]) -> str:
    """Return a target, of servers of any role where these nodes have no such role."""
    try:
        _targets.check(target, nodes)
    except BadRequest:
        return target.replace("broker", "server")
    return target


def _is_valid(
    kind: str, plugin: FaultPlugin, target: str, params: Mapping[str, Any], nodes: Sequence[Node]
) -> bool:
    try:
        plugin.check(with_defaults(PlannedFault(kind, 0.0, 1.0, target, params), plugin))
        _targets.check(target, nodes)
    except BadRequest:
        return False
    return True
