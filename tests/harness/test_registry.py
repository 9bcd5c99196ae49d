"""Plug-ins by name: what they declare, and whose line an exception is told with."""

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from harness import importers, registry
from harness.contracts import ALL_DEMANDS, DEMANDS, DataLoss, FaultEffects, ProcessEnd
from harness.errors import BadRequest, BedFailed
from harness.history.faults_and_events import FaultInterval
from harness.judge.effects import effects_of, is_known


@pytest.mark.parametrize("kind", registry.KINDS)
def test_every_plug_in_of_ours_keeps_its_contract(kind: str) -> None:
    """Each module declares what its contract asks for, and leaves nothing out."""
    for name in registry.names(kind):
        assert isinstance(registry.plugin(kind, name), registry.KINDS[kind].contract)
        assert callable(registry.load(kind, name))


def test_modules_of_several_plug_ins_declare_those_that_are_listed() -> None:
    """`SEVERAL` has the names in `PLUGINS` of each module, so that names need no import."""
    for name, listed in importers.SEVERAL.items():
        assert set(import_module(f"harness.importers.{name}").PLUGINS) == set(listed)


def test_some_checker_decides_each_demand() -> None:
    """No demand of the contract is without a checker that proves it."""
    decided = {
        demand for name in registry.names("checker") for demand in registry.checker(name).decides
    }
    assert set(DEMANDS) <= decided <= ALL_DEMANDS


def test_groups_of_reasons_are_reasons() -> None:
    """Only a reason that a checker can give is one of a group."""
    for name in registry.names("checker"):
        plugin = registry.checker(name)
        for group in (plugin.cut_short, plugin.standstill, plugin.unobserved, plugin.spacing):
            assert group <= plugin.reasons, name


def test_what_ends_a_node_silences_it_or_starts_it_again() -> None:
    """The effects that our faults declare do not contradict each other."""
    for name in registry.names("fault"):
        effects = effects_of(name)
        down = effects.ends in (ProcessEnd.KILLED, ProcessEnd.TERMINATED)
        assert not down or effects.silences, name
        assert not effects.forgets or down, name
        assert effects.destroys is DataLoss.NONE or effects.ends is not ProcessEnd.NONE, name
        assert not effects.spoils or effects.excuses_exit, name
    assert not effects_of("crash").may_break, "it hits clients"
    assert {n for n in registry.names("fault") if "integrity" in effects_of(n).may_break} == {
        *("corrupt", "power", "unsynced", "wipe")
    }


def test_a_kind_that_is_not_installed_has_no_effects() -> None:
    """A recorded fault of a package that is not here breaks, ends and destroys nothing."""
    assert is_known("kill")
    assert not is_known("kraken")
    assert effects_of("kraken") == FaultEffects(may_break=frozenset())
    fault = FaultInterval(0, "kraken", targets={"": ("broker-1",)})
    assert (fault.ends, fault.silences, fault.destroyed_on) == (False, False, ())


FAILING: dict[str, Callable[[], Any]] = {
    "the fault 'kill' failed at *nemesis/kill.py:": lambda: registry.load("fault", "kill")(1, 2),
    "the fault 'wipe' failed at *nemesis/wipe.py:": lambda: registry.load("fault", "wipe")(1, 2),
    "the checker 'loss' failed at *": lambda: registry.load("checker", "loss")(1, 2, None),
    "the workload 'lock' failed at *lock.py:": lambda: registry.load("workload", "lock")(1),
    "the system 'flotilla' failed at *flotilla/": lambda: registry.load("system", "flotilla")(1),
    "the hosts 'local' failed at *local/hosts.py:": lambda: registry.load("hosts", "local")(1, 2),
    "the report 'badge' failed at *badge.py:": lambda: registry.load("report", "badge")(1),
    "the importer 'table' failed at *": lambda: registry.load("importer", "csv")(1),
    "Seatrial itself failed at *harness/history/faults_and_events.py:": lambda: (
        FaultInterval(
            1,
            "kraken",
            targets=2,  # type: ignore[arg-type]
        ).names
    ),
}


@pytest.mark.parametrize("says", FAILING)
def test_an_exception_is_told_with_the_line_of_the_plug_in(says: str) -> None:
    """Which plug-in, and where; a group of exceptions is opened."""
    before, after = says.split("*")
    with pytest.raises(Exception, match=r".*") as caught:
        FAILING[says]()
    for error in (caught.value, BaseExceptionGroup("", [caught.value])):
        words = registry.blame(error)
        assert words.startswith(before), words
        assert after in words
        assert f"{type(caught.value).__name__}: " in words


def test_a_node_tells_an_exception_without_the_packages_that_it_lacks() -> None:
    """A client's node has harness and clusters alone: naming the plug-in imports no other."""
    program = """
import sys
from harness import importers, registry

for name in ("nemesis", "checkers", "reports"):
    sys.modules[name] = None
try:
    registry.load("system", "flotilla")(1)
except AttributeError as e:
    print(registry.blame(e))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith("the system 'flotilla' failed at "), ran.stdout


def test_our_own_errors_speak_for_themselves() -> None:
    """They are sentences already."""
    for error in (BadRequest("name a node"), BedFailed("no disk")):
        assert registry.blame(error) == str(error)
