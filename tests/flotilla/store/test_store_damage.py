"""Damaged files of a store: the node says which, recovers what is provable, refuses the rest.

Each file of a store that was on disk and confirmed is truncated anywhere and has any byte flipped.
The law: never a traceback, and never a durable confirmed message silently gone. Either all of them
are read, or the process stops with a sentence that names the file.
"""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lone_store import SEGMENT, Life, LoneStore, segment_path
from table_sizes import examples

from clusters.flotilla.replication.epochs import EpochFile, EpochTable

COUNT = 120
LOG = segment_path(0)
LAST = segment_path(2 * SEGMENT)
EPOCHS, CHECKPOINT = "/store/epochFileCheckpoint", "/store/checkpoint"
INDEX = f"/store/consumequeue/{0:020d}"
ALL = [b"1-%d-" % number for number in range(COUNT)]


def _intact() -> dict[str, bytes]:
    lone = LoneStore()

    async def story(life: Life) -> None:
        life.fill(COUNT)
        await EpochFile("/store", life.ports.files).save(EpochTable(((1, 0), (4, COUNT * 500))))
        await life.settle()
        await life.settle()  # both slots of the checkpoint

    assert lone.live(story) == ""
    return lone.files()


FILES = _intact()


def outcome(files: dict[str, bytes]) -> str:
    """What the node said: nothing if every message was there."""
    lone = LoneStore().with_files(files)

    async def read(life: Life) -> None:
        life.store.confirm(life.store.log.max_offset)
        assert life.bodies() == ALL

    said = lone.live(read)
    again = lone.live(read) if said else ""
    lone.close()
    assert "Traceback" not in said + again, said + again
    assert not said or again, "what was damaged once is whole at the next start"
    return again or said


def test_the_intact_store_is_read() -> None:
    """Or the rest of this file proves nothing."""
    assert {LOG, LAST, EPOCHS, CHECKPOINT, INDEX} <= set(FILES)
    assert outcome(FILES) == ""


@pytest.mark.parametrize("path", [LOG, LAST, EPOCHS, CHECKPOINT, INDEX])
@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 2**32), flips=st.integers(1, 3))
def test_flipped_bytes_lose_nothing_silently(path: str, seed: int, flips: int) -> None:
    """The log's and the epochs' stop the node; the rest can be rebuilt. Not those of the filler
    at the end of a full segment, which holds nothing that could be lost and is never read."""
    dice, data = Random(seed), bytearray(FILES[path])
    end = data.rindex(b"-" if path == LAST else b".") + 1 if path in (LOG, LAST) else len(data)
    for _ in range(flips):
        data[dice.randrange(end)] ^= dice.randrange(1, 256)
    said = outcome(FILES | {path: bytes(data)})
    changed = bytes(data) != FILES[path]
    if path in (LOG, LAST, EPOCHS) and changed:
        assert said.startswith("FATAL")
        assert path in said
        assert "byte" in said
    else:
        assert said == ""


@pytest.mark.parametrize("path", [LOG, LAST, EPOCHS, CHECKPOINT, INDEX])
@settings(max_examples=examples(20), deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_loses_nothing_silently(path: str, share: float) -> None:
    """At any byte. An empty epoch file is damage too: it is never written so."""
    data = FILES[path]
    used = data.rindex(b"-") + 1 if path in (LOG, LAST) else len(data) - 1
    said = outcome(FILES | {path: data[: int(used * share)]})
    if path in (LOG, LAST, EPOCHS):
        assert said.startswith("FATAL")
        assert path in said
    else:
        assert said == ""


@pytest.mark.parametrize("path", [CHECKPOINT, INDEX, LOG])
def test_a_missing_file_loses_nothing_silently(path: str) -> None:
    """The checkpoint and the index are rebuilt; a segment that was on disk cannot be."""
    files = {name: data for name, data in FILES.items() if name != path}
    said = outcome(files)
    assert (said == "") == (path != LOG)
    assert path == LOG or said == ""


def test_a_damaged_checkpoint_is_told() -> None:
    """It cost nothing, but its disk is not well."""
    data = bytearray(FILES[CHECKPOINT])
    data[20] ^= 1
    lone = LoneStore().with_files(FILES | {CHECKPOINT: bytes(data)})

    async def look(life: Life) -> None:
        assert life.found.notes == (f"the slot at byte 0 of {CHECKPOINT} is damaged",)

    assert lone.live(look) == ""


def test_a_copy_for_a_slave_is_checked_too() -> None:
    """A master whose old records rot stops, rather than feed a slave what it must refuse."""
    data = bytearray(FILES[LOG])
    data[2000] ^= 1
    lone = LoneStore().with_files(FILES | {LOG: bytes(data)})

    async def copy(life: Life) -> None:
        at = 0
        while at < life.store.log.written:
            at += len(life.store.log.records(at, 700))

    said = lone.live(copy)
    assert said.startswith("FATAL the record at byte")
    assert LOG in said
