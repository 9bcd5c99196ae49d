"""What is on the wire when a machine loses power, or a process its connections, arrives."""

import asyncio

from small_world import Ear, SmallWorld, dial, met, serving

from clusters.hosts._world.world import SECOND


def test_what_a_machine_sent_before_its_power_was_cut_arrives() -> None:
    """There is no end behind it, and nothing is sent again."""
    sea = SmallWorld()
    ears = sea.server("a")
    sent: list[Ear] = []

    async def client() -> None:
        sent.append(await met(sea.address("a")))
        await asyncio.sleep(1)
        sent[0].transport.write(b"promised")
        sea.hosts["b"].power_cut()

    sea.start("b", client)
    sea.world.run(60 * SECOND)
    assert (bytes(ears[0].data), ears[0].heard) == (b"promised", ["made"])


def test_what_waits_before_a_narrow_link_dies_with_its_machine() -> None:
    """Of 100 kB at 50 kB per second, as much as had passed when the power was cut."""
    sea = SmallWorld()
    ears = sea.server("a")

    async def client() -> None:
        ear = await met(sea.address("a"))
        sea.network.link(sea.address("b"), sea.address("a")).bytes_per_s = 50_000
        for _ in range(100):
            ear.transport.write(bytes(1_000))
            await asyncio.sleep(0.001)

    sea.start("b", client)
    sea.at(0.5, sea.hosts["b"].power_cut)
    sea.world.run(60 * SECOND)
    assert 20_000 < len(ears[0].data) < 26_000


def test_a_piece_that_was_lost_is_not_sent_anew_without_power() -> None:
    """Nor is what was behind it delivered."""
    sea = SmallWorld()
    ears = sea.server("a")

    async def client() -> None:
        ear = await met(sea.address("a"))
        sea.cut("b", "a")
        ear.transport.write(b"lost")
        await asyncio.sleep(0.01)
        sea.heal("b", "a")
        ear.transport.write(b"behind")
        sea.hosts["b"].power_cut()

    sea.start("b", client)
    sea.world.run(60 * SECOND)
    assert (bytes(ears[0].data), ears[0].heard) == (b"", ["made"])


def test_what_was_sent_before_a_reset_arrives_before_it() -> None:
    """A process that is killed with unread bytes resets its connections, and its own bytes are on
    the wire."""
    sea = SmallWorld()
    ears = sea.server("a")

    async def client() -> None:
        ear = await met(sea.address("a"))
        ear.transport.pause_reading()
        ears[0].transport.write(b"never read")
        await asyncio.sleep(0.1)
        ear.transport.write(b"promised")
        processes[0].kill()

    processes = [sea.start("b", client)]
    sea.world.run(60 * SECOND)
    assert bytes(ears[0].data) == b"promised"
    assert ears[0].heard[1].startswith("lost ConnectionResetError")


def test_a_dial_goes_on_though_its_target_lost_power_in_mid_handshake() -> None:
    """That machine has forgotten the handshake: the next SYN begins it again, and both ends are
    open."""
    sea = SmallWorld()
    sea.server()
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
