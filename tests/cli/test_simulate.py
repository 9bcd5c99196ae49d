"""`seatrial simulate` through the real console script, with real worlds: what fails is kept and can
be repeated, what makes no sense is refused before anything runs, and it can be stopped."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import run_command

from harness.campaign.run import Campaign, conduct
from harness.campaign.simulation import simulate
from harness.cli.commands.simulate import _campaign, command
from harness.history.messages import read_messages
from harness.history.rundir import RunDir
from harness.judge.campaign_evidence import LOG
from harness.run.interrupts import stop_requested
from harness.trial import Trial

ROOT = Path(__file__).resolve().parents[2]
SEATRIAL = Path(sys.executable).with_name("seatrial")
LOSING = (
    *("--profile", "unsafe-default"),
    *("--plan", str(ROOT / "suites" / "plans" / "isolate-then-kill.toml"), "--load", "rate=50"),
)

Script = Callable[..., "CompletedProcess[str]"]


def told(ran: "CompletedProcess[str]") -> dict[str, Any]:
    return dict(json.loads(ran.stdout))


@pytest.mark.bed
def test_a_campaign_is_carried_out_and_noted(seatrial: Script, tmp_path: Path) -> None:
    """Its summary counts, each seed once; a line for it is in the folder of runs, with the digests
    of its worlds; the job's page has it too."""
    page = tmp_path / "page.md"
    short = ("simulate", "--seeds", "1..3,2", "--duration", "4s", "--nodes", "broker=3")
    ran = seatrial(*short, "--json", "--summary", str(page))
    assert ran.returncode == 0, ran.stderr
    summary = told(ran)
    assert summary["seeds"] == 3
    assert summary["profile"] == "sync-flush"
    assert sum(summary["faults"]["planned"].values()) > 3
    assert summary["faults_counted"] > 0
    assert summary["acknowledged"] > 0
    assert summary["simulated_hours"] > 0
    assert summary["failures"] == summary["lost"] == summary["runs"] == {}
    (line,) = (tmp_path / "runs" / LOG).read_text().splitlines()
    assert len({row["digest"] for row in json.loads(line)["rows"]}) == 3
    assert summary["total"]["seeds"] == 3
    assert summary["looks"]["ONE_MASTER"] > 0
    assert not list((tmp_path / "runs").glob("*.part"))
    assert page.read_text().startswith("## 3 of 3 seeds of flotilla, profile sync-flush")


@pytest.mark.bed
def test_a_seed_that_fails_can_be_repeated(seatrial: Script, tmp_path: Path) -> None:
    """Its folder is a run: judged, and carried out anew it is the same run."""
    ran = seatrial("simulate", "--seeds", "5", *LOSING, "--json")
    assert ran.returncode == 1, ran.stderr
    (seeds,) = told(ran)["failures"].values()
    assert seeds == [5]
    run = RunDir.open(Path(told(ran)["runs"]["5"]))
    assert json.loads(run.verdict_file.read_text())["verdict"] == "invalid"
    recording = read_messages(run)
    assert recording
    assert recording.messages
    again = simulate(run.trial(), run.plan_file.read_text(), tmp_path / "again")
    assert again.digest == run.state()["digest"]
    assert again.failure


@pytest.mark.parametrize(
    ("options", "within_s"),
    [
        ([], 7.5),
        (["--set", "timeScale=1"], 30.0),
        (["--recover-within", "12s"], 12.0),
        (["--plan", LOSING[3]], 30.0),
    ],
)
def test_a_world_has_less_time_to_recover(options: list[str], within_s: float) -> None:
    """Five times what it takes to notice a silent node, unless the user or the plan says."""
    assert campaign_of("messages", *options).base.recover_within_s == within_s


