"""The record of unsynced changes, on real files: synced data stays, and the rest is lost as on
disks.

The oracle copies everything after every change. A hand reports each change before it makes it, as
the tracer and a program would.
"""

import os
import resource
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from clusters.hosts._faults import unsynced_writes as _unsynced
from clusters.hosts._faults.power_loss import MAX_WAITING, SECTOR
from clusters.hosts._faults.unsynced_writes import MAX_FILES, MAX_NAMES_WAITING, UnsyncedWrites

SEEDS = range(60)


class Hand:
    """Changes files below a folder, and reports each change before."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder, self.ledger = folder, UnsyncedWrites(str(folder))

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def create(self, name: str, data: bytes = b"") -> None:
        self.ledger.make(self.path(name))
        Path(self.path(name)).touch()
        if data:
            self.write(name, data, 0)

    def write(self, name: str, data: bytes, at: int) -> None:
        self.ledger.write(self.path(name), at, len(data))
        with open(self.path(name), "r+b") as file:
            file.seek(at)
            file.write(data)

    def resize(self, name: str, size: int) -> None:
        self.ledger.resize(self.path(name), size)
        os.truncate(self.path(name), size)

    def remove(self, name: str) -> None:
        self.ledger.remove(self.path(name))
        os.unlink(self.path(name))

    def mkdir(self, name: str) -> None:
        self.ledger.make(self.path(name))
        os.mkdir(self.path(name))

    def rename(self, source: str, target: str) -> None:
        self.ledger.rename(self.path(source), self.path(target))
        os.rename(self.path(source), self.path(target))

    def sync(self, name: str = "") -> None:
        self.ledger.sync(self.path(name))

    def read(self, name: str) -> bytes:
        return Path(self.path(name)).read_bytes()

    def tree(self) -> dict[str, bytes | None]:
        """Return every path below, with the bytes of files."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes() if path.is_file() else None
            for path in self.folder.rglob("*")
        }


@pytest.fixture
def hands(tmp_path: Path) -> Callable[[], Hand]:
    count = iter(range(10_000))
    return lambda: Hand(tmp_path / f"disk-{next(count)}" / "store")


def synced(hand: Hand, name: str, data: bytes) -> None:
    hand.create(name, data)
    hand.sync(name)
    hand.sync()


def test_what_was_synced_is_never_taken(hands: Callable[[], Hand]) -> None:
    """Nor is anything else at stake then, and the answer says so."""
    for seed in SEEDS:
        hand = hands()
        synced(hand, "log", b"a" * 5000)
        told = hand.ledger.lose(seed)
        assert hand.read("log") == b"a" * 5000
        assert (told["files"], told["names"], told["size_bytes"]) == (0, 0, 0)
        assert (told["lost_files"], told["lost_names"], told["lost_bytes"]) == (0, 0, 0)


def test_what_changes_nothing_is_not_at_stake(hands: Callable[[], Hand]) -> None:
    """A file that is cut to its present length."""
    hand = hands()
    synced(hand, "log", b"a" * 5000)
    hand.resize("log", 5000)
    assert hand.ledger.lose(1)["files"] == 0


def test_a_renamed_folder_that_was_synced_keeps_what_it_has(hands: Callable[[], Hand]) -> None:
    """Its sync counts under the new name, too."""
    for seed in SEEDS:
        hand = hands()
        hand.mkdir("a")
        hand.create("a/f", b"abc")
        hand.sync("a/f")
        hand.rename("a", "b")
        hand.sync("b")
        hand.ledger.lose(seed)
        assert hand.read("b/f") == b"abc"


def test_each_sector_is_as_it_was_at_some_time_since_the_sync(hands: Callable[[], Hand]) -> None:
    """Whatever was written, cut off or extended, and whatever chance takes of it."""
    for seed in SEEDS:
        hand, dice = hands(), Random(seed)
        synced(hand, "log", dice.randbytes(3000))
        states = [hand.read("log")]
        for _ in range(dice.randint(1, 8)):
            if dice.random() < 0.3:
                hand.resize("log", dice.randint(0, 5000))
            else:
                hand.write("log", dice.randbytes(dice.randint(1, 1500)), dice.randint(0, 4000))
            states.append(hand.read("log"))
        hand.ledger.lose(seed)
        left = hand.read("log")
        lengths = {len(state) for state in states}
        assert len(left) <= max(lengths)
        for at in range(0, len(left), SECTOR):
            sector = left[at : at + SECTOR]
            possible = [state[at : at + SECTOR].ljust(SECTOR, b"\0") for state in states]
            assert any(one[: len(sector)] == sector for one in possible), (seed, at)


def test_none_all_or_a_torn_part_is_kept(hands: Callable[[], Hand]) -> None:
    """Each happens, and the lost bytes are those that were counted."""
    kept = set()
    for seed in SEEDS:
        hand = hands()
        synced(hand, "log", b"a" * 1000)
        for number in range(4):
            hand.write("log", b"b" * 1000, 1000 * (1 + number))
        told = hand.ledger.lose(seed)
        left = hand.read("log")
        assert left[:1000] == b"a" * 1000
        assert told["size_bytes"] == 4000
        assert told["lost_bytes"] == 4000 - left.count(b"b"), seed
        kept.add("none" if len(left) == 1000 else "all" if left.count(b"b") == 4000 else "torn")
    assert kept == {"none", "all", "torn"}


