"""The folder of a run on a host, as two that want it at the same time see it."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clusters.hosts import _errands

OWNER = {"driver": "here", "run": "/runs/it"}
TIMES = 300


def test_a_folder_has_an_owner_from_the_first_moment(tmp_path: Path) -> None:
    """Who finds it without one takes it for nobody's, and removes it."""
    found: list[object] = []
    ended = threading.Event()

    def looking() -> None:
        over = False
        while not over:
            over = ended.is_set()
            folders = map(str, tmp_path.glob("seatrial-*"))
            found.extend(_errands._told(each, _errands.Run())["owner"] for each in folders)

    with ThreadPoolExecutor(3) as threads:
        watching = threads.submit(looking)
        for number in range(TIMES):
            folder = str(tmp_path / f"seatrial-{number}")
            both = [threads.submit(_errands._claim, folder, OWNER) for _ in range(2)]
            assert sorted(one.result() for one in both) == [False, True]
        ended.set()
        watching.result()
    assert found
    assert all(owner == OWNER for owner in found)


def test_a_claim_leaves_nothing_but_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "seatrial-it"
    assert _errands._claim(str(folder), OWNER)
    assert not _errands._claim(str(folder), {"driver": "there", "run": "/runs/other"})
    assert [path.name for path in tmp_path.iterdir()] == ["seatrial-it"]
    assert _errands._told(str(folder), _errands.Run())["owner"] == OWNER
    assert folder.stat().st_mode & 0o777 == 0o700
