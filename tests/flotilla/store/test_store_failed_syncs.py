"""A store whose disk fails a sync: the process stops, and its next life trusts only what it writes
again (Rebello et al., "Can Applications Recover from fsync Failures?", ATC 2020)."""

import errno
import itertools
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lone_store import SEGMENT, Life, LoneStore
from table_sizes import examples


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32))
def test_what_a_failed_sync_left_is_written_again_before_it_is_built_on(seed: int) -> None:
    """What the process could not sync is read by its next life, and no sync covers it unless it is
    written again."""
    lone, dice = LoneStore(seed), Random(seed)
    sure: list[bytes] = []
    reigns = itertools.count(1)

    async def story(life: Life) -> None:
        life.store.confirm(life.store.log.max_offset)
        assert life.bodies()[: len(sure)] == sure
        for reign in itertools.islice(reigns, 3):
            starts = life.fill(dice.randrange(1, dice.choice((4, 90))), reign)
            await life.settle()
            if dice.random() < 0.3:
                await life.store.truncate(dice.choice(starts))
            sure[:] = life.bodies()

    for _ in range(6):
        fails_at_ns = int(dice.random() * 20_000_000)
        lone.world.after(fails_at_ns, lambda: setattr(lone.disk, "sync_error", errno.EIO))
        assert lone.refusal == ""
        lone.live(story)
        lone.disk.sync_error = 0
        lone.live(story)
        if dice.random() < 0.6:
            lone.power_cut()
    assert lone.live(story) == ""
    lone.close()


@pytest.mark.parametrize("seed", range(20))
def test_a_mark_whose_sync_failed_is_written_again(seed: int) -> None:
    """The log begins behind segments that the next life removes; the mark that says so was read
    and not on disk."""
    lone = LoneStore(seed)

    async def first(life: Life) -> None:
        life.fill(300)
        await life.settle()
        lone.disk.sync_error = errno.EIO
        await life.store.delete_before(2 * SEGMENT)

    async def later(life: Life) -> None:
        assert life.store.log.min_offset in (0, 2 * SEGMENT)

    assert "cannot be synced" in lone.live(first)
    lone.disk.sync_error = 0
    assert lone.live(later) == ""
    lone.power_cut()
    assert lone.live(later) == ""
    lone.close()


def test_a_start_writes_again_only_what_the_checkpoint_does_not_vouch_for() -> None:
    """A long log is opened as fast as before."""
    lone = LoneStore()

    async def first(life: Life) -> None:
        life.fill(300)
        await life.settle()
        life.fill(1)

    async def second(life: Life) -> None:
        assert life.found.records > 300

    def changes() -> dict[str, int]:
        return {path: file.changes for path, file in lone.disk.files("/store/commitlog")}

    assert lone.live(first) == ""
    before = changes()
    assert lone.live(second) == ""
    written = [path for path, count in changes().items() if count != before[path]]
    assert len(before) > 5
    assert written == [max(before)]
    lone.close()
