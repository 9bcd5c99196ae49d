"""report.html: true to the verdict, self-contained, and deaf to what a run tries to say in HTML."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from harness.errors import BadRequest
from harness.rundir import RunDir
from harness.verdict import Finding, Reason
from reports import page

Written = Callable[..., RunDir]

HOSTILE = "</script></title><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}"
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


def test_the_verdict_comes_first(written: Written, lost: Finding) -> None:
    """Word and sentence of verdict.json, then the finding with its evidence and its fault."""
    text = text_of(read(page.render(written((lost,)))))
    assert text.index("invalid 3 acknowledged messages were lost.") < text.index("LOST_ACKED")
    assert "orders-1" in text
    assert "during fault 0" in text
    assert "seatrial replay runs/20261121-101500-demo" in text


def test_a_valid_run(written: Written) -> None:
    """No findings is said, not left blank."""
    text = text_of(read(page.render(written())))
    assert "valid Nothing acknowledged was lost" in text
    assert "None. Every checker that ran was content." in text


def test_it_loads_nothing(written: Written, lost: Finding) -> None:
    """One file: no address, no source, no import, and a policy that forbids them."""
    path = page.render(written((lost,)))
    assert path is not None
    source = path.read_text()
    assert not re.findall(r"(?:https?:)?//[a-z]", re.sub(r"//.*", "", source))
    assert "@import" not in source
    assert "url(" not in source
    reader = read(path)
    for tag, attributes in reader.elements:
        assert "src" not in attributes, tag
        assert tag not in ("iframe", "object", "embed", "img", "base", "form")
        for name in ("href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:,")), (tag, attributes)
    policies = [a.get("content") or "" for t, a in reader.elements if "http-equiv" in a]
    assert len(policies) == 1
    assert "default-src 'none'" in policies[0]
    assert "'sha256-" in policies[0]


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
    assert scripts == [{"type": "application/json", "id": "lanes"}, {}]
    assert not [a for _, attributes in reader.elements for a in attributes if a.startswith("on")]
    assert "{{7*7}}" in text_of(reader)
    assert "<img src=x" in text_of(reader)


def test_hostile_targets_in_the_chart(written: Written) -> None:
    """A node's name reaches the SVG as text as well."""
    run = written()
    told = page.read(run)
    hostile = told.faults[0].__class__(
        **{**told.faults[0].__dict__, "targets": {"x": (HOSTILE,)}, "kind": HOSTILE}
    )
    svg = str(page.timeline(told.__class__(**{**told.__dict__, "faults": (hostile,)})))
    assert "<script" not in svg
    assert "<img" not in svg
    ElementTree.fromstring(svg)


def test_phases_that_begin_at_one_instant_keep_their_order(written: Written) -> None:
    """In a simulated world nothing lies between them: the load is not hidden under the start."""
    told = page.read(written())
    phases = {"load": 5_000_000_000, "raised": 5_000_000_000, "drain": 9_000_000_000}
    svg = ElementTree.fromstring(
        str(page.timeline(told.__class__(**{**told.__dict__, "phases": phases})))
    )
    lane = [r for r in svg.iter("rect") if (r.get("class") or "").startswith("phase ")]
    assert [r.get("class") for r in lane] == ["phase raised", "phase load", "phase drain"]
    assert float(lane[1].get("width", "")) > float(lane[0].get("width", ""))


def test_the_chart_begins_a_second_before_the_load(written: Written) -> None:
    """However long it took to raise the nodes; ticks stay true to the run's start."""
    told = page.read(written())
    late = told.__class__(**{**told.__dict__, "phases": {"raised": 0, "load": 12_345_000_000}})
    svg = ElementTree.fromstring(str(page.timeline(late)))
    (plot,) = (s for s in svg.iter("svg") if s.get("class") == "plot")
    begin, _, length, _ = map(float, plot.get("viewBox", "").split())
    assert (begin, begin + length) == (11_345, float(svg.get("data-end", "")))
    ticks = [t for t in svg.iter("text") if t.get("class") == "tick"]
    at_s = [float((t.text or "").removesuffix(" s")) for t in ticks]
    width = float(plot.get("width", ""))
    for tick, second in zip(ticks, at_s, strict=True):
        x = float(plot.get("x", "")) + (second * 1000 - begin) / length * width
        assert float(tick.get("x", "")) == pytest.approx(x, abs=0.1)
    assert 11.3 < min(at_s) < 16


def test_the_chart_is_true_to_time(written: Written) -> None:
    """The kill's bar begins and ends at its recorded milliseconds."""
    svg = ElementTree.fromstring(str(page.timeline(page.read(written()))))
    bars = [
        r for r in svg.iter("rect") if r.get("class") == "fault kill" and r.get("height") == "16.0"
    ]
    assert [(r.get("x"), r.get("width")) for r in bars] == [("7030.000", "5970.000")]
    masters = [r for r in svg.iter("rect") if r.get("class") == "role master"]
    assert [float(r.get("x") or 0) for r in masters] == [400, 7550, 20500]


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


def test_without_a_verdict_it_says_what_to_do(written: Written) -> None:
    """A run that nobody judged has no report."""
    run = written()
    run.verdict_file.unlink()
    with pytest.raises(BadRequest, match="seatrial check"):
        page.render(run)


def test_reasons_are_shown(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why nothing can be said, and what to do about it."""
    run = written()
    told = page.read(run)
    verdict: Any = told.verdict
    changed = verdict.__class__(
        **{**verdict.__dict__, "reasons": (Reason("NO_LOAD", "Raise the rate."),)}
    )
    run.verdict_file.write_text(changed.to_json())
    assert "NO_LOAD Raise the rate." in text_of(read(page.render(run)))
