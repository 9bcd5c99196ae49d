"""report.html: true to the verdict, self-contained, and safe from markup in a run."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sinking

from harness.errors import BadRequest
from harness.history.faults_and_events import ClusterEvent
from harness.history.rundir import RunDir
from harness.judge.verdict import Finding, Reason
from reports import _format, _recovery, page, summary, terminal
from reports._lanes import LaneInput, lanes, log_lines
from reports._run import RunView, read_run
from reports._stories.story import explain
from reports.page import ADVICE

Written = Callable[..., RunDir]

HOSTILE = "</script></title><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}"
S = 1_000_000_000
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Reader(HTMLParser):
    """Elements with their attributes, the text, and whether every element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(path: Path | None) -> Reader:
    assert path is not None
    reader = Reader()
    reader.feed(path.read_text())
    assert reader.open == []
    return reader


def text_of(reader: Reader) -> str:
    return " ".join(" ".join(reader.words).split())


def data_of(path: Path | None) -> dict[str, Any]:
    """What is embedded for the page's script."""
    assert path is not None
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text())
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def lane_of(told: RunView, name: str) -> list[dict[str, Any]]:
    """The bars of a lane."""
    scene = LaneInput(told, told.end)
    (found,) = [lane.plain() for lane in lanes(scene) if lane.name == name]
    bars: list[dict[str, Any]] = found["bars"]
    return bars


def test_the_verdict_comes_first(written: Written, lost: Finding) -> None:
    """Word and sentence of verdict.json, then the finding with its evidence and its fault."""
    run = written((lost,))
    text = text_of(read(page.render(run)))
    assert text.index("invalid 3 acknowledged messages were lost.") < text.index("LOST_ACKED")
    assert "orders-1" in text
    assert "during fault 0" in text
    assert f"seatrial replay {run.path}" in text


def test_a_valid_run(written: Written) -> None:
    """The page states that there are no findings."""
    text = text_of(read(page.render(written())))
    assert "valid Nothing acknowledged was lost" in text
    assert "None. All checkers that ran passed." in text


def test_it_loads_nothing(written: Written, lost: Finding) -> None:
    """One file: no address, no source, no import, and a policy that forbids them."""
    path = page.render(written((lost,)))
    assert path is not None
    source = path.read_text()
    assert set(re.findall(r"https?://[^\s\"'`]*", source)) <= {
        "http://www.w3.org/2000/svg",  # a name, not an address
        "https://github.com/leeoniya/uPlot",  # where the library is from
    }
    assert "@import" not in source
    assert "url(" not in re.sub(r"url\(#", "", source)
    reader = read(path)
    for tag, attributes in reader.elements:
        assert "src" not in attributes, tag
        assert tag not in ("iframe", "object", "embed", "img", "base", "form")
        for name in ("href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:,")), (tag, attributes)
    policies = [a.get("content") or "" for t, a in reader.elements if "http-equiv" in a]
    assert len(policies) == 1
    assert "default-src 'none'" in policies[0]
    assert policies[0].count("'sha256-") == 2


def test_it_stays_small(written: Written) -> None:
    """Far below what a mail or a CI artefact browser takes."""
    path = page.render(written())
    assert path is not None
    assert path.stat().st_size < 500_000


def test_nothing_from_the_run_becomes_markup(written: Written) -> None:
    """Hostile text in every place that a run can fill stays text."""
    finding = Finding(
        code="LOST_ACKED",
        count=1,
        message=HOSTILE,
        demand="no-loss",
        evidence=({"key": HOSTILE, HOSTILE: 1, "at_s": 3.0},),
    )
    run = written((finding,), name=HOSTILE, profile=HOSTILE)
    run.write_names({**run.names(), "addresses": {HOSTILE: HOSTILE}})
    run.update_state(error=HOSTILE, versions={HOSTILE: HOSTILE}, started=HOSTILE)
    run.plan_file.write_text(HOSTILE)
    reader = read(page.render(run))
    scripts = [attributes for tag, attributes in reader.elements if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}, {}, {}]
    assert not [a for _, attributes in reader.elements for a in attributes if a.startswith("on")]
    assert "{{7*7}}" in text_of(reader)
    assert "<img src=x" in text_of(reader)


