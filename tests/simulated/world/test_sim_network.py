"""Simulated TCP beyond the parity scenes: random loss, long waits, lost power, full queues.

Times are the world's own, so they are part of the test.
"""

import asyncio
import errno
from collections.abc import Awaitable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import CALM, PORT, Ear, SmallWorld, dial, met
from table_sizes import examples

from clusters.hosts._world.network import Wire
from clusters.hosts._world.tcp import Kernel
from clusters.hosts._world.world import SECOND

ROUGH = Wire(latency_ns=2_000_000, jitter_ns=5_000_000, split=0.3, join=0.3)
QUICK = Kernel(syn_retries=1, retries=3)


async def fails(awaitable: Awaitable[object]) -> OSError:
    try:
        await awaitable
    except OSError as e:
        return e
    raise AssertionError("it worked")


@settings(max_examples=examples(50))
@given(
    sizes=st.lists(st.integers(1, 5_000), min_size=1, max_size=40),
    loss=st.sampled_from([0.0, 0.1, 0.5]),
    cuts=st.lists(st.tuples(st.floats(0, 3), st.floats(0, 2)), max_size=3),
    seed=st.integers(0, 1_000),
)
def test_every_byte_arrives_once_and_in_order(
    sizes: list[int], loss: float, cuts: list[tuple[float, float]], seed: int
) -> None:
    """Whatever is lost, cut, split, joined and late on the way."""
    sea = SmallWorld(seed, ROUGH)
    ears = sea.server()
    for begin_s, lasts_s in cuts:
        sea.at(begin_s, lambda: sea.cut("a", "b"))
        sea.at(begin_s + lasts_s, lambda: sea.heal("a", "b"))
    sent = bytes(number % 251 for size in sizes for number in range(size))

    async def client() -> None:
        ear = await met(sea.address("b"))
        for link in (("a", "b"), ("b", "a")):
            sea.network.link(*map(sea.address, link)).loss = loss
        at = 0
        for size in sizes:
            ear.transport.write(sent[at : at + size])
            at += size
            await asyncio.sleep(0.05)
        ear.transport.close()
        while not ears or not ears[0].lost.done():  # noqa: ASYNC110 - another process's future
            await asyncio.sleep(1)

    sea.play(client)
    assert bytes(ears[0].data) == sent
    assert ears[0].heard == ["made", "ended", "lost None"]
    SmallWorld.close_all()


def test_pieces_are_cut_in_two_and_joined() -> None:
    """So no parser can rely on one read for one write."""
    sea = SmallWorld(1, ROUGH)
    ears = sea.server()

    async def client() -> None:
        ear = await met(sea.address("b"))
        for _ in range(100):
            ear.transport.write(b"hello")
            await asyncio.sleep(0.001)
        await asyncio.sleep(1)

    sea.play(client)
    assert bytes(ears[0].data) == b"hello" * 100
    assert ears[0].pieces not in (1, 100)


def test_a_lost_piece_comes_with_the_retransmission() -> None:
    """After the round trip and 200 ms; everything behind it waits, and arrives with it."""
    sea = SmallWorld()
    ears = sea.server()
    arrived: list[float] = []

    async def client() -> None:
        loop = asyncio.get_running_loop()
        ear = await met(sea.address("b"))
        await asyncio.sleep(1 - loop.time())
        sea.cut("a", "b")
        ear.transport.write(b"first")
        await asyncio.sleep(0.1)
        sea.heal("a", "b")
        ear.transport.write(b"second")
        while not ears[0].data:  # noqa: ASYNC110 - another process's ear
            await asyncio.sleep(0.001)
        arrived.append(loop.time())

    sea.play(client)
    assert bytes(ears[0].data) == b"firstsecond"
    assert arrived[0] == pytest.approx(1.203, abs=0.002)  # the arrival, then 2 ms and 200 ms


def test_after_a_cut_bytes_are_late_by_about_its_length() -> None:
    """The back-off doubles: a cut of ten seconds is a silence of more than twelve."""
    sea = SmallWorld()
    ears = sea.server()

    async def client() -> float:
        ear = await met(sea.address("b"))
        sea.cut("a", "b")
        ear.transport.write(b"x")
        await asyncio.sleep(10)
        sea.heal("a", "b")
        while not ears[0].data:  # noqa: ASYNC110 - another process's ear
            await asyncio.sleep(0.01)
        return asyncio.get_running_loop().time()

    assert sea.play(client) == pytest.approx(12.8, abs=0.3)


