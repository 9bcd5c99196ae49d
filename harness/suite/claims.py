"""Claims about high availability, and the measurements that confirm or refute them.

A suite file may say what its results mean (suites/claims.toml):

    also = "others.toml"                   # a suite beside it whose experiments checks may name

    [[command]]                            # an experiment that is no trial: it prints a JSON object
    name = "H24/table"
    run = "benchmarks/avoidance.py"        # with arguments, by this interpreter
    figures = ["former_s", "current_s"]    # the keys of that object
    quiet = true                           # whether it needs a machine without other load

    [[table]]                              # a table of results that was recorded before
    name = "H41/published"
    path = "docs/rocketmq-trial.tsv"

    [[mode]]                               # a row of the table of modes; times of its trials
    name = "controllers"
    trials = { crash = "mode/crash" }      # kind of fault -> trial
    outage = "mode/outage"                 # the trial in which all are lost at once
    repair_s = 1200.0                      # manual repair, in the place of the measured times

    [shares]                               # of the kinds of faults, an assumption; together 1
    crash = 1.0

    [[claim]]
    id = "H9"
    claim = "With Raft a failover is long."
    source = "A Comprehensive Explanation of How RocketMQ Leverages Raft"
    experiment = "what is run, in words"
    because = "the cause, where a figure contradicts the claim"
    missing = "why it is not measured"

    [[claim.check]]
    of = "mode/raft-log/crash"             # a trial, a command, a table, or availability/MODE
    figure = "to_ack_s_p50"
    over = "mode/controllers/crash"        # the figure is divided by this one's
    where = "a master that crashes"        # the case that this check is about
    take = "max"                           # of several seeds; default: the median
    at_least = 20.0

A verdict is computed. A check without `where` is necessary. If all checks hold, the claim is
*confirmed*; if only some cases hold, it is *confirmed where* these are given; if a necessary check
fails, or no case holds, it is *refuted*. Without the figures of all its checks it is *not
measured*. A measurement counts only if it was made with the trial that the file has now. A run
whose verdict is *unknown* proves nothing (docs/verdicts.md), so its figures count as absent; that
another run did not end as its trial expects is shown beside its figures.
"""

import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from harness import registry
from harness.errors import BadRequest, UnknownName
from harness.judge.verdict import Judgement
from harness.suite.expected import ExpectedRun, FigureBound
from harness.suite.figures import NAMES
from harness.suite.record import FIGURES, Record, content_hash
from harness.suite.store import figures_for_json, read_figures
from harness.suite.suite_file import read_suite
from harness.text.parsing import is_number, parse_toml, read_text

YEAR_MIN = 365.25 * 24 * 60
FAULTS_A_YEAR = (1, 4, 12)
INVALID, FOUND, RUNS = "invalid", "found ", "runs"  # figures that every trial has
UNKNOWN = str(Judgement.UNKNOWN)
TAKES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "median": median,
    "max": max,
    "min": min,
}
YEARLY = tuple(f"{name}_{n}" for name in ("minutes_a_year", "nines") for n in FAULTS_A_YEAR)
CLAIM_KEYS = frozenset(
    ("id", "claim", "source", "experiment", "because", "missing", "check", "quiet")
)
CHECK_KEYS = frozenset(
    ("of", "figure", "over", "over_figure", "where", "take", "at_most", "at_least")
)
MODE_KEYS = frozenset(("name", "copies", "acknowledged", "trials", "outage", "repair_s"))


@dataclass(frozen=True)
class Measurement:
    """One run of an experiment.

    key       a hash of its definition
    load      the machine's load average when it ended; None if unknown
    edition   the commit of the code, with + if files differed from it
    word      the verdict of a trial, with its codes; empty for a command
    """

    name: str
    key: str
    figures: Mapping[str, float]
    seed: int = 0
    when: str = ""
    load: float | None = None
    edition: str = ""
    command: str = ""
    word: str = ""
    codes: tuple[str, ...] = ()

    def figure(self, name: str) -> float | None:
        """Return a figure, or None if it was not measured."""
        if self.word and name == INVALID:
            return float(self.word == "invalid")
        if self.word and name.startswith(FOUND):
            return float(name.removeprefix(FOUND) in self.codes)
        return 1.0 if name == RUNS else self.figures.get(name)

    def plain(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self) | {"figures": figures_for_json(self.figures)}


