"""Finds plug-ins by name: the file `nemesis/pause.py` is `--fault pause`.

A module whose name begins with an underscore can not be named on the command line; underscores
within it are dashes there, and one at its end keeps it apart from the standard library. Outside
packages add theirs through the entry point groups `seatrial.<kind>`, whose value is a module with
the same function. The first sentence of a module's docstring is what `seatrial list` prints.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from harness.errors import UnknownName


@dataclass(frozen=True)
class Kind:
    """A kind of plug-in: where its files are, and the one function each has."""

    name: str
    package: str
    function: str


KINDS = {
    kind.name: kind
    for kind in (
        Kind("system", "clusters.systems", "system"),
        Kind("hosts", "clusters.hosts", "hosts"),
        Kind("workload", "harness.workloads", "workload"),
        Kind("fault", "nemesis", "fault"),
        Kind("checker", "checkers", "check"),
        Kind("report", "reports", "render"),
        Kind("importer", "harness.importers", "read"),
    )
}


@cache
def _modules(kind: str) -> dict[str, str]:
    """Name -> module path, our own first."""
    package = import_module(KINDS[kind].package)
    own = {
        _name(module.name): f"{KINDS[kind].package}.{module.name}"
        for module in iter_modules(package.__path__)
        if not module.name.startswith("_")
    }
    others = {entry.name: entry.value for entry in entry_points(group=f"seatrial.{kind}")}
    return others | own


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
    return import_module(modules[name])


def load(kind: str, name: str) -> Callable[..., Any]:
    """The plug-in's function: `load("fault", "pause")(planned, bed)`."""
    function: Callable[..., Any] = getattr(module(kind, name), KINDS[kind].function)
    return function


def healer(hosts: str) -> Callable[..., Any] | None:
    """What undoes what a run left on hosts of a kind that outlive it; None: they die with it."""
    heal: Callable[..., Any] | None = getattr(module("hosts", hosts), "heal", None)
    return heal


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
