"""Campaigns: seeds in worker processes, deaths among them, and what is made of the results.

Workers do what `seedlings` says, so that every way to fail is to be had; tests/cli/test_simulate.py
has the real thing.
"""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from campaigning import BASE, MUTANT, campaign, conducted, shown, watched
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from seedlings import WORLD_S, Sow

from harness.campaign.run import Campaign, CampaignState, SeedRunner, conduct
from harness.campaign.tally import CampaignTotals, SeedResult, ranges
from harness.campaign.view import CampaignScreen, draw, headline, markdown, open_summary
from harness.cli.options import Seeds
from harness.errors import BadRequest, BedFailed
from harness.history.runs import adopt_run, check_writable
from harness.judge.campaign_evidence import sum_campaigns
from harness.trial import Trial

# ---------------------------------------------------------------------------------- seeds, done


def test_every_seed_is_carried_out_once(tmp_path: Path) -> None:
    """And added up; what did not fail leaves nothing behind."""
    state = conducted(campaign(jobs=2), tmp_path, Sow())
    assert sorted(row.seed for row in state.rows) == [1, 2, 3, 4, 5, 6]
    assert state.tally.faults == 12
    assert state.tally.seconds == 6 * WORLD_S
    assert state.exit_code == 0
    assert not list(tmp_path.iterdir())
    assert state.peak_bytes > 0


def test_seeds_that_fail_are_kept(tmp_path: Path) -> None:
    """As folders among the runs, under their seed's name; the campaign ends with 1."""
    state = conducted(campaign(), tmp_path, Sow(failing=(2, 5)))
    assert state.exit_code == 1
    assert state.tally.failures == {"LOST_ACKED": (2, 5)}
    for seed, run in state.runs.items():
        assert run.parent == tmp_path
        assert run.name.endswith(f"-seed-{seed}")
        assert (run / "trial.toml").read_text() == f"seed = {seed}\n"
    text = shown(state, tmp_path)
    assert "LOST_ACKED: 2,5" in text
    assert f"report {state.runs[2]}" in text


def test_of_many_failures_of_a_class_a_few_are_kept(tmp_path: Path) -> None:
    """Enough to look into; the others are known by their seeds."""
    state = conducted(campaign(14), tmp_path, Sow(failing=tuple(range(1, 15))))
    assert len(state.runs) == 10
    assert state.tally.failures == {"LOST_ACKED": tuple(range(1, 15))}
    assert "10 of a class are kept" in shown(state, tmp_path)


@pytest.mark.parametrize(
    ("work", "says"),
    [
        (Sow(deadly=(3,)), "killed by SIGKILL"),
        (Sow(greedy=(3,)), "MemoryError"),
        (Sow(broken=(3,)), "RuntimeError: the lead was brought about too hard"),
    ],
)
def test_a_worker_that_fails_loses_one_seed(tmp_path: Path, work: Sow, says: str) -> None:
    """And says so; a campaign that lost seeds has decided nothing, unless another failed."""
    state = conducted(campaign(jobs=2), tmp_path, work)
    assert list(state.lost) == [3]
    assert says in state.lost[3]
    assert sorted(row.seed for row in state.rows) == [1, 2, 4, 5, 6]
    assert state.exit_code == 2
    assert "seed 3 was lost" in shown(state, tmp_path)


