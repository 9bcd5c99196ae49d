"""One conformance script, two kinds of servers: a real ZooKeeper ensemble of three JVMs, and a
coordinator as a real process. What differs between them would be a flaw of the coordinator."""

import asyncio
import random
import subprocess
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from loopback import PATIENCE_S, eventually, free_port
from zk_conformance import SCENARIOS, Clients, play

from clusters.flotilla.net.connection import CallTimeout, ConnectionLost, Pool, Unreachable
from clusters.flotilla.net.wire import Op, SendReply, SendRequest, Status
from clusters.flotilla.zk.session import ZkSession
from clusters.kit.java import FLAGS, JAVA
from clusters.supply import resolve
from clusters.systems.zookeeper import LOG4J, PROGRAM

pytestmark = pytest.mark.bed

TICK_MS, TIMEOUT_S = 250, 5.0
NUMBERS = count(1)


def common_lines() -> list[str]:
    servers = [f"server.{n}=127.0.0.1:{free_port()}:{free_port()}" for n in (1, 2, 3)]
    return [
        *(f"tickTime={TICK_MS}", "initLimit=40", "syncLimit=8", "admin.enableServer=false"),
        *("clientPortAddress=127.0.0.1", "forceSync=no", "maxClientCnxns=0"),
        *servers,
    ]


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The addresses of three servers of one ensemble."""
    folder = tmp_path_factory.mktemp("ensemble")
    java, jars = resolve(JAVA).path, resolve(PROGRAM).path
    (folder / "log4j2.properties").write_text(LOG4J)
    ports = [free_port() for _ in range(3)]
    lines, processes = common_lines(), list[subprocess.Popen[bytes]]()
    for number, port in enumerate(ports, start=1):
        home = folder / str(number)
        home.mkdir()
        (home / "myid").write_text(f"{number}\n")
        own = [f"dataDir={home}", f"clientPort={port}"]
        (folder / f"{number}.cfg").write_text("\n".join([*lines, *own, ""]))
        argv = [
            *(
                str(java),
                *FLAGS,
                "-Xmx64m",
                f"-Dlog4j2.configurationFile={folder}/log4j2.properties",
            ),
            *("-cp", f"{jars}/*", "org.apache.zookeeper.server.quorum.QuorumPeerMain"),
            str(folder / f"{number}.cfg"),
        ]
        with (folder / f"{number}.log").open("wb") as log:
            processes.append(subprocess.Popen(argv, stdout=log, stderr=log))
    try:
        yield [f"127.0.0.1:{port}" for port in ports]
    finally:
        for process in processes:
            process.kill()
            process.wait(PATIENCE_S)


@pytest.fixture
def coordinator(raise_node: Any) -> str:
    """The address for sessions of a coordinator that is alone."""
    port, clients = free_port(), free_port()
    raise_node(
        "c1",
        "coordinator",
        port=port,
        clientPort=clients,
        coordinatorPeers={"c1": f"127.0.0.1:{port}"},
        timeScale=1.0,
        zkTickTime=TICK_MS,
        raftElectionTimeout=300,
        raftHeartbeatInterval=100,
    )
    return f"127.0.0.1:{clients}"


def clients_of(servers: list[str]) -> Clients:
    return Clients(servers, TIMEOUT_S, random.Random(1), f"/test-{next(NUMBERS)}")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_zookeeper_conforms(ensemble: list[str], scenario: Any) -> None:
    asyncio.run(play_one(scenario, ensemble))


async def play_one(scenario: Any, servers: list[str]) -> None:
    await play(scenario, clients_of(servers))


def test_a_coordinator_conforms(coordinator: str) -> None:
    """As a process, all scenarios one after the other."""

    async def all_of_them() -> None:
        for scenario in SCENARIOS:
            await play_one(scenario, [coordinator])

    asyncio.run(all_of_them())


def test_a_pair_is_switched_by_a_real_ensemble(ensemble: list[str], raise_node: Any) -> None:
    """Brokers and an HA controller that have ZooKeeper in place of coordinators: the pair reaches
    SYNC, the slave takes over from a killed master, and the pair is in SYNC again."""
    mode = {"zkServers": ensemble, "timeScale": 1.0, "zkSessionTimeout": 1500}
    raise_node("h1", "hacontroller", **mode)
    brokers = [
        raise_node(
            f"b{number}",
            "broker",
            haListenPort=free_port(),
            brokerName="b",
            brokerId=number,
            topics={"t": 1},
            haMode="zookeeper",
            allAckInSyncStateSet=True,
            totalReplicas=2,
            haSendHeartbeatInterval=500,
            **mode,
        )
        for number in range(2)
    ]

    async def scenario() -> None:
        pool = Pool(1)

        async def pair(of: list[Any]) -> list[Any] | None:
            """The master and its slave, once they are in SYNC."""
            said = []
            for broker in of:
                try:
                    said.append(await pool.ask(broker.address, Op.DESCRIBE, {}, 2))
                except (Unreachable, ConnectionLost, CallTimeout):
                    return None
            roles = [each["role"] for each in said]
            whole = all(each["set"] == [1, 2] for each in said)
            if not whole or sorted(roles) != ["master", "slave"]:
                return None
            return [of[roles.index("master")], of[roles.index("slave")]]

        master, slave = await eventually(lambda: pair(brokers))
        packed = SendRequest("t", 0, b"k", b"body").pack()
        connection = await pool.get(master.address)
        assert SendReply.unpack(await connection.call(Op.SEND, packed, 3)).status == Status.SUCCESS
        master.stop()

        async def taken_over() -> bool:
            said = await pool.ask(slave.address, Op.DESCRIBE, {}, 2)
            return bool(said["role"] == "master")

        await eventually(taken_over)
        connection = await pool.get(slave.address)
        reply = SendReply.unpack(await connection.call(Op.SEND, packed, 3))
        assert (reply.status, reply.queue_offset) == (Status.SUCCESS, 1)
        pool.drop(master.address)
        master.start()
        assert await eventually(lambda: pair(brokers)) == [slave, master]
        pool.close()

    asyncio.run(scenario())


def test_a_coordinator_remembers(coordinator: str, raise_node: Any) -> None:
    """Garbage closes the connection that sent it, and nothing else."""

    async def scenario() -> None:
        z = ZkSession([coordinator], TIMEOUT_S, random.Random(1))
        z.start()
        await z.create("/kept", b"data")
        host, port = coordinator.split(":")
        for garbage in (b"\xff" * 64, b"\0\0\0\x02ab", b"\0\0\0\0", b"GET / HTTP/1.1\r\n\r\n"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(garbage)
            assert await reader.read() == b""
            writer.close()
        assert (await z.get("/kept"))[0] == b"data"
        await z.close()

    asyncio.run(scenario())
