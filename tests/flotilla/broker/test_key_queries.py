"""The index by key: found wherever in the log it is, and what it costs."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
from lone_store import Life, LoneStore
from simulated_fleet import BROKER_SET, QUEUES, TOPIC, Fleet, Sailor, eventually

from clusters.flotilla.client.calls import CALL_ERRORS

KEYS = st.lists(st.sampled_from([b"", b"a", b"b", b"plane", b"x" * 300]), min_size=1, max_size=60)


@settings(max_examples=25, deadline=None)
@example([b"a", b"b"] * 20, 12, False)  # the cut is in a segment whose keys are in its file
@example([b"a", b"b"] * 20, 15, True)
@given(KEYS, st.integers(0, 60), st.booleans())
def test_a_key_finds_its_messages_before_and_after_a_restart(
    keys: list[bytes], cut: int, orderly: bool
) -> None:
    """Exactly those of the topic that are confirmed and were not cut, in the order of the log;
    whether the segment's file has them, memory or, after a kill, the scan."""
    lone = LoneStore()
    kept = min(cut, len(keys))

    async def first(life: Life) -> None:
        starts = []
        for i, key in enumerate(keys):
            other = (b"u", 0) if i % 3 == 2 else (b"t", 0)
            starts.append(life.store.append(other, key, b"%d" % i + bytes(400), 1).start)
        end = life.store.log.max_offset
        await life.settle()
        await life.store.truncate([*starts, end][kept])
        await life.settle()
        await check(life)
        if orderly:
            await life.store.leave()

    async def check(life: Life) -> None:
        for key in {*keys, b"nobody"} - {b""}:
            found = await life.store.find(b"t", key, 99)
            numbers = [int(one.payload.body.rstrip(b"\0")) for one in found]
            assert numbers == [i for i in range(kept) if keys[i] == key and i % 3 != 2]
        assert len(await life.store.find(b"t", b"a", 2)) <= 2

    assert lone.live(first) == ""
    assert lone.live(check) == ""
    lone.close()


def test_a_key_is_found_once_while_a_segments_file_finds_no_room() -> None:
    """The keys of that segment and of all behind it stay in memory, and those behind it have their
    files too; after a restart the first is scanned. In the order of the log all the same."""
    lone = LoneStore()

    async def story(life: Life) -> None:
        await fill(life, 0, 12)
        lone.disk.room_bytes = 10
        await life.store.seal()
        lone.disk.room_bytes = None
        assert not life.store.segments.ends
        await fill(life, 12, 40)
        await life.store.seal()
        assert len(life.store.segments.ends) > 1
        await check(life)

    async def fill(life: Life, first: int, end: int) -> None:
        for i in range(first, end):
            life.store.append((b"t", 0), b"a", b"%d" % i + bytes(400), 1)
        life.store.log.write_out()
        life.store.confirm(life.store.log.max_offset)
        await life.store.flush()

    async def check(life: Life) -> None:
        found = await life.store.find(b"t", b"a", 99)
        assert [int(one.payload.body.rstrip(b"\0")) for one in found] == [*range(40)]
        assert [one.entry.queue_offset for one in await life.store.find(b"t", b"a", 3)] == [0, 1, 2]

    assert lone.live(story) == ""
    assert lone.live(check) == ""
    lone.close()


def test_nothing_is_found_that_consumers_may_not_see() -> None:
    """Or a query would show what the next master may cut."""
    lone = LoneStore()

    async def story(life: Life) -> None:
        life.fill(10)
        life.store.confirm(life.store.index.queues[b"t", 0].positions[4])
        assert len(await life.store.find(b"t", b"k3", 9)) == 1
        assert await life.store.find(b"t", b"k4", 9) == []

    assert lone.live(story) == ""


def test_a_client_finds_messages_by_key_also_at_the_next_master() -> None:
    """The index of a slave is made of its own copy of the log."""
    fleet = Fleet(seed=12, settings={"mappedFileSizeCommitLog": 16384, "maxMessageSize": 4096})

    async def scenario(sailor: Sailor) -> None:
        old = (await sailor.healthy()).masters[BROKER_SET]
        await sailor.send(60)
        before = await sailor.client.consumer.find(TOPIC, b"k", 50)
        assert [m.body for m in before] == [b"message %d" % i for i in range(50)]
        assert [m.queue_offset for m in before] == [i // QUEUES for i in range(50)]
        assert await sailor.client.consumer.find(TOPIC, b"other") == []
        await sailor.kill(old)
        await sailor.new_master(old)

        async def found() -> list[bytes] | None:
            try:
                return [m.body for m in await sailor.client.consumer.find(TOPIC, b"k", 50)]
            except CALL_ERRORS:
                return None

        assert await eventually(found) == [m.body for m in before]

    fleet.sail(scenario)