def test_linux_gives_up_when_it_does() -> None:
    """924.6 s for fifteen retransmissions, 3 s for three, as tcp_model_timeout has it."""
    assert Kernel().gives_up_after_ns() == 924_600_000_000
    assert Kernel(retries=3).gives_up_after_ns() == 3_000_000_000


def test_a_sender_gives_up_in_its_kernels_time() -> None:
    """Not before the fifteenth retransmission has gone unanswered, and not much later."""
    sea = SmallWorld()
    sea.server()

    async def client() -> Exception | None:
        ear = await met(sea.address("b"))
        sea.cut("a", "b")
        ear.transport.write(b"x")
        return await ear.lost

    assert isinstance(sea.play(client), TimeoutError)
    assert 924 < sea.now_s < 924 + 121


def test_dialling_a_host_that_is_not_there_takes_two_minutes() -> None:
    """Six more SYNs after the first, 127 s in all."""
    sea = SmallWorld()
    error = sea.play(lambda: fails(dial("10.9.9.9")))
    assert (error.errno, sea.now_s) == (errno.ETIMEDOUT, 127)
    assert str(error) == "[Errno 110] Connect call failed ('10.9.9.9', 7000)"


def test_a_dial_works_with_the_first_syn_that_gets_through() -> None:
    """A cut that is healed after two seconds costs three."""
    sea = SmallWorld()
    sea.server()
    sea.at(0, lambda: sea.cut("a", "b"))
    sea.at(2, lambda: sea.heal("a", "b"))
    sea.play(lambda: dial(sea.address("b")))
    assert sea.now_s == 3.002


def test_giving_up_a_dial_leaves_nothing() -> None:
    """A timeout of the caller's own: neither side has a connection in the end."""
    sea = SmallWorld(kernel=QUICK)
    ears = sea.server()

    async def client() -> None:
        async with asyncio.timeout(0.001_5):  # the answer is on its way
            await dial(sea.address("b"))

    with pytest.raises(TimeoutError):
        sea.play(client)
    sea.world.run(10 * SECOND)
    assert not ears
    assert not sea.hosts["a"].stack.sockets
    assert not sea.hosts["b"].stack.sockets


# power


def test_a_power_cut_leaves_the_peer_with_half_a_connection() -> None:
    """A peer that does not write never notices."""
    sea = SmallWorld()
    sea.server()

    async def client() -> list[str]:
        ears = [await met(sea.address("b")), await dial(sea.address("b"))]
        sea.hosts["b"].power_cut()  # the second is half way: its last packet is under way
        await asyncio.sleep(100_000)
        return ears[0].heard + ears[1].heard

    assert sea.play(client) == ["made", "made"]


def test_a_machine_with_power_again_resets_what_it_does_not_know() -> None:
    """The first byte after its return is answered so."""
    sea = SmallWorld()
    sea.server()

    async def client() -> Exception | None:
        ear = await met(sea.address("b"))
        sea.hosts["b"].power_cut()
        sea.hosts["b"].power_on()
        ear.transport.write(b"x")
        return await ear.lost

    assert isinstance(sea.play(client), ConnectionResetError)


def test_bytes_wait_for_a_machine_without_power_and_are_reset_by_it() -> None:
    """They are retransmitted until the machine answers that it does not know the connection."""
    sea = SmallWorld()
    sea.server()

    async def client() -> Exception | None:
        ear = await met(sea.address("b"))
        sea.hosts["b"].power_cut()
        ear.transport.write(b"x")
        await asyncio.sleep(5)
        sea.hosts["b"].power_on()
        return await ear.lost

    assert isinstance(sea.play(client), ConnectionResetError)
    assert 5 < sea.now_s < 13


