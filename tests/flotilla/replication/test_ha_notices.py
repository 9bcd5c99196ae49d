"""Role changes reach brokers with all that replication needs.

In RocketMQ a slave gets its new master's replication address from a nameserver. With all of those
down no slave finds the new master, and where two copies are needed nothing can be written.
"""

import asyncio

import pytest
from simulated_fleet import BROKER_SET, Fleet, Sailor

from clusters.flotilla.net.connection import Pool
from clusters.flotilla.net.wire import Op, SendReply, SendRequest, Status


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_new_master_has_its_slaves_without_any_nameserver(seed: int) -> None:
    """Nameserver and master die at once: the next master's set is two again, and it writes."""
    fleet = Fleet(seed, "allack-min2")

    async def scenario(sailor: Sailor) -> None:
        old = (await sailor.healthy()).masters[BROKER_SET]
        for name in fleet.nodes("nameserver"):
            await sailor.kill(name)
        await sailor.kill(old)
        began = asyncio.get_running_loop().time()
        now = await sailor.new_master(old)
        while len(now.in_set) < 2:
            now = await sailor.cluster_state()
        assert await written(fleet, now.masters[BROKER_SET]) is Status.SUCCESS
        assert asyncio.get_running_loop().time() - began < 5

    fleet.sail(scenario)


async def written(fleet: Fleet, master: str) -> Status:
    """Return the answer to a send that needs no route."""
    pool = Pool(1)
    connection = await pool.get(fleet.address(master))
    packed = await connection.call(Op.SEND, SendRequest("orders", 0, b"", b"m").pack(), 5)
    pool.close()
    return SendReply.unpack(packed).status


def test_controllers_tell_both_addresses_of_the_master() -> None:
    """Notices are ReplicaInfo, too: a slave can act on them at once."""
    fleet = Fleet(1, "allack-min2")

    async def scenario(sailor: Sailor) -> None:
        master = (await sailor.healthy()).masters[BROKER_SET]
        pool = Pool(1)
        for name in fleet.nodes("controller"):
            info = await pool.ask(
                fleet.address(name), Op.REPLICA_INFO, {"brokerName": BROKER_SET}, 1
            )
            if info["code"] == Status.SUCCESS:
                assert info["masterAddr"] == fleet.address(master)
                host, _, _ = fleet.address(master).partition(":")
                assert info["masterHaAddr"].startswith(f"{host}:")
                assert info["masterHaAddr"] != info["masterAddr"]
                return
        raise AssertionError("no controller leads")

    fleet.sail(scenario)