@dataclass(frozen=True)
class CommandRun:
    """An experiment that is no trial. `quiet`: it needs a machine without other load."""

    name: str
    run: str
    figures: tuple[str, ...]
    quiet: bool = False

    @property
    def key(self) -> str:
        return shlex.join(shlex.split(self.run))


@dataclass(frozen=True)
class ClaimMode:
    """A row of the table of modes.

    trials    kind of fault -> name of its trial
    repair_s  time of a repair by hand, where no part of the mode replaces a master; else 0
    """

    name: str
    trials: Mapping[str, str]
    copies: str = ""
    acknowledged: str = ""
    outage: str = ""
    repair_s: float = 0.0


@dataclass(frozen=True)
class ClaimCheck:
    """A figure of a measurement, or its ratio to another one, and its bound."""

    of: str
    figure: str
    bound: FigureBound
    over: str = ""
    over_figure: str = ""
    where: str = ""
    take: str = "median"

    def value(self, known: "Measurements") -> float | None:
        """Return the value; None if it was not measured, or the ratio is undefined."""
        above = known.value(self.of, self.figure, self.take)
        if not self.over or above is None:
            return above
        below = known.value(self.over, self.over_figure or self.figure, self.take)
        if below is None or (math.isinf(above) and math.isinf(below)) or above == below == 0:
            return None
        return math.inf if below == 0 else above / below

    def __str__(self) -> str:
        over = f" / that of {self.over}" if self.over else ""
        sign = "<=" if self.bound.most else ">="
        return f"{self.figure} of {self.of}{over} {sign} {self.bound.value:.4g}"


@dataclass(frozen=True)
class PublishedClaim:
    id: str
    claim: str
    source: str
    experiment: str
    checks: tuple[ClaimCheck, ...] = ()
    because: str = ""
    missing: str = ""
    quiet: bool = False

    @property
    def experiments(self) -> tuple[str, ...]:
        """Names of everything that its checks need."""
        names = (name for check in self.checks for name in (check.of, check.over) if name)
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class ClaimVerdict:
    """`text`: confirmed, confirmed where ..., refuted, or not measured: why."""

    word: str
    text: str
    values: tuple[float | None, ...]


CONFIRMED, PARTLY, REFUTED, NOT_MEASURED = "confirmed", "confirmed where", "refuted", "not measured"


@dataclass(frozen=True)
class ClaimsFile:
    claims: tuple[PublishedClaim, ...]
    cells: tuple[ExpectedRun, ...]
    commands: tuple[CommandRun, ...]
    tables: Mapping[str, str]  # name -> path
    modes: tuple[ClaimMode, ...]
    shares: Mapping[str, float]
    also: "ClaimsFile | None" = None  # the suite whose experiments checks may name, too

    @property
    def keys(self) -> Mapping[tuple[str, int], str]:
        """The hash of each experiment's present definition, by its name and seed."""
        trials = {(cell.title, cell.request.trial.seed): trial_key(cell) for cell in self.cells}
        return {**trials, **{(each.name, 0): each.key for each in self.commands}}


def trial_key(cell: ExpectedRun) -> str:
    """Return the hash of a trial without its expectation, which decides nothing here."""
    return content_hash(cell.request.trial.to_toml(), cell.request.plan_text or "")


@dataclass(frozen=True)
class Measurements:
    """Valid measurements by the name of their experiment.

    unexpected   how the runs of an experiment ended that did not end as its trial expects
    """

    of: Mapping[str, Sequence[Measurement]] = field(default_factory=dict)
    unexpected: Mapping[str, str] = field(default_factory=dict)

    def value(self, name: str, figure: str, take: str = "median") -> float | None:
        """Return the median, the largest or the smallest of a figure over the seeds; None if it was
        not measured, or one of the runs is unknown."""
        rows = self.of.get(name, ())
        if self.unproven(name):
            return None
        values = [value for row in rows if (value := row.figure(figure)) is not None]
        return TAKES[take](values) if values else None

    def unproven(self, name: str) -> bool:
        """Whether a run of this experiment is unknown."""
        return any(row.word == UNKNOWN for row in self.of.get(name, ()))


# -------------------------------------------------------------------------------- the verdict