def test_without_a_seed_nothing_that_was_unsynced_is_kept(hands: Callable[[], Hand]) -> None:
    """Neither bytes nor names."""
    hand = hands()
    synced(hand, "log", b"a" * 1000)
    hand.write("log", b"b" * 4000, 500)
    hand.create("new", b"c")
    report = hand.ledger.lose(None)
    assert hand.read("log") == b"a" * 1000
    assert "new" not in hand.tree()
    assert (report["lost_bytes"], report["lost_names"]) == (report["size_bytes"], 1)


def test_old_bytes_come_back(hands: Callable[[], Hand]) -> None:
    """Where something was overwritten in a segment that had been allocated before."""
    outcomes = set()
    for seed in SEEDS:
        hand = hands()
        synced(hand, "log", b"old" + bytes(5000))
        hand.write("log", b"new", 0)
        hand.ledger.lose(seed)
        assert len(hand.read("log")) == 5003
        outcomes.add(hand.read("log").rstrip(b"\0"))
    assert outcomes == {b"old", b"new"}


def test_names_are_those_of_some_time_since_the_folder_was_synced(
    hands: Callable[[], Hand],
) -> None:
    """Created, removed, renamed over others, in new folders: a prefix of all changes is kept, with
    the content of the files."""
    lost = set()
    for seed in SEEDS:
        hand = hands()
        for name in ("a", "b", "c"):
            synced(hand, name, name.encode())
        states = [hand.tree()]
        for deed in (
            lambda hand: hand.remove("a"),
            lambda hand: hand.mkdir("sub"),
            lambda hand: hand.create("sub/new"),
            lambda hand: hand.rename("b", "c"),
            lambda hand: hand.rename("c", "sub/d"),
            lambda hand: hand.create("a"),
            lambda hand: hand.remove("sub/d"),
        ):
            deed(hand)  # type: ignore[no-untyped-call]
            states.append(hand.tree())
        told = hand.ledger.lose(seed)
        assert hand.tree() in states
        assert hand.tree() == states[7 - told["lost_names"]]
        assert (told["names"], told["unseen"]) == (7, [])
        lost.add(told["lost_names"])
    assert lost == set(range(8))


def test_a_synced_folder_keeps_its_names_and_all_that_came_before(
    hands: Callable[[], Hand],
) -> None:
    """One journal: older entries elsewhere are durable with it; a sync of a file saves no name."""
    for seed in SEEDS:
        hand = hands()
        hand.mkdir("one")
        hand.mkdir("two")
        hand.create("one/x")
        hand.create("two/y")
        hand.sync("two")
        hand.create("two/z", b"z")
        hand.sync("two/z")
        told = hand.ledger.lose(seed)
        assert {"one/x", "two/y"} <= set(hand.tree())
        assert told["names"] == 1
        assert ("two/z" in hand.tree()) == (told["lost_names"] == 0)


def test_a_replaced_file_is_as_it_was_or_as_it_became(hands: Callable[[], Hand]) -> None:
    """Written beside, synced, renamed, without a sync of the folder: old or new, and never
    a part."""
    outcomes = set()
    for seed in SEEDS:
        hand = hands()
        synced(hand, "vote", b"term 1")
        hand.create("vote.tmp", b"term 2")
        hand.sync("vote.tmp")
        hand.rename("vote.tmp", "vote")
        hand.ledger.lose(seed)
        outcomes.add(hand.read("vote"))
    assert outcomes == {b"term 1", b"term 2"}


def test_a_removed_file_comes_back_without_what_it_had_not_synced(
    hands: Callable[[], Hand],
) -> None:
    """It is restored with its mode, and complete as far as it was synced."""
    seen = set()
    for seed in SEEDS:
        hand = hands()
        synced(hand, "log", b"a" * 600)
        os.chmod(hand.path("log"), 0o640)
        hand.write("log", b"b" * 10, 600)
        hand.remove("log")
        hand.ledger.lose(seed)
        if "log" in hand.tree():
            assert hand.read("log")[:600] == b"a" * 600
            assert os.stat(hand.path("log")).st_mode & 0o777 == 0o640
            seen.add(len(hand.read("log")))
    assert {600, 610} <= seen


def test_what_is_written_after_a_loss_begins_anew(hands: Callable[[], Hand]) -> None:
    """What was left is durable: a second loss takes only later changes."""
    for seed in SEEDS:
        hand = hands()
        hand.create("log", b"a" * 100)
        hand.ledger.lose(seed)
        left = hand.tree()
        told = hand.ledger.lose(seed + 1)
        assert hand.tree() == left
        assert (told["files"], told["names"]) == (0, 0)