def test_hostile_names_in_the_data(written: Written) -> None:
    """What the script reads is JSON with not one letter of markup in it."""
    run = written()
    told = page.read_run(run)
    fault = told.faults[0]
    hostile = replace(fault, targets={"x": (HOSTILE,)}, kind=HOSTILE)
    events = tuple(replace(event, node=HOSTILE) for event in told.events)
    path = run.path / "hostile.html"
    path.write_text(page.page_html(replace(told, faults=(hostile,), events=events)))
    (text,) = re.findall(r'id="data">(.*?)</script>', path.read_text())
    assert not set(text) & set("<>&'")
    (found,) = data_of(path)["faults"]
    assert found["nodes"] == [HOSTILE]
    assert HOSTILE[:30] in found["words"]


@pytest.mark.parametrize(
    "text", ["\ud800 alone", "\u202e backwards", "\0 nothing", "\U0001d54f" * 400]
)
def test_odd_letters(written: Written, text: str) -> None:
    """Half a character, an overriding direction, nothing at all: a page is made of it."""
    finding = Finding("LOST_ACKED", 1, text, "no-loss", ({"key": text, "at_s": float("nan")},))
    run = written((finding,), name="odd")
    run.write_names({**run.names(), "roles": {text: text}})
    assert text_of(read(page.render(run)))


def test_a_megabyte_is_not_shown_whole(written: Written) -> None:
    """A long text is cut, and its length is shown."""
    long = "y" * 1_000_000
    finding = Finding("LOST_ACKED", 1, long, "no-loss", ({"key": long, "at_s": 3.0},))
    run = written((finding,))
    run.update_state(error=long, versions={long: long})
    run.plan_file.write_text(f"# {long}")
    path = page.render(run)
    assert path is not None
    assert path.stat().st_size < 1_000_000
    assert "(1,000,000 characters)" in text_of(read(path))


def test_phases_that_begin_at_one_instant_keep_their_order(written: Written) -> None:
    """In a simulated world they can begin at the same time: the load is not hidden under the
    start."""
    told = page.read_run(written())
    phases = {"load": 5_000_000_000, "raised": 5_000_000_000, "drain": 9_000_000_000}
    bars = lane_of(replace(told, phases=phases), "phase")
    assert [bar["c"] for bar in bars] == ["phase raised", "phase load", "phase drain"]
    assert bars[0]["b"] == bars[0]["e"] == 5000
    assert bars[1]["e"] == 9000


def test_the_picture_begins_a_second_before_the_load(written: Written) -> None:
    """However long it took to raise the nodes; times are those that are given."""
    run = written()
    told = replace(page.read_run(run), phases={"raised": 0, "load": 12_345_000_000})
    path = run.path / "late.html"
    path.write_text(page.page_html(told))
    data = data_of(path)
    assert data["begin"] == 11_345
    assert data["end"] > 36_000


def test_lanes_are_true_to_time(written: Written) -> None:
    """A fault's bar begins and ends at its recorded milliseconds since the load began, and its plan
    at the planned times; so do the bars of masters and of nodes that are down."""
    told = page.read_run(written())
    (kill,) = (bar for bar in lane_of(told, "faults") if bar["c"] == "fault kill")
    assert (kill["b"], kill["e"], kill["k"]) == (6030, 12_000, "fault-0")
    planned = [bar for bar in lane_of(told, "faults") if bar["c"].startswith("planned")]
    assert [(bar["b"], bar["e"]) for bar in planned] == [
        (6000, 12_000),
        (18_000, 24_000),
        (20_000, 25_000),
    ]
    assert [bar["b"] for bar in lane_of(told, "master")] == [-600, 6550, 19_500]
    down = [bar for bar in lane_of(told, "broker-1") if bar["c"] == "down"]
    assert [(bar["b"], bar["e"]) for bar in down] == [(6030, 12_100)]
    sizes = lane_of(told, "in sync, a")
    assert [bar["w"][-1] for bar in sizes] == ["1", "3", "1", "2", "3", "1", "2", "3"]


