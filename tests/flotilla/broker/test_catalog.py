"""The metadata of a broker: versions, copies, files."""

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.broker import catalog as metadata
from clusters.flotilla.broker.catalog import Catalog, CatalogError, MetadataChange, Version
from clusters.flotilla.world.ports import real


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def made(folder: Path) -> Catalog:
    folder.mkdir(exist_ok=True)
    return Catalog(str(folder), real(1).files, {"t": 4})


TOPICS = st.sampled_from(["t", "u", "v"])
PLACES = st.tuples(st.sampled_from(["g", "h"]), TOPICS, st.integers(0, 3))
CHANGES = st.one_of(
    st.builds(metadata.topic, TOPICS, st.one_of(st.none(), st.integers(1, 8))),
    st.builds(metadata.group, st.sampled_from(["g", "h"]), st.lists(TOPICS, unique=True)),
    st.builds(metadata.commit, PLACES, st.integers(0, 50)),
    st.builds(metadata.reset, PLACES, st.integers(0, 50)),
    st.builds(MetadataChange, st.just("progress"), PLACES.map(list), st.integers(0, 50)),
)


class NoFiles:
    def exists(self, path: str) -> bool:
        return False


def empty() -> Catalog:
    return Catalog("store", NoFiles(), {"t": 4})  # type: ignore[arg-type]


@given(st.lists(CHANGES, max_size=20), st.integers(0, 20))
def test_the_changes_since_a_version_lead_where_a_copy_leads(
    changes: list[MetadataChange], known: int
) -> None:
    """Whether a slave takes the changes, all of it, or some changes twice: it ends where the
    master is."""
    master, slave, copied, again = empty(), empty(), empty(), empty()
    for number, change in enumerate(changes, start=1):
        master.apply([change], Version(1, number))
    for taker, parts in ((slave, [changes[:known], changes[known:]]), (again, [changes, changes])):
        for part in parts:
            travelled = json.loads(json.dumps(part))
            taker.apply((MetadataChange(*row) for row in travelled), master.version)
    copied.adopt(json.loads(json.dumps(master.copy())))
    assert slave.copy() == copied.copy() == master.copy() | {"version": list(master.version)}
    if not any(change.what in ("topic", "reset") for change in changes):
        assert again.copy() == master.copy()


def test_a_commit_never_takes_a_group_back_and_a_reset_does() -> None:
    kept = empty()
    place = ("g", "t", 0)
    for offset, expected in ((10, 10), (7, 10)):
        kept.apply([metadata.commit(place, offset)], Version(1, 1))
        assert kept.offset(place) == expected
    kept.apply([metadata.reset(place, 3)], Version(1, 2))
    assert kept.offset(place) == 3
    assert kept.offset(("g", "t", 1)) == -1


def test_a_topic_takes_its_offsets_along() -> None:
    """A topic that is created again has no group offsets; a late commit is dropped."""
    kept = empty()
    place = ("g", "t", 0)
    kept.apply([metadata.commit(place, 5), metadata.topic("t", None)], Version(1, 1))
    kept.apply([metadata.commit(place, 6), metadata.topic("t", 4)], Version(1, 2))
    assert (kept.topics, kept.offset(place)) == ({"t": 4}, -1)


def test_a_topic_does_not_shrink() -> None:
    """Messages in its queues would be out of reach: of two crossing orders, the greater stands."""
    kept = empty()
    kept.apply([metadata.topic("u", 10), metadata.topic("u", 5)], Version(1, 1))
    assert kept.topics["u"] == 10
    kept.apply([metadata.topic("u", None), metadata.topic("u", 5)], Version(1, 2))
    assert kept.topics["u"] == 5


def test_what_points_behind_a_queue_is_lowered() -> None:
    """apache/rocketmq#4771: the group would skip what is written there next."""
    kept = empty()
    changes = [metadata.commit(("g", "t", 0), 10), metadata.commit(("g", "t", 1), 5)]
    kept.apply(changes, Version(1, 1))
    assert kept.clamp(lambda topic, queue: 8) == [("g", "t", 0, 10)]
    assert kept.copy()["offsets"] == [["g", "t", 0, 8], ["g", "t", 1, 5]]


def test_an_older_epochs_catalog_is_refused() -> None:
    """However many changes an old master made, the new one's first version is newer."""
    assert metadata.may_adopt(Version(3, 900), Version(4, 0))
    assert not metadata.may_adopt(Version(4, 0), Version(3, 900))
    assert not metadata.may_adopt(Version(4, 2), Version(4, 2))


def test_files_keep_it_and_its_version_is_a_lower_bound(tmp_path: Path) -> None:
    """What is configured is made once: a topic that was deleted does not come back."""
    folder = tmp_path / "store"

    async def scenario() -> None:
        kept = made(folder)
        kept.apply([metadata.topic("t", None), metadata.topic("u", 2)], Version(2, 1))
        kept.apply([metadata.commit(("g", "u", 1), 9), metadata.group("g", ["u"])], Version(2, 2))
        await kept.save()
        assert made(folder).copy() == kept.copy()
        kept.apply([metadata.topic("w", 1)], Version(2, 3))
        await kept.save()
        loaded = made(folder)
        assert (loaded.version, loaded.topics) == (Version(2, 2), {"u": 2, "w": 1})

    run(scenario())


@pytest.mark.parametrize("name", [metadata.TOPICS_FILE, metadata.OFFSETS_FILE])
def test_a_damaged_file_is_named_and_refused(tmp_path: Path, name: str) -> None:
    """Cut anywhere, any byte changed: never a wrong catalog, and the sentence says which file."""
    folder = tmp_path / "store"

    async def scenario() -> None:
        kept = made(folder)
        place = ("g", "t", 0)
        kept.apply([metadata.topic("u", 2), metadata.commit(place, 9)], Version(2, 1))
        await kept.save()

    run(scenario())
    whole = (folder / name).read_bytes()
    for at in range(len(whole)):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            (folder / name).write_bytes(damaged)
            with pytest.raises(CatalogError, match=name):
                made(folder)


def test_what_was_committed_for_an_absent_master_is_forgotten_with_its_next_change(
    tmp_path: Path,
) -> None:
    """Also on the disk: taken back after a later restart, it would undo a reset."""

    async def test() -> None:
        slave = made(tmp_path / "s")
        slave.apply([metadata.commit(("g", "t", 0), 3)], Version(1, 1))
        slave.act([metadata.commit(("g", "t", 0), 9)])
        assert await slave.save()
        assert made(tmp_path / "s").acted == [["g", "t", 0, 9]]
        slave.apply([metadata.commit(("g", "t", 0), 4)], Version(1, 2))
        assert await slave.save()
        assert made(tmp_path / "s").acted == []

    run(test())