def test_what_is_settled_stays(hands: Callable[[], Hand]) -> None:
    """As after damage that was done to the files from outside."""
    hand = hands()
    hand.create("log", b"a" * 100)
    hand.ledger.settle()
    for seed in SEEDS:
        hand.ledger.lose(seed)
    assert hand.read("log") == b"a" * 100


def test_a_call_that_failed_is_no_change(hands: Callable[[], Hand]) -> None:
    """It is reported before it fails; undoing it does nothing."""
    for seed in SEEDS:
        hand = hands()
        synced(hand, "a", b"a")
        synced(hand, "b", b"b")
        hand.ledger.write(hand.path("a"), 1, 50)
        hand.ledger.remove(hand.path("a"))
        hand.ledger.rename(hand.path("a"), hand.path("b"))
        hand.ledger.make(hand.path("c"))
        hand.ledger.lose(seed)
        assert {name: (data or b"").rstrip(b"\0") for name, data in hand.tree().items()} == {
            "a": b"a",
            "b": b"b",
        }


def test_a_write_that_is_durable_covers_all_before(hands: Callable[[], Hand]) -> None:
    """As through a descriptor that was opened with O_DSYNC."""
    for seed in SEEDS:
        hand = hands()
        synced(hand, "log", b"")
        hand.write("log", b"a" * 10, 0)
        hand.ledger.write(hand.path("log"), 10, 10, durable=True)
        hand.ledger.lose(seed)
        assert hand.read("log") == b"a" * 10


def test_the_oldest_are_on_disk_when_there_are_many(
    hands: Callable[[], Hand], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes of one file, names, open files, and bytes that are kept: the kernel writes back."""
    hand = hands()
    synced(hand, "log", b"")
    for number in range(MAX_WAITING + 20):
        hand.write("log", b"x", number)
    for number in range(MAX_NAMES_WAITING + 10):
        hand.create(f"f{number}")
    assert hand.ledger.lose(1)["size_bytes"] == MAX_WAITING
    assert {f"f{number}" for number in range(10)} < set(hand.tree())

    hand = hands()
    for number in range(MAX_FILES + 10):
        hand.create(f"f{number}", b"x")
    assert hand.ledger.lose(1)["files"] == MAX_FILES

    monkeypatch.setattr(_unsynced, "MAX_OLD_BYTES", 1000)
    hand = hands()
    synced(hand, "one", b"x" * 600)
    synced(hand, "two", b"x" * 600)
    hand.write("one", b"y" * 600, 0)
    hand.write("two", b"y" * 600, 0)
    told = hand.ledger.lose(1)
    assert (told["files"], told["size_bytes"]) == (1, 600)
    assert hand.read("one") == b"y" * 600


def test_the_same_seed_loses_the_same(hands: Callable[[], Hand]) -> None:
    """The same changes twice, the same result twice."""

    def left(seed: int) -> tuple[Any, Any]:
        hand = hands()
        for name in ("b", "a", "c"):
            hand.create(name, name.encode() * 2000)
        told = hand.ledger.lose(seed)
        return told, hand.tree()

    assert all(left(seed) == left(seed) for seed in range(20))


def test_no_file_stays_open(hands: Callable[[], Hand]) -> None:
    """No descriptor of durable files is kept."""
    before = len(os.listdir("/proc/self/fd"))
    hand = hands()
    for name in ("a", "b"):
        synced(hand, name, b"x")
        hand.write(name, b"y", 0)
    hand.remove("a")
    hand.rename("b", "a")
    assert len(os.listdir("/proc/self/fd")) > before
    hand.ledger.lose(1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_probe_of_the_gate_is_no_business_of_the_node(hands: Callable[[], Hand]) -> None:
    """It appears and disappears, and no fault restores it; nothing beside the folder is
    recorded."""
    hand = hands()
    assert hand.ledger.has(hand.path("log"))
    assert not hand.ledger.has(hand.path(".seatrial-probe"))
    assert not hand.ledger.has(f"{hand.folder}-beside/log")


def test_what_can_not_be_put_back_is_told(hands: Callable[[], Hand]) -> None:
    """Here because no file may be so long any more; everything else is restored."""
    hand = hands()
    synced(hand, "log", b"a" * 1000)
    hand.resize("log", 10)
    unlucky = next(seed for seed in SEEDS if Random(seed).random() < 0.25)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        told = hand.ledger.lose(unlucky)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (told["lost_bytes"], told["unseen"]) == (
        0,
        ["1 changes could not be followed or undone"],
    )
    assert hand.read("log") == b"a" * 10


def test_what_was_not_seen_is_told(hands: Callable[[], Hand]) -> None:
    """Files that were mapped, and changes that could not be followed: once."""
    hand = hands()
    synced(hand, "log", b"x")
    hand.ledger.map(hand.path("log"))
    hand.ledger.overlooked(hand.path("log"))
    assert hand.ledger.lose(1)["unseen"] == [
        "log is mapped into memory",
        "1 changes could not be followed or undone",
    ]
    assert hand.ledger.lose(1)["unseen"] == []
