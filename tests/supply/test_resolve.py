"""Where programs come from: what the user names, what is on the PATH, and what the cache has."""

import stat
from pathlib import Path

import pytest

from clusters.supply import Program, PythonJars, Wheel, resolve
from harness.errors import BadRequest, BedFailed

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


def test_a_program_that_cannot_run_here(tmp_path: Path, thing: Program) -> None:
    program(tmp_path, "\x7fELF of another machine")
    with pytest.raises(BedFailed, match="cannot be run"):
        resolve(thing, supply=str(tmp_path))


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
