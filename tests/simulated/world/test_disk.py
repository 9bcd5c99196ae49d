"""The virtual disk: synced data stays, and the rest is lost as on real disks.

The oracle keeps a copy of the whole file after every change, which the disk avoids.
"""

import errno
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lone_disk import Change, Clock, carry_out

from clusters.hosts._faults.power_loss import MAX_WAITING, SECTOR
from clusters.hosts._world.content import Content
from clusters.hosts._world.disk import Disk, Folder, SyncTimes

MOST = 6 * SECTOR


class Answers:
    """The results of syncs."""

    def __init__(self) -> None:
        self.ends: list[OSError | None] = []

    def __call__(self, error: OSError | None) -> None:
        self.ends.append(error)


def disk(seed: int = 1) -> tuple[Disk, Clock]:
    clock = Clock()
    return Disk(clock, Random(seed)), clock


def whole(file: Content) -> bytes:
    return file.read(file.size, 0)


def failing(number: int) -> Any:
    return pytest.raises(OSError, match=rf"^\[Errno {number}\]")


# one file

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "write", "truncate", "allocate"]),
        st.integers(0, MOST),
        st.integers(1, 3 * SECTOR),
    ),
    max_size=6,
)


@given(CHANGES, CHANGES, st.integers(0, 2**32))
def test_a_power_cut_keeps_a_torn_prefix_of_what_no_sync_covered(
    synced: list[Change], uncovered: list[Change], seed: int
) -> None:
    """The file is as it was after some change since the sync, except for the next write's first
    sectors, and for at most one sector that was left behind."""
    d, clock = disk(seed)
    file = d.file("/f", create=True)
    d.sync_folder(d.folder("/"), Answers())
    for mark, change in enumerate(synced, start=1):
        carry_out(d, file, change, mark)
    d.sync_file(file, Answers())
    clock.run()
    states, written = [whole(file)], []
    for mark, change in enumerate(uncovered, start=100):
        written.append(carry_out(d, file, change, mark) or (0, 0))
        states.append(whole(file))
    d.power_cut()
    found = whole(d.file("/f"))
    explained = any(
        explains(found, state, then, torn)
        for state, then, torn in zip(
            states, [*states[1:], states[-1]], [*written, (0, 0)], strict=True
        )
    )
    assert explained, (len(found), [len(s) for s in states])