def test_a_machine_without_power_runs_nothing() -> None:
    """Until it has power again: then it is empty."""
    sea = SmallWorld()
    host = sea.hosts["b"]
    sea.server()
    sea.world.run(SECOND)
    host.power_cut()
    with pytest.raises(RuntimeError, match="b has no power"):
        sea.server()
    host.power_on()
    ears = sea.server()
    sea.play(lambda: met(sea.address("b")))
    assert len(ears) == 1


# listening


def test_a_paused_listener_is_full_at_some_point() -> None:
    """Its kernel accepts as many as fit its backlog; the others try again."""
    sea = SmallWorld(kernel=QUICK)

    async def few() -> None:
        loop = asyncio.get_running_loop()
        await loop.create_server(Ear, sea.address("b"), PORT, backlog=3)
        await loop.create_future()

    listener = sea.start("b", few, "server")
    sea.world.run(SECOND)
    listener.pause()

    async def client() -> list[str]:
        dials = [fails(dial(sea.address("b"))) for _ in range(6)]
        ended = await asyncio.gather(*dials, return_exceptions=True)
        return [type(end).__name__ for end in ended]

    assert sorted(sea.play(client)) == ["AssertionError"] * 4 + ["TimeoutError"] * 2


def test_diallers_that_gave_up_do_not_fill_a_listener() -> None:
    """As on Linux with its SYN cookies: no dialler waits until their handshakes time out."""
    sea = SmallWorld(kernel=QUICK)
    sea.server()
    sea.world.run(SECOND)

    async def crowd() -> None:
        await asyncio.gather(*(dial(sea.address("b")) for _ in range(101)))

    sea.start("c", crowd)
    sea.at(1.001_5, sea.hosts["c"].power_cut)  # the answers are on their way
    sea.at(2, sea.hosts["c"].power_on)
    sea.world.run(3 * SECOND)
    sea.play(lambda: dial(sea.address("b")))


def test_a_crowd_that_hears_no_answers_does_not_fill_a_listener() -> None:
    """Its packets arrive, the answers are lost, and each of them dials again and again."""
    sea = SmallWorld(kernel=QUICK)
    sea.server()

    async def impatient() -> None:
        for _ in range(150):
            with suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await dial(sea.address("b"))

    sea.cut("b", "a")
    sea.play(impatient)
    sea.heal("b", "a")
    sea.play(lambda: dial(sea.address("b")))


def test_one_port_is_for_one_listener_on_each_host() -> None:
    """Another host may have the same; port 0 is any free one; a closed one is free again."""
    sea = SmallWorld()

    async def listen(host: str, port: int) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(Ear, host, port)

    async def main() -> tuple[int, str]:
        server = await listen("10.0.0.1", PORT)
        taken = await fails(listen("10.0.0.1", PORT))
        server.close()
        await server.wait_closed()
        again = await listen("10.0.0.1", PORT)
        assert again.sockets
        free = await listen("10.0.0.1", 0)
        ((_, port),) = [bound.getsockname() for bound in free.sockets]
        return port, str(taken)

    port, taken = sea.play(main)
    assert port >= 32768
    assert taken == (
        "[Errno 98] error while attempting to bind on address ('10.0.0.1', 7000): "
        "address already in use"
    )


@pytest.mark.parametrize(
    ("bound", "dialled", "works"),
    [
        ("0.0.0.0", "10.0.0.1", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "10.0.0.1", False),
        ("10.0.0.1", "127.0.0.1", False),
        ("10.0.0.1", "10.0.0.1", True),
    ],
)
def test_a_host_reaches_itself_where_it_listens(bound: str, dialled: str, works: bool) -> None:
    """The loopback address is another one than the host's."""
    sea = SmallWorld()

    async def main() -> bool:
        loop = asyncio.get_running_loop()
        await loop.create_server(Ear, bound, PORT)
        try:
            ear = await met(dialled)
        except ConnectionRefusedError:
            return False
        name: tuple[str, int] = ear.transport.get_extra_info("peername")
        return name == (dialled, PORT)

    assert sea.play(main) is works


def test_wait_closed_waits_for_the_connections() -> None:
    """As since Python 3.12."""
    sea = SmallWorld()

    async def main() -> float:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Ear, "10.0.0.1", PORT)
        ear = await met("10.0.0.1")
        server.close()
        loop.call_later(5, ear.transport.close)
        await server.wait_closed()
        return loop.time()

    assert sea.play(main) == pytest.approx(5.01, abs=0.001)


