"""The page of a campaign: what is one failure, what is counted, and any campaign at all."""

import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness import registry
from harness.campaign.guided import GuidedSearch
from harness.campaign.run import Campaign, CampaignState
from harness.campaign.tally import CampaignTotals, SeedResult
from harness.campaign.view import open_page
from harness.errors import BadRequest
from harness.judge.campaign_evidence import CampaignTotal
from harness.trial import Trial
from reports._campaign import MAX_ROWS, failure_rows, fault_kinds, page_html

HOSTILE = "</table><script>alert(1)</script>\"' onload=x\x1b[31m"
BASE = Trial(profile="sync-flush")
MUTANT = Trial(profile="sync-flush", settings={"mutant": "one-ack"})
CLEAN = SeedResult(
    1, seconds=10.0, cpu_s=2.0, planned={"kill": 3}, counted={"kill": 2}, acknowledged=5
)
FAILED = replace(
    CLEAN,
    failure=("LOST_ACKED",),
    why="5 were lost",
    in_force=("kill",),
    before=("election", "log cut"),
)


def campaign(*rows: SeedResult, base: Trial = BASE, asked: int = 0) -> CampaignState:
    """One that is done, with these rows as its seeds 1, 2 and so on."""
    seeds = tuple(range(1, max(asked, len(rows), 1) + 1))
    state = CampaignState(Campaign(base, seeds), 0.0, begun=list(seeds[: len(rows)]))
    state.rows = [replace(row, seed=seed) for seed, row in zip(seeds, rows, strict=False)]
    state.tally = CampaignTotals.of(state.rows)
    return state


def html_of(state: CampaignState, folder: Path = Path("/pages")) -> str:
    return page_html(state, CampaignTotal(state.tally), folder)


