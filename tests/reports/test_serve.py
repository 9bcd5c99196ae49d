"""`seatrial serve`: the contents of its pages, and that nothing in a run's folder is active in
them."""

import html
import io
import json
import re
import tarfile
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import site_lab
from site_lab import SECRET, shelved

from harness.errors import BadRequest
from harness.history.rundir import RunDir
from harness.history.runs import locked
from harness.judge.lock import judging
from harness.judge.verdict import Finding
from harness.run.status_file import FILE, StatusFile
from reports import page
from reports._run import read_run
from reports._site import live
from reports._site.live import run_state
from reports._site.run_index import RunIndex

Written = Callable[..., RunDir]
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}"
VALID, INVALID = "20261121-101500-calm", "20261122-101500-storm"


class Page(HTMLParser):
    """Elements with their attributes, and the text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def runs(tmp_path: Path, written: Written, lost: Finding) -> Path:
    """A valid run, a later invalid one with another profile, and `latest`."""
    folder = tmp_path / "runs"
    first = written()
    shelved(first, folder, VALID)
    storm = shelved(first, folder, INVALID)
    verdict = json.loads(first.verdict_file.read_text())
    row = {**verdict["checkers"][0], "findings": [_plain(lost)]}
    verdict |= {
        "verdict": "invalid",
        "sentence": "Lost.",
        "checkers": [row, *verdict["checkers"][1:]],
    }
    storm.verdict_file.write_text(json.dumps(verdict))
    storm.trial_file.write_text(first.trial().with_({"profile": "unsafe-default"}).to_toml())
    storm.plan_file.write_text(first.plan_file.read_text().replace("for_s = 5.0", "for_s = 9.0"))
    storm.update_state(started="2026-11-22T10:15:00Z")
    (folder / "latest").symlink_to(INVALID)
    return folder


def _plain(finding: Finding) -> dict[str, object]:
    return {**vars(finding), "evidence": list(finding.evidence), "faults": list(finding.faults)}


def order(runs: Path, query: str) -> list[str]:
    """The names in the list, from top to bottom."""
    shown = site_lab.browser(runs).get(f"/{query}").text
    return re.findall(r'<td class="name"><a href="/runs/([^"]+)">', shown)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", [INVALID, VALID]),
        ("?sort=name&order=asc", [VALID, INVALID]),
        ("?sort=lost", [INVALID, VALID]),
        ("?state=valid", [VALID]),
        ("?q=LOST_ACKED", [INVALID]),
        ("?q=unsafe+storm", [INVALID]),
        ("?q=nobody", []),
        ("?sort=%00&order=x&page=-1&state=&q=%ff", []),
        ("?sort=nonsense&order=x&page=9e9", [INVALID, VALID]),
    ],
)
def test_the_list_is_searched_filtered_and_sorted(runs: Path, query: str, names: list[str]) -> None:
    """By the parameters of the address; invalid ones are ignored."""
    assert order(runs, query) == names


def test_a_report_is_made_anew_and_may_run_its_own_scripts_alone(runs: Path) -> None:
    """A report.html in the folder is untrusted and never sent."""
    RunDir(runs / VALID).report_file.write_text(SECRET)
    before = sorted(runs.rglob("*"))
    answer = site_lab.browser(runs).get(f"/runs/{VALID}")
    assert answer.status_code == 200
    assert SECRET not in answer.text
    assert "Nothing acknowledged was lost" in Page(answer.text).text
    policy = answer.headers["content-security-policy"]
    own = re.findall(r"'sha256-[^']+'", page.page_html(read_run(RunDir(runs / VALID))))
    assert set(re.findall(r"'sha256-[^']+'", policy)) == set(own)
    assert "script-src 'sha256-" in policy
    assert sorted(runs.rglob("*")) == before
    assert site_lab.browser(runs).get("/runs/latest").headers["location"] == f"/runs/{INVALID}"


def test_a_changed_run_has_a_changed_report(runs: Path) -> None:
    """A page that was kept is not shown for another verdict."""
    asked = site_lab.browser(runs)
    assert asked.get(f"/runs/{VALID}").text == asked.get(f"/runs/{VALID}").text
    run = RunDir(runs / VALID)
    run.verdict_file.write_text(
        run.verdict_file.read_text().replace("Nothing acknowledged", "Nothing at all, said twice,")
    )
    assert "said twice" in asked.get(f"/runs/{VALID}").text


def test_a_node_that_has_printed_more_has_a_changed_report(runs: Path) -> None:
    """The page shows the end of each node's log."""
    asked = site_lab.browser(runs)
    log = RunDir(runs / VALID).node("broker-1") / "flotilla.log"
    log.parent.mkdir(parents=True)
    for words in ("nothing yet", "the anchor drags"):
        log.write_text(words)
        assert words in asked.get(f"/runs/{VALID}").text


