"""Finds plug-ins by name: the file `nemesis/pause.py` is `--fault pause`.

A module whose name begins with an underscore can not be named on the command line; underscores
within it are dashes there, and one at its end keeps it apart from the standard library. Outside
packages add theirs through the entry point groups `seatrial.<kind>`, whose value is such a module.
Each declares itself in one value, `PLUGIN`, of its kind's class in `harness.contracts`, which is
checked when the module is loaded: an attribute that is missing, unknown or of a wrong type is
refused, and so is a name that is taken. The first sentence of a module's docstring is what
`seatrial list` prints.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
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
    Plugin,
    ReportPlugin,
    SystemPlugin,
    WorkloadPlugin,
)
from harness.errors import BadRequest, SeatrialError, UnknownName, in_words

CONTRACTS = "harness.contracts"
NEARLY = 0.8  # how much two names are alike of which one is taken for the other, misspelt


@dataclass(frozen=True)
class Kind:
    """A kind of plug-in: the package of our own, and what each module declares."""

    name: str
    package: str
    contract: type[Plugin]


KINDS = {
    kind.name: kind
    for kind in (
        Kind("system", "clusters.systems", SystemPlugin),
        Kind("hosts", "clusters.hosts", HostsPlugin),
        Kind("workload", "harness.workloads", WorkloadPlugin),
        Kind("fault", "nemesis", FaultPlugin),
        Kind("checker", "checkers", CheckerPlugin),
        Kind("report", "reports", ReportPlugin),
        Kind("importer", "harness.importers", ImporterPlugin),
    )
}


@cache
def _modules(kind: str) -> dict[str, str]:
    """Module paths by name. BadRequest where two modules have one name."""
    package = import_module(KINDS[kind].package)
    found = {
        _name(module.name): f"{KINDS[kind].package}.{module.name}"
        for module in iter_modules(package.__path__)
        if not module.name.startswith("_")
    }
    entries = entry_points(group=f"seatrial.{kind}")
    for entry in sorted(entries, key=lambda each: (_package(each.dist), each.name)):
        if found.setdefault(entry.name, entry.value) != entry.value:
            raise BadRequest(
                f"the {kind} {entry.name!r} of the package {_package(entry.dist)} (module"
                f" {entry.value}) has a name that is taken, by {found[entry.name]}; give it another"
                f" name in the package's entry points, or uninstall the package"
            )
    return found


def _package(distribution: Any) -> str:
    return str(distribution.name) if distribution else "?"


def _name(module: str) -> str:
    """jepsen_set -> jepsen-set, csv_ -> csv."""
    return module.rstrip("_").replace("_", "-")


def names(kind: str) -> tuple[str, ...]:
    return tuple(sorted(_modules(kind)))


def modules(kind: str) -> tuple[str, ...]:
    """Where the plug-ins are: module paths."""
    return tuple(sorted(_modules(kind).values()))


def module(kind: str, name: str) -> ModuleType:
    """The plug-in's module. UnknownName lists the ones that exist."""
    modules = _modules(kind)
    if name not in modules:
        raise UnknownName(kind, name, modules)
    try:
        return import_module(modules[name])
    except Exception as e:
        called = f"the {kind} {name!r} (module {modules[name]})"
        at = _innermost(_lines(e))
        raise BadRequest(
            f"{called} cannot be loaded: {f'{at}: ' if at else ''}{in_words(e)}"
        ) from e


@cache
def plugin(kind: str, name: str) -> Plugin:
    """What the plug-in declares. BadRequest, with module and file, if its contract forbids it."""
    found, contract = module(kind, name), KINDS[kind].contract
    declared = getattr(found, "PLUGIN", None)
    if not isinstance(declared, contract):
        raise _refused(kind, name, found, f"declares no PLUGIN = {contract.__name__}(...)")
    if stray := _undeclared(found, declared):
        raise _refused(kind, name, found, stray)
    return declared


def _refused(kind: str, name: str, module: ModuleType, why: str) -> BadRequest:
    file = getattr(module, "__file__", None) or module.__name__
    return BadRequest(
        f"the {kind} {name!r} (module {module.__name__}, {file}) {why}; see"
        " docs/writing-a-plugin.md"
    )


def _undeclared(module: ModuleType, declared: Plugin) -> str:
    """What looks like an attribute that PLUGIN left at its default: misspelt or forgotten."""
    known = declared.left_out()
    for name, value in vars(module).items():
        own = isinstance(value, FunctionType) and value.__module__ == module.__name__
        if name.startswith("_") or not (own or name.isupper()):
            continue
        near = get_close_matches(name.lower(), known, n=1, cutoff=NEARLY if own else 1.0)
        if near:
            kind = type(declared).__name__
            return (
                f"has {name!r}, which its PLUGIN does not use: pass it as {near[0]}={name} to"
                f" {kind}, or begin its name with an underscore"
            )
    return ""


def fault(name: str) -> FaultPlugin:
    """What the fault declares."""
    return _of("fault", name, FaultPlugin)


def checker(name: str) -> CheckerPlugin:
    """What the checker declares."""
    return _of("checker", name, CheckerPlugin)


def needs_clocks(checker_name: str) -> bool:
    """Whether findings of this checker rest on clocks; those of one that is not installed do."""
    return checker_name not in names("checker") or checker(checker_name).needs_clocks