def explains(found: bytes, state: bytes, then: bytes, torn: tuple[int, int]) -> bool:
    """Return whether `found` is `state`, torn on its way to `then`, with one sector of its own."""
    sizes = {len(state), len(then)} | {n * SECTOR for n in range(torn[0] // SECTOR, 2 * MOST)}
    if len(found) not in sizes or len(found) > max(len(state), len(then)):
        return False
    if len(found) < len(state):
        return False
    expected = bytearray(state.ljust(len(found), b"\0"))
    odd = differing_sectors(found, bytes(expected))
    for at in sorted(odd):
        if torn[0] < at + SECTOR and at < torn[1]:
            expected[at : at + SECTOR] = then[: len(found)].ljust(len(found), b"\0")[
                at : at + SECTOR
            ]
    return len(differing_sectors(found, bytes(expected))) <= 1


def differing_sectors(a: bytes, b: bytes) -> set[int]:
    return {
        at
        for at in range(0, max(len(a), len(b)), SECTOR)
        if a[at : at + SECTOR] != b[at : at + SECTOR]
    }


@given(CHANGES, CHANGES, st.integers(0, 2**32))
def test_every_byte_is_one_that_was_there_since_the_sync(
    synced: list[Change], uncovered: list[Change], seed: int
) -> None:
    """So bytes that did not change since the sync are unchanged, whatever chance does."""
    d, clock = disk(seed)
    file = d.file("/f", create=True)
    for mark, change in enumerate(synced, start=1):
        carry_out(d, file, change, mark)
    d.sync_file(file, Answers())
    d.sync_folder(d.folder("/"), Answers())
    clock.run()
    states = [whole(file)]
    for mark, change in enumerate(uncovered, start=100):
        carry_out(d, file, change, mark)
        states.append(whole(file))
    d.power_cut()
    found = whole(d.file("/f"))
    assert min(map(len, states)) <= len(found) <= max(map(len, states))
    longest = max(map(len, states))
    padded = [state.ljust(longest, b"\0") for state in states]
    for at, byte in enumerate(found):
        assert byte in {state[at] for state in padded}, at


def after_cut(seed: int, everything: bool = False) -> bytes:
    """Sixteen sectors of zeros on disk, two writes of four sectors over them, a power cut."""
    d, clock = disk(seed)
    file = d.file("/f", create=True)
    d.allocate(file, 16 * SECTOR)
    d.sync_file(file, Answers())
    d.sync_folder(d.folder("/"), Answers())
    clock.run()
    d.write(file, b"1" * 4 * SECTOR, 0)
    d.write(file, b"2" * 4 * SECTOR, 4 * SECTOR)
    d.loses_everything = everything
    d.power_cut()
    return whole(d.file("/f"))[: 8 * SECTOR]


def test_a_cut_that_loses_everything_leaves_nothing_to_chance() -> None:
    assert {after_cut(seed, everything=True) for seed in range(20)} == {bytes(8 * SECTOR)}


def shape(data: bytes) -> str:
    return "".join(chr(data[at] or ord("0")) for at in range(0, len(data), SECTOR))


def test_every_kind_of_loss_happens() -> None:
    """Nothing kept, all kept, a tear in either write, and a hole with bytes behind it."""
    shapes = {shape(after_cut(seed)) for seed in range(300)}
    assert {"00000000", "11112222"} <= shapes
    assert {"11000000", "11112200"} <= shapes
    assert any("0" in s.rstrip("0") for s in shapes)


def test_a_torn_append_may_leave_its_length_behind() -> None:
    """The file has its new length, and ends in zeros: not every zero is old."""
    seen = set()
    for seed in range(200):
        d, clock = disk(seed)
        file = d.file("/f", create=True)
        d.sync_folder(d.folder("/"), Answers())
        clock.run()
        d.write(file, b"x" * 4 * SECTOR, 0)
        d.power_cut()
        found = whole(d.file("/f"))
        seen.add((found.count(b"x") // SECTOR, len(found) // SECTOR))
    assert {(0, 0), (4, 4), (2, 2), (2, 4)} <= seen


def test_the_death_of_a_process_takes_nothing() -> None:
    """What was written is in the kernel: without a power cut it can be read, synced or not."""
    d, _ = disk()
    d.write(d.file("/f", create=True), b"abc", 0)
    assert whole(d.file("/f")) == b"abc"


def test_a_sync_covers_what_was_written_before_it_was_asked_for() -> None:
    """And only once it has ended: later writes are not covered."""
    outcomes = set()
    for seed in range(100):
        d, clock = disk(seed)
        file = d.file("/f", create=True)
        d.sync_folder(d.folder("/"), Answers())
        d.write(file, b"a", 0)
        d.sync_file(file, Answers())
        d.write(file, b"b", 1)
        clock.run()
        d.power_cut()
        outcomes.add(whole(d.file("/f")))
    assert outcomes == {b"a", b"a\0", b"ab"} or outcomes == {b"a", b"ab"}


def test_a_sync_that_the_power_cut_overtook_covers_nothing() -> None:
    """It had not ended, and it never does."""
    outcomes = set()
    for seed in range(50):
        d, clock = disk(seed)
        file = d.file("/f", create=True)
        d.sync_folder(d.folder("/"), Answers())
        clock.run()
        d.write(file, b"a", 0)
        answers = Answers()
        d.sync_file(file, answers)
        d.power_cut()
        clock.run()
        assert answers.ends == []
        outcomes.add(whole(d.file("/f")))
    assert b"" in outcomes
    assert b"a" in outcomes


def test_the_kernel_writes_back_the_oldest() -> None:
    """Of very many changes without a sync, no power cut takes the first ones."""
    for seed in range(30):
        d, clock = disk(seed)
        file = d.file("/f", create=True)
        d.sync_folder(d.folder("/"), Answers())
        clock.run()
        for at in range(MAX_WAITING + 10):
            d.write(file, b"x", at)
        d.power_cut()
        assert whole(d.file("/f"))[:10] == b"x" * 10


# names


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["create", "remove", "rename", "folder"]),
            st.sampled_from("abc"),
            st.sampled_from("abc"),
        ),
        max_size=8,
    ),
    st.integers(0, 8),
    st.integers(0, 2**32),
)
def test_names_come_and_go_in_their_order(
    deeds: list[tuple[str, str, str]], synced_after: int, seed: int
) -> None:
    """After a power cut the tree is one that was there at or after the last finished sync."""
    d, clock = disk(seed)
    d.make_folders("/s")
    d.sync_folder(d.folder("/"), Answers())
    clock.run()
    trees, kept_from = [names_of(d)], 0
    for number, (kind, one, other) in enumerate(deeds):
        if number == synced_after:
            d.sync_folder(d.folder("/s"), Answers())
            clock.run()
            kept_from = len(trees) - 1
        try:
            rearrange(d, kind, f"/s/{one}", f"/s/{other}")
        except OSError:
            continue
        trees.append(names_of(d))
    d.power_cut()
    assert names_of(d) in trees[kept_from:]