def test_a_page_that_is_not_there_is_the_last_one(runs: Path) -> None:
    """So that its numbers are true, and the reader can go on from it."""
    assert order(runs, "?page=99") == [INVALID, VALID]
    assert order(runs, "?page=0") == [INVALID, VALID]


def test_nothing_of_a_run_is_markup(runs: Path) -> None:
    """Names, findings, plans and notes full of markup are text on every page."""
    run = shelved(RunDir(runs / INVALID), runs, f"20261123-101500-{HOSTILE.replace('/', '')}")
    quoted = json.dumps(HOSTILE)[1:-1]
    for file in (run.verdict_file, run.trial_file, run.path / "names.json", run.plan_file):
        text = re.sub("demo|orders-1|broker-1|Lost|isolate", lambda _: quoted, file.read_text())
        file.write_text(text)
    run.update_state(error=HOSTILE, started=HOSTILE)
    asked = site_lab.browser(runs)
    (link,) = [name for name in order(runs, "") if "alert" in name]
    compared = f"/compare?run={VALID}&run={link}"
    for path in ("/", "/?q=alert", "/suites", "/compare", compared, f"/runs/{link}"):
        answer = asked.get(path)
        assert answer.status_code == 200, path
        shown = Page(answer.text)
        assert "alert(1)" in shown.text, path  # as words
        for tag, attributes in shown.elements:
            assert tag != "img", path
            assert not [name for name in attributes if name.startswith("on")], (path, tag)
        scripts = "".join(re.findall(r"<script>.*?</script>", answer.text, re.DOTALL))
        assert "alert(" not in scripts, path
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy.split("script-src")[1].split(";")[0], path


def test_strange_folders_are_listed_with_a_note(runs: Path) -> None:
    """Half-written, old, foreign, huge, or a trap: a line each, a page each, and no trace; what a
    link leads to is not read."""
    notes = site_lab.strange(RunDir(runs / VALID), runs)
    asked = site_lab.browser(runs)
    listed = asked.get("/")
    assert listed.status_code == 200
    rows = {row for row in listed.text.split("<tr>") if "<td>" in row}
    for name, note in notes.items():
        (row,) = [row for row in rows if name in row]
        assert note in Page(row).text, name
    for name in order(runs, ""):
        answer = asked.get(f"/runs/{name}")
        assert answer.status_code == 200, name
        assert "Traceback" not in answer.text
        assert SECRET not in answer.text
    assert "leads out of its folder" in asked.get("/runs/20261101-000000-linked").text
    assert "neither a file nor a folder" in asked.get("/runs/20261101-000000-piped").text
    assert asked.get("/runs/20261101-000000-away").status_code == 404


def test_two_runs_side_by_side(runs: Path) -> None:
    """Numbers and findings of both, the fields and lines of the plan that differ, curves."""
    answer = site_lab.browser(runs).get(f"/compare?run={VALID}&run={INVALID}")
    shown = Page(answer.text)
    assert "profile allack-min2 unsafe-default" in shown.text
    assert "LOST_ACKED, violates no-loss \N{EN DASH} 3" in shown.text
    assert "for_s = 5.0 for_s = 9.0" in shown.text
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', answer.text)
    assert found
    one = json.loads(found[1])["one"]
    assert sum(one["flow"]["ok"]) > 0
    assert len(one["flow"]["t"]) == len(one["flow"]["p99"]) <= 400
    assert [fault["style"] for fault in one["faults"]] == ["kill", "partition", "loss"]
    assert abs(one["faults"][0]["from"] - 6.01) < 1e-6  # after the load began


@pytest.mark.parametrize("query", ["", "?run=nobody", f"?run={VALID}", "?run=&run=%2e%2e"])
def test_fewer_than_two_runs_are_asked_for(runs: Path, query: str) -> None:
    """A choice of two, and what was wrong with those that were named."""
    answer = site_lab.browser(runs).get(f"/compare{query}")
    assert answer.status_code == 200
    assert len([1 for tag, a in Page(answer.text).elements if tag == "select"]) == 2


def test_suites_are_matrices(runs: Path) -> None:
    """A suite from the file it keeps of its nights, and all runs by day."""
    came = {"demo": {"was": 1, "words": ["invalid, LOST_ACKED"], "figures": {"per_s": 90.0}}}
    night = {"id": "1", "when": "2026-11-22T02:00:00", "suite": "nightly", "code": "", "came": came}
    (runs / "suites").mkdir()
    (runs / "suites" / "nights.jsonl").write_text(f"{json.dumps(night)}\nno line\n[]\n")
    text = Page(site_lab.browser(runs).get("/suites").text).text
    assert "nightly trial 11-22" in text
    assert "demo not as expected 90" in text
    assert "All runs, by day trial 11-21 11-22" in text
    assert "unsafe-default, local invalid" in text


