"""Options of commands, and the trial that a command line and its files define.

The layers of a trial, in rising precedence: the defaults, the `[trial]` table of a plan file, the
trial file, the flags. Tables (`bed`, `nodes`, `settings`, `load`) merge by key, other fields are
replaced. Every field of a trial has a flag, so everything in a file can also be given by hand.
"""

import os.path
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from os.path import isfile as is_file
from pathlib import Path
from shlex import quote
from typing import Any

import click

from harness import registry
from harness.cli.prog_name import seatrial
from harness.errors import BadRequest, UnknownName
from harness.plans import join_plans
from harness.spark.master import DEFAULT, VARIABLE, Master
from harness.suite import bundled
from harness.text.parsing import (
    MAX_SECONDS,
    NotTOML,
    abbreviate,
    is_number,
    parse_integer,
    parse_toml,
    read_text,
)
from harness.text.toml_lines import line_suffix
from harness.text.trial_lines import TrialSource
from harness.trial import ZONE_COUNT, Trial, merge_claims, survives_as_claims

Command = Callable[..., Any]

RUNS_VARIABLE = "SEATRIAL_RUNS"
UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
MAX_SEEDS = 10_000
COMMAND_LINE = "the command line"
SEPARATOR = ", "  # between the plan files of a trial
DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|)")
UNITS_BYTES = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "": 1.0}
SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(kB|MB|GB|TB|)")


@dataclass(frozen=True)
class Request:
    """A trial and the text of its plan file; without one, the plan is drawn from the seed.
    `attached`: the command line names the cluster that exists already, if the trial has one."""

    trial: Trial
    plan_text: str | None = None
    written: tuple[TrialSource, ...] = ()  # sources of its fields, highest precedence first
    attached: bool = False


class Duration(click.ParamType[float]):
    """`60s`, `2m`, `1m30s`, `500ms`, or a plain number of seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, int | float):
            return float(value)
        parts = DURATION.findall(value)
        if not value or "".join(number + unit for number, unit in parts) != value:
            self.fail(f"{value!r} is not a duration; write 60s, 2m or 1m30s", param, ctx)
        seconds = sum(float(number) * UNITS_S[unit] for number, unit in parts)
        if seconds <= 0:
            self.fail(f"{value!r} is not longer than 0 s; write 60s, 2m or 1m30s", param, ctx)
        if seconds > MAX_SECONDS:
            self.fail(
                f"{abbreviate(value)} is longer than the maximum of {MAX_SECONDS:g} s", param, ctx
            )
        return seconds


class ByteSize(click.ParamType[float]):
    """`2GB`, `500MB`, or a plain number of bytes."""

    name = "size"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, int | float):
            return float(value)
        match = SIZE.fullmatch(value.strip())
        if not match or float(match[1]) <= 0:
            self.fail(f"{value!r} is not a size; write 2GB or 500MB", param, ctx)
        return float(match[1]) * UNITS_BYTES[match[2]]


class FiniteNumber(click.FloatRange):
    """A finite number within bounds."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not is_number(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class NameList(click.ParamType[tuple[str, ...]]):
    """Names separated by commas."""

    name = "names"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(word.strip() for word in value.split(",") if word.strip())


class KeyValues(click.ParamType[dict[str, Any]]):
    """`key=value,key=value`; a value that is not TOML is a string."""

    name = "key=value"
    form = "key=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        pairs = [pair.partition("=") for pair in _split(value)]
        for key, equals, _ in pairs:
            if not key.strip() or not equals:
                self.fail(f"{value!r} is not {self.form}", param, ctx)
        return {key.strip(): self.value_of(raw.strip(), key.strip()) for key, _, raw in pairs}

    def value_of(self, raw: str, key: str) -> Any:
        return toml_value(raw, key)


class KeyTexts(KeyValues):
    """`key=text,key=text`: 3.10 is no number."""

    def value_of(self, raw: str, key: str) -> str:
        return raw


class CommandWords(click.ParamType[tuple[str, ...]]):
    """The words of a command, quoted as in a shell."""

    name = "command"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        try:
            words = tuple(shlex.split(value))
        except ValueError as e:
            self.fail(f"{value!r} is not a command: {e}", param, ctx)
        return words or self.fail("an empty command is no program; leave it out", param, ctx)


class Zones(KeyValues):
    """A number of zones, or `node=zone,node=zone`."""

    name = "zones"
    form = "a number of zones or node=zone,node=zone"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any]:
        if isinstance(value, str) and value.strip().isdecimal():
            return {ZONE_COUNT: parse_integer(value)}
        return super().convert(value, param, ctx)


class Latency(click.ParamType[dict[str, Any]]):
    """`5ms`, or with jitter `5ms+1ms`."""

    name = "latency"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        delay, plus, jitter = value.partition("+")
        table = {"delay_s": Duration().convert(delay, param, ctx)}
        return {**table, "jitter_s": Duration().convert(jitter, param, ctx)} if plus else table


