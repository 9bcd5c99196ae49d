"""The client programs of the documentation, for Node and in Go, on registers of etcd: each call of
them on one member, and a whole trial: valid while a server is killed, and while clients crash. The
one in Go, by etcd's own client library, takes minutes to compile: the nightly job has it, too."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import run_command
from table_sizes import EXHAUSTIVE

from clusters.kit.client_program import ClientProgram
from clusters.kit.clients import ServiceClient
from clusters.supply import resolve
from clusters.systems.etcd import PROGRAM

pytestmark = pytest.mark.bed

LANGUAGES = ("node", "go") if EXHAUSTIVE else ("node",)
EXAMPLES = run_command.ROOT / "docs" / "examples"
ADDRESS = "127.77.66.55"  # of this machine alone; etcd's own port is free there


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One member that serves."""
    folder, url = tmp_path_factory.mktemp("etcd"), f"http://{ADDRESS}"
    argv = [str(resolve(PROGRAM).path), f"--data-dir={folder / 'data'}", "--name=only"]
    argv += [f"--{kind}-client-urls={url}:2379" for kind in ("listen", "advertise")]
    argv += [f"--listen-peer-urls={url}:2380", f"--initial-advertise-peer-urls={url}:2380"]
    argv += [f"--initial-cluster=only={url}:2380"]
    with (folder / "log").open("w") as log, subprocess.Popen(argv, stderr=log) as process:
        try:
            run_command.wait(_serves, run_command.LONGEST_S, "a member that serves")
            yield
        finally:
            process.kill()


def _serves() -> bool:
    """Whether it has elected itself; it listens before that."""
    with suppress(OSError), urlopen(f"http://{ADDRESS}:2379/health", timeout=10) as answer:
        return bool(json.load(answer)["health"] == "true")
    return False


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> str:
    _require("go")
    built = str(tmp_path_factory.mktemp("go") / "etcd-client")
    argv, env = ["go", "build", "-o", built, "."], {**os.environ, "CGO_ENABLED": "0"}
    subprocess.run(argv, cwd=EXAMPLES / "etcd-go", env=env, check=True)
    return built


@pytest.fixture(scope="module")
def node() -> str:
    _require("node")
    return str(EXAMPLES / "etcd-node" / "client.mjs")


def _require(language: str) -> None:
    if not shutil.which(language):
        pytest.skip(f"{language} is not installed; `.ci/packages test` installs it")


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_call_of_an_example(
    etcd: None, request: pytest.FixtureRequest, language: str
) -> None:
    path: str = request.getfixturevalue(language)
    settings = {"servers": [ADDRESS], "settings": {"serializable": False}, "topics": {}}

    async def use() -> list[Any]:
        client = ServiceClient(ClientProgram([path], ()).calls, settings)
        try:
            await client.open()
            calls = client.calls(1)
            return [
                await calls.read(language),
                await calls.cas(language, None, 1 << 52),
                await calls.cas(language, None, 2),
                await calls.read(language),
                await calls.write(language, 3),
                await calls.cas(language, 4, 5),
                await calls.cas(language, 3, 6),
                await calls.read(language),
            ]
        finally:
            await client.close()

    assert asyncio.run(use()) == [None, True, False, 1 << 52, None, False, True, 6]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_client_program_serves_a_trial(
    request: pytest.FixtureRequest, tmp_path: Path, language: str
) -> None:
    path: str = request.getfixturevalue(language)
    done = run_command.seatrial(
        *("run", "register", "--system", "etcd", "--client", path, "--faults", "kill,crash"),
        *("--duration", "22s", "--load", "rate=20"),
        *("--rhythm", "quiet_s=2,fault_s=6,recovery_s=4", "--no-report"),
        runs=tmp_path,
    )
    assert done.code == 0, done.words
    faults = run_command.faults(done.run)
    assert {(fault["kind"], fault["state"]) for fault in faults} == {
        ("kill", "installed"),
        ("crash", "installed"),
    }
    rows = run_command.table(done.run, "ops")
    assert len({row["f"] for row in rows if row["type"] == 1}) == 3, "each kind of call succeeded"
    program = run_command.state(done.run)["healthy"]["programs"]["client"]
    assert (program["source"], len(program["sha256"])) == (path, 64)
