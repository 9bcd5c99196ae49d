"""Failed syncs: what reads return afterwards, and what a power cut leaves (Rebello et al., "Can
Applications Recover from fsync Failures?", ATC 2020).
"""

import errno
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from lone_disk import Change, Clock, carry_out

from clusters.hosts._faults.power_loss import PAGE
from clusters.hosts._world.content import Content
from clusters.hosts._world.disk import Disk


def whole(file: Content) -> bytes:
    return file.read(file.size, 0)


def fails(d: Disk, clock: Clock, file: Content) -> None:
    ends: list[OSError | None] = []
    d.sync_error = errno.EIO
    d.sync_file(file, ends.append)
    clock.run()
    d.sync_error = 0
    [error] = ends
    assert error is not None
    assert error.errno == errno.EIO


def succeeds(d: Disk, clock: Clock, file: Content) -> None:
    ends: list[OSError | None] = []
    d.sync_file(file, ends.append)
    clock.run()
    assert ends == [None]


def test_a_sync_after_one_that_failed_saves_nothing() -> None:
    """The pages are clean to the kernel. Mostly they can be read until a power cut shows that the
    disk never had them; sometimes they are lost at once, or had reached the disk before the
    failure."""
    seen = []
    for seed in range(100):
        clock = Clock()
        d = Disk(clock, Random(seed))
        d.put("/f", b"old")
        file = d.file("/f")
        d.write(file, b"new", 0)
        fails(d, clock, file)
        succeeds(d, clock, file)
        read = whole(file)
        d.power_cut()
        seen.append((read, whole(file)))
    assert set(seen) == {(b"new", b"old"), (b"old", b"old"), (b"new", b"new")}
    assert seen.count((b"new", b"old")) > 50


DEEDS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["sync", "fail"]), st.just(0), st.just(0)),
        st.tuples(
            st.sampled_from(["write", "truncate", "allocate"]),
            st.integers(0, 3 * PAGE),
            st.integers(1, 2 * PAGE),
        ),
    ),
    max_size=12,
)


class Middling(Random):
    """Random numbers that drop no page, and tear no write."""

    def random(self) -> float:
        return 0.9


@given(DEEDS)
def test_a_page_is_covered_only_by_a_sync_after_its_last_write(deeds: list[Change]) -> None:
    """The oracle is a page cache: the file as it is read, the file as the disk has it, and the
    dirty pages."""
    clock = Clock()
    d = Disk(clock, Middling())
    d.put("/f", b"old")
    file, cache, medium, dirty = d.file("/f"), bytearray(b"old"), bytearray(b"old"), set[int]()
    for mark, (kind, at, size) in enumerate([*deeds, ("sync", 0, 0)], start=1):
        if kind == "fail":
            fails(d, clock, file)
            dirty.clear()
        elif kind == "sync":
            succeeds(d, clock, file)
            for page in dirty:
                medium[page * PAGE : (page + 1) * PAGE] = cache[page * PAGE : (page + 1) * PAGE]
            dirty.clear()
        else:
            before = file.size
            start, end = carry_out(d, file, (kind, at, size), mark) or (file.size, before)
            for copy in (cache, medium):
                copy += bytes(max(file.size - len(copy), 0))
                del copy[file.size :]
            if start < end:
                dirty |= set(range(start // PAGE, -(-end // PAGE)))
            if kind == "write":
                cache[start:end] = bytes([mark]) * size
        assert whole(file) == cache
    d.power_cut()
    assert whole(file) == medium


def test_what_is_written_while_a_sync_fails_is_dirty_with_its_page() -> None:
    """The next sync covers it, with what that page had from before; no other page."""
    clock = Clock()
    d = Disk(clock, Middling())
    d.put("/f", bytes(2 * PAGE))
    file = d.file("/f")
    d.write(file, b"one", 0)
    d.write(file, b"one", PAGE)
    d.sync_error = errno.EIO
    d.sync_file(file, lambda error: None)
    d.write(file, b"two", PAGE + 10)
    clock.run()
    d.sync_error = 0
    assert d.waiting("/") == (1, 0, 9)
    succeeds(d, clock, file)
    assert d.waiting("/") == (1, 0, 3)
    d.power_cut()
    assert file.read(3, 0) == bytes(3)
    assert file.read(13, PAGE) == b"one" + bytes(7) + b"two"
    assert d.lost == (1, 0, 3)