def test_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No new seeds are begun then, and one that never ends is given up after a while."""
    monkeypatch.setattr("harness.campaign.run.GRACE_S", 1.0)
    limit_s = 3600.0

    def time_flies(state: CampaignState) -> None:
        if 2 in state.begun and state.took_s < limit_s:
            state.began_s -= limit_s

    asked = campaign(100, jobs=2, within_s=limit_s)
    state = conduct(asked, tmp_path, time_flies, Sow(endless=(2,)))
    assert 2 not in {row.seed for row in state.rows}
    assert state.late
    assert state.not_begun
    assert 2 in state.abandoned
    assert state.exit_code == 2
    text = shown(state, tmp_path)
    assert "as many as fitted into the time" in text
    assert f"{len(state.abandoned)} abandoned" in text
    assert "abandoned, because the campaign ended while they were running: " in text
    assert state.plain()["abandoned"] == state.abandoned


def test_nothing_done_decides_nothing(tmp_path: Path) -> None:
    """A campaign that had no time for a single seed is undecided."""
    state = conducted(campaign(within_s=1e-6), tmp_path, Sow())
    assert not state.rows
    assert state.exit_code == 2


# -------------------------------------------------------------------------------------- mutants


def test_a_mutant_should_be_caught(tmp_path: Path) -> None:
    """It ends at the first failure, and tells after how many counted faults that came."""
    state = conducted(campaign(100, MUTANT, jobs=2), tmp_path, Sow(failing=(4, 60)))
    assert state.exit_code == 0
    assert len(state.rows) < 20
    assert state.faults_to_catch == 4 * 2
    text = shown(state, tmp_path)
    assert "mutant one-ack was caught by seed 4 within 8 counted faults: 5 were lost" in text


def test_a_mutant_that_gets_away_is_not_as_expected(tmp_path: Path) -> None:
    state = conducted(campaign(base=MUTANT), tmp_path, Sow())
    assert state.exit_code == 1
    assert "was not caught in 12 faults" in shown(state, tmp_path)


@pytest.mark.parametrize(
    "work",
    [
        *(Sow(stopping=(2,)), Sow(doubtful=(2,)), Sow(stopping=(1, 2, 3))),
        Sow(stopping=(2,), stopped="NO_OK_AFTER"),
    ],
)
def test_a_mutant_is_caught_by_a_finding_only(tmp_path: Path, work: Sow) -> None:
    """Neither by a world that stopped, or stood still, nor by one that proves nothing: that decides
    nothing."""
    state = conducted(campaign(base=MUTANT), tmp_path, work)
    assert state.caught is None
    assert len(state.rows) == 6
    assert state.exit_code == 2
    assert "the result is undecided" in shown(state, tmp_path)


def test_a_mutant_is_caught_by_its_own_finding(tmp_path: Path) -> None:
    """Another finding may have come without it, so that decides nothing."""
    other = replace(MUTANT, settings={"mutant": "double-vote"})
    state = conducted(campaign(base=other), tmp_path, Sow(failing=(4,)))
    assert state.campaign.own_finding not in ("", "LOST_ACKED")
    assert (state.caught, state.inconclusive, state.exit_code) == (None, 1, 2)
    assert f"1 seed failed without {state.campaign.own_finding}" in shown(state, tmp_path)


def test_of_a_sound_build_no_world_may_stop(tmp_path: Path) -> None:
    assert conducted(campaign(), tmp_path, Sow(stopping=(2,))).exit_code == 1


def test_a_mutant_may_be_caught_again_and_again(tmp_path: Path) -> None:
    """When all seeds are asked for."""
    asked = campaign(base=MUTANT, to_the_end=True)
    state = conducted(asked, tmp_path, Sow(failing=(1, 6)))
    assert len(state.rows) == 6
    assert state.faults_to_catch == 2


def test_what_proves_nothing_does_not_count(tmp_path: Path) -> None:
    """Its faults neither here nor in the sum; few such seeds change nothing else."""
    state = conducted(campaign(10), tmp_path, Sow(doubtful=(3,)))
    assert state.exit_code == 0
    assert (state.tally.seeds, state.tally.doubtful, state.tally.clean) == (10, 1, 9)
    assert state.tally.faults == 2 * 9
    assert state.tally.acknowledged == 5 * 9
    assert sum_campaigns(state, tmp_path).tally.proved == 9
    text = shown(state, tmp_path)
    assert "0 failed, 0 excused, 1 unproven, 0 lost, 0 abandoned, 9 clean" in text
    assert "CREW_LOST: 1 seed " in text
    assert state.plain()["unproven"] == {"CREW_LOST": 1, "NO_FINAL_READ": 1}
    assert "the result is undecided" not in text
    assert "1 unproven" in headline(state)


def test_too_many_that_prove_nothing_decide_nothing(tmp_path: Path) -> None:
    """More than a tenth of the seeds; but a failure is a failure."""
    state = conducted(campaign(), tmp_path, Sow(doubtful=(3,)))
    assert state.exit_code == 2
    assert "1 seed of 6 proved nothing, which is more than 10%" in shown(state, tmp_path)
    state = conducted(campaign(), tmp_path, Sow(failing=(3,), doubtful=(3, 4)))
    assert state.exit_code == 1
    assert (state.tally.failed, state.tally.doubtful) == (1, 1)


# -------------------------------------------------------------------------------- what is said


@given(st.sets(st.integers(0, 50), min_size=1))
def test_seeds_are_told_as_they_are_asked_for(seeds: set[int]) -> None:
    """What a summary says can be given to --seeds."""
    assert set(Seeds()(ranges(seeds))) == seeds


def test_a_row_is_read_as_it_was_written() -> None:
    row = SeedResult(
        *(3, "d1", ("LOST_ACKED",), ("CREW_LOST",), "5 lost", 9.5, 1.5),
        *({"kill": 3}, {"kill": 2}, {"set": 4}, 9, 8, {"ONE_LEADER": 7}, 1, {"ack-late": 2}),
    )
    assert SeedResult.read(json.loads(json.dumps(row.plain()))) == row
    assert SeedResult.read(SeedResult(0).plain()) == SeedResult(0), "a seed like any other"


def test_a_tally_of_nothing_is_nothing() -> None:
    """No division by what is not there."""
    tally = CampaignTotals.of([])
    assert (tally.faults_per_minute, tally.pace) == (0, 0)
    assert set(tally.per_thousand().values()) == {0}
    assert tally.per_thousand_seeds() == {"failed": 0}
    idle = CampaignTotals.of([SeedResult(seed=1, acknowledged=500, events={"election": 1})])
    assert set(idle.per_thousand().values()) == {0}, "nothing came of faults that were not there"


def test_how_often_is_said(tmp_path: Path) -> None:
    """Failures and faults for each 1,000 seeds that are evidence; looks of each law, and the law
    that never had anything to look at; choices, and the point where none was made: as text, as
    Markdown and for programs."""
    state = conducted(campaign(5), tmp_path, Sow(failing=(2,), doubtful=(3,)))
    late = replace(
        state, campaign=replace(state.campaign, guided=True), late=True, interrupted=True
    )
    first = markdown(late, sum_campaigns(state, tmp_path)).splitlines()[0]
    assert first.endswith("as many as fitted into the time")
    page = markdown(state, sum_campaigns(state, tmp_path))
    for text in (shown(state, tmp_path), page):
        assert "250 failed, 2,000 kill" in text
        assert "0 CUT_TOO_LOW, 16 ONE_LEADER" in text
        assert "never checked CUT_TOO_LOW" in " ".join(text.split())
        assert "4 events that no invariant could check" in text
        assert "choices 1,204 made at 2 points, never: sync-late" in " ".join(text.split())
    plain = state.plain()
    assert plain["per_1000_seeds"] == {"failed": 250.0, "kill": 2000.0}
    assert (plain["looks"], plain["unseen"]) == ({"CUT_TOO_LOW": 0, "ONE_LEADER": 16}, 4)
    assert plain["choices"] == {"ack-late": 1200, "pull-fewer": 4, "sync-late": 0}


@pytest.mark.parametrize("width", [30, 40])
def test_no_figure_is_cut(tmp_path: Path, width: int) -> None:
    """On a narrow terminal words go to the next line, and no number loses a digit."""
    state = conducted(campaign(), tmp_path, Sow(failing=(2,), doubtful=(3,)))
    state.peak_bytes = 4_321_000_000
    state.tally = replace(state.tally, operations=123_456_789, acknowledged=98_765_432)
    text = shown(state, tmp_path, width)
    for figure in ("123,456,789", "98,765,432", "4,321", "18", "10", "LOST_ACKED", "NO_FINAL_READ"):
        assert figure in text, text
    assert "…" not in text
    figures = text[: text.index("NO_FINAL_READ")].splitlines()
    assert max(len(line.rstrip()) for line in figures) <= width


def test_one_is_not_many(tmp_path: Path) -> None:
    """1 seed, 1 fault."""
    text = shown(conducted(campaign(1), tmp_path, Sow(failing=(1,))), tmp_path)
    assert "1 of 1 seed of flotilla" in text
    assert "1 seed failed, it is kept" in text
    assert "1 seeds" not in text


def test_progress_is_drawn(tmp_path: Path) -> None:
    """In a terminal as a panel, elsewhere as lines; a failure has a line of its own."""
    state = conducted(campaign(), tmp_path, Sow(failing=(2,), deadly=(3,)))
    out = StringIO()
    console = Console(file=out, width=150)
    with CampaignScreen(console) as watch:
        watch(state)
        watch(state)
    text = out.getvalue()
    assert text.count("seed 2: LOST_ACKED: 5 were lost; kept: ") == 1
    assert text.count("seed 3 was lost: ") == 1
    console.print(draw(state))
    assert "LOST_ACKED: 2" in out.getvalue()
    assert "profile sync-flush" in out.getvalue()


def test_a_campaign_without_seeds_is_refused() -> None:
    with pytest.raises(BadRequest, match="--seeds"):
        Campaign(BASE, ()).refuse()


def test_a_seed_that_does_not_fit_is_found_before_any_runs() -> None:
    """A target that the first seed has and another has not; with as many nodes everywhere, it is
    fine."""
    named = replace(BASE, duration_s=40.0, targets=("broker-3",))
    first = next(seed for seed in range(1, 40) if _fits(seed, named))
    with pytest.raises(BadRequest, match=r"seed \d+ draws other sizes: .*broker-3.*--nodes"):
        Campaign(named, (first, *range(1, 40))).refuse()
    Campaign(replace(named, nodes={"broker": 3}), (1, 2, 3)).refuse()


def _fits(seed: int, base: Trial) -> bool:
    try:
        Campaign(base, (seed,)).refuse()
    except BadRequest:
        return False
    return True


# ------------------------------------------------------------------------------- nothing is lost


def test_other_code_ends_a_campaign(tmp_path: Path) -> None:
    """A worker that finds another edition does nothing; no more seeds are begun."""
    asked = campaign(100, jobs=1)
    state = conduct(asked, tmp_path, lambda state: None, SeedRunner(BASE, edition="0ld"))
    assert not state.rows
    assert len(state.lost) == 1
    assert state.exit_code == 2
    text = shown(state, tmp_path)
    assert "the code has changed since the campaign began" in text
    assert "the campaign was ended" in text


def test_code_that_changes_during_a_seed_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it imported last may be other code already, so the edition is looked at again."""
    editions = ["now", "later"]
    monkeypatch.setattr("harness.campaign.run._edition_of", lambda modules: editions.pop(0))
    monkeypatch.setattr(SeedRunner, "_judged", lambda self, seed, scratch: (SeedResult(seed), None))
    with pytest.raises(BadRequest, match="code has changed"):
        SeedRunner(BASE, edition="now")(1, tmp_path)


