"""A simulated process's event loop: asyncio in virtual time, wrong clocks, and refused calls."""

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_world import SmallWorld

from clusters.hosts._world.world import Livelock, NotSimulated

ENDLESS = 1_000.0


def now() -> float:
    return asyncio.get_running_loop().time()


# asyncio on virtual time


async def gathered() -> list[object]:
    return await asyncio.gather(asyncio.sleep(3, "c"), asyncio.sleep(1, "a"), asyncio.sleep(2, "b"))


async def timed_out() -> str:
    try:
        async with asyncio.timeout(2):
            await asyncio.sleep(ENDLESS)
    except TimeoutError:
        return f"after {now():g}"
    return "never"


async def grouped() -> list[int]:
    seen: list[int] = []

    async def add(number: int) -> None:
        await asyncio.sleep(number)
        seen.append(number)

    async with asyncio.TaskGroup() as group:
        for number in (2, 1, 3):
            group.create_task(add(number))
    return seen


async def queued() -> list[str]:
    queue: asyncio.Queue[str] = asyncio.Queue(1)

    async def put() -> None:
        for letter in "xyz":
            await queue.put(letter)

    putting = asyncio.create_task(put())
    seen = [await queue.get() for _ in range(3)]
    await putting
    return seen


async def locked() -> list[str]:
    lock, seen = asyncio.Lock(), []

    async def turn(name: str) -> None:
        async with lock:
            seen.append(f"{name} in")
            await asyncio.sleep(1)
            seen.append(f"{name} out")

    await asyncio.gather(turn("a"), turn("b"))
    return seen


async def shielded() -> str:
    inner = asyncio.ensure_future(asyncio.sleep(2, "whole"))
    try:
        async with asyncio.timeout(1):
            await asyncio.shield(inner)
    except TimeoutError:
        return await inner
    return "early"


async def waited() -> list[float]:
    tasks = [asyncio.create_task(asyncio.sleep(n, float(n))) for n in (1, 3)]
    done, open_ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    rest, _ = await asyncio.wait(open_, timeout=ENDLESS)
    return [task.result() for task in (*done, *rest)]


async def waited_for() -> str:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(1, event.set)
    await asyncio.wait_for(event.wait(), 5)
    return f"at {now():g}"


async def left_half_way() -> list[str]:
    seen: list[str] = []

    async def numbers() -> Any:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(1)
            seen.append("closed")

    async for _ in numbers():
        break
    await asyncio.sleep(2)
    return seen


@pytest.mark.parametrize(
    ("main", "result", "lasts_s"),
    [
        (gathered, ["c", "a", "b"], 3),
        (timed_out, "after 2", 2),
        (grouped, [1, 2, 3], 3),
        (queued, ["x", "y", "z"], 0),
        (locked, ["a in", "a out", "b in", "b out"], 2),
        (shielded, "whole", 2),
        (waited, [1.0, 3.0], 3),
        (waited_for, "at 1", 1),
        (left_half_way, ["closed"], 2),
    ],
)
def test_asyncio_works_in_no_time(
    main: Callable[[], Awaitable[Any]], result: object, lasts_s: float
) -> None:
    """Its tools give their results, at the requested instants."""
    sea = SmallWorld()
    assert sea.play(main) == result
    assert sea.now_s == lasts_s


@given(
    st.lists(st.floats(0, 1e4), min_size=1, max_size=20),
    st.sampled_from([1.0, 0.5, 2.0, 1.000_05, 0.999_95, 1 / 3]),
    st.floats(0, 1e6),
)
def test_a_timer_is_never_early(delays_s: list[float], rate: float, begin_s: float) -> None:
    """When it fires, the loop's own clock shows its time, whatever that clock's rate."""
    sea = SmallWorld()
    sea.hosts["a"].set_clock_rate(rate)
    fired: list[tuple[float, float]] = []

    async def main() -> None:
        await asyncio.sleep(begin_s)
        loop = asyncio.get_running_loop()
        for delay_s in delays_s:
            when = loop.time() + delay_s
            loop.call_at(when, lambda when=when: fired.append((when, loop.time())))
        await asyncio.sleep(max(delays_s) + 1)

    sea.play(main)
    order_ns = [math.ceil(when * 1e9) for when, _ in fired]
    assert order_ns == sorted(order_ns)
    assert len(fired) == len(delays_s)
    assert all(when <= at < when + 1e-6 for when, at in fired)


