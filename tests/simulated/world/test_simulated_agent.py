"""The simulated agent's verbs: the world shows what it reports, as on real hosts."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from simulated_agents import NODES, play

from clusters.hosts._world.process import SimProcess
from clusters.hosts.simulated import machine
from clusters.hosts.simulated.agent import SimulatedAgent
from clusters.hosts.simulated.hosts import SimulatedHosts
from harness.contracts import Agent, DiskFault, LinkRule, PowerAgent, ProcessState
from harness.errors import EXIT_BED_FAILED, BedFailed
from harness.history.rundir import RunDir
from harness.trial import Trial

PROBES = 20
FLOTILLA = ("python3", "-S", "-s", "-m", "clusters.flotilla")
NAMESERVER = """\
role = "nameserver"
nodeName = "a"
listenHost = "{}"
listenPort = 9876
storePath = "/a"
"""


async def passed(agents: Mapping[str, Agent], at: Mapping[str, str], way: str, count: int) -> int:
    """Return how many probes of `a>b` arrive."""
    source, sink = way.split(">")
    before = await agents[sink].probed(way)
    await agents[source].probe(at[sink], way, count)
    await asyncio.sleep(1)
    return await agents[sink].probed(way) - before


def test_a_cut_stops_one_direction_of_one_link_and_nothing_else(tmp_path: Path) -> None:
    """A rule at b against a: nothing from a arrives, all of it is counted, the rest flows."""

    async def scene(agents: Mapping[str, Agent], at: Mapping[str, str]) -> None:
        await agents["b"].links([LinkRule(at["a"])])
        assert await passed(agents, at, "a>b", PROBES) == 0
        assert await agents["b"].dropped() == {at["a"]: PROBES}
        assert await passed(agents, at, "b>a", PROBES) == PROBES
        assert await passed(agents, at, "c>b", PROBES) == PROBES
        await agents["b"].links([])
        assert await passed(agents, at, "a>b", PROBES) == PROBES
        assert await agents["b"].dropped() == {}

    play(tmp_path, scene)


def test_every_packet_of_a_lossy_link_is_accounted_for(tmp_path: Path) -> None:
    """Arrived plus dropped is sent, and the share is near its probability."""

    async def scene(agents: Mapping[str, Agent], at: Mapping[str, str]) -> tuple[int, int]:
        await agents["b"].links([LinkRule(at["a"], 0.3)])
        arrived = await passed(agents, at, "a>b", 2000)
        return arrived, (await agents["b"].dropped())[at["a"]]

    arrived, dropped = play(tmp_path, scene)
    assert arrived + dropped == 2000
    assert 500 < dropped < 700


def test_a_process_ends_and_its_words_are_kept(tmp_path: Path) -> None:
    """A node without a configuration prints an error and exits with 64; the log is copied."""

    async def scene(agents: Mapping[str, Agent], at: Mapping[str, str]) -> None:
        a, log = agents["a"], "/seatrial/a/out.log"
        assert await a.state("x") == ProcessState("absent")
        pid = await a.start("x", [*FLOTILLA, "/none.toml"], log=log, on_line=lambda line: None)
        assert await a.exited("x") == 64
        assert await a.state("x") == ProcessState("exited", pid, 64)
        assert b"/none.toml cannot be read" in await a.get(log)

    play(tmp_path, scene)
    assert "cannot be read" in (RunDir(tmp_path).node("a") / "out.log").read_text()


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda a: a.run(["uname", "-a"]), "a is simulated and cannot run uname -a"),
        (lambda a: a.start("x", ["/bin/sleep", "9"]), "a is simulated and cannot run /bin/sleep 9"),
        (lambda a: a.get("/no/such"), "No such file"),
        (lambda a: a.signal("x", 9), "no process 'x' was started"),
        (lambda a: a.ask(7001, b"", 0.5), "port 7001 gave no answer"),
    ],
)
def test_what_it_can_not_do_it_says(
    ask: Callable[[Agent], Awaitable[Any]], sentence: str, tmp_path: Path
) -> None:
    """An error with the node's name."""

    async def scene(agents: Mapping[str, Agent], at: Mapping[str, str]) -> str:
        with pytest.raises(BedFailed) as refused:
            await ask(agents["a"])
        return str(refused.value)

    said = play(tmp_path, scene)
    assert said.startswith("a: ")
    assert sentence in said