class Texts(HTMLParser):
    """The cells of each table row, and the names of all elements."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.rows[-1][-1] = " ".join(f"{self.rows[-1][-1]} {data}".split())


def texts(html: str) -> Texts:
    parser = Texts()
    parser.feed(html)
    return parser


def test_seeds_that_failed_alike_are_one_row(tmp_path: Path) -> None:
    """By findings, faults in force and the events before; the most frequent failure is first, with
    the report of its first kept run."""
    others = [
        replace(FAILED, failure=("LOST_ACKED", "CUT_TOO_LOW")),
        replace(FAILED, in_force=("kill", "pause")),
        replace(FAILED, before=("election",)),
        replace(FAILED, before=(), in_force=()),
    ]
    state = campaign(others[0], FAILED, CLEAN, *others[1:], FAILED, replace(FAILED, why="2 lost"))
    run = tmp_path / "runs" / "a run-seed-8"
    run.mkdir(parents=True)
    (run / "report.html").touch()
    state.runs = {8: run}
    rows = failure_rows(state, tmp_path / "pages")
    assert [row.seeds for row in rows] == [(2, 7, 8), (1,), (4,), (5,), (6,)]
    assert rows[0].run == ("seed 8", "../runs/a%20run-seed-8/report.html")
    assert rows[1].run is None
    table = texts(page_html(state, CampaignTotal(state.tally), tmp_path / "pages")).rows
    assert [
        *("3", "LOST_ACKED", "kill", "election → log cut"),
        *("2,7..8", "seed 8", "5 were lost"),
    ] in table
    assert [
        "1",
        "LOST_ACKED",
        "no fault in force",
        "no event",
        "6",
        "not kept",
        "5 were lost",
    ] in table


def test_a_run_without_a_report_is_linked_as_a_folder(tmp_path: Path) -> None:
    """There is something to look at."""
    state = campaign(FAILED)
    state.runs = {1: tmp_path / "runs" / "seed-1"}
    (row,) = failure_rows(state, tmp_path)
    assert row.run == ("seed 1", "runs/seed-1")


def test_faults_are_counted_by_kind() -> None:
    """Planned, counted, and the failed seeds in which one was in force at the violation."""
    doubtful = replace(CLEAN, unproven=("NO_LOAD",), in_force=("kill",))
    pause = replace(FAILED, planned={"pause": 9}, counted={"pause": 1}, in_force=("pause", "kill"))
    kinds = fault_kinds(campaign(CLEAN, FAILED, pause, doubtful))
    assert [(k.kind, k.planned, k.counted, k.at_violations) for k in kinds] == [
        ("kill", 9, 4, 2),
        ("pause", 9, 1, 1),
    ]


def test_totals_and_seeds_without_a_result_are_on_the_page() -> None:
    """What the terminal prints, and each reason with its seeds."""
    doubtful = replace(CLEAN, unproven=("NO_LOAD", "NO_EVENTS"))
    state = campaign(FAILED, CLEAN, doubtful, doubtful, asked=9)
    state.lost = {5: "its process was killed by SIGKILL", 6: "its process was killed by SIGKILL"}
    state.begun += [5, 6, 7]
    state.unkept = {1: "the disk is full"}
    html = html_of(state)
    table = texts(html).rows
    assert ["2", "NO_LOAD", "3..4"] in table
    assert ["2", "its process was killed by SIGKILL", "5..6"] in table
    assert ["1", "the disk is full", "1"] in table
    assert "Abandoned when the campaign ended: 7" in html
    came_to = "1 failed, 0 excused, 2 unproven, 2 lost, 1 abandoned, 1 clean, 2 not begun"
    assert ["seeds", came_to] in table
    assert "4 of 9 seeds of flotilla, profile sync-flush" in html


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (campaign(CLEAN), "as expected"),
        (campaign(CLEAN, FAILED), "not as expected"),
        (campaign(), "undecided"),
        (campaign(FAILED, base=MUTANT), "as expected"),
        (campaign(replace(FAILED, failure=("OTHER",)), base=MUTANT), "undecided"),
    ],
)
def test_the_result_is_that_of_the_command(state: CampaignState, word: str) -> None:
    """In the words of suites; a mutant that another finding convicts is undecided."""
    assert f'<p class="badge">{word}</p>' in html_of(state)


def test_an_empty_campaign_has_a_page() -> None:
    """With no failure, no fault and no curve."""
    html = html_of(campaign())
    assert "0 of 1 seed of flotilla" in html
    assert "None were planned." in html
    assert "<svg" not in html
    assert "<svg" not in html_of(campaign(replace(CLEAN, counted={}, cpu_s=0.0)))


def test_thousands_of_seeds_make_a_small_page() -> None:
    """However they failed: the rest is counted."""
    alike = [FAILED] * 3000
    apart = [replace(FAILED, before=(f"event {n}",)) for n in range(1000)]
    html = html_of(campaign(*alike, *apart, *[CLEAN] * 4000))
    assert len(html) < 300_000
    parsed = texts(html)
    assert sum(row[:2] == ["1", "LOST_ACKED"] for row in parsed.rows) == MAX_ROWS - 1
    assert f"{1001 - MAX_ROWS} more are not shown." in html
    assert ["3,000", "LOST_ACKED"] in [row[:2] for row in parsed.rows]


def test_counted_faults_grow_with_time() -> None:
    """To all that count, over the CPU time of all seeds; faults of an unproven seed do not."""
    doubtful = replace(CLEAN, unproven=("NO_LOAD",), counted={"kill": 50})
    html = html_of(campaign(CLEAN, FAILED, doubtful, CLEAN))
    assert 'aria-label="6 counted faults in 8 s of CPU time"' in html
    (line,) = re.findall('points="(.*?)"', html)
    heights = [float(point.split(",")[1]) for point in line.split()]
    assert heights == sorted(heights, reverse=True)
    assert heights[2] == heights[3]
    assert len(heights) == 5


def test_a_guided_search_has_a_curve_of_its_features() -> None:
    """If there are any."""
    state = campaign(CLEAN)
    assert "Features found" not in html_of(state)
    state.search = GuidedSearch((state.campaign.base,), 1)
    state.search.progress.curve += [(10.0, 3), (20.0, 7)]
    assert 'aria-label="7 features found in 20 s of CPU time"' in html_of(state)


def test_hostile_texts_stay_text() -> None:
    """In codes, sentences, events, kinds of faults and reasons."""
    hostile = replace(
        FAILED,
        failure=(HOSTILE,),
        why=HOSTILE,
        in_force=(HOSTILE,),
        before=(HOSTILE,),
        planned={HOSTILE: 1},
        counted={HOSTILE: 1},
        looks={HOSTILE: 1},
    )
    state = campaign(hostile, replace(CLEAN, unproven=(HOSTILE,)))
    state.lost, state.unkept = {7: HOSTILE}, {1: HOSTILE}
    state.runs = {1: Path(f"/runs/{HOSTILE[:20]}")}
    html = html_of(state)
    assert "alert(1)" in html
    assert "script" not in texts(html).tags
    assert "\x1b" not in html
    assert texts(html).tags.count("table") == html.count("</table>")


def test_the_page_is_written_at_the_end(tmp_path: Path) -> None:
    """A place where no file can be is refused before the campaign; no file is asked for by none."""
    path = tmp_path / "page.html"
    state = campaign(CLEAN)
    with open_page(path) as write:
        assert path.read_text() == ""
        write(state, CampaignTotal(state.tally))
    assert path.read_text() == html_of(state, tmp_path)
    for wrong in (tmp_path / "no" / "page.html", tmp_path):
        with pytest.raises(BadRequest, match="name a file"), open_page(wrong):
            raise AssertionError
    with open_page(None) as write:
        write(state, CampaignTotal(state.tally))
    assert os.listdir(tmp_path) == ["page.html"]
    assert registry.campaign_page().__name__ == "reports._campaign"
