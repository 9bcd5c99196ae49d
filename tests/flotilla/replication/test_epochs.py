"""Epoch tables: where two logs diverge, and that no epoch is lost or revived ("Log and epochs" and
"Truncation" in docs/flotilla-design.md)."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.replication.epochs import (
    EpochFile,
    EpochTable,
    append_epoch,
    find_consistent_point,
    pack,
    table_from_log,
    unpack,
)
from clusters.flotilla.world.ports import real

MASTER = EpochTable(((6, 200), (7, 1200), (8, 2500)))
SLAVE = EpochTable(((6, 200), (7, 1200), (8, 2250)))


def test_the_worked_example_of_the_spec() -> None:
    """Epoch 8 began at different offsets, so the logs diverge within epoch 7."""
    assert find_consistent_point(SLAVE, 2500, MASTER, 2500) == 2250


@pytest.mark.parametrize(
    ("local", "local_end", "remote", "remote_end", "point"),
    [
        ((), 0, ((1, 0),), 100, -1),
        (((1, 0),), 100, ((1, 0),), 100, 100),
        (((1, 0),), 100, ((1, 0),), 300, 100),
        (((1, 0),), 300, ((1, 0),), 100, 100),
        (((1, 0),), 300, ((1, 0), (2, 200)), 500, 200),
        (((1, 0), (2, 100)), 300, ((1, 0), (3, 100)), 500, 100),
        (((1, 0),), 100, ((2, 0),), 100, -1),
        # empty epochs decide nothing (apache/rocketmq#9942)
        (((1, 0), (2, 100)), 100, ((1, 0), (3, 100)), 200, 100),
        (((1, 0), (2, 100), (4, 100)), 150, ((1, 0), (4, 100)), 150, 150),
    ],
)
def test_consistent_points(
    local: tuple[tuple[int, int], ...],
    local_end: int,
    remote: tuple[tuple[int, int], ...],
    remote_end: int,
    point: int,
) -> None:
    """Examples, with the cases that RocketMQ gets wrong."""
    assert find_consistent_point(EpochTable(local), local_end, EpochTable(remote), remote_end) == (
        point
    )


@st.composite
def two_logs(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    """Two logs as the epoch of each byte: a common front, then reigns of their own."""
    front = draw(st.lists(st.integers(0, 3), max_size=4))
    left = draw(st.lists(st.integers(0, 3), max_size=4))
    right = draw(st.lists(st.integers(0, 3), max_size=4))
    log: list[int] = []
    for epoch, size in enumerate(front, start=1):
        log += [epoch] * size
    mine = log + [e for i, size in enumerate(left) for e in [100 + 2 * i] * size]
    yours = log + [e for i, size in enumerate(right) for e in [101 + 2 * i] * size]
    return mine, yours, len(log)


def table_of(log: list[int]) -> EpochTable:
    table = EpochTable()
    for offset, epoch in enumerate(log):
        table = append_epoch(table, epoch, offset)
    return table


@given(two_logs())
def test_the_point_is_where_the_bytes_part(logs: tuple[list[int], list[int], int]) -> None:
    """Against logs whose common front is known by construction."""
    mine, yours, shared = logs
    point = find_consistent_point(table_of(mine), len(mine), table_of(yours), len(yours))
    assert max(point, 0) == shared


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), max_size=8))
def test_tables_rise_strictly(steps: list[tuple[int, int]]) -> None:
    """Whatever reigns follow each other, with or without messages, both columns rise."""
    table, epoch, end = EpochTable(), 0, 0
    for later, written in steps:
        epoch += later
        table = append_epoch(table, epoch, end)
        assert table.last_epoch == epoch
        assert table.last_start == end
        end += written
    epochs, starts = [e for e, _ in table.entries], [s for _, s in table.entries]
    assert epochs == sorted(set(epochs))
    assert starts == sorted(set(starts))


def test_an_empty_epoch_is_replaced_not_refused() -> None:
    """Two elections without a message between them leave one entry: the later."""
    table = append_epoch(append_epoch(EpochTable(), 1, 0), 2, 500)
    assert append_epoch(table, 3, 500).entries == ((1, 0), (3, 500))


def test_an_epoch_is_appended_once() -> None:
    """The same epoch again changes nothing; an older one is refused."""
    assert append_epoch(MASTER, 8, 9999) == MASTER
    with pytest.raises(ValueError, match="epoch 5 from 9999 cannot follow 8 from 2500"):
        append_epoch(MASTER, 5, 9999)
    with pytest.raises(ValueError, match="cannot follow"):
        append_epoch(MASTER, 9, 2499)


def test_cutting_the_end_and_the_front() -> None:
    """Epochs that begin at or behind the cut are dropped; so are those that end before the
    front."""
    assert MASTER.truncate_suffix(2500).entries == ((6, 200), (7, 1200))
    assert MASTER.truncate_suffix(0) == EpochTable()
    assert MASTER.truncate_prefix(1199) == MASTER
    assert MASTER.truncate_prefix(1200).entries == ((7, 1200), (8, 2500))


def test_who_owns_an_offset() -> None:
    """Batches never cross an epoch: each offset has one owner and an end."""
    assert MASTER.at(200, 3000) == (6, 200, 1200)
    assert MASTER.at(1199, 3000) == (6, 200, 1200)
    assert MASTER.at(1200, 3000) == (7, 1200, 2500)
    assert MASTER.at(3000, 3000) == (8, 2500, 3000)
    with pytest.raises(ValueError, match="no epoch owns offset 199"):
        MASTER.at(199, 3000)


@given(st.sampled_from([MASTER, SLAVE, EpochTable()]))
def test_the_file_keeps_every_table(table: EpochTable) -> None:
    """Also the empty one, or cut epochs would return after a restart."""
    assert unpack(pack(table)) == table


def test_an_emptied_table_is_written_too(tmp_path: Path) -> None:
    """RocketMQ does not write it, and the epochs that were cut return."""

    async def scenario() -> EpochTable:
        file = EpochFile(str(tmp_path), real(1).files)
        await file.save(MASTER)
        await file.save(EpochTable())
        return file.load()

    assert asyncio.run(scenario()) == EpochTable()


def test_a_log_without_its_oldest_segments_keeps_what_is_left_of_its_epochs() -> None:
    """Retention: whole epochs are dropped, and the first one left begins as if the log began
    there."""
    assert MASTER.truncate_prefix(1199) == MASTER
    assert MASTER.truncate_prefix(1200).entries == ((7, 1200), (8, 2500))
    assert MASTER.clip(1300).entries == ((7, 1300), (8, 2500))
    assert MASTER.clip(0) == MASTER


def test_a_damaged_file_is_refused() -> None:
    """A wrong table would cut the wrong bytes."""
    with pytest.raises(ValueError, match="damaged"):
        unpack(pack(MASTER).replace(b"1200", b"1300"))


def test_the_log_is_the_truth_about_its_epochs() -> None:
    """At start the file adds at most a last epoch that has no records yet."""
    runs = [(6, 200), (7, 1200)]
    assert table_from_log(runs, 2500, MASTER) == MASTER
    assert table_from_log(runs, 2600, MASTER).entries == tuple(runs)
    assert table_from_log(runs, 2500, EpochTable(((5, 2500),))).entries == tuple(runs)
