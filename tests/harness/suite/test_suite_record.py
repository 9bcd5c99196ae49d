"""A record of measured cells: what has not changed is not measured again."""

from collections.abc import Callable
from math import inf
from pathlib import Path

import pytest
from suite_rows import row, turn

from harness.errors import BadRequest
from harness.suite import record as suite_record
from harness.suite.record import COLUMNS, Record
from harness.suite.store import NOT_AS_EXPECTED, UNDECIDED
from harness.text import code_hash as harness_contents
from harness.text.code_hash import RUN_CODE, code_hash

FIGURES = {"injections": 15, "acknowledged": 36_123_456, "lost": 0, "to_ack_s_p50": 0.125}


def test_what_was_measured_is_known(tmp_path: Path) -> None:
    """Its outcome and its numbers, to the last digit."""
    calm, again, lossy = turn(), turn(number=2), turn("lossy")
    lost = {"outcome": NOT_AS_EXPECTED, "word": "invalid", "codes": ("LOST_ACKED",)}
    record = Record({}).with_(calm, row(figures=FIGURES)).with_(lossy, row("lossy", **lost))
    path = tmp_path / "trial.tsv"
    record.write(path, [calm, again, lossy])
    known = Record.open(path).known([calm, again, lossy])
    assert set(known) == {calm.key, lossy.key}, "the second time is another run"
    assert known[calm.key].figures == FIGURES
    assert known[calm.key].known
    assert known[lossy.key].came == "invalid, LOST_ACKED"
    assert known[lossy.key].outcome == NOT_AS_EXPECTED


def test_a_time_that_never_came_is_kept_as_such(tmp_path: Path) -> None:
    """Beyond every bound, then as now."""
    never = {"to_ack_s_p99": inf}
    Record({}).with_(turn(), row(figures=never)).write(tmp_path / "trial.tsv", [turn()])
    (known,) = Record.open(tmp_path / "trial.tsv").known([turn()]).values()
    assert known.figures == never


def test_two_suites_may_write_into_one_record(tmp_path: Path) -> None:
    """Each adds its rows to what is there by then."""
    path, calm, lossy = tmp_path / "trial.tsv", turn(), turn("lossy")
    Record.add(path, [(calm, row(figures={"lost": 0}))], [calm])
    Record.add(path, [(lossy, row("lossy", figures={"lost": 1}))], [lossy])
    Record.add(path, [(calm, row(figures={"lost": 2}))], [calm])
    known = Record.open(path).known([calm, lossy])
    assert [known[one.key].figures["lost"] for one in (calm, lossy)] == [2, 1]


def test_a_plug_in_from_elsewhere_is_part_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who tests a system of his own changes that, and no file of ours."""
    told = tmp_path / "barge-1.0.dist-info"
    package = tmp_path / "barge"
    for folder in (told, package):
        folder.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: barge\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text("[seatrial.system]\nbarge = barge.systems\n")
    (package / "__init__.py").touch()
    hashes = set()
    for code in ("", "one", "other"):
        (package / "client.py").write_text(f"# {code}\n")
        monkeypatch.setattr(harness_contents, "_state_at_start", harness_contents._state_now)
        hashes.add(code_hash(RUN_CODE))
        monkeypatch.syspath_prepend(tmp_path)
    assert len(hashes) == 3, "without it, with it, and with another one"


def test_a_bound_that_was_broken_convicts_nobody(tmp_path: Path) -> None:
    """What stood beside the verdict is no code of a finding."""
    slow = row(outcome=NOT_AS_EXPECTED, beside=("lost 1",), figures={"lost": 1})
    record = Record({}).with_(turn(), slow)
    record.write(tmp_path / "trial.tsv", [turn()])
    known = Record.open(tmp_path / "trial.tsv").known([turn()])[turn().key]
    assert (known.word, known.codes, known.outcome) == ("valid", (), NOT_AS_EXPECTED)


def test_what_is_made_of_other_code_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what has another trial under the same name; its row is then replaced."""
    record = Record({}).with_(turn(), row(figures=FIGURES))
    monkeypatch.setattr(suite_record, "code_hash", lambda folders: "other code")
    assert not record.known([turn()])
    replaced = record.with_(turn(), row(figures={"lost": 1}))
    assert len(replaced.rows) == 1
    assert replaced.known([turn()])[turn().key].figures == {"lost": 1}


def test_what_proved_nothing_is_made_again() -> None:
    """A run that failed on our side is not recorded, one that is undecided only until there is
    another; one that is known stays as it is."""
    record = Record({}).with_(turn(), row(error="no cluster came up"))
    assert not record.rows
    undecided = record.with_(turn(), row(outcome=UNDECIDED, word="unknown"))
    assert undecided.rows
    assert not undecided.known([turn()])
    assert not record.with_(turn(), row(known=True)).rows


def test_rows_are_in_the_order_of_the_suite(tmp_path: Path) -> None:
    """Whatever order they were measured in; what the suite does not have comes last."""
    one, two, gone = turn("b"), turn("a"), turn("0")
    record = Record({}).with_(gone, row("0")).with_(two, row("a")).with_(one, row("b"))
    lines = record.text([one, two]).splitlines()
    assert tuple(lines[0].split("\t")) == COLUMNS
    assert [line.split("\t")[0] for line in lines[1:]] == ["b", "a", "0"]


def test_a_file_that_is_no_record_is_left_alone(tmp_path: Path) -> None:
    """It is somebody's, and is not written over."""
    path = tmp_path / "thesis.tsv"
    path.write_text("chapter\tpage\n")
    with pytest.raises(BadRequest, match="is not a record of this edition"):
        Record.open(path)
    assert not Record.open(tmp_path / "new.tsv").rows


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda line: line + "\tmore\tand more", "line 3: it has 25 columns instead of 23"),
        (lambda line: line[: len(line) // 2], "line 3: it has .* columns instead of 23"),
        (lambda line: line.replace("0.125", "0,5"), "line 3: to_ack_s_p50 must be a number, not"),
        (lambda line: line.replace("0.125", "nan"), "line 3: to_ack_s_p50 must be a number, not"),
        (lambda line: line.replace("as expected", "fine"), "line 3: outcome must be as expected,"),
        (lambda line: line.replace("0.125", "1" * 200_000), "line 3: field larger than .*limit"),
        (lambda line: '"' + line, "line 3: unexpected end of data"),
    ],
    ids=["more", "torn", "comma", "nan", "word", "long", "quote"],
)
def test_a_damaged_row_is_refused_with_its_line(
    tmp_path: Path, spoil: Callable[[str], str], says: str
) -> None:
    """What it should have held is not known, so it is neither believed nor written over."""
    path = tmp_path / "trial.tsv"
    turns = [turn(), turn("lossy")]
    record = Record({})
    for one, name in zip(turns, ("calm", "lossy"), strict=True):
        record = record.with_(one, row(name, figures=FIGURES))
    head, first, second = record.text(turns).splitlines()
    path.write_text("\n".join([head, first, spoil(second), ""]))
    with pytest.raises(BadRequest, match=f"trial.tsv {says}"):
        Record.open(path)


def test_a_record_that_can_not_be_written_is_refused_beforehand(tmp_path: Path) -> None:
    """Not when the first run is over; one that can be leaves nothing."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "missing" / "it.tsv", tmp_path / "file" / "it.tsv"):
        with pytest.raises(BadRequest, match="no record can be written to"):
            Record.refuse_unwritable(path)
    Record.refuse_unwritable(tmp_path / "it.tsv")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