def judge_claim(claim: PublishedClaim, known: Measurements) -> ClaimVerdict:
    """Return the verdict of a claim."""
    values = tuple(check.value(known) for check in claim.checks)
    if not claim.checks or None in values:
        why = claim.missing or _unmeasured(claim, values, known)
        return ClaimVerdict(NOT_MEASURED, f"{NOT_MEASURED}: {why}", values)
    held = [c.bound.holds(v) for c, v in zip(claim.checks, values, strict=True) if v is not None]
    cases: dict[str, bool] = {}
    for check, holds in zip(claim.checks, held, strict=True):
        cases[check.where] = cases.get(check.where, True) and holds
    if all(held):
        return ClaimVerdict(CONFIRMED, CONFIRMED, values)
    named = {where: holds for where, holds in cases.items() if where}
    if not cases.get("", True) or not any(named.values()):
        return ClaimVerdict(REFUTED, REFUTED, values)
    good = "; ".join(where for where, holds in named.items() if holds)
    bad = "; ".join(where for where, holds in named.items() if not holds)
    return ClaimVerdict(PARTLY, f"{PARTLY} {good}; not where {bad}", values)


def _unmeasured(claim: PublishedClaim, values: Sequence[float | None], known: Measurements) -> str:
    absent = [c for c, v in zip(claim.checks, values, strict=True) if v is None]
    if not absent:
        return "there is no experiment"
    unproven = [name for name in (absent[0].of, absent[0].over) if name and known.unproven(name)]
    return f"a run of {unproven[0]} is unknown" if unproven else f"no record of {absent[0]}"


# ------------------------------------------------------------------------------- availability


def minutes_a_year(
    down_s: Mapping[str, float], shares: Mapping[str, float], faults: float
) -> float:
    """Return the minutes without service in a year with so many faults, of kinds with these shares.

    `down_s`: seconds without service after a fault of each kind.
    """
    return faults * sum(share * down_s[kind] for kind, share in shares.items()) / 60


def nines(minutes: float) -> float:
    """Return -log10 of the share of a year that these minutes are; infinite for none."""
    share = min(1.0, minutes / YEAR_MIN)
    return -math.log10(share) + 0.0 if share > 0 else math.inf


def availability(
    mode: ClaimMode, shares: Mapping[str, float], known: Measurements
) -> Measurement | None:
    """Return the yearly figures of a mode, or None if one of its trials was not measured."""
    down_s: dict[str, float] = {}
    for kind in shares:
        value = known.value(mode.trials.get(kind, ""), "to_ack_s_p50")
        if value is None:
            return None
        down_s[kind] = mode.repair_s or value
    figures: dict[str, float] = {}
    for faults in FAULTS_A_YEAR:
        minutes = minutes_a_year(down_s, shares, faults)
        figures |= {f"minutes_a_year_{faults}": minutes, f"nines_{faults}": nines(minutes)}
    return Measurement(f"availability/{mode.name}", "", figures)


# -------------------------------------------------------------------------------------- files


def read_record(path: Path) -> list[Measurement]:
    """Read the recorded measurements; a missing file has none. Raises BadRequest if it is
    damaged."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["measurements"]
        return [
            Measurement(
                **{**row, "codes": tuple(row["codes"]), "figures": read_figures(row["figures"])}
            )
            for row in rows
        ]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise BadRequest(
            f"{path} is not a record of claims: {e!r}; restore it, or remove it"
        ) from e


def record_text(rows: Iterable[Measurement]) -> str:
    """Return the record's text, a line for each measurement, in order of their names."""
    ordered = sorted(rows, key=lambda row: (row.name, row.seed))
    lines = ",\n".join(json.dumps(row.plain(), sort_keys=True) for row in ordered)
    return f'{{"measurements": [\n{lines}\n]}}\n'


def valid_measurements(file: ClaimsFile, rows: Iterable[Measurement], root: Path) -> Measurements:
    """Return those that belong to the present experiments, with all their seeds, those of recorded
    tables, and the yearly figures of the modes."""
    keys, found = file.keys, dict[str, list[Measurement]]()
    for row in rows:
        if keys.get((row.name, row.seed)) == row.key:
            found.setdefault(row.name, []).append(row)
    seeds = Counter(name for name, _ in keys)
    found = {name: rows for name, rows in found.items() if len(rows) == seeds[name]}
    for name, path in file.tables.items():
        found[name] = _of_table(name, root / path)
    for mode in file.modes:
        if yearly := availability(mode, file.shares, Measurements(found)):
            found[yearly.name] = [yearly]
    return Measurements(found, _unexpected(file, found))


