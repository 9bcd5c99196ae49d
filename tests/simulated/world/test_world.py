"""The world: events in order, named random streams, a guard against spinning, the same digest
anywhere.
"""

import gc
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import simulated_traffic
from hypothesis import given
from hypothesis import strategies as st

from clusters.hosts._world.world import SECOND, Livelock, NotSimulated, Transcript, World

NEWEST = 20  # minor versions of Python that may exist one day


@given(st.lists(st.integers(0, 20)))
def test_events_happen_in_time_and_then_in_the_order_of_planning(times: list[int]) -> None:
    """A stable sort by time."""
    world, seen = World(1), []
    for number, at_ns in enumerate(times):
        world.at(at_ns, lambda number=number, at_ns=at_ns: seen.append((at_ns, number)))
    world.run()
    assert seen == sorted((at_ns, number) for number, at_ns in enumerate(times))


def test_the_past_is_now() -> None:
    """Nothing happens before what has happened already."""
    world, seen = World(1), []
    world.at(10, lambda: world.at(3, lambda: seen.append(world.now_ns)))
    world.run()
    assert seen == [10]


def test_run_goes_up_to_an_instant_and_can_go_on() -> None:
    """What is planned for the instant itself happens; then the clock shows it."""
    world, seen = World(1), []
    for at_ns in (5, 10, 11):
        world.at(at_ns, seen.append, at_ns)
    world.run(10)
    assert (seen, world.now_ns) == ([5, 10], 10)
    world.run(100)
    assert (seen, world.now_ns) == ([5, 10, 11], 100)


def test_stop_ends_after_the_present_event() -> None:
    """Later events are still planned."""
    world, seen = World(1), []
    world.at(1, world.stop)
    world.at(1, seen.append, "later")
    world.run()
    assert not seen
    world.run()
    assert seen == ["later"]


def test_an_error_of_the_world_itself_comes_out() -> None:
    """No process handles it."""
    world = World(1)
    world.at(1, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        world.run()


def test_luck_has_a_name_and_is_the_same_on_every_python() -> None:
    """The stream of one name does not depend on others; the numbers never change."""
    first = World(7).random("link/a/b")
    world = World(7)
    world.random("link/b/a").random()
    second = world.random("link/a/b")
    assert [first.random() for _ in range(3)] == [second.random() for _ in range(3)]
    assert World(7).random("x").random() == 0.6297285014579108
    assert World(8).random("x").random() != World(7).random("x").random()


def test_a_world_that_spins_is_stopped_and_says_what_spins() -> None:
    """Endless events that hardly take time."""
    world = World(1, max_events_per_s=1_000)

    def spin() -> None:
        world.after(1, spin)

    world.at(0, spin)
    with pytest.raises(Livelock, match=r"over 1,000 events in a .*spin"):
        world.run()
    assert world.now_ns < SECOND


def test_a_busy_world_is_not_one_that_spins() -> None:
    """As many events spread over more time are fine."""
    world, left = World(1, max_events_per_s=1_000), itertools.repeat(None, 5_000)

    def step() -> None:
        if next(left, 0) is None:
            world.after(2_000_000, step)

    world.at(0, step)
    world.run()
    assert world.events == 5_001


def test_a_trespass_names_the_place_and_can_not_be_swallowed() -> None:
    """Catching the exception does not save the world from stopping."""
    world = World(1)

    def reach() -> None:
        try:
            raise world.not_simulated("a thread")
        except NotSimulated:
            pass

    world.at(1, reach)
    world.at(2, lambda: pytest.fail("the world went on"))
    with pytest.raises(NotSimulated, match=r"a thread is not simulated, but .*test_world.py:\d+"):
        world.run()


def test_the_collector_waits_and_is_put_back() -> None:
    """Inside, collections happen at counted events; outside, everything is as before."""
    world, seen = World(1), []
    world.at(1, lambda: seen.append(gc.isenabled()))
    world.run()
    assert seen == [False]
    assert gc.isenabled()


def test_cancelled_timers_are_swept_out() -> None:
    """A million answered calls do not leave a million timers in the heap."""
    world = World(1)

    class Timer:
        _cancelled = True

    for _ in range(10_000):
        world.at_in_loop(10**12, print, Timer())
        world.cancelled()
    assert len(world._heap) < 5_000


def test_the_digest_tells_runs_apart() -> None:
    """One byte, one instant or one word of difference is another digest."""
    digests = set()
    for at_ns, data, word in ((1, b"x", "a"), (2, b"x", "a"), (1, b"y", "a"), (1, b"x", "b")):
        transcript = Transcript()
        transcript.moved(at_ns, 1, data)
        transcript.add(at_ns, word)
        digests.add(transcript.digest())
    assert len(digests) == 4


def test_keeping_the_text_changes_nothing() -> None:
    """The digest is the same with and without; the text describes what happened."""
    plain, kept = Transcript(), Transcript(keep=True)
    for transcript in (plain, kept):
        transcript.add(5, "a starts")
        transcript.moved(6, 2, b"hello")
    assert plain.digest() == kept.digest()
    assert kept.lines == ["5 a starts", "6 flow 2: 5 bytes, crc 3610a686"]


def pythons() -> Iterator[str]:
    """This interpreter, and one of each other supported version on this machine."""
    mine = sys.version_info[1]
    yield sys.executable
    home = Path.home()
    for minor in range(11, NEWEST):
        name = f"python3.{minor}"
        places = [Path(folder) / name for folder in os.get_exec_path()]
        for versions in (home / ".pyenv/versions", home / ".local/share/uv/python"):
            places += sorted(versions.glob(f"*/bin/{name}"))
        runs = (str(place) for place in places if place.is_file() and _runs(place, minor))
        if minor != mine and (found := next(runs, "")):
            yield found


def _runs(python: Path, minor: int) -> bool:
    """A name on the path may be a shim for a missing version."""
    argv = [python, "-c", "import sys; print(sys.version_info[1])"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout.strip() == str(minor)


def digest(python: str, hash_seed: int, seed: int, root: Path) -> str:
    env = {"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(root)}
    argv = [python, "-B", "-W", "error", simulated_traffic.__file__, str(seed)]
    done = subprocess.run(argv, capture_output=True, text=True, env=env, check=True)
    return done.stdout.strip()


def test_the_same_seed_is_the_same_run_on_every_python(root: Path) -> None:
    """Traffic, kills, pauses, cuts and power cuts: one digest whatever hashes and versions are."""
    found = list(pythons())
    expected = digest(sys.executable, 1, 5, root)
    print("interpreters:", *found)
    assert expected != digest(sys.executable, 1, 6, root)
    for hash_seed, python in enumerate([*found, sys.executable], start=2):
        assert digest(python, hash_seed, 5, root) == expected, python