def test_a_silent_consumer_is_noticed_later() -> None:
    """Members of a group count until `brokerChannelExpiredTime`, 12 s of a world, has passed."""
    assert campaign_of("rebalance").base.recover_within_s == 30.0
    bases = campaign_of().bases
    assert {b.recover_within_s for b in bases if b.workload == "rebalance"} == {30.0}
    assert {b.recover_within_s for b in bases if b.workload != "rebalance"} == {7.5}
    given = campaign_of("--recover-within", "9s").bases
    assert {b.recover_within_s for b in given} == {9.0}


def test_demands_are_those_of_a_workload() -> None:
    """Other workloads do not check them, so none is drawn."""
    assert len({base.workload for base in campaign_of().bases}) > 5
    for option in (("--contract", "no-loss"), ("--checkers", "loss")):
        assert {base.workload for base in campaign_of(*option).bases} == {"messages"}


@pytest.mark.parametrize(
    ("options", "guided"),
    [
        (["--seeds", "1..17"], True),
        (["--seeds", "1..16"], False),
        (["--seeds", "1..16", "--guided"], True),
        (["--seeds", "1..99", "--drawn"], False),
        (["--seeds", "1..16,18,19"], False),
        (["--plan", LOSING[3]], False),
    ],
)
def test_which_campaigns_are_guided(options: list[str], guided: bool) -> None:
    """Those of many seeds, unless the user says, or a search would not be possible."""
    assert campaign_of(*options).guided == guided


def campaign_of(*asked: str) -> Campaign:
    """The campaign of a command with these arguments."""
    names = ["-h", "--help"]  # as usual, since click remembers them for all later help
    with command.make_context("simulate", [*asked], help_option_names=names) as context:
        flags = dict(context.params)
        for name in ("runs", "as_json", "summary", "page"):
            flags.pop(name)
        own = ("what", "mutant", "seeds", "jobs", "within_s", "to_the_end", "guided")
        return _campaign(**{name: flags.pop(name) for name in own}, flags=flags)


@contextmanager
def endless(runs: Path) -> Iterator["subprocess.Popen[str]"]:
    """A campaign of very many seeds, of which the first is done. It ends with the block."""
    many = ("--drawn", "--seeds", "1..9999", "--duration", "3s", "--jobs", "1")
    arguments = ["simulate", *many, "--runs", str(runs)]
    with subprocess.Popen(
        [SEATRIAL, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            assert running.stderr
            assert any(" of 9,999 seeds" in line for line in running.stderr)
            yield running
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)


def test_ctrl_c_before_the_first_seed_is_not_lost(tmp_path: Path) -> None:
    """It comes while the campaign is prepared: then no seed is begun."""
    with stop_requested() as stopped:
        os.kill(os.getpid(), signal.SIGINT)
        campaign = Campaign(Trial(hosts="simulated", duration_s=3.0), (1, 2), 1)
        state = conduct(campaign, tmp_path, lambda _: None, stopped=stopped)
    assert state.interrupted
    assert not state.rows


@pytest.mark.bed
def test_ctrl_c_ends_it_with_what_is_done(tmp_path: Path) -> None:
    """Soon, and what is done counts: it is told and noted. Undecided, for nothing failed."""
    with endless(tmp_path) as running:
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=run_command.LONGEST_S)
    assert running.returncode == 2
    assert "stopped by request" in out
    (line,) = (tmp_path / LOG).read_text().splitlines()
    assert json.loads(line)["rows"]


@pytest.mark.bed
def test_killed_it_goes_on_where_it_was(seatrial: Script, tmp_path: Path) -> None:
    """A command of its kind does the rest: what was finished is neither lost nor done again."""
    short = ("--duration", "3s", "--jobs", "1")
    with subprocess.Popen(
        [SEATRIAL, "simulate", "--drawn", "--seeds", "1..999", *short],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
    ) as running:
        parts = (tmp_path / "runs").glob
        run_command.wait(
            lambda: any(part.read_bytes() for part in parts("*.part")),
            run_command.LONGEST_S,
            "a finished seed",
        )
        running.kill()
    assert not (tmp_path / "runs" / LOG).exists()
    ran = seatrial("simulate", "--seeds", "1..3", *short, "--json")
    assert ran.returncode == 0, ran.stderr
    resumed = told(ran)["seeds_resumed"]
    assert resumed >= 1
    seeds = "1 seed was" if resumed == 1 else f"{resumed} seeds were"
    assert f"{seeds} finished by an interrupted campaign of this kind" in ran.stderr
    (line,) = (tmp_path / "runs" / LOG).read_text().splitlines()
    assert {1, 2, 3} <= {row["seed"] for row in json.loads(line)["rows"]}


