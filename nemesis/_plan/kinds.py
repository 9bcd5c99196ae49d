"""Kinds of faults by any of their names, and the check of their parameters."""

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
    """Raise UnknownName for the first that is neither a kind of fault nor an alias of one."""
    for name in names:
        alias_of(name)


def alias_of(name: str) -> Alias:
    """Return a kind by its own name or by an alias. Raises UnknownName with both lists."""
    kinds, names = registry.names("fault"), aliases()
    if name in kinds:
        return Alias(name, settled=False)
    if name not in names:
        raise UnknownName("fault", name, (*kinds, *names))
    return names[name]


def with_defaults(fault: PlannedFault, plugin: FaultPlugin) -> PlannedFault:
    """Return the fault with the defaults of the parameters that it leaves out."""
    defaults = {name: param.default for name, param in plugin.params.items()}
    return replace(fault, params={**defaults, **fault.params})


def hits_clients(plugin: FaultPlugin) -> bool:
    """Return whether a fault of this kind affects clients: their packets, or as it declares."""
    return "links" in plugin.needs or plugin.hits_clients


def aims_at_clients(kind: str, trial: Trial) -> bool:
    """Return whether drawn plans also aim this kind at clients.

    They do if the workload declares it and the trial names no targets.
    """
    return not trial.targets and kind in registry.workload(trial.workload).client_faults


def suitable_targets(kind: str, targets: Sequence[str], nodes: Sequence[Node]) -> tuple[str, ...]:
    """Return those of these targets that a fault of this kind can hit.

    Raises BadRequest if there are targets and it can hit none of them.
    """
    can_hit = registry.fault(kind).can_hit
    fit = tuple(target for target in targets if can_hit(target, nodes))
    if targets and not fit:
        raise BadRequest(
            f"{kind} can hit none of the targets {', '.join(targets)}; add one that it can, or"
            f" leave {kind} out of the faults"
        )
    return fit


def expand_link(
    target: str, given: Mapping[str, Any], plugin: FaultPlugin, drawn: bool = False
) -> tuple[str, dict[str, Any]]:
    """Return target and parameters; the target `A -> B` is short for the packets from A to B.

    Raises BadRequest if the fault does not affect links, or if parameters that were not drawn
    contradict the target.
    """
    arrow = BOTH_WAYS if BOTH_WAYS.strip() in target else ONE_WAY
    source, arrow_found, sink = target.partition(arrow.strip())
    if not arrow_found:
        return target, dict(given)
    if not source.strip() or not sink.strip():
        raise BadRequest(f"{target!r} names only one end of a link; write 'master -> slave'")
    params = plugin.params
    if not {"from", "direction"} <= params.keys():
        raise BadRequest(f"{target!r} is a link, and this fault does not affect links")
    words = {"from": sink.strip(), "direction": DIRECTIONS[arrow]}
    if "shape" in params:
        words["shape"] = SHAPES[arrow]
    if words["direction"] not in params["direction"].among:
        del words["direction"]
    for name, word in words.items():
        if not drawn and given.get(name, word) != word:
            raise BadRequest(f"{target!r} sets {name} = {word!r}, but params sets another value")
    return source.strip(), {**given, **words}


def link_ends(target: str) -> tuple[str, ...]:
    """Return the selectors of a target: two for a link, else one."""
    return tuple(target.replace(BOTH_WAYS.strip(), ONE_WAY.strip()).split(ONE_WAY.strip()))


def param_problem(params: Mapping[str, Param], name: str, value: Any) -> str:
    """Return what is wrong with a parameter, or ''."""
    if name not in params:
        names = ", ".join(params) or "none"
        return f"unknown parameter; this fault's are: {names}"
    param = params[name]
    if problem := type_problem(param.default, value):
        return problem
    if param.among and value not in param.among:
        return f"must be one of {', '.join(param.among)}, not {value!r}"
    if isinstance(param.default, float) and not param.low <= value <= param.high:
        return f"must be between {param.low:g} and {param.high:g}, not {value:g}"
    return ""


def type_problem(default: Any, value: Any) -> str:
    """Return what is wrong with a value's type, compared with the default's, or ''."""
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
