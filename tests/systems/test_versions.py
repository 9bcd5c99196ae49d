"""Which version of a program a process is, who has versions, and what is claimed of changes."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusters.kit import running_program
from clusters.kit.versions import claims_of_versions, has_versions, version_words
from clusters.supply import Supplied
from clusters.systems import etcd
from clusters.systems.etcd import Etcd, minor_of
from clusters.systems.nats import Nats
from clusters.systems.redis import Redis
from harness.contracts import Node


@pytest.fixture
def versions(tmp_path: Path) -> dict[str, str]:
    """Two versions of `sleep`, that differ in their last bytes, and two of a script."""
    found = {}
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        found[version] = str(tmp_path / version / "sleep")
        Path(found[version]).write_bytes(Path("/bin/sleep").read_bytes() + version.encode())
        Path(found[version]).chmod(0o755)
        script = tmp_path / version / "script"
        script.write_text("import time; time.sleep(60)")
        found[f"{version}_script"] = str(script)
    return found


@pytest.fixture
def running(request: pytest.FixtureRequest, versions: dict[str, str]) -> Iterator[int]:
    argv = [word.format(python=sys.executable, **versions) for word in request.param]
    run = subprocess.Popen(argv)
    yield run.pid
    run.kill()
    run.wait()


@pytest.mark.parametrize(
    ("running", "names", "found"),
    [
        (["{two}", "60"], ["one", "two"], "two"),
        (["{two}", "60"], ["one"], ""),
        (["{python}", "{two_script}"], ["one_script", "two_script"], "two_script"),
        (["/bin/sh", "-c", "{one} 60; :"], ["one", "two"], "one"),
    ],
    ids=["by digest", "another one", "by command line", "by a descendant"],
    indirect=["running"],
)
def test_a_process_is_the_version_whose_file_it_executes(
    running: int, versions: dict[str, str], names: list[str], found: str
) -> None:
    words = [word for name in names for word in (name, versions[name])]
    argv = [sys.executable, "-I", "-S", running_program.__file__, str(running), *words]
    ran = ""
    for _ in range(50):  # until it executes its own program
        ran = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
        if ran == found:
            break
    assert ran == found


def test_a_process_that_has_ended_is_no_version(versions: dict[str, str]) -> None:
    argv = [sys.executable, running_program.__file__, "999999999", "one", versions["one"]]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == ""


def test_systems_whose_programs_can_be_had_in_several_versions() -> None:
    assert [has_versions(each) for each in (Etcd, Nats, Redis)] == [True, True, False]


def test_who_survives_restarts_survives_upgrades_unless_less_is_claimed() -> None:
    claims = claims_of_versions(Nats, {"restart": "minority", "downgrade": "none"})
    assert claims == {"restart": "minority", "upgrade": "minority", "downgrade": "none"}
    assert claims_of_versions(Nats, {"kill": "all"}) == {"kill": "all"}
    assert claims_of_versions(Redis, {"restart": "all"}) == {"restart": "all"}


def test_the_versions_of_a_mixed_cluster_as_text() -> None:
    assert version_words("2.11.4", []) == "2.11.4"
    assert version_words("2.11.4", ["2.12.1", "2.12.1"]) == "2.11.4 with 2.12.1"


def test_minor_versions_are_compared_as_numbers() -> None:
    assert minor_of("3.10.2") > minor_of("3.9.11")


class Member:
    """A node of etcd, as its maintenance calls answer."""

    def __init__(self, name: str, version: str, applied: int, hash_: int, has_hashkv: bool) -> None:
        self.node = Node(name, "server")
        header = {"revision": "7"}
        self.answers = {
            "status": {"header": header, "version": version, "raftAppliedIndex": str(applied)},
            "hash": {"header": header, "hash": hash_},
        }
        if has_hashkv:
            self.answers["hashkv"] = {"header": header, "hash": 1}

    async def http(self, _port: int, path: str, _body: Any, **_: Any) -> tuple[int, bytes]:
        found = self.answers.get(path.rpartition("/")[2])
        return (200, json.dumps(found).encode()) if found else (404, b"Not Found")


@pytest.mark.parametrize(
    ("members", "compared"),
    [
        ([("3.5.12", 9, 5, True), ("3.6.5", 9, 6, True)], {"a": "1 at 7 of 7", "b": "1 at 7 of 7"}),
        ([("3.5.12", 9, 5, True), ("3.6.5", 8, 6, True)], {"a": "1 at 7", "b": "1 at 7"}),
        ([("3.4.13", 9, 5, False), ("3.4.13", 8, 5, False)], {}),
        (
            [("3.4.13", 9, 5, False), ("3.5.12", 9, 6, True), ("3.4.13", 9, 4, False)],
            {"a": "5 at 7 of 7", "c": "4 at 7 of 7"},
        ),
    ],
    ids=["keys", "keys at one revision", "not at one point", "only those of one version"],
)
def test_hashes_of_etcd_members_that_have_something_in_common(
    monkeypatch: pytest.MonkeyPatch, members: list[Any], compared: dict[str, str]
) -> None:
    monkeypatch.setattr(etcd, "SAME_EVERY_S", 0.0)
    nodes: Any = [Member(name, *each) for name, each in zip("abc", members, strict=False)]
    assert asyncio.run(Etcd({}, {}).digests(nodes)) == compared


@pytest.mark.parametrize(
    ("own", "version", "asked"),
    [("3.6.5", "3.5.12", ["3.5.0"]), ("3.5.1", "3.4.13", []), ("3.5.1", "3.6.5", [])],
)
def test_a_downgrade_of_etcd_is_announced_where_members_want_it(
    own: str, version: str, asked: list[str]
) -> None:
    told: list[str] = []

    class Here:
        async def http(self, _port: int, _path: str, body: Any, **_: Any) -> None:
            told.append(body["version"])

    here: Any = Here()
    supplied = {"etcd": Supplied("etcd", own, "")}
    asyncio.run(Etcd({}, supplied).before_version(here, version))
    assert told == asked
