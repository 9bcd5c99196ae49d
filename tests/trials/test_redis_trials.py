"""Software that Seatrial was not written for: Redis with Sentinel, and Valkey as a cluster, on
local hosts.

It loses what it acknowledged when its primary is cut off, and nothing otherwise. All trials are
under way at once, since they mostly wait. `tests/acceptance/host_trials.py --only redis-split`
shows the same on Docker and SSH hosts.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import run_command
import trial_assertions
import trial_scenarios

pytestmark = pytest.mark.bed

PROGRAMS = ("sh", "ip", "mkdir", "df", "env")  # all that nodes need of a PATH
Voyages = Mapping[str, "Future[run_command.FinishedCommand]"]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Voyages]:
    if not shutil.which("redis-server"):
        pytest.skip("redis-server is missing; apt-get install redis-server")
    folder = tmp_path_factory.mktemp("redis")
    with ThreadPoolExecutor(len(trial_scenarios.REDIS)) as pool:
        yield {
            name: pool.submit(run_command.seatrial, *asked, runs=folder / name)
            for name, asked in trial_scenarios.REDIS.items()
        }


def test_without_faults_nothing_is_missing(commands: Voyages) -> None:
    """Valid, with messages acknowledged, and the three copies compared."""
    done = commands["redis-quiet"].result()
    trial_assertions.whole(done, least=100)
    stats = {row["checker"]: row["stats"] for row in done.verdict["checkers"]}
    assert stats["replicas"]["compared"] >= 100


def test_a_primary_that_is_cut_off_loses_what_it_acknowledges(commands: Voyages) -> None:
    """Invalid, and as many as a script counts that shares no code; a replica was elected while the
    cut was on, and its epoch was not the old one's."""
    done = commands["redis-split"].result()
    trial_assertions.lost_what_was_acknowledged(done, least=100)
    (fault,) = run_command.faults(done.run)
    assert fault["state"] == "installed"
    elections = [row for row in run_command.table(done.run, "events") if row["kind"] == "election"]
    elections.sort(key=lambda row: row["t"])
    before = [row["fields"] for row in elections if row["t"] < fault["begin"]]
    during = [row["fields"] for row in elections if fault["begin"] < row["t"] < fault["healed"]]
    assert before[-1] != during[0]
    story = run_command.seatrial("explain", done.run, runs=done.runs)
    assert story.code == 0, story.words
    assert "elected for epoch 1" in story.out


def test_so_do_streams_and_their_groups(commands: Voyages) -> None:
    """And a group is given again what it had acknowledged to the primary that was cut off."""
    done = commands["redis-streams-split"].result()
    trial_assertions.lost_what_was_acknowledged(done, least=50)
    assert done.findings["ACKED_AGAIN"]
    stats = {row["checker"]: row["stats"] for row in done.verdict["checkers"]}
    assert stats["redelivery"]["acknowledged"] >= 100
    assert stats["replicas"]["compared"] >= 100


def test_a_shard_whose_primary_is_cut_off_loses_what_it_acknowledges(commands: Voyages) -> None:
    """By the election of its replica, while the cut was on; the copies of all shards are compared,
    each with those of its own."""
    done = commands["valkey-cluster-split"].result()
    trial_assertions.lost_what_was_acknowledged(done, least=10)
    (fault,) = run_command.faults(done.run)
    elections = [row for row in run_command.table(done.run, "events") if row["kind"] == "election"]
    hit = {node for nodes in json.loads(fault["targets"]).values() for node in nodes}
    sets = json.loads((done.run / "names.json").read_text())["sets"]
    shards = [name for name, of in sets.items() if hit & {*of["nodes"]}]
    fields = [json.loads(row["fields"]) for row in elections if row["t"] > fault["begin"]]
    assert shards[0] in [each["brokerName"] for each in fields]
    stats = {row["checker"]: row["stats"] for row in done.verdict["checkers"]}
    assert stats["replicas"]["compared"] >= 100


def test_a_missing_redis_is_one_sentence(tmp_path: Path) -> None:
    """What is missing, where, and what to install."""
    (tmp_path / "bin").mkdir()
    for program in PROGRAMS:
        (tmp_path / "bin" / program).symlink_to(str(shutil.which(program)))
    env = {**os.environ, "PATH": str(tmp_path / "bin")}
    done = run_command.seatrial(
        *trial_scenarios.REDIS["redis-quiet"], runs=tmp_path / "runs", env=env
    )
    assert done.code == 255, done.words
    said = done.err.strip().splitlines()[-1]
    assert "has no redis-server; to get it: install Debian's package redis-server" in said
