"""Where programs come from: what the user names, what is on the PATH, and what the cache has."""

import importlib
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import leftovers
import pytest
import run_command

from clusters.supply import (
    GoModule,
    MavenJars,
    Program,
    PythonJars,
    PythonProgram,
    Wheel,
    built_for,
    choices,
    resolve,
    sources_here,
)
from harness.errors import BadRequest, BedFailed

find = importlib.import_module("clusters.supply.resolve")
SCRIPT = "#!/bin/sh\necho 'thing Version: 1.2.3'\n"


@pytest.fixture
def thing() -> Program:
    wheel = Wheel(project="no-such-project-of-seatrial", member="/thing")
    return Program(name="thing", sources=(wheel,), version="1.2.3", package="thing-server")


def program(folder: Path, text: str = SCRIPT) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "thing"
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize("place", ["", "bin"])
def test_a_folder_of_the_users(tmp_path: Path, thing: Program, place: str) -> None:
    there = program(tmp_path / place)
    found = resolve(thing, supply=str(tmp_path))
    assert (found.path, found.version) == (there, "1.2.3")
    assert len(found.sha256) == 64


def test_the_path_if_no_version_is_named(
    tmp_path: Path, thing: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{program(tmp_path).parent}:/usr/bin:/bin")
    assert resolve(thing).version == "1.2.3"


def test_a_version_of_a_program_without_sources_is_that_of_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{program(tmp_path).parent}:/usr/bin:/bin")
    assert resolve(Program(name="thing"), "1.2.3").path == tmp_path / "thing"
    with pytest.raises(BedFailed, match=r"is thing 1\.2\.3, and the trial names 9\.0"):
        resolve(Program(name="thing"), "9.0")


def test_a_program_that_acts_by_the_name_of_its_link(tmp_path: Path, thing: Program) -> None:
    """Debian's redis-server is a link to redis-check-rdb, which is another program by that name."""
    there = program(tmp_path / "real").rename(tmp_path / "thing-check")
    (tmp_path / "thing").symlink_to(there)
    assert resolve(thing, supply=str(tmp_path)).path == tmp_path / "thing"


def test_a_program_that_needs_its_package_is_left_to_the_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If this machine lacks it: it may be one whose nodes are elsewhere."""
    monkeypatch.setenv("PATH", "/nowhere")
    found = resolve(Program(name="thing", package="thing-server", linked=True))
    assert (found.path, found.source) == (None, "the PATH of each node")
    with pytest.raises(BedFailed, match="Debian's package thing-server"):
        resolve(Program(name="thing", package="thing-server", linked=True), "9.0")


def test_another_version_than_the_trial_names_is_refused(tmp_path: Path, thing: Program) -> None:
    program(tmp_path)
    with pytest.raises(BedFailed, match=r"is thing 1\.2\.3, and the trial names 9\.0"):
        resolve(thing, "9.0", str(tmp_path))


def test_a_fetched_program_is_used_again(
    tmp_path: Path, thing: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    there = program(tmp_path / "seatrial" / "programs" / "thing" / "1.2.3" / "wheel")
    found = resolve(thing, "1.2.3", "wheel")
    assert (found.path, found.source) == (there, "wheel: no-such-project-of-seatrial")


def test_what_is_not_to_be_had_names_every_way_to_get_it(thing: Program, tmp_path: Path) -> None:
    with pytest.raises(BedFailed, match="Debian's package thing-server; or supply = 'wheel'"):
        resolve(thing, "1.2.3", "go")


@pytest.mark.parametrize(
    ("version", "supply", "words"),
    [
        ("../../etc", "auto", "version must read like"),
        ("", "ftp", "supply must be one of auto, path, wheel"),
        ("", "/nowhere/at/all", "is no program thing, nor a folder that has it"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(
    thing: Program, version: str, supply: str, words: str
) -> None:
    with pytest.raises(BadRequest, match=words):
        resolve(thing, version, supply)


@pytest.mark.parametrize(
    ("supply", "first", "second"),
    [
        ("auto", ("15", "auto"), ("", "auto")),
        ("/opt/a=b", ("15", "/opt/a=b"), ("", "auto")),
        ("two=wheel", ("15", "auto"), ("", "wheel")),
        ("two=wheel@4.1.5", ("15", "auto"), ("4.1.5", "wheel")),
        ("path,two=go", ("15", "path"), ("", "go")),
        ("/opt/x,two=/opt/y@1", ("15", "/opt/x"), ("", "/opt/y@1")),
        ("two=path,one=go", ("15", "go"), ("", "path")),
    ],
)
def test_each_program_of_a_system_has_a_supply(
    supply: str, first: tuple[str, str], second: tuple[str, str]
) -> None:
    programs = (Program(name="one"), Program(name="two"))
    assert choices(programs, "15", supply) == {"one": first, "two": second}


@pytest.mark.parametrize(
    ("supply", "words"),
    [
        ("three=go", "unknown program of supply 'three'"),
        ("two=go,two=path", "supply names two twice"),
        ("go,one=path", "supply names one twice"),
    ],
)
def test_a_supply_of_no_program_or_given_twice_is_one_sentence(supply: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        choices((Program(name="one"), Program(name="two")), "", supply)


def test_a_program_that_cannot_run_here(tmp_path: Path, thing: Program) -> None:
    program(tmp_path, "of no machine")
    with pytest.raises(BedFailed, match="cannot be run: Exec format error; to fix it: name the pr"):
        resolve(thing, supply=str(tmp_path))


def test_a_program_of_another_machine_names_both(tmp_path: Path, thing: Program) -> None:
    """By e_machine in the ELF header: 2 is SPARC, 183 aarch64, 62 x86_64."""
    other, name = (183, "aarch64") if os.uname().machine != "aarch64" else (62, "x86_64")
    head = bytearray(64)
    head[:6] = b"\x7fELF\x02\x01"
    head[18:20] = other.to_bytes(2, "little")
    path = program(tmp_path)
    path.write_bytes(head)
    with pytest.raises(BedFailed, match=f"it is built for {name}, and this machine is "):
        resolve(thing, supply=str(tmp_path))
    assert built_for(path) == name
    head[18:20] = (2).to_bytes(2, "little")
    path.write_bytes(head)
    assert built_for(path) == ""


def test_a_program_that_is_not_executable(tmp_path: Path, thing: Program) -> None:
    path = program(tmp_path)
    path.chmod(0o644)
    with pytest.raises(BedFailed, match=f"{path} is not executable; to fix it: chmod"):
        resolve(thing, supply=str(tmp_path))


def test_a_program_that_prints_no_version_and_does_not_end(
    tmp_path: Path, thing: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed with its children; a driver can declare that there is no version to print."""
    monkeypatch.setattr(find, "PRINT_WITHIN_S", 3.0)
    program(tmp_path, f"#!/bin/sh\nsleep 1000 & echo $! > {tmp_path}/child\nwait\n")
    with pytest.raises(BedFailed, match=r"thing --version did not end within 3 s; to fix it: "):
        resolve(thing, supply=str(tmp_path))
    child = int((tmp_path / "child").read_text())
    run_command.wait(lambda: leftovers.command(child) == "", 10.0, "the end of the child")
    assert resolve(replace(thing, version_argv=()), supply=str(tmp_path)).version == ""


def test_a_version_is_asked_in_the_environment_that_the_program_needs(
    tmp_path: Path, thing: Program
) -> None:
    """rabbitmqctl starts a server of names, which stays, unless a variable forbids it."""
    program(tmp_path, '#!/bin/sh\necho "1.2.3-$FLAGS"\n')
    asked = replace(thing, version_env=("FLAGS=a=b",))
    assert resolve(asked, supply=str(tmp_path)).version == "1.2.3-a=b"


def test_a_version_that_no_source_has_leaves_nothing_in_the_cache(
    tmp_path: Path, thing: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def refuse(*arguments: object, **more: object) -> None:
        raise find._NotThere("pip says: there is none")

    monkeypatch.setattr(find, "_run", refuse)
    with pytest.raises(
        BedFailed, match=r"thing 9\.9\.9 cannot be fetched: pip says: there is none"
    ):
        resolve(thing, "9.9.9")
    left = [path.name for path in (tmp_path / "seatrial" / "programs").rglob("*")]
    assert left == ["thing", ".lock"]


def test_a_version_that_pypi_has_not_names_the_newest_that_it_has(
    tmp_path: Path, thing: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    listed = ", ".join(f"1.0.{n}" for n in range(50))

    def refuse(*arguments: object, **more: object) -> None:
        raise find._NotThere(f"pip says: ERROR: no thing==9.9.9 (from versions: {listed})")

    monkeypatch.setattr(find, "_run", refuse)
    wheel = replace(thing, sources=(Wheel(project="thing-bin", member="/thing"),))
    with pytest.raises(BedFailed, match=r"PyPI's thing-bin has 1\.0\.44, .*, 1\.0\.49; name anoth"):
        resolve(wheel, "9.9.9")


def test_jars_that_pyspark_brings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jars = PythonJars(
        package="pyspark", folder="jars", jars=("zookeeper-",), version_of="zookeeper-"
    )
    found = resolve(Program(name="zookeeper", sources=(jars,)))
    assert found.path is not None
    names = {jar.name for jar in found.path.iterdir()}
    assert f"zookeeper-{found.version}.jar" in names
    with pytest.raises(BedFailed, match=f"pyspark has zookeeper {found.version}"):
        resolve(Program(name="zookeeper", sources=(jars,)), "1.0.0")


def test_jars_that_a_later_driver_names_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was fetched for an earlier driver lacks the jar that it now names, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")  # no mvn
    jars = MavenJars(coordinates=("org.example:broker",))
    there = find._place(Program(name="thing", sources=(jars,)), jars, "1.2.3")
    program(there)
    assert resolve(Program(name="thing", sources=(jars,)), "1.2.3", "maven").path == there
    more = MavenJars(coordinates=(*jars.coordinates, "org.example:container"))
    with pytest.raises(BedFailed, match="mvn"):
        resolve(Program(name="thing", sources=(more,)), "1.2.3", "maven")


def test_a_program_in_a_folder_of_its_package(
    tmp_path: Path, thing: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian does not put PostgreSQL's server on the PATH; the newest version is taken."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    program(tmp_path / "14" / "bin")
    newest = program(tmp_path / "15" / "bin")
    assert resolve(replace(thing, folders=(f"{tmp_path}/*/bin",))).path == newest


def test_a_python_program_runs_from_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its script is in the cache, with all that it imports, and of this version of Python."""

    def install(argv: list[str], _: Path) -> None:
        assert argv[-1] == "thing[fast]==1.2.3"
        folder = Path(argv[argv.index("--target") + 1])
        (folder / "bin").mkdir(parents=True)
        (folder / "of_thing.py").write_text("word = 'imported'")
        (folder / "bin" / "thing").write_text(
            "import of_thing, sys; print(of_thing.word, sys.argv[1:])"
        )

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    monkeypatch.setattr(find, "_run", install)
    source = PythonProgram(project="thing", extras=("fast",))
    found = resolve(Program(name="thing", sources=(source,), version="1.2.3", linked=True))
    assert found.path is not None
    printed = subprocess.run([found.path, "a b"], capture_output=True, text=True, check=True)
    assert printed.stdout == "imported ['a b']\n"
    assert sys.implementation.cache_tag in found.path.parts


def test_what_was_fetched_before_is_not_looked_for_elsewhere(
    tmp_path: Path, thing: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that only its second source has: the first one is not asked each time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(find, "_run", lambda *_argv, **_env: pytest.fail("a client was run"))
    there = program(tmp_path / "seatrial" / "programs" / "thing" / "1.2.3" / "go")
    module = GoModule(module="example.com/thing")
    found = resolve(replace(thing, sources=(*thing.sources, module)), "1.2.3")
    assert found.path == there


def test_a_module_whose_versions_have_other_names(
    tmp_path: Path, thing: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only those that are listed are asked for."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked: list[str] = []

    def install(argv: list[str], work: Path, **_: str) -> None:
        asked.append(argv[-1])
        program(work)

    monkeypatch.setattr(find, "_run", install)
    module = GoModule(module="example.com/thing", revisions={"1.0.3": "v0.5.0-dd1b"})
    only = replace(thing, sources=(module,))
    assert resolve(only, "1.0.3").version == "1.0.3"
    assert asked == ["example.com/thing@v0.5.0-dd1b"]
    with pytest.raises(BedFailed, match=r"example\.com/thing has 1\.0\.3"):
        resolve(only, "1.0.4")


def test_a_machine_without_maven_is_named_the_package_to_install(
    tmp_path: Path, thing: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    jars = replace(thing, sources=(MavenJars(coordinates=("org.example:thing",)),))
    lacking = dict(sources_here(jars))
    assert lacking["supply=maven: org.example:thing"] == "sudo apt-get install maven"
    assert lacking["thing on the PATH"] == "sudo apt-get install thing-server"
    with pytest.raises(BedFailed, match=r"has no mvn \(sudo apt-get install maven\); name an"):
        resolve(jars, "1.0.0")
