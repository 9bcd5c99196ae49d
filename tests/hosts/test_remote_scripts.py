"""The folder of a run on a host, as two runs at the same time see it, and as another user of the
host would like it to be seen.
"""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from clusters.hosts.ssh import remote_scripts as _errands

OWNER = {"driver": "here", "run": "/runs/it"}
TIMES = 300
NOBODY = 65534


def test_a_folder_has_an_owner_from_the_first_moment(tmp_path: Path) -> None:
    """A folder without an owner does not count as a run's, and the host can be occupied."""
    found: list[object] = []
    ended = threading.Event()

    def looking() -> None:
        over = False
        while not over:
            over = ended.is_set()
            folders = map(str, tmp_path.glob("seatrial-*"))
            found.extend(_errands.owner_of(each) for each in folders)

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
    assert _errands.owner_of(str(folder)) == OWNER
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_may_write_to_holds_no_run(tmp_path: Path) -> None:
    """Another user could replace the folder; with the sticky bit, none can."""
    tmp_path.chmod(0o777)
    with pytest.raises(SystemExit, match="other users may replace folders in"):
        _errands._claim(str(tmp_path / "seatrial-it"), OWNER)
    tmp_path.chmod(0o1777)
    assert _errands._claim(str(tmp_path / "seatrial-it"), OWNER)


def link(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


def linked_owner(folder: Path) -> None:
    (folder / "owner.json").rename(folder / "it")
    (folder / "owner.json").symlink_to("it")


@pytest.mark.parametrize(
    "change",
    [
        link,
        linked_owner,
        lambda folder: folder.chmod(0o770),
        lambda folder: (folder / "owner.json").chmod(0o666),
        lambda folder: (folder / "owner.json").write_text("{}"),
        lambda folder: (folder / "owner.json").write_bytes(b"\xff{"),
        lambda folder: (folder / "owner.json").unlink(),
    ],
    ids=["link", "linked owner", "writable", "writable owner", "empty", "damaged", "no owner"],
)
def test_what_root_did_not_make_for_a_run_is_none(
    tmp_path: Path, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is neither listed nor removed, by any script."""
    monkeypatch.setattr(_errands, "_remove_rules", lambda: 0)
    folder = tmp_path / "seatrial-it"
    assert _errands._claim(str(folder), OWNER)
    (folder / "precious").write_text("mine")
    assert [run["folder"] for run in _errands._runs(str(tmp_path))] == [str(folder)]
    change(folder)
    assert _errands._runs(str(tmp_path)) == []
    with pytest.raises(SystemExit, match="nothing was removed"):
        _errands.end_run(str(folder), OWNER, remove=True)
    assert (folder / "precious").read_text() == "mine"


def test_a_run_is_ended_by_its_own_owner_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_errands, "_remove_rules", lambda: 0)
    folder = tmp_path / "seatrial-it"
    assert _errands._claim(str(folder), OWNER)
    with pytest.raises(SystemExit, match="is not the folder of this run"):
        _errands.end_run(str(folder), {"driver": "here", "run": "/runs/another"}, remove=True)
    assert _errands.end_run(str(folder), OWNER, remove=True)["folder"]
    assert not folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_a_process_of_another_user_names_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by its environment nor by its name; root's does."""
    monkeypatch.setattr(_errands, "_remove_rules", lambda: 0)
    folder = tmp_path / "seatrial-it"
    assert _errands._claim(str(folder), OWNER)
    agent = f"/x/{_errands.AGENT}"
    scans = {}
    for user in (NOBODY, 0):
        code = f"import os, sys; os.setresuid({user}, {user}, {user}); print(flush=True); input()"
        argv = [sys.executable, "-S", "-c", code]
        marked = {"SEATRIAL_RUN": str(folder)}
        for words, env in (([*argv, agent, str(folder)], {}), (argv, marked)):
            with subprocess.Popen(
                words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            ) as process:
                assert process.stdout
                process.stdout.readline()
                found = _errands._scan().get(str(folder), _errands.RunProcesses())
                scans[user, words is argv] = [*found.agents, *found.processes] == [process.pid]
                process.kill()
    assert scans == {(user, way): user == 0 for user in (NOBODY, 0) for way in (True, False)}


def test_a_host_has_one_agent_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is held until the last process that inherited it has ended; only root can open its
    file."""
    monkeypatch.setattr(_errands, "LOCK", str(tmp_path / "lock"))
    lock = _errands.hold_lock()
    assert lock is not None
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
    assert _errands.hold_lock() is None
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(lock,)) as heir:
        os.close(lock)
        assert _errands.hold_lock() is None
        heir.communicate()
    again = _errands.hold_lock()
    assert again is not None
    os.close(again)


class Iptables:
    """Rules of a host that has our chain. `stubborn`: it cannot be removed."""

    def __init__(self, stubborn: bool) -> None:
        self.stubborn, self.hooked, self.there = stubborn, True, True

    def __call__(self, *words: str) -> str | None:
        match words:
            case ("-S", "SEATRIAL"):
                return "-N SEATRIAL\n-A SEATRIAL -s 192.0.2.1/32 -j DROP\n" if self.there else None
            case ("-D", *_):
                was, self.hooked = self.hooked, False
                return "" if was else None
            case ("-X", "SEATRIAL") if not self.stubborn:
                self.there = False
            case ("-S",):
                return "-P INPUT ACCEPT\n" + ("-N SEATRIAL\n" if self.there else "")
        return ""


def test_the_end_of_a_run_tells_of_rules_that_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None are left, or they are another run's, or the answer says that some may be left."""
    monkeypatch.setattr(_errands, "LOCK", str(tmp_path / "lock"))
    none = str(tmp_path / "seatrial-none")
    monkeypatch.setattr(_errands, "_iptables", Iptables(stubborn=False))
    done = _errands.end_run(none, OWNER, remove=True)
    assert (done["rules"], done["shared"]) == (1, False)
    assert not (tmp_path / "lock").exists()
    monkeypatch.setattr(_errands, "_iptables", Iptables(stubborn=True))
    with pytest.raises(SystemExit, match="link rules may be left"):
        _errands.end_run(none, OWNER, remove=True)
    lock = _errands.hold_lock()
    done = _errands.end_run(none, OWNER, remove=True)
    assert (done["rules"], done["shared"]) == (0, True)
    assert json.dumps(done)
    os.close(lock or 0)