def test_without_a_suite_the_page_says_how_to_get_one(runs: Path) -> None:
    """Runs by day are there all the same."""
    text = Page(site_lab.browser(runs).get("/suites").text).text
    assert "No suite has been run in this folder yet. Run one with seatrial suite" in text
    assert "All runs, by day" in text


def chips(runs: Path, query: str) -> dict[str, str]:
    """The filters' words with their counts, by address."""
    shown = site_lab.browser(runs).get(f"/{query}").text
    found = re.findall(r'<a class="chip" href="([^"]+)"[^>]*>(.*?)</a>', shown)
    return {html.unescape(re.sub("<[^>]+>", "", words)): address for address, words in found}


def test_filters_say_how_many_runs_they_leave(runs: Path) -> None:
    """Each counts what matches everything but itself; one that is chosen can be left again."""
    assert set(chips(runs, "")) == {"invalid 1", "valid 1"}
    assert set(chips(runs, "?q=unsafe")) == set()
    chosen = chips(runs, "?state=valid")
    assert set(chosen) == {"invalid 1", "valid 1"}
    assert "state=" not in chosen["valid 1"]
    assert order(runs, html.unescape(chosen["invalid 1"]).removeprefix("/")) == [INVALID]
    assert "nothing 0" in chips(runs, "?state=nothing")


def test_a_trial_has_a_page_with_its_history(runs: Path) -> None:
    """All its runs, the newest first, and how its numbers went; the list leads there."""
    name = RunDir(runs / VALID).trial().name
    asked = site_lab.browser(runs)
    assert f'href="/trial?name={name}"' in asked.get("/").text
    shown = asked.get(f"/trial?name={name}").text
    assert re.findall(r'<td class="name"><a href="/runs/([^"]+)">', shown) == [INVALID, VALID]
    assert "2 runs, 1 invalid, 1 valid" in Page(shown).text
    assert asked.get("/trial?name=none").status_code == 404
    assert asked.get("/trial").status_code == 404


def test_how_long_a_run_had_load_is_listed(runs: Path) -> None:
    """In seconds, from run.json."""
    RunDir(runs / VALID).update_state(load_began_ns=2_000_000_000, load_ended_ns=14_500_000_000)
    listed = json.loads(site_lab.browser(runs).get("/runs.json").text)
    assert {row["run"]: row["load_s"] for row in listed}[VALID] == 12.5


def test_a_report_leads_to_the_logs_of_nodes(runs: Path) -> None:
    """As plain text whatever is in them; in the file, by addresses beside it."""
    run = RunDir(runs / VALID)
    log = run.node("broker-1") / "odd name?.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("<script>alert(1)</script>")
    (log.parent / "empty.log").touch()
    assert 'href="nodes/broker-1/odd%20name%3F.log"' in page.page_html(read_run(run))
    asked = site_lab.browser(runs)
    shown = asked.get(f"/runs/{VALID}").text
    assert "empty.log" not in shown
    address = f"/runs/{VALID}/nodes/broker-1/odd%20name%3F.log"
    assert f'href="{address}"' in shown
    answer = asked.get(address)
    assert answer.text == "<script>alert(1)</script>"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_only_logs_of_nodes_are_given_away(runs: Path) -> None:
    """No other file, no link, and nothing outside the node's folder."""
    run = RunDir(runs / VALID)
    folder = run.node("broker-1")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "node.toml").write_text(SECRET)
    (folder / "away.log").symlink_to(run.trial_file)
    (folder / "inside.log").mkdir()
    (run.path / "secret.log").write_text(SECRET)
    (folder.parent / "linked").symlink_to(run.path)
    (folder.parent / "linked.log").write_text(SECRET)
    asked = site_lab.browser(runs)
    for path in (
        *("broker-1/node.toml", "broker-1/away.log", "broker-1/inside.log", "broker-1/none.log"),
        *("linked/secret.log", "../secret.log", "%2e%2e/secret.log", "broker-1/..%2f..%2fx.log"),
        *("broker-1/%00.log", ".hidden/x.log"),
    ):
        answer = asked.get(f"/runs/{VALID}/nodes/{path}")
        assert answer.status_code == 404, path
        assert SECRET not in answer.text


