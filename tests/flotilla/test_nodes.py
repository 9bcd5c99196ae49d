"""The nameserver as a real process, and what every node's process does: start, refuse, stop."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from loopback import PATIENCE_S, eventually, free_port

from clusters.flotilla.net.connection import Pool
from clusters.flotilla.net.wire import Json, Op, Status

pytestmark = pytest.mark.bed


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_the_nameserver_routes_to_the_living(nameserver: Any, played_broker: Any) -> None:
    """A broker is registered, found, and removed with its process; one that reconnects stays."""

    async def scenario() -> None:
        pool, other = Pool(1), Pool(1)
        broker = played_broker
        await broker.listen()
        registration = {
            **broker.identity,
            "stateVersion": 3,
            "timeoutMs": 60_000,
            "topics": {"t": 4},
        }
        reply = await pool.ask(nameserver.address, Op.REGISTER_BROKER, registration, 2)
        assert reply["masterAddr"] == broker.address

        async def route() -> Json:
            return await other.ask(nameserver.address, Op.ROUTE, {"topic": "t"}, 2)

        assert (await route())["topics"] == {"t": [{"brokerName": "b", "queues": 4}]}
        stale = {**registration, "addr": "127.0.0.1:1", "stateVersion": 2}
        refused = await other.ask(nameserver.address, Op.REGISTER_BROKER, stale, 2)
        assert refused["code"] == Status.FENCED_MASTER_EPOCH
        pool.close()
        assert (await route())["brokers"]["b"]["addrs"] == {"0": broker.address}
        await broker.die()

        async def gone() -> bool:
            return (await route())["brokers"] == {}

        await eventually(gone)
        other.close()

    run(scenario())


def test_a_nameserver_may_have_a_controller_inside(raise_node: Any) -> None:
    """enableControllerInNamesrv: one process, two ports, and a broker that finds both."""
    inner = f"127.0.0.1:{free_port()}"
    one = raise_node(
        "ns",
        "nameserver",
        enableControllerInNamesrv=True,
        controllerDLegerSelfId="n0",
        controllerDLegerPeers={"n0": inner},
    )
    raise_node(
        "b1",
        "broker",
        haListenPort=free_port(),
        brokerName="b",
        namesrvAddr=[one.address],
        controllerAddr=[inner],
        topics={"t": 1},
    )

    async def scenario() -> None:
        pool = Pool(1)

        async def routed() -> bool:
            route = await pool.ask(one.address, Op.ROUTE, {"topic": "t"}, 2)
            return bool(route["brokers"])

        await eventually(routed)
        said = await pool.ask(inner, Op.DESCRIBE, {}, 2)
        assert (said["role"], said["sets"]["b"]["masterId"]) == ("controller", 1)
        pool.close()

    run(scenario())
    assert (one.folder / "store" / "controller" / "raft.wal").exists()
    assert one.stop(signal.SIGTERM) == 0


# the process


def test_a_node_stops_when_told_to(nameserver: Any) -> None:
    """SIGTERM: exit code 0."""
    assert nameserver.stop(signal.SIGTERM) == 0
    assert [e["kind"] for e in nameserver.events("stop")] == ["stop"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("role =", "TOML"),
        ('role = "nameserver"', "nodeName"),
        ('role = "x"\nnodeName = "n"\nlistenHost = "h"\nstorePath = "s"', "role"),
        (
            'role = "controller"\nnodeName = "n"\nlistenHost = "127.0.0.1"\nstorePath = "s"',
            "controllerDLegerSelfId",
        ),
        (None, "cannot be read"),
        (
            'role = "broker"\nnodeName = "n"\nlistenHost = "127.0.0.1"\nstorePath = "s"\n'
            "enableControllerInNamesrv = true",
            "enableControllerInNamesrv",
        ),
        (
            'role = "nameserver"\nnodeName = "n"\nlistenHost = "127.0.0.1"\nstorePath = "s"\n'
            'enableControllerInNamesrv = true\ncontrollerDLegerSelfId = "a"\n'
            'controllerDLegerPeers = {a = "127.0.0.1:10911"}',
            "needs its own port",
        ),
        (
            'role = "controller"\nnodeName = "n"\nlistenHost = "127.0.0.1"\nstorePath = "s"\n'
            'controllerType = "zookeeper"',
            "dledger or jraft",
        ),
        (
            'role = "controller"\nnodeName = "n"\nlistenHost = "127.0.0.1"\nstorePath = "s"\n'
            'electPolicy = "oldest"',
            "join-time",
        ),
    ],
)
def test_a_configuration_without_sense_is_refused(
    tmp_path: Path, text: str | None, word: str
) -> None:
    """One sentence that names the trouble, exit code 64."""
    path = tmp_path / "node.toml"
    if text is not None:
        path.write_text(text)
    code, stderr = complaint(path)
    assert code == 64
    assert word in stderr


def test_a_port_in_use_is_said_so(nameserver: Any) -> None:
    """One sentence, exit code 69."""
    code, stderr = complaint(nameserver.config)
    assert code == 69
    assert nameserver.address in stderr


def complaint(config: Path) -> tuple[int, str]:
    ended = subprocess.run(
        [sys.executable, "-m", "clusters.flotilla", str(config)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    return ended.returncode, ended.stderr
