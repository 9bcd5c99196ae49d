"""Starting: what is known from files and not read again, what is refused, what retention leaves.

On a virtual disk that loses what was not synced; see `lone_store`.
"""

import asyncio
import itertools
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lone_store import KEY, PLACE, SEGMENT, Life, LoneStore, segment_path, with_flushing
from table_sizes import examples

from clusters.flotilla.net.wire import MAX_FRAME
from clusters.flotilla.store import queue_ends
from clusters.flotilla.store.checkpoint import Marks
from clusters.flotilla.store.flushing import Flushing
from clusters.flotilla.store.message_store import TruncationPointDeleted


async def nothing(life: Life) -> None: ...


def numbered(count: int, epoch: int = 1) -> list[bytes]:
    return [b"%d-%d-" % (epoch, number) for number in range(count)]


def test_a_start_reads_only_what_is_new() -> None:
    """Full segments that were on disk are known from their files; the rest is scanned (8.4)."""
    lone = LoneStore()

    async def first(life: Life) -> None:
        life.fill(300)
        await life.settle()
        assert len(life.store.segments.ends) >= 5

    async def second(life: Life) -> None:
        assert life.found.records > 300
        assert life.found.scanned < 60
        assert life.bodies() == numbered(300)
        assert life.store.append((b"t", 0), b"", b"next", 1).queue_offset == 300
        assert life.found.epochs.entries == ((1, 0),)

    assert lone.live(first) == ""
    assert lone.live(second) == ""


def test_after_an_orderly_stop_nothing_is_read() -> None:
    """The last segment too is known from its file, and goes on behind it; a kill then costs only
    the scan of what came later."""
    lone = LoneStore()

    async def first(life: Life) -> None:
        life.fill(100)
        life.store.confirm(life.store.log.max_offset)
        await life.store.leave()

    async def second(life: Life) -> None:
        assert life.found.scanned == 0
        assert life.bodies() == numbered(100)
        life.fill(3)
        life.store.confirm(life.store.log.max_offset)
        await life.store.flush()

    async def third(life: Life) -> None:
        assert life.found.scanned == 3
        assert life.bodies() == numbered(103)
        assert [f.payload.body[:4] for f in await life.store.find(b"t", b"k99", 9)] == [b"1-99"]

    for story in (first, second, third):
        assert lone.live(story) == ""


def test_what_is_not_confirmed_is_read_and_not_shown() -> None:
    """A file of a full segment says nothing of who may see it (apache/rocketmq#6609)."""
    lone = LoneStore()

    async def first(life: Life) -> None:
        starts = life.fill(200)
        await life.settle()
        life.store.confirm_offset = starts[20]
        await life.store.flush()

    async def second(life: Life) -> None:
        assert life.bodies() == numbered(20)
        assert life.store.append((b"t", 0), b"", b"next", 1).queue_offset == 200

    assert lone.live(first) == ""
    assert lone.live(second) == ""


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 250), st.integers(0, 250), st.integers(0, 80))
def test_files_of_segments_never_outlive_what_they_describe(
    seed: int, count: int, keep: int, more: int
) -> None:
    """Truncated, written again in another epoch, killed or without power at any moment: no start
    sees a message of the truncated fork, and queue offsets are dense (apache/rocketmq#10666)."""
    lone, dice = LoneStore(seed), Random(seed)
    kept = min(keep, count)

    async def first(life: Life) -> None:
        starts = [*life.fill(count), life.store.log.max_offset]
        await life.settle()
        await life.store.truncate(starts[kept])
        life.fill(more, epoch=2)
        if dice.random() < 0.5:
            await life.settle()

    async def second(life: Life) -> None:
        life.store.confirm(life.store.log.max_offset)
        found = life.bodies()
        later = [b"2-%d-" % number for number in range(kept, kept + more)]
        assert found == [*numbered(kept), *later][: len(found)]
        assert len(found) >= kept

    assert lone.live(first) == ""
    if dice.random() < 0.5:
        lone.power_cut()
    assert lone.live(second) == ""
    lone.close()


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_a_kill_in_the_middle_of_a_cut_leaves_a_log_that_opens(seed: int, keep: int) -> None:
    """Power goes at any moment of truncate, reset and retention: the next start finds a prefix of
    the old log, or the new one; it never calls its own cut damage."""
    dice = Random(seed)
    lone = LoneStore(seed)
    cut = dice.choice(["truncate", "reset", "delete"])

    async def first(life: Life) -> None:
        starts = life.fill(260)
        await life.settle()
        lone.world.after(int(dice.random() * 8_000_000), lone.power_cut)
        if cut == "truncate":
            await life.store.truncate(starts[keep])
        elif cut == "reset":
            await life.store.reset(dice.randrange(4) * SEGMENT)
        else:
            await life.store.delete_before(2 * SEGMENT)
        life.fill(5, epoch=3)

    async def second(life: Life) -> None:
        log = life.store.log
        life.store.confirm(log.max_offset)
        assert log.min_offset <= log.max_offset
        found = [tuple(map(int, b.split(b"-")[:2])) for b in life.bodies()]
        numbers = [number for _, number in found]
        assert not found or numbers == list(range(numbers[0], numbers[0] + len(found)))
        if cut == "truncate" and found[-1:] > [(3,)]:
            assert [reign for reign, _ in found].index(3) == keep

    lone.live(first)
    assert lone.live(second) == ""
    lone.close()


