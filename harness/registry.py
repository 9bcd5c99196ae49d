"""Finds plug-ins by name: the file `nemesis/pause.py` is `--fault pause`.

A module whose name begins with an underscore cannot be named on the command line; underscores
within it are dashes there, and one at its end avoids the name of a standard module. Other packages
add plug-ins through the entry point groups `seatrial.<kind>`, whose value is a module. Each module
declares itself in one value, `PLUGIN`, of its kind's class in `harness.contracts`, which is checked
when the module is loaded: a missing or unknown attribute, one of a wrong type, and a name that is
taken are refused. The first sentence of a module's docstring is what `seatrial list` prints.

A package that has modules with several plug-ins each names them in `SEVERAL`; such a module
declares them, by name, in `PLUGINS`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, partial
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from traceback import walk_tb
from types import FunctionType, ModuleType
from typing import Any, Literal, NamedTuple, TypeVar

from harness.contracts import (
    CheckerPlugin,
    FaultPlugin,
    HostsPlugin,
    ImporterPlugin,
    MessageClient,
    Node,
    Plugin,
    ReportPlugin,
    SystemPlugin,
    WorkloadPlugin,
)
from harness.contracts.plugin import why_unfit
from harness.errors import BadRequest, SeatrialError, UnknownName, error_text

CONTRACTS = "harness.contracts"
OF_CLIENTS = "of_clients"  # in a system's client settings: what differs, by client node
SIMILARITY = 0.8  # of two names, from which on one is taken for the other misspelt


@dataclass(frozen=True)
class PluginKind:
    """A kind of plug-in: the package of our own, and the class that each module declares."""

    name: str
    package: str
    contract: type[Plugin]


KINDS = {
    kind.name: kind
    for kind in (
        PluginKind("system", "clusters.systems", SystemPlugin),
        PluginKind("hosts", "clusters.hosts", HostsPlugin),
        PluginKind("workload", "harness.workloads", WorkloadPlugin),
        PluginKind("fault", "nemesis", FaultPlugin),
        PluginKind("checker", "checkers", CheckerPlugin),
        PluginKind("report", "reports", ReportPlugin),
        PluginKind("importer", "harness.importers", ImporterPlugin),
    )
}


@cache
def _modules(kind: str) -> dict[str, str]:
    """Return module paths by name. Raises BadRequest if two modules have one name."""
    package = import_module(KINDS[kind].package)
    several: Mapping[str, Sequence[str]] = getattr(package, "SEVERAL", {})
    modules = {
        name: f"{KINDS[kind].package}.{module.name}"
        for module in iter_modules(package.__path__)
        if not module.name.startswith("_")
        for name in several.get(module.name, (_name(module.name),))
    }
    entries = entry_points(group=f"seatrial.{kind}")
    for entry in sorted(entries, key=lambda each: (_package(each.dist), each.name)):
        if modules.setdefault(entry.name, entry.value) != entry.value:
            raise BadRequest(
                f"the {kind} {entry.name!r} of the package {_package(entry.dist)} (module"
                f" {entry.value}) has a name that is taken, by {modules[entry.name]}; give it"
                f" another name in the package's entry points, or uninstall the package"
            )
    return modules


def _package(distribution: Any) -> str:
    return str(distribution.name) if distribution else "?"


def _name(module: str) -> str:
    """Return a plug-in's name: jepsen_set -> jepsen-set, csv_ -> csv."""
    return module.rstrip("_").replace("_", "-")


def names(kind: str) -> tuple[str, ...]:
    return tuple(sorted(_modules(kind)))


def modules(kind: str) -> tuple[str, ...]:
    """Return the module paths of the plug-ins."""
    return tuple(sorted(set(_modules(kind).values())))


def module(kind: str, name: str) -> ModuleType:
    """Return the plug-in's module. Raises UnknownName if there is none."""
    modules = _modules(kind)
    if name not in modules:
        raise UnknownName(kind, name, modules)
    try:
        return import_module(modules[name])
    except Exception as e:
        called = f"the {kind} {name!r} (module {modules[name]})"
        at = _innermost(_lines(e))
        if at and at.module == __name__:
            at = None  # the module itself is missing
        raise BadRequest(
            f"{called} cannot be loaded: {f'{at}: ' if at else ''}{error_text(e)}"
        ) from e


