"""Flags and files make the same trial."""

import tomllib
from dataclasses import fields
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli.commands.run import TRIAL_FLAGS, command
from harness.cli.options import Duration, KeyValues, Seeds, merge_tables, request, toml_value
from harness.errors import BadRequest
from harness.run.preflight import refuse_impossible
from harness.trial import Trial

KILL = """
[[fault]]
kind = "kill"
at_s = 3.0
for_s = 20.0
target = "master"
"""


def test_every_field_of_a_trial_has_a_flag() -> None:
    """Whatever a trial file can say can be said on the command line, and the reverse."""
    given_by = {parameter.name for parameter in command.params}
    assert {f.name for f in fields(Trial)} - given_by == {"workload"}  # the positional one
    assert len(TRIAL_FLAGS) == len(fields(Trial))  # `--survives` is the older way to say claims


def test_flags_lie_over_the_file(tmp_path: Path) -> None:
    """defaults < trial file < flags; tables merge by key, everything else is replaced."""
    file = tmp_path / "calm.toml"
    file.write_text(
        'profile = "allack-min2"\nseed = 7\nfaults = ["kill"]\n[load]\nrate = 10\ntopics = 2\n'
    )
    trial = request(str(file), {"seed": 9, "load": {"rate": 20}}).trial
    assert trial.name == "calm"
    assert trial.profile == "allack-min2"
    assert trial.seed == 9
    assert trial.faults == ("kill",)
    assert dict(trial.load) == {"rate": 20, "topics": 2}


def test_a_file_written_from_a_trial_is_that_trial(tmp_path: Path) -> None:
    """trial.toml in a run's folder is enough to run it again."""
    asked = request("messages", {"seed": 3, "nodes": {"broker": 5}, "duration_s": 20.0}).trial
    file = tmp_path / "again.toml"
    file.write_text(asked.to_toml())
    assert request(str(file), {}).trial == asked


def test_a_wrong_type_names_the_flag() -> None:
    """A value of the wrong kind is refused wherever it comes from."""
    with pytest.raises(BadRequest, match=r"the command line: nodes must be a table"):
        request("messages", {"nodes": "three"})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60s", 60),
        ("2m", 120),
        ("1m30s", 90),
        ("500ms", 0.5),
        ("1h", 3600),
        ("7", 7),
        ("1.5s", 1.5),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    """A number and a unit, as people write them."""
    assert Duration()(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "0s", "-1s", "soon", "1 minute", "1s!", "nan"])
def test_no_durations(text: str) -> None:
    """Anything else is refused."""
    with pytest.raises(click.BadParameter):
        Duration()(text)


@pytest.mark.parametrize(
    ("text", "seeds"), [("1..3", (1, 2, 3)), ("4", (4,)), ("1,5..6", (1, 5, 6)), ("2..2", (2,))]
)
def test_seeds(text: str, seeds: tuple[int, ...]) -> None:
    """A range includes both ends."""
    assert Seeds()(text) == seeds


@pytest.mark.parametrize("text", ["", "3..1", "a", "1..", "²", "1..999999999999"])
def test_no_seeds(text: str) -> None:
    """Anything else is refused, and so is more than anybody could wait for."""
    with pytest.raises(click.BadParameter):
        Seeds()(text)


@pytest.mark.parametrize(
    "line",
    [
        "duration_s = nan",
        "duration_s = inf",
        "recover_within_s = -1",
        "rhythm = {quiet_s = nan}",
        "seed = -1",
        "seed = true",
    ],
)
def test_numbers_that_are_none_are_refused(line: str) -> None:
    """TOML knows `nan` and `inf`; no duration is either of them, and no seed is below 0."""
    with pytest.raises(BadRequest, match=r"must be a (positive|whole) number"):
        Trial.from_toml(line)


def test_pairs_read_values_as_toml() -> None:
    """Numbers are numbers, lists survive their commas, words need no quotes."""
    assert KeyValues()("a=1,b=true,c=[1, 2],d.e=x") == {"a": 1, "b": True, "c": [1, 2], "d.e": "x"}


@given(st.one_of(st.integers(-(2**63), 2**63 - 1), st.booleans(), st.text("abcxyz", min_size=4)))
def test_values_survive(value: object) -> None:
    """What TOML knows comes back as it was."""
    assert toml_value(str(value).lower() if isinstance(value, bool) else str(value)) == value


tables = st.dictionaries(
    st.sampled_from("abc"),
    st.integers() | st.dictionaries(st.sampled_from("xyz"), st.integers()),
)


