"""Verdicts of claims are computed from recorded figures, and never without them."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import BadRequest
from harness.suite.claims import (
    ClaimCheck,
    Measurement,
    Measurements,
    PublishedClaim,
    judge_claim,
    minutes_a_year,
    nines,
    read_claims,
    read_record,
    record_text,
    valid_measurements,
)
from harness.suite.expected import FigureBound

TRIAL = """
[[trial]]
run = "messages"
name = "kill"
with = { profile = "allack-min2" }
seeds = "1..3"
expect = "valid"

[[command]]
name = "size"
run = "benchmarks/size.py 10"
figures = ["bytes"]
"""
CLAIM = """
[[claim]]
id = "H1"
claim = "It recovers."
source = "an article"
experiment = "The master is killed."
"""
CHECK = """
[[claim.check]]
of = "kill"
figure = "to_ack_s_p50"
at_most = 3.0
"""
CLAIM += CHECK


def file(tmp_path: Path, text: str = TRIAL + CLAIM) -> Path:
    path = tmp_path / "claims.toml"
    path.write_text(text)
    return path


def known(**values: float) -> Measurements:
    """A measurement of one figure for each experiment."""
    rows = {name: [Measurement(name, "", {"s": value})] for name, value in values.items()}
    return Measurements(rows)


def check(of: str, at_most: float, where: str = "", over: str = "") -> ClaimCheck:
    return ClaimCheck(of, "s", FigureBound("s", at_most), over=over, where=where)


def claim(*checks: ClaimCheck, missing: str = "") -> PublishedClaim:
    return PublishedClaim("H1", "it is quick", "an article", "it is timed", checks, missing=missing)


@pytest.mark.parametrize(
    ("kill", "pause", "text"),
    [
        (1.0, 2.0, "confirmed"),
        (1.0, 9.0, "confirmed where a killed master; not where a paused one"),
        (9.0, 9.0, "refuted"),
        (1.0, math.inf, "confirmed where a killed master; not where a paused one"),
    ],
)
def test_cases_decide_where_a_claim_is_confirmed(kill: float, pause: float, text: str) -> None:
    """All cases hold, some, or none. A time that never came is beyond every bound."""
    checks = (check("kill", 3.0, "a killed master"), check("pause", 3.0, "a paused one"))
    assert judge_claim(claim(*checks), known(kill=kill, pause=pause)).text == text


def test_a_necessary_check_that_fails_refutes() -> None:
    """Whatever the cases say."""
    checks = (check("lost", 0.0), check("kill", 3.0, "a killed master"))
    assert judge_claim(claim(*checks), known(lost=0.0, kill=1.0)).text == "confirmed"
    assert judge_claim(claim(*checks), known(lost=1.0, kill=1.0)).text == "refuted"


def test_without_all_figures_nothing_is_claimed() -> None:
    """Not even refuted; the reason is the file's, or names what has no record."""
    one = claim(check("kill", 3.0), check("pause", 3.0))
    verdict = judge_claim(one, known(kill=9.0))
    assert verdict.text == "not measured: no record of s of pause <= 3"
    assert verdict.values == (9.0, None)
    assert judge_claim(claim(missing="it is not built"), known()).text == (
        "not measured: it is not built"
    )
    assert judge_claim(claim(), known()).text == "not measured: there is no experiment"


def test_a_ratio_needs_both_figures() -> None:
    """Two times that never came have no ratio; one over nothing is infinite."""
    ratio = claim(check("kill", 3.0, over="pause"))
    assert judge_claim(ratio, known(kill=6.0, pause=2.0)).values == (3.0,)
    assert judge_claim(ratio, known(kill=6.0)).word == "not measured"
    assert judge_claim(ratio, known(kill=math.inf, pause=math.inf)).word == "not measured"
    assert judge_claim(ratio, known(kill=6.0, pause=0.0)).text == "refuted"


def test_a_planted_wrong_figure_turns_the_row(tmp_path: Path) -> None:
    """In a record on the disk. What was measured with another trial does not count."""
    claims = read_claims(file(tmp_path))
    keys = claims.keys
    rows = [
        Measurement("kill", keys["kill", seed], {"to_ack_s_p50": 0.1}, seed, word="valid")
        for seed in (1, 2, 3)
    ]

    def verdict() -> str:
        (tmp_path / "record.json").write_text(record_text(rows))
        read = read_record(tmp_path / "record.json")
        assert read == rows
        return judge_claim(claims.claims[0], valid_measurements(claims, read, tmp_path)).text

    assert verdict() == "confirmed"
    rows[:2] = [replace(row, figures={"to_ack_s_p50": math.inf}) for row in rows[:2]]
    assert verdict() == "refuted"
    seeds, rows[:] = rows[:], rows[:2]
    assert verdict().startswith("not measured"), "seed 3 has no record"
    rows[:] = [replace(row, key="of another plan") for row in seeds]
    assert verdict().startswith("not measured: no record of to_ack_s_p50 of kill")