def test_a_long_log_reaches_to_the_end_of_the_run(written: Written) -> None:
    """Connection events are left out first; the rest is sampled, and the page says so."""
    run = written()
    told = page.read_run(run)
    events = tuple(
        ClusterEvent(n * S, "broker-1", "election", {}) for n in range(2 * page.MAX_LINES)
    )
    chatter = tuple(ClusterEvent(n * S, "broker-1", "handshake", {}) for n in range(10))
    (run.path / "long.html").write_text(page.page_html(replace(told, events=chatter + events)))
    data = data_of(run.path / "long.html")
    times = [row["t"] for row in data["log"]]
    assert (len(times), data["eventCount"]) == (page.MAX_LINES, len(events) + 10)
    assert (times[0], times[-1]) == (0, events[-1].t / 1e6)
    assert max(later - t for t, later in pairwise(times)) <= 3000
    few = log_lines(replace(told, events=chatter + events[:5]), 10)
    assert [row["k"] for row in few] == ["election"] * 5


def test_two_masters_at_once_are_two_rows(written: Written) -> None:
    """Nothing is tidied away."""
    told = page.read_run(written())
    bars = lane_of(told, "master")
    both = [bar for bar in bars if bar["b"] <= 21_000 < bar["e"]]
    assert len(both) == 2
    assert len({bar.get("r", 0) for bar in both}) == 2


def test_evidence_is_on_the_axis(written: Written, lost: Finding) -> None:
    """Each row with a time is a mark, which selects its finding."""
    path = page.render(written((lost,)))
    data = data_of(path)
    (lane,) = (lane for lane in data["lanes"] if lane["kind"] == "marks")
    assert [(bar["b"], bar["k"]) for bar in lane["bars"]] == [
        (6900, "finding-0"),
        (7000, "finding-0"),
        (7100, "finding-0"),
    ]
    assert data["findings"][0]["faults"] == [0]


def test_stories_are_those_of_explain(tmp_path: Path) -> None:
    """The witness's story is below its finding, in seconds since the load began."""
    run = sinking.sunk(tmp_path / "run").run
    text = text_of(read(page.render(run)))
    story = explain(run, "LOST_ACKED:1")
    assert story
    assert story.subject in text
    assert " ".join(story.conclusion.split()) in text
    for step, _ in story.moments:
        assert f"{(step.t - story.began) / 1e9:.6f}" in text
        assert step.text in text


