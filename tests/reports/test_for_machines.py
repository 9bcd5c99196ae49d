"""What machines read of a run: verdict.json by its published schema, junit.xml, a badge."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
import sinking

from harness.history.rundir import RunDir
from harness.judge.verdict import Finding, Reason, Verdict
from reports import badge, junit
from reports._run import read_run

Written = Callable[..., RunDir]
ODD = "\x00\x1b[31m\ud800\ufffe]]><&\"'</failure>"


@pytest.fixture
def schema(root: Path) -> jsonschema.Draft202012Validator:
    table = json.loads((root / "docs" / "verdict.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(table)
    return jsonschema.Draft202012Validator(table)


def test_a_real_verdict_is_as_published(
    schema: jsonschema.Draft202012Validator, tmp_path: Path
) -> None:
    """Of a run that lost messages, with all checkers."""
    lossy = sinking.sunk(tmp_path / "sunk").run
    told = json.loads(lossy.verdict_file.read_text())
    assert told["verdict"] == "invalid"
    schema.validate(told)


def test_another_format_is_not_as_published(
    schema: jsonschema.Draft202012Validator, written: Written, lost: Finding
) -> None:
    """The schema rejects a word, a type, a missing or an unknown field."""
    sound = json.loads(written((lost,)).verdict_file.read_text())
    schema.validate(sound)
    for change in ({"verdict": "fine"}, {"schema_version": 2}, {"reasons": None}, {"extra": 1}):
        assert not schema.is_valid({**sound, **change}), change
    del sound["checkers"][0]["findings"][0]["count"]
    assert not schema.is_valid(sound)


def test_junit_fails_what_breaks_the_contract(written: Written, lost: Finding) -> None:
    """A case for each checker; the one that convicts has a failure with count and evidence."""
    run = written((lost,))
    root = ElementTree.fromstring(junit.xml(read_run(run)))
    (suite,) = root
    assert suite.attrib == {"name": "demo", "tests": "5", "failures": "1", "errors": "0"}
    (failure,) = root.iter("failure")
    assert failure.attrib == {"type": "LOST_ACKED", "message": lost.message}
    assert "3 in all" in str(failure.text)
    assert "queue orders-1" in str(failure.text)
    properties = {p.attrib["name"]: p.attrib["value"] for p in root.iter("property")}
    assert properties["verdict"] == "invalid"
    assert properties["seed"] == "1"


def test_junit_does_not_pass_what_is_unknown(written: Written, lost: Finding) -> None:
    """A reason of a checker is an error of its case, one of the run is a case of its own; a
    permitted finding passes, and is in the output."""
    run = written((replace(lost, permitted=True),))
    verdict = Verdict.read(run.verdict_file)
    first, *others = verdict.checkers
    own, gone = Reason("NO_OFFSETS", "No offsets."), Reason("NODE_GONE", "It is gone.")
    changed = replace(
        verdict, reasons=(gone, own), checkers=(replace(first, reasons=(own,)), *others)
    )
    run.verdict_file.write_text(changed.to_json())
    root = ElementTree.fromstring(junit.xml(read_run(run)))
    failed = {
        case.attrib["name"]: error.attrib["type"]
        for case in root.iter("testcase")
        for error in case.iter("error")
    }
    assert failed == {"the run": "NODE_GONE", "loss": "NO_OFFSETS"}
    assert not list(root.iter("failure"))
    assert "LOST_ACKED" in "".join(str(out.text) for out in root.iter("system-out"))


def test_junit_is_xml_whatever_a_run_says(written: Written, lost: Finding) -> None:
    """Control characters, halves of letters and markup; twice it is the same bytes."""
    odd = replace(lost, code=f"ODD{ODD}", message=ODD * 2000, evidence=({ODD: ODD},))
    run = written((odd,), name=f"x{ODD[7:]}")
    path = junit.render(run)
    assert path
    (failure,) = ElementTree.fromstring(path.read_bytes()).iter("failure")
    assert "]]><&" in str(failure.text)
    assert path.read_bytes() == junit.xml(read_run(run))


def test_a_badge_says_the_verdict(written: Written, lost: Finding) -> None:
    """One word that can be read aloud, and nothing else of the run."""
    for findings, word in (((), "valid"), ((lost,), "invalid")):
        run = written(findings)
        path = badge.render(run)
        assert path
        picture = ElementTree.fromstring(path.read_text())
        assert picture.attrib["aria-label"] == f"seatrial: {word}"
        assert "".join(picture.itertext()).split().count(word) == 2
        assert not [key for part in picture.iter() for key in part.attrib if key.endswith("href")]
        path.unlink()
        run.path.rename(run.path.with_name(word))