@settings(max_examples=examples(80), deadline=None)
@given(st.integers(0, 2**32))
def test_what_a_killed_life_left_is_made_durable_before_it_is_built_on(seed: int) -> None:
    """The next life finds names and marks that no sync covers. What was on disk by its account is
    there after a power cut, what was cut is not, and no start calls any of that damage."""
    lone, dice = LoneStore(seed), Random(seed)
    reigns = itertools.count(1)
    sure: list[bytes] = []
    cut: set[bytes] = set()
    begun: list[asyncio.Future[bool]] = []

    async def story(life: Life) -> None:
        store = life.store
        store.confirm(store.log.max_offset)
        found = life.bodies()
        low, _ = store.range(KEY)
        kept = [body for body in sure if int(body.split(b"-")[1]) >= low]
        assert found[: len(kept)] == kept
        assert not cut & set(found)
        sure[:] = found
        for reign in itertools.islice(reigns, dice.randrange(5)):
            first = store.index.queue(KEY).end
            starts = life.fill(dice.randrange(1, dice.choice((4, 90))), reign)
            store.flush_soon()
            what = dice.random()
            if what < 0.4:
                await life.settle()
                sure[:] = life.bodies()
            elif what < 0.7:
                keep = dice.randrange(len(starts))
                await store.truncate(starts[keep])
                numbers = range(first + keep, first + len(starts))
                cut.update(b"%d-%d-" % (reign, number) for number in numbers)
            elif ends := [end for end, _ in store.full_segments()]:
                begun.append(asyncio.ensure_future(store.delete_before(dice.choice(ends))))
                await asyncio.sleep(dice.random() * 0.002)

    for _ in range(12):
        assert lone.live(story) == ""
        if dice.random() < 0.5:
            lone.power_cut()
    lone.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_beginning_that_was_found_is_on_disk_before_what_is_before_it_goes(seed: int) -> None:
    """Retention, killed between the checkpoint and its sync: the next life deletes by a mark that a
    power cut could still take, and the log before it would be missing."""
    lone = LoneStore(seed)

    async def first(life: Life) -> None:
        life.fill(300)
        await life.settle()
        store = life.store
        store.checkpoint.write(Marks(store.confirm_offset, store.log.flushed, 2 * SEGMENT))

    async def later(life: Life) -> None:
        assert life.store.log.min_offset == 2 * SEGMENT

    assert lone.live(first) == ""
    assert lone.live(later) == ""
    lone.power_cut()
    assert lone.live(later) == ""
    lone.close()