def test_a_look_at_the_disk_leaves_names_as_they_are(tmp_path: Path) -> None:
    """A file that was made and not synced is as easily lost after it as before, and so is space."""
    hosts = SimulatedHosts(Trial(hosts="simulated"), tmp_path)

    async def main() -> int:
        async with hosts.start_nodes(NODES) as (_, agents):
            a = cast(SimulatedAgent, agents["a"])
            disk = a.machine.disk
            disk.make_folders("/a/store")
            disk.write(disk.file("/a/store/f", create=True), b"abc", 0)
            before = disk.waiting("/a"), disk.used_bytes()
            assert before[0][1] > 0
            assert (await a.probe_disk("/a", 1.0)).write == ""
            assert (disk.waiting("/a"), disk.used_bytes()) == before
            await a.disk("fault", DiskFault("/a", full=True))
            assert (await a.probe_disk("/a", 1.0)).write == "ENOSPC"
        return 0

    assert hosts.run(main()) == 0, RunDir(tmp_path).state()


def test_a_node_without_power_does_nothing_until_it_is_back(tmp_path: Path) -> None:
    """Its processes are dead and nothing starts there; a request fails at once."""

    async def scene(agents: Mapping[str, Agent], at: Mapping[str, str]) -> None:
        a = cast(PowerAgent, agents["a"])
        config = NAMESERVER.format(at["a"])
        await a.put("/a/node.toml", config.encode())
        start = partial(a.start, "x", [*FLOTILLA, "/a/node.toml"], on_line=lambda line: None)
        pid = await start()
        await asyncio.sleep(1)
        assert (await a.state("x")).state == "running"
        asked = asyncio.ensure_future(a.ask(9876, b"", 3600))
        await asyncio.sleep(1)
        await a.power(False)
        with pytest.raises(ConnectionError, match="no power"):
            await asked
        with pytest.raises(ConnectionError, match="no power"):
            await a.ask(9876, b"", 1)
        with pytest.raises(BedFailed, match="power is off"):
            await start()
        assert await a.state("x") == ProcessState("exited", pid, -9)
        await a.power(True)
        assert await start() != pid
        assert await a.get("/a/node.toml") == config.encode()

    play(tmp_path, scene)


def test_an_answer_that_does_not_come_is_a_connection_error(tmp_path: Path) -> None:
    """It is a fact about the node, which the caller uses."""

    async def scene(agents: Mapping[str, Agent], at: Mapping[str, str]) -> None:
        with pytest.raises(ConnectionError):
            await agents["a"].ask(7001, b"", 0.5)

    play(tmp_path, scene)


def test_the_driver_may_reach_the_real_world(tmp_path: Path) -> None:
    """Its clock is virtual all the same."""

    async def scene(agents: Mapping[str, Agent], at: Mapping[str, str]) -> float:
        began_s, loop = time.monotonic(), asyncio.get_running_loop()
        await asyncio.sleep(3600)
        (tmp_path / "note").write_text("written")
        assert loop.time() >= 3600
        return time.monotonic() - began_s

    assert play(tmp_path, scene) < 3600


def test_who_else_reaches_for_it_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test bed failed, and run.json names the file and the line."""

    def reaching(_: object, arguments: object) -> Callable[[SimProcess], Awaitable[int]]:
        async def main(process: SimProcess) -> int:
            return int(time.time())

        return main

    monkeypatch.setitem(machine.PROGRAMS, "clusters.flotilla", reaching)  # type: ignore[arg-type]
    hosts = SimulatedHosts(Trial(hosts="simulated"), tmp_path)

    async def main() -> int:
        async with hosts.start_nodes(NODES) as (_, agents):
            await agents["a"].start("x", FLOTILLA)
            await agents["a"].exited("x")
        return 0

    assert hosts.run(main()) == EXIT_BED_FAILED
    assert f"time.time is not simulated, but {__file__}:" in RunDir(tmp_path).state()["error"]
