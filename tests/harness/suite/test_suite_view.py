"""What a suite says in the morning: to people, to a job's page, to a build service."""

from io import StringIO
from math import inf
from pathlib import Path
from xml.etree import ElementTree as Xml

from rich.console import Console
from suite_rows import row, suite_state, turn

from harness.suite.execution import SuiteState, likely_s, repeated_runs, within
from harness.suite.figures import quantile
from harness.suite.store import AS_EXPECTED, NOT_AS_EXPECTED, UNDECIDED
from harness.suite.view import (
    around,
    conclusion,
    details,
    junit,
    markdown,
    plain,
    show,
    write_summary,
)

LOST = {"outcome": NOT_AS_EXPECTED, "word": "invalid", "codes": ("LOST_ACKED",)}
BROKEN = {"outcome": UNDECIDED, "word": "no verdict", "error": "no cluster came up"}


def test_the_conclusion_says_what_held_and_what_was_not_run() -> None:
    """Nothing that was left out looks like something that was done."""
    whole = suite_state(row(), row("lossy", **LOST))
    assert conclusion(whole) == "1 of 2 runs of suites/night.toml ended as expected"
    assert whole.exit_code == NOT_AS_EXPECTED
    early = SuiteState(
        whole.suite, (*whole.turns, turn("late")), whole.rows, 1, "stopped by request"
    )
    assert conclusion(early).endswith("; 1 were not run: stopped by request; 1 were done earlier")
    assert [one.word for one in early.table] == ["valid", "invalid", "not run"]
    nothing = SuiteState(whole.suite, repeated_runs([turn().cell], 2), early="the budget is spent")
    assert nothing.exit_code == UNDECIDED


def test_the_table_tells_each_run() -> None:
    """Once more below it if it was not as expected."""
    out = StringIO()
    told = {"to_ack_s_p50": 1.25, "per_s": 199.6}
    shown = suite_state(row(figures=told, checked_s=12.0, page_s=3.0), row("lossy", **LOST))
    show(shown, ("calm: slower",), Console(file=out, width=140))
    text = out.getvalue()
    assert "1.25 s" in text
    assert "lossy seed 1: invalid, LOST_ACKED, but valid was expected" in text
    assert "changed: calm: slower" in text
    assert "starting and stopping 2 clusters took 6 of 60 s, 10% of the time;" in text
    assert "judging 20%, pages 5%" in text


def test_nothing_is_said_of_time_that_nobody_knows() -> None:
    """Simulated worlds have a time of their own."""
    assert around([row(around_s=0.0)]) == ""


def test_markdown_is_safe_whatever_a_trial_is_called() -> None:
    """Neither a table's bars nor HTML come through."""
    text = markdown(suite_state(row("a\\|b <script>")), ())
    assert "| a&#92;&#124;b &lt;script> | 1 |" in text
    assert "<script>" not in text
    assert text.startswith("## 1 of 1 run of suites/night.toml ended as expected\n")


def test_junit_tells_failures_from_errors_and_from_what_was_not_run() -> None:
    """A build service shows them differently; what XML can not hold is replaced."""
    whole = suite_state(row(), row("lossy", **LOST), row("bed\x07", **BROKEN))
    early = SuiteState(whole.suite, (*whole.turns, turn("late")), whole.rows, early="stopped")
    suite = Xml.fromstring(junit(early))
    counts = {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "4", "failures": "1", "errors": "1", "skipped": "1"}
    kinds = [[child.tag for child in case] for case in suite]
    assert kinds == [[], ["failure"], ["error"], ["skipped"]]
    assert suite[1][0].get("message") == "invalid, LOST_ACKED, but valid was expected"
    assert suite[2].get("name") == "bed\N{REPLACEMENT CHARACTER} seed 1"
    odd = SuiteState(Path("n\x07\udcff.toml"), whole.turns, whole.rows)
    assert Xml.fromstring(junit(odd)).get("name") == "n" + 2 * "\N{REPLACEMENT CHARACTER}" + ".toml"


def test_the_summary_is_kept_beside_the_runs(tmp_path: Path) -> None:
    """All three kinds, each whole, whatever letters an error holds."""
    stem = write_summary(suite_state(row(error="no \udcff")), (), tmp_path)
    assert stem == tmp_path / "suites" / "night"
    assert sorted(path.name for path in stem.parent.iterdir()) == [
        *("night.json", "night.md", "night.xml")
    ]


def test_the_same_as_data() -> None:
    """For programs: every row, and what it comes to."""
    told = plain(suite_state(row(), row("lossy", **LOST)), ())
    assert told["exit_code"] == NOT_AS_EXPECTED
    assert [one["name"] for one in told["rows"]] == ["calm", "lossy"]


def test_who_was_stopped_is_told_how_to_go_on(tmp_path: Path) -> None:
    """With all that was asked for: with other words it would be another suite."""
    command = ("suite", "my night.toml", "--only", "calm", "--record", "it.tsv")
    lines = details(suite_state(row(), early="stopped", command=command), ())
    assert list(lines)[-1].endswith("seatrial suite 'my night.toml' --only calm --record it.tsv")


def test_a_recovery_that_never_came_is_shown() -> None:
    assert " never " in markdown(suite_state(row(figures={"to_ack_s_p50": inf})), ())


# --------------------------------------------------------------------------------- the budget


def test_a_run_is_begun_if_it_is_likely_to_end_in_time() -> None:
    """As long as others of its name took, else as its load takes, and something."""
    assert likely_s(turn("calm"), [row(took_s=40.0), row(took_s=60.0), row("x")]) == 50.0
    assert likely_s(turn("new"), [row()]) == 80.0


def test_room_is_made_by_what_nobody_needs_to_look_at(tmp_path: Path) -> None:
    """The oldest that ended as expected go first; those that did not are never removed."""
    rows = []
    for number, outcome in enumerate((AS_EXPECTED, NOT_AS_EXPECTED, AS_EXPECTED)):
        folder = tmp_path / f"run-{number}"
        folder.mkdir()
        (folder / "journal").write_bytes(b"x" * 1_000_000)
        rows.append(row(run=folder.name, when=str(number), outcome=outcome))
    assert within(rows, tmp_path, 10_000_000)
    assert within(rows, tmp_path, 2_500_000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-1", "run-2"]
    assert not within(rows, tmp_path, 500_000)
    assert [path.name for path in tmp_path.iterdir()] == ["run-1"]


# -------------------------------------------------------------------------------- the figures


def test_quantiles_are_values_that_were_seen() -> None:
    """The smallest that so many are not above."""
    values = [0.5, 3.0, 1.0, 2.0]
    assert [quantile(values, share) for share in (0.5, 0.99)] == [1.0, 3.0]
    assert quantile([], 0.5) is None