@pytest.mark.parametrize("cut", ["truncate", "reset"])
def test_a_deletion_that_waited_for_a_cut_is_decided_anew(cut: str) -> None:
    """What retention chose was in the log that is gone by then: what the cut left stays, and the
    checkpoint knows no other beginning."""
    lone = LoneStore()
    left: list[int] = []

    async def first(life: Life) -> None:
        starts = life.fill(300)
        await life.settle()
        store = life.store
        chosen = [end for end, _ in store.full_segments()][-1]
        one = store.truncate(starts[10]) if cut == "truncate" else store.reset(40 * SEGMENT)
        _, deleted = await asyncio.gather(one, store.delete_before(chosen))
        assert not deleted
        left.extend((store.log.min_offset, store.log.max_offset))
        assert left == ([0, starts[10]] if cut == "truncate" else [40 * SEGMENT] * 2)

    async def second(life: Life) -> None:
        assert [life.store.log.min_offset, life.store.log.max_offset] == left

    assert lone.live(first) == ""
    assert lone.live(second) == ""
    lone.close()


def test_a_cut_that_waited_for_a_deletion_is_decided_anew() -> None:
    """And the other way round: nothing is left of where the logs part."""
    lone = LoneStore()

    async def first(life: Life) -> None:
        starts = life.fill(300)
        await life.settle()
        store = life.store
        chosen = [end for end, _ in store.full_segments()][-1]
        deletion = asyncio.ensure_future(store.delete_before(chosen))
        await asyncio.sleep(0)
        with pytest.raises(TruncationPointDeleted):
            await store.truncate(starts[10])
        assert await deletion
        assert store.log.min_offset == chosen

    async def second(life: Life) -> None:
        assert life.store.log.min_offset < life.store.log.max_offset

    assert lone.live(first) == ""
    assert lone.live(second) == ""
    lone.close()


@pytest.mark.parametrize("seed", range(8))
def test_what_a_power_cut_took_does_not_confirm_what_comes_in_its_place(seed: int) -> None:
    """ASYNC_FLUSH: the mark of what is confirmed is on disk before the log is. The next life must
    not be taken at the word of the one before it, nor the life after that."""
    lone = LoneStore(seed, with_flushing(PLACE, sync=False, least_pages=4, thorough_s=10.0))

    async def first(life: Life) -> None:
        life.fill(40)
        life.store.confirm(life.store.log.max_offset)
        life.store.flush_soon()
        await asyncio.sleep(1)
        assert life.store.log.flushed == 0 < life.store.checkpoint.marks.confirmed

    async def second(life: Life) -> None:
        life.fill(60, epoch=2)  # not confirmed

    async def third(life: Life) -> None:
        assert not [body for body in life.bodies() if body.startswith(b"2-")]

    assert lone.live(first) == ""
    lone.power_cut()
    assert lone.live(second) == ""
    assert lone.live(third) == ""
    lone.close()


@pytest.mark.parametrize("seed", range(20))
def test_retention_deletes_for_a_segment_that_is_on_disk(seed: int) -> None:
    """Or a power cut takes both: an empty log is left, and a quiet queue counts from 0 again."""
    lone = LoneStore(seed)

    async def first(life: Life) -> None:
        store = life.store
        life.fill(5, queue=7)
        life.fill(90)
        await life.settle()
        life.fill(60)
        store.confirm(store.log.max_offset)
        point = [end for end, _ in store.full_segments()][-1]
        assert store.log.flushed < point
        lone.world.after((seed + 1) * 150_000, lone.power_cut)
        await store.delete_before(point)
        await asyncio.sleep(1)

    async def second(life: Life) -> None:
        assert life.store.index.queue((b"t", 7)).end == 5

    lone.live(first)
    assert lone.live(second) == ""
    lone.close()


def test_a_log_that_lost_what_was_on_disk_is_refused() -> None:
    """By file and byte; the same damage behind the last sync is a torn write and is cut."""
    lone = LoneStore()

    async def first(life: Life) -> None:
        life.fill(30)
        await life.settle()
        life.fill(10)

    assert lone.live(first) == ""
    files = lone.files()
    torn = bytearray(files[segment_path(0)])
    torn[3500] ^= 1
    assert lone.with_files(files | {segment_path(0): bytes(torn)}).live(nothing) == ""
    torn[700] ^= 1
    other = lone.with_files(files | {segment_path(0): bytes(torn)})
    assert "FATAL no record at byte" in other.live(nothing)
    assert f"of {segment_path(0)}" in other.refusal
    assert "copies everything" in other.refusal