def _unexpected(file: ClaimsFile, found: Mapping[str, Sequence[Measurement]]) -> dict[str, str]:
    """Return of each experiment the verdicts and codes that its trial does not expect."""
    ends: dict[str, dict[str, None]] = {}
    for cell in file.cells:
        for row in found.get(cell.title, ()):
            strange = [] if row.word == cell.verdict else [row.word]
            strange += [code for code in row.codes if code not in cell.findings]
            if row.seed == cell.request.trial.seed and strange:
                ends.setdefault(cell.title, {}).update(dict.fromkeys(strange))
    return {name: ", ".join(words) for name, words in ends.items()}


def _of_table(name: str, path: Path) -> list[Measurement]:
    """Return the results of a table that `seatrial suite --record` wrote."""
    rows = []
    for line in Record.open(path).rows.values():
        word, *codes = line["came"].split(", ")
        figures = {figure: float(line[figure]) for figure in FIGURES if line[figure]}
        rows.append(
            Measurement(
                *(name, line["hash"], figures, int(line["seed"]), line["when"]),
                word=word,
                codes=tuple(codes),
            )
        )
    return rows


def read_claims(path: Path, readers: tuple[Path, ...] = ()) -> ClaimsFile:
    """Read a suite file with claims, which `readers` name in their `also`. Raises BadRequest with
    what is wrong."""
    if path.resolve() in readers:
        raise BadRequest(f"{readers[-1]}: also leads back to {path.name}; name another suite")
    cells = read_suite(path)
    table = parse_toml(read_text(path, "the suite file"), str(path))
    commands = tuple(_command(e, w) for e, w in _entries(table, "command", str(path)))
    paths = _entries(table, "table", str(path))
    tables = {_text(e, "name", w): _text(e, "path", w) for e, w in paths}
    modes = tuple(_mode(e, w) for e, w in _entries(table, "mode", str(path)))
    also = None
    if "also" in table:
        beside = path.parent / _text(table, "also", str(path))
        also = read_claims(beside, (*readers, path.resolve()))
    known = _known_figures(cells, commands, tables, modes)
    if also:
        others = _known_figures(also.cells, also.commands, also.tables, also.modes)
        if twice := sorted(known.keys() & others.keys()):
            raise BadRequest(f"{path}: {twice[0]} is in {table['also']}, too; use that one")
        known |= others
    for mode in modes:
        for name in (*mode.trials.values(), *filter(None, [mode.outage])):
            if name not in known:
                raise BadRequest(f"{path}: mode {mode.name}: {UnknownName('trial', name, known)}")
    entries = [entry for entry, _ in _entries(table, "claim", str(path))]
    claims = tuple(_claim(each, known, str(path)) for each in entries)
    ids = [claim.id for claim in claims]
    if twice := sorted({one for one in ids if ids.count(one) > 1}):
        raise BadRequest(f"{path}: claim {twice[0]} is there twice; give one of them another id")
    return ClaimsFile(claims, cells, commands, tables, modes, _shares(table, str(path)), also)


def _entries(table: Mapping[str, Any], key: str, where: str) -> list[tuple[Mapping[str, Any], str]]:
    """Return the tables of a list of them, each with words for where it is."""
    found = table.get(key, [])
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        raise BadRequest(f"{where}: {key} must be a list of tables, [[{key}]]")
    return [(each, f"{where}: {key} {number}") for number, each in enumerate(found, 1)]


def _text(entry: Mapping[str, Any], key: str, where: str) -> str:
    """Return a text that must be there."""
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"{where}: {key} must be a text")
    return value


def _shares(table: Mapping[str, Any], path: str) -> dict[str, float]:
    """Return the share of each kind of fault."""
    shares = table.get("shares", {})
    numbers = isinstance(shares, Mapping) and all(map(is_number, shares.values()))
    if not numbers or (shares and not math.isclose(sum(shares.values()), 1.0)):
        raise BadRequest(f"{path}: shares must be a table of numbers that are 1 together")
    return {str(kind): float(share) for kind, share in shares.items()}