# links


def test_a_slow_link_takes_its_time() -> None:
    """A megabyte at a megabyte per second, after the latency."""
    sea = SmallWorld()
    ears = sea.server()
    sea.network.link(sea.address("a"), sea.address("b")).bytes_per_s = 1_000_000

    async def client() -> float:
        loop = asyncio.get_running_loop()
        ear = await met(sea.address("b"))
        begun = loop.time()
        for _ in range(100):
            ear.transport.write(bytes(10_000))
        while len(ears[0].data) < 1_000_000:  # noqa: ASYNC110 - another process's ear
            await asyncio.sleep(0.001)
        return loop.time() - begun

    assert sea.play(client) == pytest.approx(1.001, abs=0.002)


def test_a_link_counts_what_it_drops() -> None:
    """By cut and by chance; what passes is not counted."""
    sea = SmallWorld(kernel=QUICK)
    sea.server()
    ways = [sea.network.link(*map(sea.address, way)) for way in (("a", "b"), ("c", "b"))]
    sea.cut("a", "b")
    sea.play(lambda: fails(dial(sea.address("b"))), "a")
    sea.play(lambda: dial(sea.address("b")), "c")
    assert [link.dropped for link in ways] == [2, 0]
    ways[1].loss = 1.0
    sea.play(lambda: fails(dial(sea.address("b"))), "c")
    assert ways[1].dropped >= 2


def test_traffic_elsewhere_does_not_change_a_links_luck() -> None:
    """Each directed link draws from a stream of its own."""

    def transcript(busy: bool) -> list[str]:
        sea = SmallWorld(3, ROUGH)
        ears = sea.server()
        times: list[str] = []

        async def other() -> None:
            ear = await met(sea.address("d"))
            for _ in range(50):
                ear.transport.write(b"noise")
                await asyncio.sleep(0.01)

        async def client() -> None:
            ear = await met(sea.address("b"))
            for _ in range(50):
                before = len(ears[0].data) if ears else 0
                ear.transport.write(b"x")
                while not ears or len(ears[0].data) == before:  # noqa: ASYNC110
                    await asyncio.sleep(0.000_1)
                times.append(f"{asyncio.get_running_loop().time():.4f}")

        if busy:
            sea.server("d")
            sea.start("c", other)
        sea.play(client)
        return times

    assert transcript(busy=True) == transcript(busy=False)


@pytest.mark.parametrize("fault", ["loss", "cut"])
def test_what_a_fault_did_is_over_when_it_is_healed(fault: str) -> None:
    """The next connection is as quick as the first."""
    sea = SmallWorld()
    sea.server()
    link = sea.network.link(sea.address("a"), sea.address("b"))

    async def client() -> tuple[float, float]:
        loop = asyncio.get_running_loop()

        async def timed() -> float:
            begun = loop.time()
            await dial(sea.address("b"))
            return loop.time() - begun

        first = await timed()
        _set(link, fault, True)
        await asyncio.sleep(1)
        _set(link, fault, False)
        return first, await timed()

    first, second = sea.play(client)
    assert second == pytest.approx(first)


def _set(link: object, fault: str, on: bool) -> None:
    setattr(link, fault, on if fault == "cut" else float(on))


def test_the_window_is_per_direction_and_bounded() -> None:
    """A peer that does not read holds as much as two kernels do, and no more."""
    sea = SmallWorld(wire=CALM, kernel=Kernel(window_bytes=10_000))
    sea.server()
    sea.world.run(SECOND)
    sea.hosts["b"].processes["server"].pause()

    async def client() -> int:
        ear = await met(sea.address("b"))
        ear.transport.write(bytes(50_000))
        await asyncio.sleep(10)
        return ear.transport.get_write_buffer_size()

    assert sea.play(client) == 40_000
    assert sum(socket.unread for socket in sea.hosts["b"].stack.sockets) == 10_000


def test_addresses_are_given_once() -> None:
    """Two hosts with one address would receive each other's bytes."""
    with pytest.raises(ValueError, match=r"10\.0\.0\.1 is given to two hosts"):
        SmallWorld().network.attach("10.0.0.1")
