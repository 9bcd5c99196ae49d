"""Conversion of a running broker set between its modes (docs/flotilla-conversion.md)."""

import asyncio
from collections.abc import Sequence

import pytest
from simulated_fleet import BROKER_SET, Fleet, Sailor, acknowledged, eventually

from clusters.flotilla.client.calls import CALL_ERRORS
from clusters.flotilla.conversion.coordinator import Conversion, ConversionRefused
from clusters.flotilla.net.wire import Json, Op

BROKERS = ("broker-1", "broker-2", "broker-3")
CYCLE = ("switchless", "raft-log", "controller", "raft-log", "switchless", "controller")


def conversion(sailor: Sailor, mode: str) -> Conversion:
    async def ask(address: str, op: Op, fields: Json) -> Json | None:
        try:
            return await sailor.admin.ask(address, op, fields)
        except CALL_ERRORS:
            return None

    addresses = [sailor.fleet.address(name) for name in BROKERS]
    order = sailor.admin.order
    return Conversion(BROKER_SET, mode, addresses, ask, order, lambda: asyncio.sleep(0.1))


async def whole(sailor: Sailor) -> int:
    """Wait until all replicas are in step; return the epoch."""

    async def look() -> int:
        now = await sailor.cluster_state()
        return now.epochs[BROKER_SET] if now.redundant else 0

    return await eventually(look)


@pytest.mark.parametrize("modes", [CYCLE])
def test_a_set_goes_through_all_modes_under_load(modes: Sequence[str]) -> None:
    """Nothing acknowledged is lost, no send fails, and epochs rise over each border."""
    fleet = Fleet(1, "converting")

    async def scenario(sailor: Sailor) -> None:
        epochs, kept = [await whole(sailor)], set[bytes]()
        for number, mode in enumerate(modes, start=1):
            sending = asyncio.ensure_future(sailor.send(60, 0.02))
            await asyncio.sleep(0.4)
            now = await conversion(sailor, mode).run()
            assert (now.mode, now.number) == (mode, number)
            results = await sending
            failed = {body: r for body, r in results.items() if body not in acknowledged(results)}
            assert not failed
            kept |= acknowledged(results)
            epochs.append(await whole(sailor))
        assert epochs == sorted(set(epochs))
        assert kept <= set(await sailor.read_all())

    fleet.sail(scenario)
    for broker in BROKERS:
        rows = [(row["generation"], row["mode"]) for row in fleet.events(broker, "mode")]
        assert rows == list(enumerate(("controller", *modes)))


def test_unanswered() -> None:
    assert ConversionRefused
