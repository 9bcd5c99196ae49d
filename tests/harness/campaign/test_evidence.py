"""Evidence adds up over campaigns of one kind, and what is finished outlives a campaign that is
killed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from campaigning import (
    BASE,
    MUTANT,
    campaign,
    conducted,
    noted_and_summed,
    shown,
    state_of,
    watched,
)
from seedlings import Sow

from harness.campaign.checkpoint import CampaignCheckpoint, open_checkpoint
from harness.campaign.run import Campaign, CampaignState, conduct
from harness.errors import BedFailed
from harness.judge.campaign_evidence import LOG, record_campaign, sum_campaigns

# ------------------------------------------------------------------------------------- adding up


def test_evidence_adds_up_and_no_seed_counts_twice(tmp_path: Path) -> None:
    """Over campaigns of the same kind; if a seed was ever judged a failure, it stays one."""
    record_campaign(conducted(campaign(4), tmp_path, Sow(failing=(2,))), tmp_path)
    total = noted_and_summed(campaign(6), tmp_path, Sow())
    assert (total.seeds, total.tally.faults) == (6, 12)
    assert total.tally.failures == {"LOST_ACKED": (2,)}


@pytest.mark.parametrize(
    "other",
    [
        {"nodes": {"broker": 3}},
        {"bed": {"latency_ms": 3.0}},
        {"load": {"rate": 1.0}},
        {"settings": {"mutant": "double-vote"}},
        {"settings": {"timeScale": 0.2}},
        {"profile": "allack-min2"},
        {"duration_s": 3.0},
        {"recover_within_s": 31.0},
        {"faults": ("kill",)},
    ],
    ids=str,
)
def test_only_what_is_of_one_kind_is_summed(tmp_path: Path, other: dict[str, Any]) -> None:
    """Another option makes other worlds, which are harder or easier: nothing is said of the sum."""
    record_campaign(state_of(campaign(4)), tmp_path)
    state = state_of(campaign(2, replace(BASE, **other)))
    assert sum_campaigns(state, tmp_path).seeds == 2
    assert "all campaigns of this kind" not in shown(state, tmp_path)


def test_another_plan_is_another_kind_and_the_order_of_options_is_not(tmp_path: Path) -> None:
    """What is given in other words makes the same worlds."""
    one = replace(BASE, load={"rate": 8.0, "queues": 1})
    other = replace(BASE, load={"queues": 1, "rate": 8.0})
    record_campaign(state_of(campaign(4, one)), tmp_path)
    assert sum_campaigns(state_of(campaign(2, other)), tmp_path).seeds == 4
    assert sum_campaigns(state_of(campaign(2, other, plan="fault = []")), tmp_path).seeds == 2


def test_what_came_to_nothing_is_in_the_sum(tmp_path: Path) -> None:
    """Lost, abandoned and unproven seeds stand beside those that prove something, until a campaign
    has finished them."""
    state = conducted(campaign(6), tmp_path, Sow(deadly=(2,), doubtful=(3, 4)))
    state.begun += [7, 8]
    record_campaign(state, tmp_path)
    state = conducted(campaign(1), tmp_path, Sow())
    total = sum_campaigns(state, tmp_path)
    assert (total.lost, total.abandoned) == ({2}, {7, 8})
    assert (total.seeds, total.plain()["seeds_lost"]) == (8, 1)
    text = shown(state, tmp_path)
    assert "8 seeds, 0 failed, 0 excused, 2 unproven, 1 lost, 2 abandoned, 3 clean" in text
    state = conducted(campaign(8), tmp_path, Sow(deadly=(2, 8), doubtful=(3,)))
    total = sum_campaigns(state, tmp_path)
    assert (total.lost, total.abandoned) == ({2, 8}, set())
    assert (total.tally.seeds, total.tally.doubtful, total.tally.clean) == (6, 1, 5)


@pytest.mark.parametrize(
    "part", [{"contract": ("no-loss",)}, {"checkers": ("loss",)}, {"contract": ()}]
)
def test_what_is_judged_in_part_is_no_evidence(tmp_path: Path, part: dict[str, Any]) -> None:
    """Neither a part of the contract nor some of the checkers; that is said."""
    record_campaign(conducted(campaign(2), tmp_path, Sow()), tmp_path)
    lenient = conducted(campaign(base=replace(BASE, **part)), tmp_path, Sow())
    assert sum_campaigns(lenient, tmp_path).seeds == 0
    assert "it is not added to the evidence" in shown(lenient, tmp_path)
    record_campaign(lenient, tmp_path)
    full = conducted(campaign(2), tmp_path, Sow())
    assert sum_campaigns(full, tmp_path).seeds == 2
    assert "added to the evidence" not in shown(full, tmp_path)


def test_other_code_is_other_evidence(tmp_path: Path) -> None:
    """A line of another edition does not count, nor does one that was cut short."""
    record_campaign(conducted(campaign(4), tmp_path, Sow()), tmp_path)
    file = tmp_path / LOG
    line = json.loads(file.read_text())
    foreign = json.dumps({**line, "edition": "another"})
    file.write_text(f"{json.dumps(line)}\n{foreign}\n{foreign[:90]}")
    state = conducted(Campaign(BASE, (5,)), tmp_path, Sow())
    assert sum_campaigns(state, tmp_path).seeds == 4 + 1
    state.edition = "another"
    assert sum_campaigns(state, tmp_path).seeds == 4 + 1
    state.edition = "yet another"
    assert sum_campaigns(state, tmp_path).seeds == 1


def test_a_line_that_was_cut_short_swallows_none(tmp_path: Path) -> None:
    """The next campaign begins a line of its own, and bytes that mean nothing are passed over."""
    for seed, damage in ((1, b'{"when": '), (2, b'{"\xff\xfe": 3}\n'), (3, b"[]\n7\n")):
        record_campaign(state_of(Campaign(BASE, (seed,))), tmp_path)
        with (tmp_path / LOG).open("ab") as log:
            log.write(damage)
    assert sum_campaigns(state_of(Campaign(BASE, (4,))), tmp_path).seeds == 4


# ----------------------------------------------------------------------------- what is finished


def resumed(asked: Campaign, runs: Path, work: Sow) -> tuple[CampaignState, CampaignCheckpoint]:
    """A campaign that ends without a word, as if it was killed, unless the checkpoint is
    discarded."""
    with open_checkpoint(asked.key, "now", runs) as checkpoint:
        return conduct(asked, runs, lambda state: None, work, checkpoint), checkpoint


def test_what_was_finished_when_it_was_killed_is_kept(tmp_path: Path) -> None:
    """And not done again, however often that happens; a lost seed has another chance. In the end
    nothing of it lies about."""
    resumed(campaign(3), tmp_path, Sow(failing=(2,), deadly=(3,)))
    resumed(campaign(4), tmp_path, Sow(deadly=(1, 2)))
    state, checkpoint = resumed(campaign(6), tmp_path, Sow(deadly=(1, 2, 3, 4)))
    assert state.resumed == {1, 2, 3, 4}
    assert not state.lost
    assert sorted(row.seed for row in state.rows) == [1, 2, 3, 4, 5, 6]
    assert state.tally.failures == {"LOST_ACKED": (2,)}
    assert state.runs[2].is_dir()
    assert state.exit_code == 1
    told = "4 seeds were finished by an interrupted campaign of this kind"
    assert told in shown(state, tmp_path)
    assert told in watched(state)
    assert state.plain()["seeds_resumed"] == 4
    record_campaign(state, tmp_path, checkpoint)
    assert not list(tmp_path.glob("*.part"))
    assert not resumed(campaign(2), tmp_path, Sow())[0].resumed


def test_what_was_finished_and_is_not_asked_for_is_noted_all_the_same(tmp_path: Path) -> None:
    """Other seeds of the same kind: it is evidence still."""
    resumed(campaign(3), tmp_path, Sow())
    state, checkpoint = resumed(Campaign(BASE, (5, 6), 2), tmp_path, Sow())
    assert sorted(row.seed for row in state.rows) == [5, 6]
    record_campaign(state, tmp_path, checkpoint)
    assert sum_campaigns(conducted(campaign(1), tmp_path, Sow()), tmp_path).seeds == 5


def test_only_the_same_kind_goes_on(tmp_path: Path) -> None:
    """Neither other options, nor other code, nor a campaign that goes on beside it; half a line is
    none."""
    resumed(campaign(3), tmp_path, Sow())
    (part,) = tmp_path.glob("*.part")
    with part.open("ab") as file:
        file.write(b'{"row": {"seed": 9')
    asked = campaign(3)
    with open_checkpoint(campaign(3, MUTANT).key, "now", tmp_path) as other:
        assert not other.finished
    with open_checkpoint(asked.key, "later", tmp_path) as later:
        assert not later.finished
    with open_checkpoint(asked.key, "now", tmp_path) as first:
        assert {one.row.seed for one in first.finished} == {1, 2, 3}
        with open_checkpoint(asked.key, "now", tmp_path) as second:
            assert not second.finished


def test_where_nothing_can_be_written_down_it_is_said(tmp_path: Path) -> None:
    """At the beginning in one sentence; later the campaign goes on."""
    with (
        pytest.raises(BedFailed, match="choose another folder with --runs"),
        open_checkpoint("key", "now", tmp_path / "nowhere"),
    ):
        raise AssertionError
    with Path("/dev/full").open("wb", buffering=0) as full:
        broken = CampaignCheckpoint(tmp_path / "x.part", full, ())
        state = conduct(campaign(2), tmp_path, lambda state: None, Sow(), broken)
    assert len(state.rows) == 2
    assert "could not be recorded at once: No space left" in shown(state, tmp_path)
