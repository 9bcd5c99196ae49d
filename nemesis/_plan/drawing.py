"""Plans of a swarm: for every seed another mixture of faults, dense and overlapping.

A plan with a bit of everything tests the same mean thing for ever. So each seed leaves kinds and
targets out, and draws how many faults are in force at once and how long they last: from a fraction
of the time in which the system notices a silent node to several times as much. Faults come in
storms with calms between them, since a cluster that never gets anywhere has nothing to lose. Only
the last stretch of the load has none. (Groce et al., Swarm Testing, 2012; FoundationDB and
TigerBeetle draw their worlds likewise.)
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from harness import registry
from harness.contracts import CLIENT, Node, PlannedFault
from harness.errors import BadRequest
from harness.trial import Trial
from nemesis._plan import targets as _targets
from nemesis._plan.aliases import Alias
from nemesis._plan.kinds import alias_of, fitting, of_clients
from nemesis._plan.plan import AT_CLIENTS, ONE_CLIENT, Plan, check

FIRST_S = 0.5  # of load alone
LAST = 1.0  # detection times of load alone at the end, at least
LEAST_GAP_S, LEAST_FOR_S = 0.01, 0.02
WITH_CLIENTS = 0.25  # the share of network faults that clients feel
SKEW = 0.6  # of single durations about their mean: a factor of 2 either way is common

# All but the lengths of the last stretch are drawn evenly on a logarithmic scale.
LASTING = (0.03, 1.2)  # mean duration of a fault, in detection times
LONG_LASTING = (2.0, 15.0)  # ... of a few seeds: longer than kernels and clients wait
LONG = 0.05  # how many these are
TOGETHER = (1.0, 6.0)  # faults in force at once in a storm, on average
STORM = (0.7, 8.0)  # in detection times
CALM = (0.2, 2.0)
LIKELY = (0.2, 1.0)  # how likely a kind is beside the others
# Likelier the less it costs: links are probed 200 times to see a loss. A handover is an operator's
# command, and rarer than what happens by itself.
DEAR = {"loss": 0.4, "handover": 0.3}

Victim = tuple[str, Mapping[str, Any]]  # target, parameters
Drawn = Callable[[Random], Victim]

# What a seed draws from unless kinds are named, as far as the profile claims to survive it; another
# kind here changes the plans of all seeds.
USUAL = ("handover", "kill", "loss", "partition", "pause", "power")

BROKERS = ("master", "one slave", "one broker", "in-set", "out-of-set", "majority broker")
CONTROLLERS = ("controller-leader", "one controller", "majority controller", "all controller")
ANYBODY = ("one server", "minority", "all broker", "all")
# Whom a seed is about: two rare events must meet sooner where there is nothing else to be hit.
ABOUT = (BROKERS, CONTROLLERS, BROKERS + CONTROLLERS, BROKERS + CONTROLLERS + ANYBODY)
SIDES = ("broker", "controller", "nameserver", "master", "slave", "controller-leader", "client")


@dataclass(frozen=True)
class Weather:
    """What one seed has drawn: kinds with the ways to hit, and times in seconds."""

    ways: Sequence[tuple[str, Drawn]]
    weights: Sequence[float]
    for_s: float
    gap_s: float
    storm_s: float
    calm_s: float


def swarm(
    random: Random, trial: Trial, detection_s: float, nodes: Sequence[Node], can: frozenset[str]
) -> Plan:
    """A plan for the trial's load, of its kinds of faults, or of all that its hosts `can` do.

    BadRequest or Unsupported when they make no sense or are impossible.
    """
    if trial.faults and not any(alias_of(name).kind for name in trial.faults):
        return ()  # OpenChaos has a name for none at all
    weather = _weather(random, trial, detection_s, nodes, can)
    plan = tuple(_faults(random, weather, trial.duration_s - LAST * detection_s))
    if not plan:
        raise BadRequest(
            f"a load of {trial.duration_s:g} s has no room for a fault: the first {FIRST_S:g} s and"
            f" the last {LAST * detection_s:g} s have none; use a longer"
            " --duration (duration_s in a trial file)"
        )
    check(plan, trial, detection_s, nodes, can)
    return plan


def _weather(
    random: Random, trial: Trial, detection_s: float, nodes: Sequence[Node], can: frozenset[str]
) -> Weather:
    kinds = tuple(name for name in trial.faults if alias_of(name).kind) or tuple(
        kind for kind in claimed(trial) if can >= registry.fault(kind).needs
    )
    own = () if trial.targets else _targets_of(random, nodes)
    lasting = LONG_LASTING if random.random() < LONG else LASTING
    for_s = detection_s * _log(random, *lasting)
    aliases = [alias_of(kind) for kind in _some(random, kinds)]
    ways = [_way(each, _for(each.kind, trial, own, nodes), nodes) for each in aliases]
    ways = [(kind, _or_client(way) if of_clients(kind, trial) else way) for kind, way in ways]
    return Weather(
        ways,
        [DEAR.get(kind, 1.0) * _log(random, *LIKELY) for kind, _ in ways],
        for_s,
        max(LEAST_GAP_S, for_s / _log(random, *TOGETHER)),
        detection_s * _log(random, *STORM),
        detection_s * _log(random, *CALM),
    )


def claimed(trial: Trial) -> tuple[str, ...]:
    """Return the usual kinds that the trial claims to survive wherever they hit, and those that
    may break nothing, which need no claim."""
    from harness.judge.claims import claims_in_force  # with pyarrow, which a node does not have

    claims = claims_in_force(trial)
    return tuple(
        kind
        for kind in USUAL
        if claims.get(kind) == "all" or not registry.fault(kind).effects.may_break
    )


def _faults(random: Random, weather: Weather, until_s: float) -> Iterator[PlannedFault]:
    """At least one, if there is time for any."""
    at_s = storm_s = FIRST_S
    while at_s + LEAST_FOR_S <= until_s:
        for_s = max(LEAST_FOR_S, weather.for_s * random.lognormvariate(0, SKEW))
        ((kind, way),) = random.choices(weather.ways, weather.weights)
        target, params = way(random)
        defaults = {name: p.default for name, p in registry.fault(kind).params.items()}
        for_s = min(for_s, until_s - at_s)
        yield PlannedFault(kind, round(at_s, 3), round(for_s, 3), target, {**defaults, **params})
        at_s += random.expovariate(1 / weather.gap_s)
        if at_s > storm_s + weather.storm_s:
            at_s = storm_s = at_s + weather.calm_s


def _targets_of(random: Random, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Some of the selectors that can mean somebody here, and perhaps nodes by name."""
    about = [way for way in random.choice(ABOUT) if _means(way, nodes)]
    named = [node.name for node in nodes if node.role != CLIENT]
    few = random.sample(named, random.choice((0, 0, 1, 2))) if len(named) > 1 else named
    return tuple(_some(random, about) + few) if about else tuple(few or named)


