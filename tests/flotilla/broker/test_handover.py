"""A planned handover between real brokers, under load by the real client."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from loopback import eventually, free_port

from clusters.flotilla.client import CallOutcome, ClientSettings, ClusterClient, SendResult
from clusters.flotilla.client.admin import Admin
from clusters.flotilla.net.wire import Status

pytestmark = pytest.mark.bed
SCALE = 0.2
SENDS = 600


def broker(raise_node: Any, number: int, nameserver: Any, controllers: Any) -> Any:
    host = f"127.0.0.{10 + number}"
    return raise_node(
        f"b{number}",
        "broker",
        host=host,
        haListenPort=free_port(host),
        brokerName="b",
        namesrvAddr=[nameserver.address],
        controllerAddr=[c.address for c in controllers.nodes.values()],
        topics={"t": 4},
        mappedFileSizeCommitLog=1024 * 1024,
        allAckInSyncStateSet=True,
        minInSyncReplicas=2,
    )


def test_no_send_fails_when_the_mastership_is_handed_over(
    raise_node: Any, controllers: Any, nameserver: Any, tmp_path: Path
) -> None:
    """Twice under load: every send is acknowledged within its tries, by both masters."""
    for number in (1, 2, 3):
        broker(raise_node, number, nameserver, controllers)

    async def scenario() -> None:
        admin = Admin([c.address for c in controllers.nodes.values()])
        client = ClusterClient(
            ClientSettings.of({"namesrvAddr": [nameserver.address], "timeScale": SCALE})
        )
        client.start()

        async def whole() -> bool:
            rows = await admin.sync_state_data("b")
            return bool(rows) and len(rows["b"]["set"]) == 3

        await eventually(whole)
        results: dict[int, SendResult] = {}
        drills = []
        for number in range(SENDS):
            done = partial(results.__setitem__, number)
            client.producer.send("t", number % 4, b"key", b"message %d" % number, done)
            await asyncio.sleep(0.002)
            if number in (SENDS // 3, 2 * SENDS // 3):
                drills.append(asyncio.ensure_future(handed_over(admin)))

        async def all_ended() -> bool:
            return len(results) == SENDS

        await eventually(all_ended)
        assert len(set(await asyncio.gather(*drills))) == 2
        client.close()
        admin.close()
        assert {r.outcome for r in results.values()} == {CallOutcome.HAPPENED}
        assert len({r.address for r in results.values()}) >= 2

    asyncio.run(scenario())


async def handed_over(admin: Admin) -> int:
    """A handover needs another member of the set."""

    async def try_it() -> int | None:
        reply = await admin.drill("b")
        return int(reply["masterId"]) if reply["code"] == Status.SUCCESS else None

    return await eventually(try_it)
