"""Loops over rows: compiled they give what they give as plain Python, whatever the rows are."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkers._messages import message_rows, messages
from checkers._messages.log_bounds import LogBounds, LogContext
from checkers._messages.message_rows import (
    BLOCK,
    COLUMNS,
    GROUP_BIT,
    MESSAGE_FIELDS,
    SIEVE,
    Blocks,
    MessageFlag,
    MessageScan,
    OpColumns,
    among,
    observe,
)
from checkers._messages.messages import NO_MEMBERS, CensusScope, Members
from checkers._messages.poll_steps import FIRST_READERS, KEY_BITS, PollOrder
from checkers._spark import spark_stages as _units
from harness.history.schema import OPS
from harness.operation import F, Type

ROWS = 3_000


def random_rows(seed: int) -> OpColumns:
    """Anything that the ops table can hold, of few values and offsets, so that they meet."""
    rng = np.random.default_rng(seed)

    def some(*values: int) -> np.ndarray:
        return rng.choice(np.array(values, np.int64), ROWS)

    value = (some(0, 1, 2) << 32) | rng.integers(0, 2 * BLOCK, ROWS) >> some(0, 8, 12)
    columns = {name: some(-1, 0, 1) for name in COLUMNS} | {
        "t": np.sort(rng.integers(0, 10_000, ROWS)),
        "type": some(*Type),
        "f": some(F.SEND, F.SEND, F.POLL, F.READ, F.COMMIT),
        "key": some(-1, 0, 1, 2),
        "value": np.where(rng.random(ROWS) < 0.05, -1, value),
        "offset": np.where(rng.random(ROWS) < 0.1, -1, rng.integers(0, 40, ROWS)),
        "attempts": some(-1, 1, 2),
        "process": some(0, 1, 7),
        "op": some(3, 4),
    }
    return OpColumns(columns)


@pytest.fixture(params=["plain", "compiled"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        message_rows, "COMPILED_ROWS", 0 if request.param == "compiled" else 10 * ROWS
    )


def known_of(rows: OpColumns, imported: bool) -> list[object]:
    """All that a task would hand on of these rows."""
    blocks = Blocks(MESSAGE_FIELDS)
    observe(blocks, rows, MessageScan(np.array([0, -1, -1, -1, -1, -1, -1, 47]), imported))
    bounds = LogBounds(LogContext(NO_MEMBERS, (np.zeros(0, np.int64), np.zeros(0, np.int64))))
    bounds.observe(rows)
    told = [(n, {k: a.tolist() for k, a in b.items()}) for n, b in blocks.items()]
    told += [(n, {k: a.tolist() for k, a in b.items()}) for n, b in bounds.offsets.items()]
    return [*told, bounds.polls.backwards]


@pytest.mark.parametrize("imported", [False, True])
def test_compiled_and_plain_agree(imported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(3):
        rows = random_rows(seed)
        monkeypatch.setattr(message_rows, "COMPILED_ROWS", 10 * ROWS)
        plain = known_of(rows, imported)
        monkeypatch.setattr(message_rows, "COMPILED_ROWS", 0)
        assert known_of(rows, imported) == plain


@pytest.mark.usefixtures("both_ways")
def test_more_blocks_at_once_than_there_is_room_for() -> None:
    """Numbers far from each other, in no order, some of them twice."""
    numbers = np.random.default_rng(5).permutation(np.repeat(np.arange(300) * BLOCK * 3, 2))
    blocks = Blocks({"n": (np.int64, -1)})
    at = blocks.at(numbers)
    blocks["n"][at] = numbers
    assert len(blocks) == 300
    assert blocks["n"][blocks.at(numbers[::-1].copy())].tolist() == numbers[::-1].tolist()
    assert [n for n, _ in blocks.items()] == [3 * n for n in range(300)]


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("count", [ROWS, SIEVE])
def test_few_are_found_among_many(count: int) -> None:
    rng = np.random.default_rng(6)
    numbers, wanted = rng.integers(0, 40 * BLOCK, count), rng.integers(0, 40 * BLOCK, 50)
    wanted = np.unique(np.concatenate([wanted, numbers[[0, 7, -1]]]))
    expected = np.flatnonzero(np.isin(numbers, wanted)).tolist()
    assert among(numbers, wanted).tolist() == expected
    assert np.flatnonzero(Members.of(wanted).holds(numbers)).tolist() == expected
    assert not len(among(numbers, wanted[:0]))


def test_only_pieces_with_chosen_rows_are_read(tmp_path: Path) -> None:
    """The rows are those that a filter gives; of the other pieces one column was looked at. A
    column may be null in a whole piece."""
    columns = dict.fromkeys(OPS.names) | {"t": 0, "process": 0, "op": 0}
    rows = [columns | {"type": 1, "f": 2, "value": n, "key": n % 3} for n in range(1_000)]
    for n in range(300, 1_000):
        rows[n] |= {"epoch": n % 100 or None} | ({"value": None} if n >= 500 else {})
    path = tmp_path / "ops-w0-000.parquet"
    pq.write_table(pa.Table.from_pylist(rows, OPS), path, row_group_size=100)
    looked = []

    def choose(some: dict[str, np.ndarray]) -> np.ndarray:
        looked.append(sorted(some))
        return np.flatnonzero((some["value"] > 250) & (some["value"] < 420))

    found = list(_units.chosen([path], ("value",), ("key", "value", "epoch"), choose))
    assert [len(some["value"]) for some in found] == [49, 100, 20]
    assert np.concatenate([some["value"] for some in found]).tolist() == list(range(251, 420))
    assert found[0]["key"].tolist() == [n % 3 for n in range(251, 300)]
    assert [some["epoch"].tolist()[:3] for some in found] == [[-1] * 3, [-1, 1, 2], [-1, 1, 2]]
    assert looked == [["value"]] * 10


@pytest.mark.parametrize("narrow", [False, True])
def test_columns_without_news_are_not_read(tmp_path: Path, narrow: bool) -> None:
    """By row group: one has all numbers, the others are null or no greater than what is trivial."""
    columns = dict.fromkeys(OPS.names) | {"t": 0, "process": 0, "op": 0, "type": 1, "f": 2}
    rows = [columns | {"attempts": n // 100, "epoch": n if n > 250 else None} for n in range(300)]
    path = tmp_path / "ops-w0-000.parquet"
    pq.write_table(pa.Table.from_pylist(rows, OPS), path, row_group_size=100)
    names = ("attempts", "epoch", "f")
    every = list(_units.arrays([path], names, narrow=narrow))
    assert [len(some["f"]) for some in every] == [300]
    some = list(_units.arrays([path], names, narrow=narrow, trivial={"attempts": 1, "epoch": -1}))
    assert [one["attempts"].tolist() for one in some] == [[-1] * 100, [-1] * 100, [2] * 100]
    for name in ("epoch", "f"):
        assert np.concatenate([one[name] for one in some]).tolist() == every[0][name].tolist()
    assert {one[n].dtype for one in some for n in names} == {every[0][n].dtype for n in names}


@pytest.mark.usefixtures("both_ways")
def test_every_reader_is_followed() -> None:
    """More readers than there is room for at first; each goes back once."""
    readers = np.repeat(np.arange(2 * FIRST_READERS), 3)
    count = len(readers)
    order = np.argsort(np.tile([0, 1, 2], 2 * FIRST_READERS), kind="stable")
    columns = {name: np.zeros(count, np.int64) for name in COLUMNS}
    columns |= {"process": readers, "offset": np.tile([5, 7, 6], 2 * FIRST_READERS)}
    rows = OpColumns({name: column[order] for name, column in columns.items()})
    polls = PollOrder()
    polls.observe(rows, (rows.process << KEY_BITS) | rows.key)
    went = [(step.process, step.offset, step.before) for step in polls.backwards]
    assert sorted(went) == [(process, 6, 7) for process in range(2 * FIRST_READERS)]


@pytest.mark.parametrize("replicas", [False, True])
def test_a_clean_block_has_the_same_report(replicas: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short way gives the answer of the long one, and is not taken if one message differs."""
    scope = CensusScope(frozenset({0}), {0: 1}, replicas=replicas, groups={8: 0})
    clean = MessageFlag.INVOKED | MessageFlag.ACKED | MessageFlag.READ | MessageFlag.POLLED
    clean |= MessageFlag.STORED
    places = np.arange(1, BLOCK + 1)
    flags = np.full(BLOCK, int(clean) | 1 << GROUP_BIT, np.uint64)
    block = {"flags": flags, "place": places, "acked": places}
    block["flags"][5] |= np.uint64(MessageFlag.RETRIED)
    short = messages.report_on(3, block, scope)
    odd = {**block, "flags": block["flags"].copy()}
    for flag in MessageFlag:
        ignored = (MessageFlag.RETRIED, MessageFlag.STORED)
        if flag not in ignored or (replicas and flag is MessageFlag.STORED):
            odd["flags"][7] = block["flags"][7] ^ np.uint64(flag)
            assert not messages.is_clean(odd["flags"], scope)
    monkeypatch.setattr(messages, "is_clean", lambda flags, scope: False)
    long = messages.report_on(3, block, scope)
    empty = {name for name, value in long.items() if value is None or not np.size(value)}
    assert {n: v for n, v in long.items() if n not in empty and np.any(v)} == short