@pytest.mark.bed
def test_stopped_by_all_and_again_it_is_noted(tmp_path: Path) -> None:
    """SIGTERM to the whole group, then a closed terminal: no seed is lost, and all is noted."""
    with endless(tmp_path) as running:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            os.killpg(running.pid, number)
        out, _ = running.communicate(timeout=run_command.LONGEST_S)
    assert running.returncode == 2
    assert "stopped by request" in out
    assert " 0 lost" in out
    (line,) = (tmp_path / LOG).read_text().splitlines()
    assert json.loads(line)["rows"]


@pytest.mark.bed
def test_unheard_it_is_noted(tmp_path: Path) -> None:
    """Where the summary can not be said, for a disk is full, the seeds still count."""
    arguments = ["simulate", "--seeds", "1", "--duration", "3s", "--runs", str(tmp_path)]
    page = tmp_path / "page.md"
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [SEATRIAL, *arguments, "--summary", str(page)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ran.returncode == 255, ran.stderr
    assert page.read_text().startswith("## 1 of 1 seed of")
    assert len((tmp_path / LOG).read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--runs", "file"], 255),
        (["--summary", "no/such/folder/page.md"], 254),
        (["--summary", "."], 254),
    ],
)
def test_where_to_write_is_made_sure_of_first(
    seatrial: Script, tmp_path: Path, arguments: list[str], code: int
) -> None:
    """One sentence before a seed has run."""
    (tmp_path / "file").write_text("no folder")
    ran = seatrial("simulate", "--seeds", "1..1000", *arguments)
    assert ran.returncode == code, ran.stderr
    (line,) = ran.stderr.splitlines()
    assert arguments[1] in line
    assert re.search("choose another folder|name a file in a folder that exists", line)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--faults", "pauze"], "unknown fault 'pauze' (did you mean pause?)"),
        (["massages"], "unknown workload or trial 'massages' (did you mean messages?)"),
        (["--system", "flotila"], "unknown system 'flotila' (did you mean flotilla?)"),
        (["--profile", "sink-flush"], "unknown profile 'sink-flush' (did you mean sync-flush?)"),
        (["--mutant", "double-vole"], "(did you mean double-vote?)"),
        (["--targets", "admiral"], "admiral"),
        (["--load", "weight=3"], "load.weight"),
        (["--bed", "colour=3"], "bed.colour"),
        (["--nodes", "broker=0"], "nodes.broker"),
        (["--duration", "1s"], "no room for a fault"),
        (["--seeds", "9..1"], "no seed"),
        (["--jobs", "0"], "--jobs"),
        (["--time", "soon"], "not a duration"),
        (["--hosts", "docker"], "--hosts"),
        (["no-such.toml"], "no-such.toml"),
        (["--targets", "broker-4"], "broker-4"),
        (["queue"], "dequeue"),
        (["--guided", "--seeds", "1,3"], "its seeds have no gaps"),
        (["--guided", *LOSING], "leave --plan out"),
    ],
)
def test_what_makes_no_sense_is_refused(
    seatrial: Script, tmp_path: Path, arguments: list[str], says: str
) -> None:
    """In one sentence, with 254, and before anything has run or been written."""
    ran = seatrial("simulate", *arguments)
    assert ran.returncode == 254, ran.stderr
    (line,) = ran.stderr.splitlines()
    assert says in line
    assert not (tmp_path / "runs").exists()