def test_when_no_worker_lives_it_is_given_up(tmp_path: Path) -> None:
    """The first seeds all lost mean that all would be."""
    state = conducted(campaign(50, jobs=1), tmp_path, Sow(deadly=tuple(range(1, 51))))
    assert len(state.lost) == 5
    assert state.exit_code == 2
    assert "the first 5 seeds were all lost" in shown(state, tmp_path)


def test_a_seed_that_can_not_be_kept_still_counts(tmp_path: Path) -> None:
    """It is said, the campaign goes on, and nothing is left behind."""
    blocked = tmp_path / "runs"
    blocked.write_text("no folder")
    state = conducted(campaign(), blocked, Sow(failing=(2, 5)))
    assert sorted(state.unkept) == [2, 5]
    assert len(state.rows) == 6
    assert state.exit_code == 1
    assert "seed 2 failed and is not kept: " in shown(state, tmp_path)
    assert "seed 2: LOST_ACKED: 5 were lost; not kept: " in watched(state)


def test_half_a_run_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that gets full while a run is moved leaves nothing of it, and says why in words."""
    run, runs = tmp_path / "run", tmp_path / "runs"
    run.mkdir()
    (run / "trial.toml").write_text("")
    (run / "plan.toml").symlink_to("/dev/full/nowhere")
    with pytest.raises(BedFailed, match=r"cannot be kept under .*: .*Not a directory"):
        adopt_run(run, "seed-1", runs)
    assert not list(runs.iterdir())
    assert run.exists()


def test_what_can_not_be_written_is_known_first(tmp_path: Path) -> None:
    """Folder of runs and summary, in one sentence that says what to do."""
    (tmp_path / "file").write_text("")
    with pytest.raises(BedFailed, match="free space or choose another folder with --runs"):
        check_writable(tmp_path / "file" / "runs")
    with (
        pytest.raises(BadRequest, match="name a file"),
        open_summary(tmp_path / "no" / "page"),
    ):
        raise AssertionError
    check_writable(tmp_path / "new" / "runs")
    assert not list((tmp_path / "new" / "runs").iterdir())
