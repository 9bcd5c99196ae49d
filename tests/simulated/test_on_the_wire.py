"""What is on its way when a machine loses power, or a process its connections: sent is sent."""

import asyncio

from small_world import Ear, SmallWorld, dial, serving


def server(sea: SmallWorld, host: str = "b") -> list[Ear]:
    """A server on a host, and the ears of its connections."""
    ears: list[Ear] = []
    sea.start(host, serving(ears, sea.address(host)), "server")
    return ears


def test_a_dial_goes_on_though_its_target_lost_power_in_mid_handshake() -> None:
    """What that machine knew of the dial is gone: the next SYN begins anew, and both are open."""
    sea = SmallWorld()
    server(sea)
    later: list[Ear] = []

    async def client() -> Ear:
        ear = await dial(sea.address("b"))
        ear.transport.write(b"hello")
        await asyncio.sleep(1)
        return ear

    def power_on() -> None:
        sea.hosts["b"].power_on()
        sea.start("b", serving(later, sea.address("b")), "again")
        sea.heal("b", "a")

    sea.cut("b", "a")
    sea.at(0.3, sea.hosts["b"].power_cut)
    sea.at(0.6, power_on)
    ear = sea.play(client)
    assert ear.heard == ["made"]
    assert bytes(later[0].data) == b"hello"
