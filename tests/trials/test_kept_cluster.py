"""`seatrial cluster` on local hosts: up, asked about from elsewhere, down, and nothing left."""

import json
import shutil
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import leftovers
import pytest
import run_command

pytestmark = pytest.mark.bed

GONE_WITHIN_S = 30.0


class Kept:
    """A cluster on local hosts, whose command stays in the foreground."""

    def __init__(self, folder: Path) -> None:
        self.runs, mark = folder / "runs", {leftovers.MARK: uuid.uuid4().hex}
        self.up = run_command.RunningCommand("cluster", "up", runs=self.runs, **mark)
        self.belongings = leftovers.Belongings(self.up.process.pid, mark[leftovers.MARK])
        self.table = iter(self.up.process.stdout or ())

    def serving(self) -> list[str]:
        """What `up` says until it serves."""
        said = []
        for line in self.table:
            said.append(line)
            if "Ctrl-C stops it" in line:
                return said
        raise AssertionError("".join(said) + self.up.end().words)

    def ask(self, verb: str, *words: str) -> run_command.FinishedCommand:
        options = ("--runs", str(self.runs))
        return run_command.seatrial("cluster", verb, *options, *words, runs=self.runs)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    cluster = Kept(tmp_path)
    yield cluster
    cluster.up.close()


def test_a_kept_cluster_can_be_looked_at_and_taken_down(kept: Kept) -> None:
    """Status names a master, a log is the node's own, a shell is on the node; then it is gone."""
    assert any("master of set-1" in line for line in kept.serving())
    run_command.wait(
        lambda: "with full redundancy" in kept.ask("status").out,
        run_command.LONGEST_S,
        "full redundancy",
    )
    status = kept.ask("status")
    assert status.code == 0, status.words
    told = kept.ask("logs", "broker-2", "--lines", "2")
    assert {json.loads(line)["node"] for line in told.out.splitlines()} == {"broker-2"}
    inside = kept.ask("shell", "broker-2", "--", "ip", "-4", "-br", "addr")
    (address,) = [line.split()[1] for line in status.out.splitlines() if "broker-2" in line]
    assert address in inside.out
    kept.belongings.look()
    down = kept.ask("down")
    assert down.code == 0, down.words
    assert kept.up.process.wait(run_command.LONGEST_S) == 0
    run_command.wait(lambda: not kept.belongings.left(), GONE_WITHIN_S, "everything ending")
    again = kept.ask("status")
    assert again.code == 254
    assert "is down" in again.err


def test_ctrl_c_takes_it_down(kept: Kept) -> None:
    """The command that raised it ends it, and says so."""
    kept.serving()
    kept.belongings.look()
    kept.up.signal(signal.SIGINT)
    assert "is down" in "".join(kept.table)
    assert kept.up.process.wait(run_command.LONGEST_S) == 0
    run_command.wait(lambda: not kept.belongings.left(), GONE_WITHIN_S, "everything ending")


def test_a_killed_command_leaves_nothing(kept: Kept) -> None:
    """kill -9 of the command that stays: the keeper's standard input ends, and it goes."""
    kept.serving()
    kept.belongings.look()
    kept.up.signal(signal.SIGKILL)
    run_command.wait(lambda: not kept.belongings.left(), GONE_WITHIN_S, "everything ending")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """One cluster for tests that only ask about it."""
    cluster = Kept(tmp_path_factory.mktemp("served"))
    try:
        cluster.serving()
        yield cluster
    finally:
        cluster.up.close()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["logs", "nobody"], "there is no node 'nobody'; there are: "),
        (["logs", "broker-1", "nothing.log"], "broker-1 has no file nothing.log; there are: "),
        (["logs", "client-1"], "client-1 has no file events.jsonl"),
        (["shell", "nobody"], "there is no node 'nobody'; there are: "),
    ],
)
def test_what_is_not_there_is_said(served: Kept, words: list[str], sentence: str) -> None:
    """One sentence and exit code 254."""
    refused = served.ask(*words)
    assert refused.code == 254, refused.words
    assert sentence in refused.err


def test_the_newest_that_runs_is_asked(served: Kept) -> None:
    """One that was raised later and is gone does not hide the one that runs."""
    later = served.runs / "clusters" / "99991231-235959-trial"
    shutil.copytree(served.runs / "clusters" / "latest", later, ignore=_special_files)
    status = served.ask("status")
    assert status.code == 0, status.words
    refused = served.ask("status", "--cluster", str(later))
    assert refused.code == 254
    assert "was killed; " in refused.err
    assert "heal" in refused.err


def _special_files(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not Path(folder, name).is_file()]


def test_without_a_cluster_there_is_nothing_to_ask(tmp_path: Path) -> None:
    """One sentence that says how to raise one."""
    refused = run_command.seatrial("cluster", "status", "--runs", tmp_path, runs=tmp_path)
    assert refused.code == 254
    assert "cluster up" in refused.err
