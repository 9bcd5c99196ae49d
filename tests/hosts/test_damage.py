"""Damage to a stopped node's files: its places, what it leaves alone, and its count."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusters.hosts._faults import damage as _damage
from clusters.hosts._faults.damage import SECTOR, RealFileTree

SIZE = 40 * SECTOR
ALLOCATED = 3 * SIZE


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two logs, one of them preallocated, and a file that no pattern matches."""
    folder = tmp_path / "node" / "store"
    (folder / "log").mkdir(parents=True)
    (folder / "log" / "0").write_bytes(b"\x55" * SIZE)
    (folder / "log" / "1").write_bytes(b"\xaa" * SIZE + bytes(ALLOCATED - SIZE))
    (folder / "meta").write_bytes(b"who I am")
    (folder.parent / "node.toml").write_text("role = 'broker'")
    return folder


def ordered(store: Path, **order: Any) -> dict[str, Any]:
    """Run it as on a node: a program with one argument."""
    argv = [
        sys.executable,
        "-I",
        "-S",
        _damage.__file__,
        json.dumps({"folder": str(store), **order}),
    ]
    out = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    answer: dict[str, Any] = json.loads(out)
    return answer


def differing(store: Path, before: dict[str, bytes]) -> dict[str, list[int]]:
    """Return where each file has changed."""
    found = {}
    for name, data in before.items():
        now = (store / name).read_bytes()
        assert len(now) == len(data)
        if places := [at for at in range(len(data)) if now[at] != data[at]]:
            found[name] = places
    return found


def contents(store: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in store.rglob("*")
        if path.is_file()
    }


def test_bits_turn_over_within_the_data_and_are_counted(store: Path) -> None:
    """As many bytes differ as are reported, in files that match, before the zeros at the end."""
    before = contents(store)
    answer = ordered(store, do="flip", pattern="log/*", count=30, seed=7)
    found = differing(store, before)
    assert set(found) == {"log/0", "log/1"}
    assert sum(map(len, found.values())) == answer["changed"] > 20
    assert max(found["log/1"]) < SIZE
    assert all(at in found[name] for name, at in answer["where"])


def test_the_same_seed_damages_the_same_bytes(store: Path) -> None:
    """And a second time restores them: a bit flipped twice is unchanged."""
    before = contents(store)
    for _ in range(2):
        ordered(store, do="flip", pattern="*", count=30, seed=7)
    assert contents(store) == before


def test_no_sector_is_damaged_on_two_nodes(store: Path) -> None:
    """Three nodes with the same bytes are damaged in different stripes."""
    before, sectors = contents(store), []
    for number in range(3):
        ordered(store, do="flip", pattern="log/0", count=60, seed=number, stripe=[number, 3])
        found = differing(store, before)["log/0"]
        sectors.append({at // SECTOR for at in found})
        (store / "log" / "0").write_bytes(before["log/0"])
    assert all(sector % 3 == number for number, own in enumerate(sectors) for sector in own)
    assert all(len(own) > 3 for own in sectors)


def test_an_end_is_cut_off_where_the_data_ends(store: Path) -> None:
    """Not only the preallocated space behind it; only one file is shorter."""
    before = contents(store)
    answer = ordered(store, do="cut", pattern="log/1", size=100, seed=1)
    assert answer == {"changed": 100, "where": [["log/1", SIZE - 100]]}
    now = contents(store)
    assert now.pop("log/1") == b"\xaa" * (SIZE - 100)
    assert now == {name: data for name, data in before.items() if name != "log/1"}


def test_a_wiped_folder_is_empty_and_there(store: Path) -> None:
    """Files beside it stay; wiping it again is no error."""
    answer = ordered(store, do="wipe")
    assert answer == {"files": 3, "bytes": SIZE + ALLOCATED + 8, "left": 0}
    assert not list(store.iterdir())
    assert (store.parent / "node.toml").is_file()
    assert ordered(store, do="wipe") == {"files": 0, "bytes": 0, "left": 0}


@pytest.mark.parametrize(
    "order",
    [
        {"do": "flip", "pattern": "*", "count": 5, "seed": 1},
        {"do": "cut", "pattern": "*", "size": 5, "seed": 1},
    ],
)
def test_where_there_is_nothing_nothing_changes(tmp_path: Path, order: dict[str, Any]) -> None:
    """A node without data loses none, and the answer says so."""
    assert _damage.apply(RealFileTree(str(tmp_path / "none")), order)["changed"] == 0