def test_a_rate_that_changes_moves_the_timers_that_wait() -> None:
    """Ten seconds of a clock that runs twice as fast from the fifth on are seven and a half."""
    sea = SmallWorld()
    sea.at(5, lambda: sea.hosts["a"].set_clock_rate(2.0))
    sea.play(lambda: asyncio.sleep(10))
    assert sea.now_s == 7.5


def test_hosts_have_clocks_of_their_own() -> None:
    """A step moves one host's wall clock and no timers."""
    sea = SmallWorld()
    clock, other = sea.hosts["a"].clock, sea.hosts["b"].clock
    sea.at(1, lambda: clock.set_error(-3_600_000_000_000, 1.0))
    sea.play(lambda: asyncio.sleep(2))
    assert clock.wall_ms() == other.wall_ms() - 3_600_000
    assert sea.now_s == 2


# failures, and what is refused


def test_a_failing_callback_goes_to_the_exception_handler() -> None:
    """The process lives on, unless its handler decides otherwise."""
    sea, seen = SmallWorld(), []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)
        loop.set_exception_handler(lambda _, context: seen.append(repr(context["exception"])))
        loop.call_later(1, lambda: 1 / 0)
        await asyncio.sleep(2)

    process = sea.start("a", main)
    sea.world.run()
    assert process.code == 0
    assert "ZeroDivisionError: division by zero" in process.error_lines
    assert seen == ["ZeroDivisionError('division by zero')"]


def test_a_process_that_spins_within_an_instant_is_stopped() -> None:
    """`sleep(0)` until a time that cannot come, because no time passes."""
    sea = SmallWorld()

    async def main() -> None:
        while now() < 1:  # noqa: ASYNC110 - the mistake itself
            await asyncio.sleep(0)

    sea.start("a", main, "spinner")
    with pytest.raises(Livelock, match="spinner spins: 100,000 callbacks at one instant"):
        sea.world.run()


def test_an_interrupt_is_not_for_the_process() -> None:
    """Ctrl-C stops the world, wherever it strikes."""
    sea = SmallWorld()

    async def main() -> None:
        try:
            raise KeyboardInterrupt
        except Exception:
            pytest.fail("an interrupt is no Exception")

    process = sea.start("a", main)
    with pytest.raises(KeyboardInterrupt):
        sea.world.run()
    assert process.alive


REFUSED: dict[str, Callable[[asyncio.AbstractEventLoop], Any]] = {
    "run_in_executor()": lambda loop: loop.run_in_executor(None, print),
    "add_reader()": lambda loop: loop.add_reader(0, print),
    "subprocess_exec()": lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true"),
    "create_datagram_endpoint()": lambda loop: loop.create_datagram_endpoint(
        asyncio.DatagramProtocol
    ),
    "getaddrinfo()": lambda loop: loop.getaddrinfo("localhost", 80),
    "run_until_complete()": lambda loop: loop.run_until_complete(asyncio.sleep(0)),
    "stop()": lambda loop: loop.stop(),
    "create_connection(ssl=...)": lambda loop: loop.create_connection(
        asyncio.Protocol, "10.0.0.1", 80, ssl=True
    ),
    "looking up 'example.org'": lambda loop: loop.create_connection(
        asyncio.Protocol, "example.org", 80
    ),
    "connect_read_pipe() of a real pipe": lambda loop: loop.connect_read_pipe(
        asyncio.Protocol, sys.__stdin__
    ),
}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_simulated_is_refused_with_its_place(what: str) -> None:
    """File and line of the caller; the world stops even if the process catches it."""
    sea = SmallWorld()

    async def main() -> None:
        try:
            asked = REFUSED[what](asyncio.get_running_loop())
            await asked
        except Exception:
            await asyncio.sleep(1)

    sea.start("a", main)
    with pytest.raises(NotSimulated, match=r"test_sim_loop\.py:\d+ asks for it") as refused:
        sea.world.run()
    assert str(refused.value).startswith(what)


def test_threads_are_refused() -> None:
    """`to_thread` ends at the executor that is not there."""
    sea = SmallWorld()
    sea.start("a", lambda: asyncio.to_thread(print))
    with pytest.raises(NotSimulated, match=r"run_in_executor\(\) is not simulated"):
        sea.world.run()