@given(tables, tables, tables)
def test_layers_associate(a: dict[str, object], b: dict[str, object], c: dict[str, object]) -> None:
    """Laying three tables is laying the third over the first two; nothing of the top is lost."""
    assert merge_tables([merge_tables([a, b]), c]) == merge_tables([a, b, c])
    for key, value in c.items():
        if not isinstance(value, dict):
            assert merge_tables([a, b, c])[key] == value


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("settings = { timeScael = 0.1 }", "settings: unknown setting 'timeScael'"),
        ('settings = { mutant = "nonesuch" }', "settings: unknown mutant 'nonesuch'"),
        ('profile = "alack"', "profile: unknown profile 'alack'"),
        ('survives = ["kill", "meteor"]', "survives: unknown fault 'meteor'"),
        ('claims = { meteor = "all" }', "claims: unknown fault 'meteor'"),
        ('faults = ["meteor"]', "faults: unknown fault 'meteor'"),
        ("nodes = { brokr = 3 }", "nodes: unknown role 'brokr'"),
        ('zones = { broker-9 = "a" }', "zones: unknown node in zones 'broker-9'"),
        ('checkers = ["los"]', "checkers: unknown checker 'los'"),
        ('contract = ["nolos"]', "contract: unknown demand of the contract 'nolos'"),
    ],
)
def test_an_unknown_name_is_told_with_its_place(tmp_path: Path, written: str, says: str) -> None:
    """In a trial file, and in the `[trial]` of a plan; a flag that says the same has no line."""
    trial, plan = tmp_path / "trial.toml", tmp_path / "plan.toml"
    trial.write_text(f"duration_s = 30.0\n{written}\n")
    plan.write_text(f"[trial]\nduration_s = 30.0\n{written}\n{KILL}")
    assert f"{trial} line 2: {says}" in refusal(str(trial), {})
    assert f"{plan} line 3: {says}" in refusal("messages", {"plan": str(plan)})
    flags = tomllib.loads(written)
    assert refusal("messages", flags).startswith(says.partition(": ")[2])


def test_a_plan_without_a_fault_is_refused(tmp_path: Path) -> None:
    """Nothing would be broken, and the verdict would look as if something had been."""
    plan = tmp_path / "plan.toml"
    for text in ("", "[trial]\nduration_s = 30.0\n"):
        plan.write_text(text)
        assert refusal("messages", {"plan": str(plan)}).startswith(f"{plan} has no [[fault]]")


def test_a_plan_and_kinds_to_draw_one_from_exclude_each_other(tmp_path: Path) -> None:
    """Of two flags, of a flag and the trial file's plan, and within a file; a flag that brings a
    plan takes the place of the kinds that the file names."""
    trial, plan = tmp_path / "trial.toml", tmp_path / "plan.toml"
    plan.write_text(KILL)
    both = {"plan": str(plan), "faults": ["kill"]}
    assert refusal("messages", both).startswith("--plan and --faults exclude each other")
    trial.write_text('plan = "plan.toml"\n')
    told = f"the plan of {trial} and --faults exclude each other"
    assert refusal(str(trial), {"faults": ["kill"]}).startswith(told)
    trial.write_text('plan = "plan.toml"\nfaults = ["kill"]\n')
    assert refusal(str(trial), {}).startswith(f"{trial} line 2: faults: the trial has a plan")
    trial.write_text('faults = ["kill"]\n')
    assert request(str(trial), {"plan": str(plan)}).plan_text == KILL


def refusal(named: str, flags: dict[str, object]) -> str:
    with pytest.raises(BadRequest) as refused:
        refuse_impossible(request(named, flags))
    return str(refused.value)


@pytest.mark.parametrize(
    ("written", "line", "says"),
    [
        ("[load]\nrate = 10\nrat = 5", 4, "load.rat is not an option"),
        ("load = { rat = 5 }", 2, "load.rat is not an option"),
        ("load.rate = 10\nload.rat = 5", 3, "load.rat is not an option"),
        ("[load]\nrate = -1  # rat = 5", 3, "load.rate must be"),
        ("bed.sync = true", 2, "local hosts have no options; remove bed.sync"),
        ("[settings]\ntimeScale = 1.0\nmutants = 'x'", 4, "settings: unknown setting 'mutants'"),
        ("[settings]\ntimeScale = 1.0\nmutant = 'x'", 4, "settings: unknown mutant 'x'"),
        ("targets = [\n'master',\n'mastre']", 4, "targets: unknown target 'mastre'"),
        ("targets = ['one mastre -> slave']", 2, "targets: unknown target 'mastre'"),
        ("targets = ['9 broker']", 2, "targets: '9 broker' asks for 9, and there are 3"),
    ],
)
def test_a_refused_option_is_told_with_its_place(
    tmp_path: Path, written: str, line: int, says: str
) -> None:
    """Whichever way TOML lets one write it, in a trial file and in a plan; of a flag there is no
    line, and no word of a file that it is laid over."""
    trial, plan = tmp_path / "trial.toml", tmp_path / "plan.toml"
    trial.write_text(f"duration_s = 30.0\n{written}\n")
    in_plan = written.replace("[", "[trial.") if written[0] == "[" else f"[trial]\n{written}"
    plan.write_text(f"# a plan\n{in_plan}\n{KILL}")
    assert f"{trial} line {line}: {says}" in refusal(str(trial), {})
    in_line = line + (written[0] != "[")
    assert f"{plan} line {in_line}: {says}" in refusal("messages", {"plan": str(plan)})
    flags = {
        key: tomllib.loads(written)[key] for key in ("load", "bed", "targets") if key in written
    }
    if flags:
        assert refusal(str(trial), flags).startswith(says.removeprefix("targets: "))
