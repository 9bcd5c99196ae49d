"""A simulated process: its end, the effects of a kill and a pause, its output and input."""

import asyncio
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest
from small_world import SmallWorld, dial, serving

from clusters.hosts._world.process import SimProcess
from harness.run.client_process import ControlSession

ENDLESS = 1_000.0


# how a process ends


@pytest.mark.parametrize(
    ("result", "code"), [(None, 0), (0, 0), (3, 3), (sys.exit, 0), ("sorry", 1), (7, 7)]
)
def test_a_process_ends_with_its_code(result: Any, code: int) -> None:
    """The result of main, or the argument of sys.exit."""
    sea = SmallWorld()

    async def main() -> Any:
        if result is sys.exit:
            sys.exit()
        if isinstance(result, str):
            sys.exit(result)
        return result

    process = sea.start("a", main)
    sea.world.run()
    assert process.code == code
    assert process.error_lines == (["sorry"] if result == "sorry" else [])


def test_a_failed_main_leaves_its_traceback() -> None:
    """As Python would: on standard error, and code 1."""
    sea = SmallWorld()

    async def main() -> None:
        raise ValueError("no such luck")

    process = sea.start("a", main)
    sea.world.run()
    assert process.code == 1
    assert "ValueError: no such luck" in process.error_lines
    assert any("test_sim_process.py" in line for line in process.error_lines)


def test_the_end_of_main_cancels_the_rest_in_order() -> None:
    """Their `finally` runs, eldest first, and may take its time."""
    sea, seen = SmallWorld(), []

    async def other(name: str) -> None:
        try:
            await asyncio.sleep(ENDLESS)
        finally:
            await asyncio.sleep(1)
            seen.append(name)

    async def main() -> None:
        tasks = [asyncio.create_task(other(name)) for name in "xyz"]
        await asyncio.sleep(1)
        assert len(tasks) == 3

    sea.play(main)
    assert (seen, sea.now_s) == (["x", "y", "z"], 2)


def killed(sea: SmallWorld, how: Callable[[SimProcess], object]) -> tuple[SimProcess, list[str]]:
    """A process with everything that Python runs on exit, killed at 1 s."""
    seen: list[str] = []

    async def stubborn() -> None:
        try:
            await asyncio.sleep(ENDLESS)
        except BaseException:
            seen.append("except")
            raise
        finally:
            seen.append("finally")
            await asyncio.sleep(1)
            seen.append("late")

    async def main() -> None:
        tasks = [asyncio.create_task(stubborn()) for _ in range(3)]
        asyncio.get_running_loop().call_later(2, seen.append, "timer")
        async with asyncio.timeout(ENDLESS):
            await stubborn()
        await tasks[0]

    process = sea.start("a", main)
    sea.at(1, lambda: how(process))
    sea.world.run()
    return process, seen


ENDINGS: dict[str, Callable[[SimProcess], object]] = {
    "kill": lambda process: process.kill(),
    "signal": lambda process: process.signal(signal.SIGKILL),
    "power cut": lambda process: process.host.power_cut(),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_a_kill_runs_nothing_of_the_process(how: str) -> None:
    """No `except`, no `finally`, no timer; not even when Python collects its objects."""
    sea = SmallWorld()
    process, seen = killed(sea, ENDINGS[how])
    assert (process.code, seen) == (-signal.SIGKILL, [])
    assert process.name not in process.host.processes


def test_the_end_of_the_world_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    """Released tasks, even refusing ones, cause no warnings and no output."""
    sea = SmallWorld()
    killed(sea, SimProcess.kill)
    sea.start("b", lambda: asyncio.sleep(ENDLESS))
    sea.world.run(sea.world.now_ns + 1)
    SmallWorld.close_all()
    assert capsys.readouterr() == ("", "")


def test_a_process_that_ends_itself_does_nothing_more() -> None:
    """Its stack unwinds, and nothing that it does has an effect."""
    sea = SmallWorld()
    ears: list[Any] = []
    sea.start("b", serving(ears, sea.address("b")))
    mine: list[SimProcess] = []

    async def main() -> None:
        ear = await dial(sea.address("b"))
        try:
            mine[0].exit(9)
        finally:
            ear.transport.write(b"too late")
            print("too late")
            asyncio.get_running_loop().call_later(1, print, "too late")

    mine.append(sea.start("a", main))
    sea.world.run()
    assert (mine[0].code, mine[0].printed, ears[0].data) == (9, [], b"")
    assert ears[0].heard == ["made", "ended", "lost None"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -15), (signal.SIGUSR1, None)])
def test_a_signal_without_a_handler_means_what_it_means(number: int, code: int | None) -> None:
    """Deadly ones kill."""
    sea = SmallWorld()
    process = sea.start("a", lambda: asyncio.sleep(ENDLESS))
    sea.at(1, lambda: process.signal(number))
    sea.world.run(2_000_000_000)
    assert process.code == code


def test_a_signal_with_a_handler_is_the_process_own_affair() -> None:
    """SIGTERM ends it gracefully, as a node does; a paused one gets it when it resumes."""
    sea = SmallWorld()

    async def main() -> int:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await stop.wait()
        return 5

    process = sea.start("a", main)
    sea.at(1, process.pause)
    sea.at(2, lambda: process.signal(signal.SIGTERM))
    sea.at(4, process.resume)
    sea.world.run()
    assert (process.code, sea.now_s) == (5, 4)