def test_a_run_that_proves_nothing_has_no_figures(tmp_path: Path) -> None:
    """One unknown run of three leaves the claim without a verdict, and is the reason; a run that
    found what its trial does not expect decides, and is shown."""
    claims = read_claims(file(tmp_path))
    rows = [
        Measurement("kill", claims.keys["kill", seed], {"to_ack_s_p50": 0.1}, seed, word="valid")
        for seed in (1, 2, 3)
    ]
    sound = valid_measurements(claims, rows, tmp_path)
    assert judge_claim(claims.claims[0], sound).word == "confirmed"
    assert not sound.unexpected
    invalid = replace(rows[2], word="invalid", codes=("LOST_ACKED",))
    lost = valid_measurements(claims, [*rows[:2], invalid], tmp_path)
    assert judge_claim(claims.claims[0], lost).word == "confirmed"
    assert lost.unexpected == {"kill": "invalid, LOST_ACKED"}
    unknown = valid_measurements(claims, [*rows[:2], replace(rows[2], word="unknown")], tmp_path)
    verdict = judge_claim(claims.claims[0], unknown)
    assert (verdict.text, verdict.values) == ("not measured: a run of kill is unknown", (None,))


def test_findings_are_figures(tmp_path: Path) -> None:
    """The share of the runs that are invalid, and that have a code."""
    run = Measurement("kill", "", {}, word="invalid", codes=("LOST_ACKED",))
    assert run.figure("invalid") == run.figure("found LOST_ACKED") == 1.0
    assert run.figure("found ONE_MASTER") == 0.0
    assert run.figure("to_ack_s_p50") is None
    assert Measurement("size", "", {"bytes": 7.0}).figure("invalid") is None


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"to_ack_s_p50"', '"to_ack"', "unknown figure 'to_ack' .did you mean to_ack_s_p"),
        (
            '"to_ack_s_p50"',
            '"found LOST_ACKD"',
            "unknown finding 'LOST_ACKD' .did you mean LOST_ACKED",
        ),
        ('of = "kill"', 'of = "size"', "unknown figure 'to_ack_s_p50'; there are: bytes, runs"),
        ('of = "kill"', 'of = "pause"', "unknown experiment 'pause'; there are: kill, size"),
        ("at_most = 3.0", "", "check 1: it needs at_most or at_least, a number"),
        ("at_most = 3.0", 'at_most = "x"', "it needs at_most or at_least, a number"),
        ("at_most = 3.0", "at_most = 3.0\nunit = 1", "unknown key 'unit'"),
        ("at_most = 3.0", 'at_most = 3.0\ntake = "mean"', "unknown take 'mean'"),
        ('source = "an article"', "", "claim H1: source must be a text"),
        (CLAIM, CLAIM + CLAIM, "claim H1 is there twice"),
        ('figures = ["bytes"]', "", "it needs name, run and figures"),
        ('["bytes"]', '"bytes"', "command 1: figures must be a list of texts"),
        ('run = "benchmarks/size.py 10"', "run = 3", "command 1: run must be a text"),
        (CLAIM, "[[table]]\nname = 'x'", "table 1: path must be a text"),
        (CLAIM, "[[mode]]\ncopies = '3'", "mode 1: name must be a text"),
        (CLAIM, "[[mode]]\nname = 'x'\ntrials = 'kill'", "mode 1: trials must be a table"),
        (CLAIM, "[[mode]]\nname = 'x'\nrepair_s = 'x'", "mode 1: repair_s must be a number"),
        (CLAIM, "[mode]\nname = 'x'", r"mode must be a list of tables, \[\[mode]]"),
        (CLAIM, "[shares]\nkill = 'x'", "shares must be a table of numbers that are 1"),
        (CLAIM, "[shares]\nkill = 0.5", "shares must be a table of numbers that are 1"),
        (TRIAL, TRIAL.replace("[[trial]]", 'also = "claims.toml"\n[[trial]]'), "leads back to"),
        (CHECK, "check = 3", "claim H1: check must be a list of tables"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    """With the claim, and the figures or experiments that there are."""
    text = TRIAL + CLAIM
    assert old in text
    with pytest.raises(BadRequest, match=says):
        read_claims(file(tmp_path, text.replace(old, new)))


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    """It is never taken for one without measurements; a missing one is."""
    path = tmp_path / "record.json"
    assert read_record(path) == []
    for text in ("{", '{"measurements": 3}', '{"measurements": [{"name": "x"}]}'):
        path.write_text(text)
        with pytest.raises(BadRequest, match="is not a record of claims"):
            read_record(path)


def test_availability_is_mttr_times_the_rate() -> None:
    """60 s for each of four faults a year are four minutes, and five nines are 5.26 min."""
    shares = {"kill": 0.6, "pause": 0.2, "cut": 0.2}
    assert minutes_a_year(dict.fromkeys(shares, 60.0), shares, 4) == pytest.approx(4.0)
    assert nines(5.2596) == pytest.approx(5.0)
    assert nines(0.0) == math.inf
    assert nines(1e9) == 0.0
    assert minutes_a_year({"kill": 60.0, "pause": 0.0, "cut": 0.0}, shares, 10) == pytest.approx(
        6.0
    )