def test_every_report_counts_from_the_begin_of_the_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The evidence of a finding has the times of its story in page, summary and terminal."""
    run = sinking.sunk(tmp_path / "run").run
    told = read_run(run)
    assert told.zero == run.state()["load_began_ns"] > 0
    finding = next(finding for _, finding in told.findings() if finding.code == "LOST_ACKED")
    acked = f"{finding.evidence[0]['acked_s'] - told.zero / 1e9:.3f}"
    text = text_of(read(page.render(run)))
    assert "Times on this page are seconds since the load began." in text
    assert acked in text
    summary.render(run)
    terminal.render(run)
    for shown in ((run.path / "summary.md").read_text(), capsys.readouterr().out):
        assert "Times are seconds since the load began." in shown
        assert acked in shown


def test_rendering_changes_no_verdict(written: Written, lost: Finding) -> None:
    """verdict.json has the same bytes after every report, and the page the same bytes twice."""
    run = written((lost,))
    before = run.verdict_file.read_bytes()
    first = page.render(run)
    assert first is not None
    once = first.read_bytes()
    page.render(run)
    assert run.report_file.read_bytes() == once
    assert run.verdict_file.read_bytes() == before


@pytest.mark.parametrize("table", ["faults", "events", "notes"])
def test_a_poor_run_gives_a_poorer_page(written: Written, table: str) -> None:
    """A run that recorded less, or crashed early, can still be looked at."""
    run = written()
    for file in run.journal.glob(f"{table}-*"):
        file.unlink()
    assert "valid" in text_of(read(page.render(run)))


def test_a_verdict_alone_is_enough(written: Written) -> None:
    """No names, no state, no history, no statistics."""
    run = written()
    for name in ("names.json", "run.json", "plan.toml"):
        (run.path / name).unlink()
    for file in run.journal.iterdir():
        file.unlink()
    run.verdict_file.write_text(
        '{"verdict": "unknown", "sentence": "Nothing is known.", "schema_version": 1,'
        ' "reasons": [{"code": "INTERRUPTED", "message": "It was cut short."}], "checkers": []}'
    )
    text = text_of(read(page.render(run)))
    assert "unknown Nothing is known." in text
    assert "INTERRUPTED It was cut short." in text


DAMAGES: dict[str, str | None] = {
    "run.json": '{"started": "2026',
    "names.json": "[1, 2]",
    "trial.toml": 'name = "of another time"\nsails = 3\n',
    "plan.toml": "[[fault]\n",
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder_is_shown_as_far_as_it_goes(written: Written, name: str) -> None:
    """Half-written, or of another version: the verdict, and a note of what is missing."""
    run = written()
    (run.path / name).write_text(DAMAGES[name] or "")
    text = text_of(read(page.render(run)))
    assert "valid Nothing acknowledged was lost" in text
    assert (f"{name} could not be read" in text) == (name != "plan.toml")


@pytest.mark.parametrize("odd", [None, "x", [1]])
def test_numbers_of_another_version_are_shown_as_far_as_they_go(written: Written, odd: Any) -> None:
    """One that is not there, or is no number, takes nothing but itself, or its sentence, away."""
    run = written()
    told = page.read_run(run)
    stats: Any = told.stats("availability")
    for table in (stats["availability"], stats["faults"][0]):
        for name, value in list(table.items()):
            del table[name]
            if odd is not None:
                table[name] = odd
            assert _recovery.fault_rows(told)
            told.part("the availability", lambda: _recovery.availability(told), None)
            told.part("the numbers", lambda: list(_format.key_numbers(told)), None)
            table[name] = value
    stats["availability"] = {"share": 0.5} if odd is None else odd
    stats["faults"] = [{**fault, "silence_s": odd} for fault in stats["faults"]]
    (run.path / "poor.html").write_text(page.page_html(told))
    text = text_of(read(run.path / "poor.html"))
    assert ("Availability under this trial's faults: 50.000 % ." in text) == (odd is None)
    assert ("the times of the faults could not be read" in text) == (odd is not None)
    assert "valid Nothing acknowledged was lost" in text


def test_torn_journals_are_shown_as_far_as_they_go(written: Written) -> None:
    """Cut in the middle, or not ours at all."""
    run = written()
    for file in run.journal.glob("*.arrows"):
        data = file.read_bytes()
        file.write_bytes(b"PK\x03\x04" if "events" in file.name else data[: len(data) // 2])
    assert "valid Nothing acknowledged was lost" in text_of(read(page.render(run)))


@pytest.mark.parametrize("text", ["", '{"verdict": "va', '{"verdict": "splendid"}', "[]"])
def test_half_a_verdict_says_what_to_do(written: Written, text: str) -> None:
    """One sentence, no trace."""
    run = written()
    run.verdict_file.write_text(text)
    with pytest.raises(BadRequest, match="seatrial check"):
        page.render(run)


def test_every_reason_has_advice(root: Path) -> None:
    """There is advice for each reason that docs/verdicts.md lists, and for no others."""
    text = (root / "docs" / "verdicts.md").read_text()
    table = text.split("| reason | what happened |")[1].split("\n\n")[0]
    codes = {c for row in table.splitlines()[1:] for c in re.findall(r"`([A-Z_]+)`", row[:120])}
    assert codes == set(ADVICE)


def test_without_a_verdict_it_says_what_to_do(written: Written) -> None:
    """A run without a verdict has no report."""
    run = written()
    run.verdict_file.unlink()
    with pytest.raises(BadRequest, match="seatrial check"):
        page.render(run)


def test_what_was_seen_of_a_fault_is_told_as_it_was_said(written: Written) -> None:
    """Verbatim, and as text."""
    run = written()
    told = page.read_run(run)
    first = replace(told.faults[0], observation={"error": "can't <reach> it & naïve"})
    (run.path / "seen.html").write_text(page.page_html(replace(told, faults=(first,))))
    assert '{"error": "can\'t <reach> it & naïve"}' in text_of(read(run.path / "seen.html"))


def test_reasons_are_shown(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the run proves nothing, and what to do about it."""
    run = written()
    told = page.read_run(run)
    verdict: Any = told.verdict
    changed = verdict.__class__(
        **{**verdict.__dict__, "reasons": (Reason("NO_LOAD", "Raise the rate."),)}
    )
    run.verdict_file.write_text(changed.to_json())
    assert "NO_LOAD Raise the rate." in text_of(read(page.render(run)))
