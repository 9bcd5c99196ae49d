"""Kinds of faults by any of their names, and what may stand in their parameters."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness import registry
from harness.contracts import FaultPlugin, Node, Param, PlannedFault
from harness.errors import BadRequest, UnknownName
from harness.trial import Trial
from nemesis._plan.aliases import Alias, aliases

ONE_WAY, BOTH_WAYS = " -> ", " <-> "
SHAPES = {ONE_WAY: "one-way", BOTH_WAYS: "isolate"}  # of a partition
DIRECTIONS = {ONE_WAY: "out", BOTH_WAYS: "both"}


def check_kinds(names: Iterable[str]) -> None:
    """UnknownName for the first that is neither a kind of fault nor an alias of one."""
    for name in names:
        alias_of(name)


def alias_of(name: str) -> Alias:
    """A kind by its own name or by somebody else's. UnknownName lists both."""
    kinds, known = registry.names("fault"), aliases()
    if name in kinds:
        return Alias(name, settled=False)
    if name not in known:
        raise UnknownName("fault", name, (*kinds, *known))
    return known[name]


def completed(fault: PlannedFault, plugin: FaultPlugin) -> PlannedFault:
    """With the defaults of what it leaves out."""
    defaults = {name: param.default for name, param in plugin.params.items()}
    return replace(fault, params={**defaults, **fault.params})


def hits_clients(plugin: FaultPlugin) -> bool:
    """Whether a fault of this kind can do anything to clients: to what they send, or as it says."""
    return "links" in plugin.needs or plugin.hits_clients


def of_clients(kind: str, trial: Trial) -> bool:
    """Whether drawn plans also aim such faults at clients: the workload says so, and the trial
    names no targets."""
    return not trial.targets and kind in registry.workload(trial.workload).client_faults


def fitting(kind: str, targets: Sequence[str], nodes: Sequence[Node]) -> tuple[str, ...]:
    """Of these targets those that such a fault can hit. BadRequest when there are some, and it can
    hit none of them."""
    suits = registry.fault(kind).suits
    fit = tuple(target for target in targets if suits(target, nodes))
    if targets and not fit:
        raise BadRequest(
            f"{kind} can hit none of the targets {', '.join(targets)}; add one that it can, or"
            f" leave {kind} out of the faults"
        )
    return fit


def of_link(
    target: str, given: Mapping[str, Any], plugin: FaultPlugin, by_lot: bool = False
) -> tuple[str, dict[str, Any]]:
    """Target and parameters, where `A -> B` as target is short for what A sends to B.

    BadRequest when the fault is not one of links, or parameters that are not drawn by lot say
    something else.
    """
    arrow = BOTH_WAYS if BOTH_WAYS.strip() in target else ONE_WAY
    source, found, sink = target.partition(arrow.strip())
    if not found:
        return target, dict(given)
    if not source.strip() or not sink.strip():
        raise BadRequest(f"{target!r} names one end of a link only; write 'master -> slave'")
    params = plugin.params
    if not {"from", "direction"} <= params.keys():
        raise BadRequest(f"{target!r} is a link, and this fault does nothing to links")
    words = {"from": sink.strip(), "direction": DIRECTIONS[arrow]}
    if "shape" in params:
        words["shape"] = SHAPES[arrow]
    if words["direction"] not in params["direction"].among:
        del words["direction"]
    for name, word in words.items():
        if not by_lot and given.get(name, word) != word:
            raise BadRequest(f"{target!r} says {name} = {word!r}, and params something else")
    return source.strip(), {**given, **words}


def ends(target: str) -> tuple[str, ...]:
    """The selectors of a target, of which a link has two."""
    return tuple(target.replace(BOTH_WAYS.strip(), ONE_WAY.strip()).split(ONE_WAY.strip()))


def unfit(params: Mapping[str, Param], name: str, value: Any) -> str:
    """What is wrong with a parameter, if anything."""
    if name not in params:
        known = ", ".join(params) or "none"
        return f"unknown parameter; this fault's are: {known}"
    param = params[name]
    if problem := mistyped(param.default, value):
        return problem
    if param.among and value not in param.among:
        return f"must be one of {', '.join(param.among)}, not {value!r}"
    if isinstance(param.default, float) and not param.low <= value <= param.high:
        return f"must be between {param.low:g} and {param.high:g}, not {value:g}"
    return ""


def mistyped(default: Any, value: Any) -> str:
    """What is wrong with a value's type, by the default's."""
    kinds: Iterable[tuple[type | tuple[type, ...], str, Any]] = (
        (bool, "true or false", bool),
        ((int, float), "a number", (int, float)),
        (str, "a string", str),
        (Mapping, "a table", Mapping),
    )
    for of, words, wanted in kinds:
        if isinstance(default, of):
            fits = isinstance(value, wanted) and isinstance(value, bool) == isinstance(
                default, bool
            )
            return "" if fits else f"must be {words}, not {value!r}"
    return ""