def rearrange(d: Disk, kind: str, one: str, other: str) -> None:
    match kind:
        case "create":
            d.file(one, create=True)
        case "remove":
            d.remove(one)
        case "rename":
            d.rename(one, other)
        case "folder":
            d.make_folders(one)


def names_of(d: Disk) -> dict[str, str]:
    """Name -> what it names."""
    entries = d.folder("/s").entries
    return {
        n: "folder" if isinstance(node, Folder) else str(id(node)) for n, node in entries.items()
    }


def test_a_folder_that_was_synced_has_the_folders_above_it() -> None:
    """There is one journal: everything before the last entry about a folder is durable with it."""
    for seed in range(30):
        d, clock = disk(seed)
        d.make_folders("/var/store/log")
        d.file("/var/store/log/0", create=True)
        d.sync_folder(d.folder("/var/store/log"), Answers())
        clock.run()
        d.power_cut()
        assert list(d.folder("/var/store/log").entries) == ["0"]


def test_syncing_a_file_does_not_save_its_name() -> None:
    """As in POSIX: without a sync of the folder the file may be lost with all its bytes."""
    survived = set()
    for seed in range(30):
        d, clock = disk(seed)
        file = d.file("/f", create=True)
        d.write(file, b"x", 0)
        d.sync_file(file, Answers())
        clock.run()
        d.power_cut()
        survived.add("f" in d.folder("/").entries)
    assert survived == {True, False}


def test_what_the_driver_puts_there_is_durable() -> None:
    """Configuration files are not under test."""
    for seed in range(30):
        d, _ = disk(seed)
        d.put("/etc/node/node.toml", b"role")
        d.power_cut()
        assert whole(d.file("/etc/node/node.toml")) == b"role"


def test_evidence_is_spared() -> None:
    """Data added to a spared file is there after any power cut, synced or not."""
    for seed in range(30):
        d, _ = disk(seed)
        d.put("/events", b"", spared=True)
        d.write(d.file("/events"), b"elected", 0)
        d.power_cut()
        assert whole(d.file("/events")) == b"elected"


# time and faults


def test_syncs_take_time_and_queue_up() -> None:
    """One device: the second ends after the first, each takes at least the minimum."""
    d, clock = disk()
    file, ends = d.file("/f", create=True), []
    for _ in range(3):
        d.sync_file(file, lambda error: ends.append(clock.now_ns))
    clock.run()
    gaps = [after - before for before, after in zip([0, *ends], ends, strict=False)]
    assert all(SyncTimes().least_ns <= gap <= SyncTimes().slow_ns for gap in gaps)


def test_a_slow_disk_delays_each_sync() -> None:
    """`delay_ns` is what a nemesis adds."""
    d, clock = disk()
    d.delay_ns = 3_000_000_000
    d.sync_file(d.file("/f", create=True), Answers())
    clock.run()
    assert clock.now_ns >= 3_000_000_000


def test_a_full_disk_takes_what_fits() -> None:
    """Then ENOSPC; preallocated space is still there, and removing frees space."""
    d, _ = disk()
    file, other = d.file("/f", create=True), d.file("/g", create=True)
    d.allocate(file, 100)
    d.room_bytes = 10
    with failing(errno.ENOSPC):
        d.write(other, b"x" * 30, 0)
    assert whole(other) == b"x" * 10
    d.write(file, b"y" * 100, 0)
    with failing(errno.ENOSPC):
        d.allocate(other, 50)
    d.remove("/f")
    d.allocate(other, 50)
    d.room_bytes = None
    d.allocate(other, 5000)


def test_a_disk_that_can_not_be_written_says_so() -> None:
    """EIO for writes, until it is healed."""
    d, _ = disk()
    file = d.file("/f", create=True)
    d.write_error = errno.EIO
    with failing(errno.EIO):
        d.write(file, b"x", 0)
    d.write_error = 0
    d.write(file, b"x", 0)


def test_a_flipped_bit_stays() -> None:
    """Neither a sync nor a power cut restores it."""
    d, _ = disk()
    d.put("/f", b"\x00" * 10)
    d.flip_bit("/f", 13)
    d.power_cut()
    assert whole(d.file("/f")) == b"\x00\x20" + bytes(8)


def test_preallocated_zeros_cost_no_memory() -> None:
    """A segment of a gigabyte, written at its front, cut, and extended again."""
    d, clock = disk()
    file = d.file("/f", create=True)
    d.allocate(file, 1 << 30)
    d.write(file, b"record", 0)
    d.truncate(file, 3)
    d.allocate(file, 1 << 30)
    d.sync_file(file, Answers())
    clock.run()
    assert file.size == 1 << 30
    assert file.read(8, 0) == b"rec" + bytes(5)
    assert file.held < 1000