# pause


def test_a_paused_process_does_nothing_and_misses_nothing() -> None:
    """Timers that an earlier one cancels do not fire; what arrived is delivered in order."""
    sea, seen = SmallWorld(), []
    ears: list[Any] = []
    timers: dict[str, asyncio.TimerHandle] = {}

    def answer(data: bytes) -> bytes:
        seen.append(f"heard {data.decode()}")
        return b""

    def early() -> None:
        seen.append("early")
        timers["doomed"].cancel()

    async def server() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(3, early)
        for name in ("doomed", "late"):
            timers[name] = loop.call_later(3, seen.append, name)
        await serving(ears, sea.address("b"), answer)()

    async def client() -> None:
        ear = await dial(sea.address("b"))
        await asyncio.sleep(4)
        ear.transport.write(b"hello")
        await asyncio.sleep(1)
        await dial(sea.address("b"))

    process = sea.start("b", server)
    sea.at(1, process.pause)
    sea.start("a", client)
    sea.world.run(8_000_000_000)
    assert seen == []
    process.resume()
    sea.world.run(8_100_000_000)
    assert seen in (["early", "late", "heard hello"], ["heard hello", "early", "late"])
    assert len(ears) == 2


def test_paused_again_at_once_means_paused() -> None:
    """The last action of an instant holds."""
    sea = SmallWorld()
    process = sea.start("a", lambda: asyncio.sleep(2))

    def flicker() -> None:
        process.resume()
        process.pause()

    sea.at(1, process.pause)
    sea.at(3, flicker)
    sea.world.run()
    assert process.paused
    process.resume()
    sea.world.run()
    assert process.code == 0


def test_a_paused_process_can_be_killed() -> None:
    """And what it missed is never delivered."""
    sea, seen = SmallWorld(), []

    async def main() -> None:
        asyncio.get_running_loop().call_later(2, seen.append, "timer")
        await asyncio.sleep(ENDLESS)

    process = sea.start("a", main)
    sea.at(1, process.pause)
    sea.at(3, process.kill)
    sea.at(4, process.resume)
    sea.world.run()
    assert (process.code, seen) == (-9, [])


# names and streams


def test_tasks_are_counted_by_process() -> None:
    """The interpreter's own count would differ from run to run."""
    sea = SmallWorld()

    async def main() -> list[str]:
        named = asyncio.create_task(asyncio.sleep(0), name="mine")
        other = asyncio.create_task(asyncio.sleep(0))
        await asyncio.gather(named, other)
        mine = asyncio.current_task()
        assert mine
        return [mine.get_name(), named.get_name(), other.get_name()]

    assert sea.play(main) == sea.play(main) == ["play-1", "mine", "play-3"]


def test_each_process_prints_for_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines are kept with the process and reported; nothing reaches the real streams."""
    sea, told = SmallWorld(), []

    async def main() -> None:
        print("one", end="")
        await asyncio.sleep(1)
        print(" line\ntwo lines")
        print("trouble", file=sys.stderr)

    first, second = sea.start("a", main), sea.start("b", main)
    first.on_line = lambda line: told.append((sea.now_s, line))
    sea.world.run()
    assert first.printed == second.printed == ["one line", "two lines"]
    assert first.error_lines == ["trouble"]
    assert told == [(1.0, "one line"), (1.0, "two lines")]
    assert capsys.readouterr() == ("", "")


def test_a_crew_takes_its_orders_from_standard_input() -> None:
    """`harness.run.client_process.ControlSession` runs unchanged, on `sys.stdin.buffer`, until the
    runner is gone."""
    sea, told = SmallWorld(), []

    class Stub:
        """A crew, its client and its workload, as far as a session asks for them."""

        stopping = False

        def __init__(self) -> None:
            self.client = self.counts = self

        async def open(self) -> None:
            await asyncio.sleep(1)

        async def load(self, _crew: object) -> None:
            while not self.stopping:  # noqa: ASYNC110 - a load that goes on
                await asyncio.sleep(0.1)

        async def drain(self, _crew: object) -> None:
            await asyncio.sleep(1)

        def begin(self, *when_ns: int) -> None:
            told.append({"begin": when_ns})

        def stats(self) -> dict[str, int]:
            return {}

        def flush(self) -> None: ...

    async def main() -> int:
        stub: Any = Stub()
        session = ControlSession(stub, stub, told.append, lambda: None)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: session, sys.stdin.buffer)
        try:
            await session.run()
        except EOFError:
            return 255
        return 0

    process, orphan = sea.start("a", main), sea.start("b", main)
    process.stdin.feed(b'{"do": "load", "epoch_ns": 7, "error_ns": 1}\n{"do"')
    sea.at(3, lambda: process.stdin.feed(b': "stop"}\n{"do": "drain"}\n'))
    sea.at(6, lambda: process.stdin.feed(b'{"do": "quit"}\n'))
    sea.at(9, orphan.stdin.close)
    sea.world.run()
    assert not process.error_lines, "\n".join(process.error_lines)
    words = [message for message in told if "stats" not in message]
    assert (process.code, orphan.code) == (0, 255)
    assert words.count({"is": "ready"}) == 2
    assert [word for word in words if word != {"is": "ready"}] == [
        *({"begin": (7, 1, 0)}, {"is": "loading"}, {"is": "stopped"}, {"is": "drained"}),
    ]