@pytest.mark.parametrize("missing", [0, SEGMENT])
def test_a_missing_segment_is_refused(missing: int) -> None:
    """The first one too: the checkpoint knows where the log begins."""
    lone = LoneStore()

    async def first(life: Life) -> None:
        life.fill(200)
        await life.settle()

    assert lone.live(first) == ""
    files = lone.files()
    del files[segment_path(missing)]
    other = lone.with_files(files)
    assert f"{segment_path(missing)} is missing" in other.live(nothing)


def test_queue_offsets_survive_the_deletion_of_their_messages() -> None:
    """Each segment's ledger says where all queues stand, quiet ones too (#7689); so the offsets are
    in the log itself, and a copy of it from its present beginning has them."""
    lone = LoneStore()

    async def first(life: Life) -> None:
        life.fill(5, queue=7)
        life.fill(200)
        await life.settle()
        assert [end for end, _ in life.store.full_segments()][:2] == [SEGMENT, 2 * SEGMENT]
        await life.store.delete_before(2 * SEGMENT)
        assert life.store.range((b"t", 7)) == (5, 5)

    async def second(life: Life) -> None:
        assert life.store.log.min_offset == 2 * SEGMENT
        assert life.store.range((b"t", 7)) == (5, 5)
        assert life.store.append((b"t", 7), b"", b"next", 1).queue_offset == 5
        low, high = life.store.range((b"t", 0))
        assert (life.bodies()[-1], high) == (b"1-199-", 200)
        assert low > 0

    assert lone.live(first) == ""
    lone.power_cut()
    assert lone.live(second) == ""
    assert not [path for path in lone.files() if path.endswith(f"{SEGMENT:020d}")]


def test_a_ledger_goes_to_slaves_in_one_frame() -> None:
    """A quarter of a large segment would not, and replication would stop there."""
    assert queue_ends.fits(MAX_FRAME // 2, 1000, 1 << 30)
    assert not queue_ends.fits(MAX_FRAME // 2 + 1, 1000, 1 << 30)


def test_a_segment_without_a_ledger_keeps_retention_away() -> None:
    """When all queues do not fit into a quarter of a segment, no log may begin there."""
    lone = LoneStore()

    async def first(life: Life) -> None:
        for queue in range(200):
            life.fill(1, queue=queue)
        await life.settle()
        ends = [end for end, _ in life.store.full_segments()]
        assert ends == [SEGMENT]
        assert life.store.log.max_offset > 4 * SEGMENT

    assert lone.live(first) == ""


@given(st.lists(st.tuples(st.binary(max_size=255), st.integers(0, 65535), st.integers(0, 2**63))))
def test_a_ledger_is_read_as_it_was_written(standings: list[tuple[bytes, int, int]]) -> None:
    """Topics are bytes of any length up to 255."""
    assert list(queue_ends.unpack(queue_ends.pack(standings))) == standings


def test_commits_that_wait_in_memory_are_lost_by_a_kill_and_nobody_was_told() -> None:
    """`transientStorePoolEnable` (8.5): appended is not written; a slave's copies are, at once."""
    lone = LoneStore(
        place=PLACE.__class__("/store", SEGMENT, 1024, Flushing(commit_interval_s=0.2))
    )
    told = []

    async def first(life: Life) -> None:
        log = life.store.log
        log.on_written = lambda: told.append(log.written)
        life.fill(3)
        await life.store.flush()
        life.store.append((b"t", 0), b"", b"lost", 1)
        assert log.written < log.max_offset

    async def second(life: Life) -> None:
        life.store.confirm(life.store.log.max_offset)
        assert life.bodies() == numbered(3)
        assert life.store.log.max_offset == told[-1]

    assert lone.live(first) == ""
    assert lone.live(second) == ""