class Seeds(click.ParamType[tuple[int, ...]]):
    """`1..10`, `1,4,9`, or both mixed."""

    name = "seeds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        seeds: list[int] = []
        for part in value.split(","):
            first, dots, last = part.strip().partition("..")
            if not first.isdecimal() or (dots and not last.isdecimal()):
                self.fail(f"{value!r} is not a list of seeds; write 1..10 or 1,4,9", param, ctx)
            try:
                begin, end = parse_integer(first), parse_integer(last or first)
            except BadRequest as e:
                self.fail(str(e), param, ctx)
            if end - begin >= MAX_SEEDS:
                self.fail(f"{value!r} is more than {MAX_SEEDS:,} seeds", param, ctx)
            seeds.extend(range(begin, end + 1))
        if not seeds:
            self.fail(
                f"{value!r} has no seed: the first number must not be larger than the last",
                param,
                ctx,
            )
        return tuple(seeds)


def _master(context: click.Context, option: click.Parameter, text: str) -> str:
    """Check --spark before anything is started."""
    return Master.of(text).url


def runs_option(about: str = "The folder for runs.") -> Callable[[Command], Command]:
    """Return the option `--runs DIR`; its default is SEATRIAL_RUNS, else `runs`."""
    return click.option(
        "--runs",
        type=click.Path(path_type=Path),
        default=Path("runs"),
        envvar=RUNS_VARIABLE,
        show_envvar=True,
        help=about,
    )


SPARK = click.option(
    "--spark",
    metavar="MASTER",
    default=DEFAULT,
    envvar=VARIABLE,
    show_envvar=True,
    callback=_master,
    help="Where checkers run: local[N], spark://HOST:PORT, yarn, k8s://..., sc://HOST; or none: in"
    " this process, for small histories.",
)


def table_option(*names: str, about: str) -> Callable[[Command], Command]:
    """Return an option that takes key=value and may be repeated."""
    return click.option(*names, type=KeyValues(), multiple=True, show_default="none", help=about)


BED = table_option("--bed", about="An option of the hosts.")
SETTINGS = table_option("--set", "settings", about="A setting of the system.")


CLIENT_PROGRAM = click.option(
    "--client",
    type=CommandWords(),
    metavar="COMMAND",
    show_default="the system's own client",
    help="A client program that speaks JSON lines, with arguments.",
)