@cache
def plugin(kind: str, name: str) -> Plugin:
    """Return the plug-in's declaration. Raises BadRequest, with module and file, if it is
    invalid."""
    found, contract = module(kind, name), KINDS[kind].contract
    declared = vars(found).get("PLUGINS", {}).get(name) or getattr(found, "PLUGIN", None)
    if not isinstance(declared, contract):
        raise refusal(kind, name, f"declares no PLUGIN = {contract.__name__}(...)")
    if stray := _stray_attribute(found, declared):
        raise refusal(kind, name, stray)
    return declared


def refusal(kind: str, name: str, why: str) -> BadRequest:
    """Return the error for a plug-in that breaks the contract of its kind. `why` completes a
    sentence that begins with the plug-in, its module and file."""
    found = module(kind, name)
    file = getattr(found, "__file__", None) or found.__name__
    return BadRequest(
        f"the {kind} {name!r} (module {found.__name__}, {file}) {why}; see docs/writing-a-plugin.md"
    )


def _stray_attribute(module: ModuleType, declared: Plugin) -> str:
    """Describe what looks like an attribute that PLUGIN left at its default: misspelt or
    forgotten."""
    defaulted = declared.defaulted()
    for name, value in vars(module).items():
        own = isinstance(value, FunctionType) and value.__module__ == module.__name__
        if name.startswith("_") or not (own or name.isupper()):
            continue
        near = get_close_matches(name.lower(), defaulted, n=1, cutoff=SIMILARITY if own else 1.0)
        if near:
            kind = type(declared).__name__
            return (
                f"has {name!r}, which its PLUGIN does not use: pass it as {near[0]}={name} to"
                f" {kind}, or begin its name with an underscore"
            )
    return ""


def fault(name: str) -> FaultPlugin:
    """Return the declaration of the fault."""
    return _declared("fault", name, FaultPlugin)


def checker(name: str) -> CheckerPlugin:
    """Return the declaration of the checker."""
    return _declared("checker", name, CheckerPlugin)


def needs_clocks(checker_name: str) -> bool:
    """Whether findings of this checker depend on clocks; True if it is not installed."""
    return checker_name not in names("checker") or checker(checker_name).needs_clocks


def cut_short(checker_name: str) -> frozenset[str]:
    """Return the codes of its reasons that follow from a run that was cut short."""
    return checker(checker_name).cut_short if checker_name in names("checker") else frozenset()


@cache
def reasons(group: Literal["standstill", "unobserved", "spacing"]) -> frozenset[str]:
    """Return the codes of the reasons that checkers declare in this group."""
    return frozenset().union(*(getattr(checker(name), group) for name in names("checker")))


def finding_codes() -> tuple[str, ...]:
    """Return the codes of all findings that checkers can give, sorted."""
    return tuple(sorted({code for name in names("checker") for code in checker(name).findings}))


def system(name: str) -> SystemPlugin:
    """Return the declaration of the system."""
    return _declared("system", name, SystemPlugin)


def hosts(name: str) -> HostsPlugin:
    """Return the declaration of the kind of hosts."""
    return _declared("hosts", name, HostsPlugin)


def workload(name: str) -> WorkloadPlugin:
    """Return the declaration of the workload."""
    return _declared("workload", name, WorkloadPlugin)


_P = TypeVar("_P", bound=Plugin)


def _declared(kind: str, name: str, contract: type[_P]) -> _P:
    declared = plugin(kind, name)
    assert isinstance(declared, contract)
    return declared


def load(kind: str, name: str) -> Callable[..., Any]:
    """Return the plug-in's function: `load("fault", "pause")(planned, context)`.

    It raises BadRequest, with module and file, if the plug-in returns something that lacks what the
    contract of its kind demands.
    """
    plugin(kind, name)
    return partial(_call, kind, name)


def _call(kind: str, name: str, *arguments: Any) -> Any:
    declared, contract = plugin(kind, name), KINDS[kind].contract
    returned = getattr(declared, contract.MAIN)(*arguments)
    if why := why_unfit(returned, contract.RETURNS):
        raise refusal(kind, name, f"is wrong: {contract.MAIN} {why}")
    return returned


def client(trial: Any, nodes: Sequence[Node], node: str = "") -> MessageClient:
    """Return a client of the trial's system, for this client node. Raises BadRequest if it lacks a
    method that the trial's workload calls."""
    system = load("system", trial.system)(trial)
    settings = dict(system.client_settings(nodes))
    own = settings.pop(OF_CLIENTS, {}).get(node, {})
    made: MessageClient = system.client({**settings, **own})
    wanted = {"open", "close", *workload(trial.workload).client}
    if missing := sorted(name for name in wanted if not hasattr(made, name)):
        lacks = f"{', '.join(map(repr, missing))}, which the workload {trial.workload!r} calls"
        raise refusal("system", trial.system, f"has a client that lacks {lacks}")
    return made


