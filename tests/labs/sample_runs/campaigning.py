"""Campaigns of rows without a world, for tests: asked for, carried out, and shown."""

from io import StringIO
from pathlib import Path

from rich.console import Console
from seedlings import Sow

from harness.campaign.run import Campaign, CampaignState, conduct
from harness.campaign.tally import CampaignTotals, SeedResult
from harness.campaign.view import CampaignScreen, show
from harness.judge.campaign_evidence import CampaignTotal, record_campaign, sum_campaigns
from harness.trial import Trial

BASE = Trial(profile="sync-flush")
MUTANT = Trial(profile="sync-flush", settings={"mutant": "one-ack"})


def campaign(last: int = 6, base: Trial = BASE, jobs: int = 1, **more: object) -> Campaign:
    """A campaign of the first seeds. Each job is a process to start, so most tests have one."""
    return Campaign(base, tuple(range(1, last + 1)), jobs, **more)  # type: ignore[arg-type]


def conducted(asked: Campaign, runs: Path, work: Sow) -> CampaignState:
    return conduct(asked, runs, lambda state: None, work)


def shown(state: CampaignState, runs: Path, width: int = 200) -> str:
    out = StringIO()
    show(state, sum_campaigns(state, runs), Console(file=out, width=width, highlight=False))
    return out.getvalue()


def noted_and_summed(asked: Campaign, runs: Path, work: Sow) -> CampaignTotal:
    state = conducted(asked, runs, work)
    record_campaign(state, runs)
    return sum_campaigns(state, runs)


def state_of(asked: Campaign) -> CampaignState:
    """One that is done, without anybody who did it."""
    state = CampaignState(asked, 0.0, begun=list(asked.seeds), edition="now")
    state.rows = [SeedResult(seed, digest=f"{asked.key}{seed}") for seed in asked.seeds]
    state.tally = CampaignTotals.of(state.rows)
    return state


def watched(state: CampaignState) -> str:
    out = StringIO()
    with CampaignScreen(Console(file=out, width=200)) as watch:
        watch(state)
    return out.getvalue()
