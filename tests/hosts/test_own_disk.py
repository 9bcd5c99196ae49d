"""What a power cut of a disk has taken is found by reading the folder before and after it."""

import os
from pathlib import Path

import pytest

from clusters.hosts._faults.own_disk import PAGE, Contents, losses
from clusters.hosts.local import requirements

SIZE = 3 * PAGE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "below").mkdir()
    (tmp_path / "log").write_bytes(b"a" * SIZE)
    return tmp_path


def lost(before: Contents, folder: Path) -> tuple[int, int, int]:
    """Names, files and bytes."""
    found = losses(before, Contents.read(str(folder)))
    assert (found["names"], found["files"], found["size_bytes"]) == (
        *(found["lost_names"], found["lost_files"]),
        found["lost_bytes"],
    )
    return found["lost_names"], found["lost_files"], found["lost_bytes"]


def test_an_unchanged_folder_has_lost_nothing(folder: Path) -> None:
    assert lost(Contents.read(str(folder)), folder) == (0, 0, 0)


def test_bytes_behind_the_end_are_lost(folder: Path) -> None:
    """Exactly those up to the end that the file had."""
    with (folder / "log").open("ab") as file:
        file.write(b"b" * 100)
    before = Contents.read(str(folder))
    os.truncate(folder / "log", SIZE)
    assert lost(before, folder) == (0, 1, 100)


def test_a_page_that_reads_differently_is_lost(folder: Path) -> None:
    """Whole, because a disk does not say which of its bytes are older."""
    before = Contents.read(str(folder))
    with (folder / "log").open("r+b") as file:
        file.seek(PAGE + 7)
        file.write(b"c")
    assert lost(before, folder) == (0, 1, PAGE)


def test_a_file_cut_before_that_is_whole_again_has_lost_its_cut(folder: Path) -> None:
    os.truncate(folder / "log", PAGE)
    before = Contents.read(str(folder))
    with (folder / "log").open("ab") as file:
        file.write(b"a" * 2 * PAGE)
    assert lost(before, folder) == (0, 1, 2 * PAGE)


def test_zeros_and_holes_are_the_same(folder: Path) -> None:
    """A preallocated file is read no differently where nothing was written."""
    os.truncate(folder / "log", SIZE + 2 * PAGE)
    before = Contents.read(str(folder))
    with (folder / "log").open("r+b") as file:
        file.seek(SIZE)
        file.write(bytes(2 * PAGE))
    assert lost(before, folder) == (0, 0, 0)


def test_names_are_counted(folder: Path) -> None:
    """One that is missing, one that is back, and one of another file; a file that has only another
    name has lost no bytes."""
    (folder / "below" / "new").write_bytes(b"n" * 10)
    (folder / "link").symlink_to("log")
    before = Contents.read(str(folder))
    (folder / "below" / "new").unlink()
    (folder / "below" / "back").mkdir()
    (folder / "link").unlink()
    (folder / "link").symlink_to("below")
    (folder / "log").rename(folder / "old")
    assert lost(before, folder) == (5, 1, 10)


def test_an_ordinary_user_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root of a user namespace is one, too."""
    read = requirements._read
    maps = {"/proc/self/uid_map": "0 1000 1"}
    monkeypatch.setattr(requirements, "_read", lambda path: maps.get(str(path), read(path)))
    requirements._why_no_disk.cache_clear()
    try:
        assert "needs root of the machine itself; to fix it:" in requirements.why_no_own_disks()
    finally:
        requirements._why_no_disk.cache_clear()