def cut_short(checker_name: str) -> frozenset[str]:
    """Codes of its reasons that follow from a run that was cut short."""
    return checker(checker_name).cut_short if checker_name in names("checker") else frozenset()


@cache
def reasons(group: Literal["standstill", "unobserved", "spacing"]) -> frozenset[str]:
    """Codes of the reasons that checkers declare in this group."""
    return frozenset().union(*(getattr(checker(name), group) for name in names("checker")))


def finding_codes() -> tuple[str, ...]:
    """Codes of all findings that some checker can give, sorted."""
    return tuple(sorted({code for name in names("checker") for code in checker(name).findings}))


def system(name: str) -> SystemPlugin:
    """What the system declares."""
    return _of("system", name, SystemPlugin)


def hosts(name: str) -> HostsPlugin:
    """What the kind of hosts declares."""
    return _of("hosts", name, HostsPlugin)


def workload(name: str) -> WorkloadPlugin:
    """What the workload declares."""
    return _of("workload", name, WorkloadPlugin)


_P = TypeVar("_P", bound=Plugin)


def _of(kind: str, name: str, contract: type[_P]) -> _P:
    declared = plugin(kind, name)
    assert isinstance(declared, contract)
    return declared


def load(kind: str, name: str) -> Callable[..., Any]:
    """The plug-in's function: `load("fault", "pause")(planned, scene)`."""
    function: Callable[..., Any] = getattr(plugin(kind, name), KINDS[kind].contract.MAIN)
    return function


def described(kind: str) -> Iterator[tuple[str, str]]:
    """Each name with the first sentence of its docstring."""
    for name in names(kind):
        text = " ".join((module(kind, name).__doc__ or "").split())
        yield name, text.split(". ")[0].removesuffix(".") + "."


def nemesis() -> ModuleType:
    """The package that draws, loads and carries out plans, by name: harness imports no fault."""
    return import_module(KINDS["fault"].package)


def site() -> ModuleType:
    """The pages over a folder of runs, by name: harness imports no report."""
    return import_module(f"{KINDS['report'].package}._site")


def stories() -> ModuleType:
    """Return the package that explains findings, by name: harness imports no report."""
    return import_module(f"{KINDS['report'].package}._stories")


# ------------------------------------------------------------------------- exceptions in plug-ins


class _Line(NamedTuple):
    """A line of code that an exception came through."""

    module: str
    file: str
    number: int

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]

    @property
    def declaring(self) -> bool:
        """It belongs to the check of a declaration, which is at fault itself."""
        return self.module.startswith(f"{CONTRACTS}.")

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


def blamed(error: BaseException) -> str:
    """Say what failed, with the file and line of the plug-in that it happened in, if any.

    `the fault 'slow-disk' of the package X failed at FILE:LINE: KeyError: 'x'`. The errors of
    `harness.errors` speak for themselves.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, SeatrialError):
        return in_words(error)
    lines = _lines(error)
    at = _innermost(lines)
    owner = _owner(at, lines) if at else "Seatrial itself"
    return f"{owner} failed{f' at {at}' if at else ''}: {in_words(error)}"


def _lines(error: BaseException) -> list[_Line]:
    """The lines of our code, and of outside packages with plug-ins, that an exception came
    through."""
    lines = [
        _Line(frame.f_globals.get("__name__", ""), frame.f_code.co_filename, number)
        for frame, number in walk_tb(error.__traceback__)
    ]
    known = {*_OURS, *_outside()}
    lines = [line for line in lines if line.top in known and not line.declaring]
    if isinstance(error, SyntaxError) and error.filename:
        lines.append(_Line("", error.filename, error.lineno or 0))
    return lines


def _innermost(lines: list[_Line]) -> _Line | None:
    """The last line of an outside package, which may have called our code wrongly; else of ours."""
    outside = [line for line in lines if line.top in ("", *_outside())]
    return next(reversed(outside or lines), None)


def _owner(at: _Line, lines: list[_Line]) -> str:
    """The plug-in that a line belongs to: `the fault 'pause'`."""
    package = _outside().get(at.top)
    kind = next((k for k in KINDS.values() if at.module.startswith(f"{k.package}.")), None)
    near = [
        each
        for each in reversed(lines)
        if (kind and each.module.startswith(f"{kind.package}.")) or (package and each.top == at.top)
    ]
    default = "a plug-in" if package else "Seatrial itself"
    named = next(filter(None, (_named(each.module) for each in near)), default)
    return f"{named} of the package {package}" if package else named


def _named(module: str) -> str:
    """The plug-in whose module it is. Imports nothing: nodes do not have every package of ours."""
    for kind in KINDS.values():
        within = module.removeprefix(f"{kind.package}.").partition(".")[0]
        if module.startswith(f"{kind.package}.") and not within.startswith("_"):
            return f"the {kind.name} {_name(within)!r}"
        for entry in entry_points(group=f"seatrial.{kind.name}"):
            if entry.value == module:
                return f"the {kind.name} {entry.name!r}"
    return ""


_OURS = {kind.package.partition(".")[0] for kind in KINDS.values()}


@cache
def _outside() -> dict[str, str]:
    """Top-level modules of other packages that have plug-ins: the names of the packages."""
    return {
        entry.value.partition(":")[0].partition(".")[0]: _package(entry.dist)
        for kind in KINDS
        for entry in entry_points(group=f"seatrial.{kind}")
    }
