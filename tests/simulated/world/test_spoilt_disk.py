"""A virtual disk that is full, read-only, slow to sync, or hung, and healed afterwards."""

import errno
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from lone_disk import Clock

from clusters.hosts._world.disk import Disk


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def disk(clock: Clock) -> Disk:
    """With a file of ten bytes, and an event log."""
    disk = Disk(clock, Random(1))
    disk.put("/node/store/f", b"0123456789")
    disk.put("/node/events", b"", spared=True)
    return disk


def failing(number: int) -> Any:
    return pytest.raises(OSError, match=rf"^\[Errno {number}\]")


def content(disk: Disk, path: str) -> bytes:
    return disk.file(path).read(100, 0)


def test_a_full_disk_takes_what_needs_no_room(disk: Disk) -> None:
    """Overwriting is possible, growing is not; a new file has a name and no content."""
    disk.full = True
    file = disk.file("/node/store/f")
    disk.write(file, b"abc", 0)
    with failing(errno.ENOSPC):
        disk.write(file, b"xyz", 8)
    assert content(disk, "/node/store/f") == b"abc34567xy"
    with failing(errno.ENOSPC):
        disk.allocate(file, 20)
    with failing(errno.ENOSPC):
        disk.write(disk.file("/node/store/g", create=True), b"x", 0)
    assert disk.free_bytes == 0
    assert disk.room_left_bytes > 0
    disk.full = False
    disk.write(file, b"xyz", 8)
    assert content(disk, "/node/store/f") == b"abc34567xyz"


def test_nothing_changes_on_a_read_only_disk(disk: Disk) -> None:
    """No byte and no name, by any call; reads return what was there."""
    disk.read_only = True
    file = disk.file("/node/store/f")
    deeds: list[Callable[[], object]] = [
        lambda: disk.write(file, b"x", 0),
        lambda: disk.truncate(file, 0),
        lambda: disk.allocate(file, 100),
        lambda: disk.remove("/node/store/f"),
        lambda: disk.rename("/node/store/f", "/node/store/g"),
        lambda: disk.file("/node/store/g", create=True),
        lambda: disk.make_folders("/node/store/more"),
    ]
    for deed in deeds:
        with failing(errno.EROFS):
            deed()
    assert content(disk, "/node/store/f") == b"0123456789"
    disk.make_folders("/node/store")  # it is there: nothing to change
    disk.read_only = False
    for deed in (deeds[0], deeds[4]):
        deed()
    assert content(disk, "/node/store/g") == b"x123456789"


def test_evidence_is_written_on_any_disk(disk: Disk) -> None:
    """The event log is not under test; and the driver's own files are written."""
    disk.full = disk.read_only = True
    log = disk.file("/node/events")
    disk.write(log, b"{}", 0)
    disk.put("/node/new/config", b"x")
    assert disk.read_only
    assert content(disk, "/node/events") == b"{}"


def test_a_sync_that_hangs_ends_with_the_fault(disk: Disk, clock: Clock) -> None:
    """It neither succeeds nor fails before; what it covers is durable only afterwards."""
    ends: list[OSError | None] = []
    disk.hang(True)
    disk.write(disk.file("/node/store/f"), b"new", 0)
    disk.sync_file(disk.file("/node/store/f"), ends.append)
    clock.run()
    assert disk.hangs
    assert not ends
    assert disk.waiting("/node/store") == (1, 0, 3)
    disk.hang(False)
    clock.run()
    assert ends == [None]
    assert disk.waiting("/node/store") == (0, 0, 0)


def test_a_sync_that_hung_when_the_power_went_never_ends(disk: Disk, clock: Clock) -> None:
    """Nobody is left to be told."""
    ends: list[OSError | None] = []
    disk.hang(True)
    disk.write(disk.file("/node/store/f"), b"new", 0)
    disk.sync_file(disk.file("/node/store/f"), ends.append)
    clock.run()
    disk.power_cut()
    disk.hang(False)
    clock.run()
    assert not ends


def test_damage_outlives_a_power_cut(disk: Disk) -> None:
    """A cut end and an emptied folder are the medium's own state."""
    disk.put("/node/store/sub/g", b"x" * 50)
    disk.cut_end("/node/store/f", 4)
    disk.power_cut()
    assert content(disk, "/node/store/f") == b"0123"
    used = disk.used_bytes()
    disk.room_bytes = 0
    disk.empty("/node/store")
    assert disk.room_bytes == used == 54
    disk.power_cut()
    assert list(disk.files("/node/store")) == []
    assert disk.folder("/node/store").entries == {}