def _for(kind: str, trial: Trial, own: Sequence[str], nodes: Sequence[Node]) -> Sequence[str]:
    """The targets that a kind is drawn from: the trial's that it can hit, or of our own."""
    if trial.targets:
        return fitting(kind, trial.targets, nodes)
    return registry.fault(kind).usual(own)


def _means(selector: str, nodes: Sequence[Node]) -> bool:
    try:
        _targets.check(selector, nodes)
    except BadRequest:
        return False
    return True


def _way(alias: Alias, targets: Sequence[str], nodes: Sequence[Node]) -> tuple[str, Drawn]:
    """How faults of a kind are drawn."""
    if alias.settled:
        return alias.kind, lambda random: (alias.target or random.choice(targets), alias.params)
    drawn = registry.fault(alias.kind).drawn
    if alias.kind == "partition":
        sides = [side for side in SIDES if _means(side, nodes)]
        return alias.kind, lambda random: _cut(random, targets, sides)
    if alias.kind == "loss":
        return alias.kind, lambda random: _lossy(random, targets)
    return alias.kind, lambda random: drawn(random, targets)


def _or_client(way: Drawn) -> Drawn:
    """Now and then at a client instead."""
    return lambda random: (ONE_CLIENT, {}) if random.random() < AT_CLIENTS else way(random)


def _cut(random: Random, targets: Sequence[str], sides: Sequence[str]) -> Victim:
    """Every shape and direction, with clients on either side or not."""
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


def _lossy(random: Random, targets: Sequence[str]) -> Victim:
    return random.choice(targets), {
        "probability": round(_log(random, 0.05, 0.95), 2),
        "direction": random.choice(("in", "out", "both")),
        "clients": random.random() < WITH_CLIENTS,
    }


def _some(random: Random, items: Sequence[str]) -> list[str]:
    """At least one; each number of them is as likely."""
    return random.sample(items, random.randint(1, len(items)))


def _log(random: Random, low: float, high: float) -> float:
    return math.exp(random.uniform(math.log(low), math.log(high)))
