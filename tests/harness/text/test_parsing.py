"""Whatever stands in a file, or is said on the command line, is read or refused in a sentence."""

from pathlib import Path

import click
import pytest

from harness.cli.options import Duration, KeyValues, Seeds, request
from harness.errors import BadRequest, UnknownName
from harness.history.rundir import RunDir
from harness.suite.suite_file import read_suite
from harness.text.parsing import (
    MAX_DEPTH,
    MAX_INT,
    is_number,
    parse_integer,
    parse_json,
    parse_toml,
    read_text,
)
from harness.trial import Trial
from nemesis import load

FAULT = 'kind = "kill"\nat_s = 5.0\nfor_s = 10.0\ntarget = "master"\n'
HUGE, VAST = "9" * 400, "9" * 5000  # too large for a float; and for Python to read


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"at_s = {HUGE}", "the plan: at_s is too large; integers of TOML"),
        (f"a = [1, {{ b = -{HUGE} }}]", "the plan: a.2.b is too large; integers"),
        (f"at_s = {VAST}", "the plan contains a number with too many digits"),
        ("a = " + "[" * 5000, "the plan is nested too deep"),
        ("a = " + "{a = " * 3000, "the plan is nested too deep"),
        ("a" + ".a" * MAX_DEPTH + " = 1", "the plan is nested too deeply; at most 32 tables"),
    ],
    ids=["huge", "within", "vast", "lists", "tables", "dots"],
)
def test_toml_that_no_trial_can_hold(text: str, says: str) -> None:
    """Numbers of more than 64 bits, and what is nested deeper than anybody reads."""
    with pytest.raises(BadRequest, match=says):
        parse_toml(text, "the plan")


def test_the_largest_number_is_read() -> None:
    """So is the deepest table."""
    assert parse_toml(f"a = {MAX_INT}", "it") == {"a": MAX_INT}
    assert parse_toml("a" + ".a" * (MAX_DEPTH - 1) + " = 1", "it")


def test_json_is_nested_too_deep() -> None:
    """The same error as for what is no JSON at all, which every reader expects."""
    with pytest.raises(ValueError, match="nested too deep"):
        parse_json("[" * 100_000)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 10**400, True, "1", None])
def test_what_nobody_can_reckon_with(number: object) -> None:
    """No number, whatever its type is."""
    assert not is_number(number)
    assert is_number(0.5)


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "."])
def test_a_name_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    """Nor a folder: a sentence that is not as long as the name."""
    with pytest.raises(BadRequest, match=r"the plan file .* is unreadable: ") as refused:
        read_text(Path(name), "the plan file")
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "line",
    [
        f'target = "{VAST} broker"',
        f'target = "master"\nafter = "{VAST} acks within 3 s"',
        f'target = "master"\nafter = "9 acks within {HUGE} s"',
        f'target = "master"\nuntil = "another-master + {HUGE} s"',
        f'target = "master"\nrepeat = {{ times = 3, every_s = {HUGE} }}',
        f'target = "master"\nparams = {{ x = {HUGE} }}',
    ],
    ids=["count", "acks", "within", "more", "every", "params"],
)
def test_a_plan_with_a_number_that_is_none(line: str) -> None:
    """A count, a time or a parameter of hundreds of digits."""
    text = "[[fault]]\n" + FAULT.replace('target = "master"\n', "") + line + "\n"
    with pytest.raises(BadRequest, match=r"too large|too long; the maximum"):
        _planned(text)


def _planned(text: str) -> None:
    from harness.run.launch import make_plan

    load(text)
    make_plan(Trial(hosts="simulated", plan="p.toml"), text)


@pytest.mark.parametrize(
    ("kind", "word"),
    [(Seeds(), VAST), (Seeds(), f"1..{HUGE}"), (Duration(), HUGE), (Duration(), "1000000h")],
)
def test_an_option_with_a_number_that_is_none(kind: click.ParamType[object], word: str) -> None:
    """Seeds and durations."""
    with pytest.raises(click.BadParameter, match=r"too large|longer than the maximum"):
        kind(word)


@pytest.mark.parametrize("digits", [HUGE, VAST, str(MAX_INT + 1)])
def test_a_count_of_more_than_64_bits(digits: str) -> None:
    """The witness of a finding, the zones of a cluster."""
    with pytest.raises(BadRequest, match="too large a number"):
        parse_integer(digits)


@pytest.mark.parametrize("value", [HUGE, VAST, f"[{HUGE}]"])
def test_a_value_on_the_command_line(value: str) -> None:
    """It is neither taken for a string nor brings anything down."""
    with pytest.raises(BadRequest, match=r"number|too large"):
        KeyValues()(f"rate={value}")


@pytest.mark.parametrize(
    "fields",
    [
        {"duration_s": 10**400},
        {"duration_s": 1e300},
        {"seed": 10**30},
        {"rhythm": {"fault_s": 1e10}},
    ],
)
def test_a_trial_of_numbers_that_are_none(fields: dict[str, object]) -> None:
    """Times are nanoseconds in 64 bits, seeds are written to TOML."""
    with pytest.raises(BadRequest, match=next(iter(fields))):
        Trial().with_(fields)


@pytest.mark.parametrize("plan", ["", " , "])
def test_a_plan_without_a_name(plan: str) -> None:
    """Whoever says --plan means one."""
    with pytest.raises(BadRequest, match="plan: no plan file given"):
        request("messages", {"plan": plan})


@pytest.mark.parametrize("run", [r"a\u0000b.toml", "x" * 5000, r"a\u0000b"])
def test_a_suite_that_runs_what_can_not_be(tmp_path: Path, run: str) -> None:
    """A file with a NUL in its name, and what is no name of a workload or a trial."""
    path = tmp_path / "suite.toml"
    path.write_text(f'[[trial]]\nrun = "{run}"\nexpect = "valid"\n')
    if run.endswith(".toml"):
        with pytest.raises(BadRequest, match=r"the trial file .* is unreadable"):
            read_suite(path)
    else:
        with pytest.raises(UnknownName, match="trial 1: unknown workload or trial"):
            read_suite(path)


@pytest.mark.parametrize("name", ["trial.toml", "plan.toml", "run.json", "names.json"])
@pytest.mark.parametrize("damage", [b"\xff\xfe\0", b"[" * 100_000], ids=["bytes", "deep"])
def test_a_run_whose_files_are_damaged(tmp_path: Path, name: str, damage: bytes) -> None:
    """A sentence with the file."""
    run = RunDir(tmp_path)
    run.trial_file.write_text(Trial().to_toml())
    (tmp_path / name).write_bytes(damage)
    with pytest.raises(BadRequest, match=name):
        _read(run)


def _read(run: RunDir) -> None:
    run.trial()
    load(run.plan_text(), "plan.toml")
    run.state()
    run.names()