def _known_figures(
    cells: Sequence[ExpectedRun],
    commands: Sequence[CommandRun],
    tables: Mapping[str, str],
    modes: Sequence[ClaimMode],
) -> dict[str, tuple[str, ...]]:
    """Return the figures of each experiment."""
    of_trial = (*NAMES, INVALID, RUNS)
    return {
        **dict.fromkeys((*(cell.title for cell in cells), *tables), of_trial),
        **{command.name: (*command.figures, RUNS) for command in commands},
        **{f"availability/{mode.name}": YEARLY for mode in modes},
    }


def _command(entry: Mapping[str, Any], where: str) -> CommandRun:
    unknown = entry.keys() - {"name", "run", "figures", "quiet"}
    if unknown or not {"name", "run", "figures"} <= entry.keys():
        raise BadRequest(f"{where}: it needs name, run and figures, and may have quiet")
    names = entry["figures"]
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise BadRequest(f"{where}: figures must be a list of texts")
    name, run = (_text(entry, key, where) for key in ("name", "run"))
    return CommandRun(name, run, tuple(names), quiet=bool(entry.get("quiet", False)))


def _mode(entry: Mapping[str, Any], where: str) -> ClaimMode:
    _refuse_keys(entry, MODE_KEYS, where)
    name, trials, repair_s = _text(entry, "name", where), entry.get("trials", {}), 0.0
    if not isinstance(trials, Mapping):
        raise BadRequest(f"{where}: trials must be a table of kinds of faults and names of trials")
    if "repair_s" in entry and not (is_number(repair_s := entry["repair_s"]) and repair_s >= 0):
        raise BadRequest(f"{where}: repair_s must be a number of seconds, 0 or more")
    trials = {str(kind): str(name) for kind, name in trials.items()}
    words = {key: str(entry.get(key, "")) for key in ("copies", "acknowledged", "outage")}
    return ClaimMode(name, trials, **words, repair_s=float(repair_s))


def _claim(
    entry: Mapping[str, Any], known: Mapping[str, Sequence[str]], path: str
) -> PublishedClaim:
    where = f"{path}: claim {entry.get('id', '?')}"
    _refuse_keys(entry, CLAIM_KEYS, where)
    for key in ("id", "claim", "source", "experiment"):
        _text(entry, key, where)
    checks = tuple(_check(each, known, at) for each, at in _entries(entry, "check", where))
    texts = {
        key: " ".join(str(entry.get(key, "")).split()) for key in CLAIM_KEYS - {"check", "quiet"}
    }
    return PublishedClaim(**texts, quiet=bool(entry.get("quiet", False)), checks=checks)


def _check(entry: Mapping[str, Any], known: Mapping[str, Sequence[str]], where: str) -> ClaimCheck:
    _refuse_keys(entry, CHECK_KEYS, where)
    bounds = [key for key in ("at_most", "at_least") if key in entry]
    if len(bounds) != 1 or not is_number(entry[bounds[0]]):
        raise BadRequest(f"{where}: it needs at_most or at_least, a number")
    of, figure, over = (str(entry.get(key, "")) for key in ("of", "figure", "over"))
    over_figure = str(entry.get("over_figure", ""))
    for name, wanted in ((of, figure), *(((over, over_figure or figure),) if over else ())):
        if name not in known:
            raise BadRequest(f"{where}: {UnknownName('experiment', name, known)}")
        code = wanted.removeprefix(FOUND) if wanted.startswith(FOUND) else ""
        if code and code not in (codes := registry.finding_codes()):
            raise BadRequest(f"{where}: {UnknownName('finding', code, codes)}")
        if not code and wanted not in known[name]:
            raise BadRequest(f"{where}: {UnknownName('figure', wanted, known[name])}")
    take = str(entry.get("take", "median"))
    if take not in TAKES:
        raise BadRequest(f"{where}: {UnknownName('take', take, TAKES)}")
    bound = FigureBound(figure, float(entry[bounds[0]]), bounds[0] == "at_most")
    return ClaimCheck(of, figure, bound, over, over_figure, str(entry.get("where", "")), take)


def _refuse_keys(entry: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for key in entry:
        if key not in known:
            raise BadRequest(f"{where}: {UnknownName('key', key, known)}")