def descriptions(kind: str) -> Iterator[tuple[str, str]]:
    """Yield each name with its description, else the first sentence of its module's docstring;
    empty if it has none. Raises BadRequest if a declaration is invalid."""
    for name in names(kind):
        own = getattr(plugin(kind, name), "description", "")
        text = " ".join((own or module(kind, name).__doc__ or "").split())
        yield name, text and text.split(". ")[0].removesuffix(".") + "."


def nemesis() -> ModuleType:
    """Return the package that draws, loads and carries out plans, by name: harness imports no
    fault."""
    return import_module(KINDS["fault"].package)


def site() -> ModuleType:
    """Return the web pages over a folder of runs, by name: harness imports no report."""
    return import_module(f"{KINDS['report'].package}._site")


def campaign_page() -> ModuleType:
    """Return the page of a campaign, by name: harness imports no report."""
    return import_module(f"{KINDS['report'].package}._campaign")


def stories() -> ModuleType:
    """Return the package that explains findings, by name: harness imports no report."""
    return import_module(f"{KINDS['report'].package}._stories")


# ------------------------------------------------------------------------- exceptions in plug-ins


class _Line(NamedTuple):
    """A line of code in a traceback."""

    module: str
    file: str
    number: int

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]

    @property
    def declaring(self) -> bool:
        """Whether it belongs to the check of a declaration, which is not the cause."""
        return self.module.startswith(f"{CONTRACTS}.")

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


def blame(error: BaseException) -> str:
    """Describe a failure, with the file and line of the plug-in that it happened in, if any.

    `the fault 'slow-disk' of the package X failed at FILE:LINE: KeyError: 'x'`. Messages of
    `harness.errors` are returned unchanged.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, SeatrialError):
        return error_text(error)
    lines = _lines(error)
    at = _innermost(lines)
    owner = _owner(at, lines) if at else "Seatrial itself"
    return f"{owner} failed{f' at {at}' if at else ''}: {error_text(error)}"


def _lines(error: BaseException) -> list[_Line]:
    """Return the lines of our code, and of other packages with plug-ins, in an exception's
    traceback."""
    lines = [
        _Line(frame.f_globals.get("__name__", ""), frame.f_code.co_filename, number)
        for frame, number in walk_tb(error.__traceback__)
    ]
    packages = {*_OURS, *_outside_packages()}
    lines = [line for line in lines if line.top in packages and not line.declaring]
    if isinstance(error, SyntaxError) and error.filename:
        lines.append(_Line("", error.filename, error.lineno or 0))
    return lines


def _innermost(lines: list[_Line]) -> _Line | None:
    """Return the last line of another package, which may have called our code wrongly; else of
    ours."""
    outside = [line for line in lines if line.top in ("", *_outside_packages())]
    return next(reversed(outside or lines), None)


def _owner(at: _Line, lines: list[_Line]) -> str:
    """Return the plug-in that a line belongs to: `the fault 'pause'`."""
    package = _outside_packages().get(at.top)
    kind = next((k for k in KINDS.values() if at.module.startswith(f"{k.package}.")), None)
    near = [
        each
        for each in reversed(lines)
        if (kind and each.module.startswith(f"{kind.package}.")) or (package and each.top == at.top)
    ]
    default = "a plug-in" if package else "Seatrial itself"
    named = next(filter(None, (_plugin_of(each.module) for each in near)), default)
    return f"{named} of the package {package}" if package else named


def _plugin_of(module: str) -> str:
    """Return the plug-in of a module. Imports nothing: nodes do not have every package of ours."""
    for kind in KINDS.values():
        inside = module.removeprefix(f"{kind.package}.").partition(".")[0]
        if inside != module.partition(".")[0] and not inside.startswith("_"):
            return f"the {kind.name} {_name(inside)!r}"
        for entry in entry_points(group=f"seatrial.{kind.name}"):
            if entry.value == module:
                return f"the {kind.name} {entry.name!r}"
    return ""


_OURS = {kind.package.partition(".")[0] for kind in KINDS.values()}


@cache
def _outside_packages() -> dict[str, str]:
    """Return the names of other packages with plug-ins, by their top-level modules."""
    return {
        entry.value.partition(":")[0].partition(".")[0]: _package(entry.dist)
        for kind in KINDS
        for entry in entry_points(group=f"seatrial.{kind}")
    }