def option_group(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds these options to a command, in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


# what decides which hosts and which program a stored run may use
trust_options = option_group(
    table_option("--bed", about="An option of the hosts: inventory=FILE."),
    CLIENT_PROGRAM,
    click.option("--trust-run", is_flag=True, help="Use the hosts' options of the run in DIR."),
)


def toml_value(text: str, name: str = "a value") -> Any:
    """Read `3` as a number, `true` as a boolean, `[1, 2]` as a list, anything else as a string."""
    try:
        return parse_toml(f"value = {text}", name)["value"]
    except NotTOML:
        return text


def _split(text: str) -> list[str]:
    """Split at commas that are followed by another `key=`, so that lists stay whole."""
    return re.split(r",(?=\s*[\w.-]+\s*=)", text)


def merge_tables(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge tables, the last with the highest precedence; tables in them merge by key."""
    result: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            below = result.get(key)
            both = isinstance(below, Mapping) and isinstance(value, Mapping)
            result[key] = {**below, **value} if both else value  # type: ignore[dict-item]
    return result


def request(
    what: str,
    flags: Mapping[str, Any],
    source: str = COMMAND_LINE,
    defaults: TrialSource | None = None,
) -> Request:
    """Return the trial of `what` (a trial file, a bundled trial or a workload) and the flags.
    `source`: where the flags are written, for messages. `defaults`: those of seatrial.toml, of the
    lowest precedence."""
    defaults = defaults or TrialSource({})
    file = _trial_path(what)
    own = _trial_file(file) if file else TrialSource({"workload": what} if what else {})
    table = own.table
    Trial().with_(flags, source=source)
    plans = _plan_paths(flags, {**defaults.table, **table}, file)
    if plans:
        _refuse_drawn(flags, own, source)
        drawn = {key: value for key, value in defaults.table.items() if key != "faults"}
        defaults = replace(defaults, table=drawn)
    plan_text, beneath = _plan(plans) if plans else (None, [])
    first = plans[0] if plans else Path(str(table.get("workload", "trial")))
    named = {"name": (file or first).stem}
    top = {"plan": SEPARATOR.join(map(str, plans))} if plans else {}
    below = [written.table for written in beneath]
    trial = Trial().with_(_merge_layers((defaults.table, named, *below, table, flags, top)))
    folder = file.parent if file and "client" in table and "client" not in flags else Path()
    trial = replace(trial, client=locate_client(trial.client, folder))
    return Request(trial, plan_text, (TrialSource(flags), own, *reversed(beneath), defaults))


def locate_client(command: Sequence[str], folder: Path = Path()) -> tuple[str, ...]:
    """Return the command of a client program with the whole path of its file: beside the trial file
    that names it, else from the current folder. A word without a slash is a program on the PATH."""
    if not command or "/" not in command[0]:
        return tuple(command)
    beside = folder / command[0]
    return (os.path.abspath(beside if is_file(beside) else command[0]), *command[1:])


def _trial_path(what: str) -> Path | None:
    """Return the trial file, or None if `what` is a workload."""
    if looks_like_file(what):
        return Path(what)
    workloads = registry.names("workload")
    if not what or what in workloads:
        return None
    try:
        return bundled.path_of("trial", what)
    except UnknownName as e:
        raise UnknownName("workload or trial", what, {*workloads, *e.choices}) from None


def _merge_layers(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the tables of one trial merged; claims that are complete replace all below them."""
    modern = [survives_as_claims(table) for table in tables]
    claims = [table["claims"] for table in modern if "claims" in table]
    return merge_tables(modern) | ({"claims": reduce(merge_claims, claims)} if claims else {})


def looks_like_file(what: str) -> bool:
    return what.endswith(".toml") or "/" in what


def _trial_file(path: Path) -> TrialSource:
    """Read the fields of a trial file, and check each where its line is known."""
    text = read_text(path, "the trial file")
    _refuse_other_files(parse_toml(text, str(path)), path)
    Trial.from_toml(text, str(path))
    return TrialSource(parse_toml(text, str(path)), text, str(path))


def _refuse_other_files(table: Mapping[str, Any], path: Path) -> None:
    """Raise BadRequest with the right command if the file is a suite or a plan."""
    if isinstance(table.get("trial"), list):
        raise BadRequest(f"{path} is a suite; run it with: {seatrial()} suite {quote(str(path))}")
    if "fault" in table:
        plan = quote(str(path))
        raise BadRequest(f"{path} is a plan; run it with: {seatrial()} run --plan {plan}")


def _plan_paths(
    flags: Mapping[str, Any], table: Mapping[str, Any], file: Path | None
) -> list[Path]:
    """Return the plan files; those that a trial file names may be beside that file."""
    if "plan" in flags:
        if not (names := _names(flags["plan"])):
            raise BadRequest("plan: no plan file given; name one, or omit it")
        return [bundled.path_of("plan", name) for name in names]
    paths = []
    for name in _names(table.get("plan", "")):
        beside = file.parent / name if file else Path(name)
        is_beside = is_file(bundled.locate(beside)) and not is_file(name)
        paths.append(beside if is_beside else bundled.path_of("plan", name))
    return paths


def _refuse_drawn(flags: Mapping[str, Any], own: TrialSource, source: str) -> None:
    """Raise BadRequest if a plan and kinds of fault to draw one from are named in one place, or the
    flags name kinds where the trial file has its plan: one of the two would be ignored."""
    dashes = "--" if source == COMMAND_LINE else ""
    if flags.get("faults"):
        plan = f"{dashes}plan" if "plan" in flags else f"the plan of {own.source}"
        raise BadRequest(
            f"{plan} and {dashes}faults exclude each other: {dashes}faults names the kinds that a"
            " plan is drawn from; omit one of them"
        )
    if "plan" not in flags and own.table.get("faults"):
        where = line_suffix(own.text, "faults")
        raise BadRequest(
            f"{own.source}{where}: faults: the trial has a plan, so none is drawn from faults;"
            " omit one of them"
        )


def _names(plan: str) -> list[str]:
    """Split at commas."""
    return [name.strip() for name in plan.split(",") if name.strip()]


def _plan(paths: Sequence[Path]) -> tuple[str, Sequence[TrialSource]]:
    """Return the plan of these files together, and what their `[trial]` tables set."""
    nemesis = registry.nemesis()
    texts = [read_text(path, "the plan file") for path in paths]
    loaded = [nemesis.load(text, str(path)) for text, path in zip(texts, paths, strict=True)]
    for path, (_, faults) in zip(paths, loaded, strict=True):
        if not faults:
            raise BadRequest(
                f"{path} has no [[fault]], so nothing would be injected; add one, or omit the plan"
            )
    beneath = []
    for text, path, (overrides, _) in zip(texts, paths, loaded, strict=True):
        Trial().with_(overrides, text, str(path))
        beneath.append(TrialSource(overrides, text, str(path)))
    if len(texts) == 1:
        return texts[0], beneath
    return nemesis.dump(join_plans(faults for _, faults in loaded)), beneath