def test_an_archive_holds_the_run_and_nothing_else(runs: Path) -> None:
    """Byte for byte, under its own name; links and what is not a file stay behind."""
    run = RunDir(runs / VALID)
    (run.path / "nodes").mkdir(exist_ok=True)
    (run.path / "nodes" / "ünï ☃.log").write_bytes(b"x" * 100_001)
    (run.path / "secret").symlink_to(runs.parent)
    answer = site_lab.browser(runs).get(f"/runs/{VALID}/archive")
    with tarfile.open(fileobj=io.BytesIO(answer.content), mode="r:gz") as archive:
        held_files = {
            member.name: file.read()
            for member in archive
            if (file := archive.extractfile(member)) is not None
        }
    there = {
        str(path.relative_to(runs)): path.read_bytes()
        for path in run.path.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    assert held_files == there
    assert "attachment" in answer.headers["content-disposition"]


def test_a_run_in_progress_is_told(runs: Path) -> None:
    """While its lock is held: the last status of its command, and the number of rows; then that it
    is over. A viewer leaves nothing in its folder."""
    run = RunDir(runs / VALID)
    run.verdict_file.unlink()
    with locked(run), StatusFile(run) as bulletin:
        bulletin.update({"phase": "load"})
        bulletin.update(
            {"fault": {"id": 0, "kind": "kill", "targets": ["broker-1"], "stage": "applied"}}
        )
        before = sorted(run.path.rglob("*"))
        told = run_state(run.path)
        assert told["state"] == "running"
        assert told["status"]["phase"] == "load"
        assert told["status"]["faults"][0]["words"] == "kill on broker-1"
        assert told["rows"]["ops"] > 1000
        assert sorted(run.path.rglob("*")) == before
        shown = site_lab.browser(runs).get(f"/runs/{VALID}").text
        assert '<span class="badge small running">' in site_lab.browser(runs).get("/").text
        assert '<p class="badge">running</p>' in shown
    assert not (run.path / FILE).exists()
    unjudged = "it ended and was not checked: seatrial check"
    assert run_state(run.path) == {"state": "ended", "why": unjudged}
    assert run_state(runs / INVALID) == {"state": "judged"}


def test_a_run_that_is_being_judged_is_told(runs: Path) -> None:
    """By its page, the list, and the live events; the previous verdict stays until then."""
    run = RunDir(runs / VALID)
    run.verdict_file.unlink()
    asked = site_lab.browser(runs)
    for path in ("/", f"/runs/{VALID}"):
        assert "it ended and was not checked: seatrial check" in asked.get(path).text
    with judging(run), judging(RunDir(runs / INVALID)):
        assert run_state(run.path) == {"state": "checking"}
        assert '<span class="badge small invalid">' in asked.get("/").text
        for path in ("/", f"/runs/{VALID}"):
            shown = asked.get(path).text
            assert "it is being checked" in shown
            assert "seatrial check" not in shown


def test_a_run_that_broke_off_says_where(runs: Path) -> None:
    """Its viewers learn that no process works on it any more, and what to do."""
    run = RunDir(runs / VALID)
    run.verdict_file.unlink()
    run.update_state(ended=False, phase="load", error="the engine is on fire")
    told = run_state(run.path)
    assert told["state"] == "ended"
    assert told["why"] == (
        "the engine is on fire; it ended early, in phase load; "
        "to check what was recorded: seatrial check"
    )
    assert told["why"].split("; ")[0] in site_lab.browser(runs).get(f"/runs/{VALID}/live").text


def test_a_run_that_was_stopped_before_its_load_has_nothing_to_check(runs: Path) -> None:
    """The list does not propose `seatrial check`."""
    run = RunDir(runs / VALID)
    run.verdict_file.unlink()
    state = {key: value for key, value in run.state().items() if key != "load_began_ns"}
    (run.path / "run.json").write_text(json.dumps(state | {"ended": False, "interrupted": True}))
    shown = site_lab.browser(runs).get("/").text
    assert "it was stopped before the load, so there is nothing to check" in shown


def test_who_judges_a_moment_later_is_waited_for(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a run's end and its check there is an instant without a process."""
    seen = iter([{"state": "ended", "why": ""}, {"state": "checking"}, {"state": "judged"}])
    monkeypatch.setattr(live, "run_state", lambda _: next(seen))
    monkeypatch.setattr(live, "EVERY_S", 0)
    told = site_lab.browser(runs).get(f"/runs/{VALID}/live").text
    assert re.findall(r'"state": "(\w+)"', told) == ["checking", "judged"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "[" * 100_000, '{"rates": [1e999, "x"]}', "9" * 5000]
)
def test_a_status_that_makes_no_sense_is_none(runs: Path, text: str) -> None:
    """Whatever its source; a page gets only what it can draw."""
    run = RunDir(runs / VALID)
    (run.path / FILE).write_text(text)
    with locked(run):
        told = run_state(run.path)
    assert told["state"] == "running"
    json.dumps(told, allow_nan=False)


def test_a_run_is_no_folder_of_runs(runs: Path, tmp_path: Path) -> None:
    """The error names what to pass instead."""
    with pytest.raises(BadRequest, match="is a run"):
        RunIndex.of(runs / VALID)
    with pytest.raises(BadRequest, match="no folder"):
        RunIndex.of(tmp_path / "nowhere")
