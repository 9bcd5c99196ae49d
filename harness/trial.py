"""A trial as a value.

The TOML file and the command line make the same object; it is written to `trial.toml` in the run's
folder, so any run can be repeated from it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

import tomli_w

from harness.errors import BadRequest, UnknownName, near_names
from harness.judge.demands import DEMANDS as DEMANDS
from harness.judge.demands import ISOLATION as ISOLATION
from harness.text import toml_lines as places
from harness.text.parsing import MAX_INT, MAX_SECONDS, abbreviate, parse_toml

ZONE_COUNT = "count"  # `zones = 3` is the table { count = 3 }
# how many nodes of one replica group faults of a kind may hit at one moment
EXTENTS = ("none", "one", "minority", "all")
ANY_KIND = "*"  # in claims: every kind that is not listed


MAX_NODES = 100  # of a role
SIMULATED = "simulated"  # hosts, whose trials are so cheap that thousands are run


@dataclass(frozen=True, kw_only=True)
class Rhythm:
    """How faults and recoveries alternate in a plan that is drawn from the seed."""

    quiet_s: float = 4.0  # load alone, before the first fault
    fault_s: float = 6.0
    recovery_s: float = 6.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run: system x hosts x workload x faults x seed."""

    name: str = "trial"
    system: str = "flotilla"
    profile: str = ""  # empty: the system's own default
    version: str = ""  # of the system's program; empty: the one that is there, or the driver's
    mixed: Mapping[str, str] = field(default_factory=dict)  # node -> version that it runs instead
    supply: str = "auto"  # where the program comes from (clusters.supply)
    hosts: str = "local"
    bed: Mapping[str, Any] = field(default_factory=dict)  # options of the hosts
    workload: str = "messages"
    client: tuple[str, ...] = ()  # command of a client program; empty: the driver's own client
    faults: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()  # selectors that a drawn plan picks from; empty: each kind's own
    plan: str = ""  # plan files, with commas between, instead of one drawn from the seed
    seed: int = 1
    duration_s: float = 60.0  # of the load
    rhythm: Rhythm = field(default_factory=Rhythm)
    short_faults: bool = False  # allow faults too short to be detected
    recover_within_s: float = 30.0
    compare_replicas: bool = False  # also between faults, not only at the end
    nodes: Mapping[str, int] = field(default_factory=dict)  # role -> how many; else the system's
    zones: Mapping[str, Any] = field(default_factory=dict)  # of the nodes (harness.zones)
    zone_latency: Mapping[str, Any] = field(default_factory=dict)  # delay between zones
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the system, over the profile's
    load: Mapping[str, Any] = field(default_factory=dict)  # options of the workload
    checkers: tuple[str, ...] = ()  # empty: the workload's
    contract: tuple[str, ...] = DEMANDS
    claims: Mapping[str, str] = field(default_factory=dict)  # kind -> extent, over the profile's

    @property
    def isolation(self) -> str:
        """The isolation level that transactions are held to: the contract's strongest, else the
        strictest."""
        named = [level for level in ISOLATION if level in self.contract]
        return named[-1] if named else ISOLATION[-1]

    def demands(self, word: str) -> bool:
        """Whether the contract forbids findings with this demand."""
        if word in ISOLATION:
            return ISOLATION.index(word) <= ISOLATION.index(self.isolation)
        return bool(word) and (word not in DEMANDS or word in self.contract)

    def to_toml(self) -> str:
        return tomli_w.dumps(_plain(asdict(self)))

    @classmethod
    def from_toml(cls, text: str, source: str = "the trial") -> "Trial":
        """Return a trial from TOML. Raises BadRequest with the line and the key."""
        return cls().with_(parse_toml(text, source), text, source)

    def with_(self, table: Mapping[str, Any], text: str = "", source: str = "the trial") -> "Trial":
        """Return this trial with some fields replaced, each checked. Raises BadRequest with the
        key."""
        trial_fields = {f.name: f for f in fields(self)}
        changes: dict[str, Any] = {}
        for key, raw in survives_as_claims(table).items():
            where = f"{source}{line_of(text, key)}"
            if key == "survives":
                raise BadRequest(f"{where}: {key} must be a list of strings, not {raw!r}")
            if key not in trial_fields:
                raise BadRequest(f"{where}: unknown key {key!r}{near_names(key, trial_fields)}")
            if key == "zones" and isinstance(raw, int):
                raw = {ZONE_COUNT: raw}
            changes[key] = _convert(getattr(self, key), raw, f"{where}: {key}")
            if key == "claims":
                _check_claims(changes[key], f"{where}: {key}")
        return replace(self, **changes)


def node_counts(usual: Mapping[str, int], given: Mapping[str, Any]) -> dict[str, int]:
    """Return how many nodes of each role there are: a trial's `nodes` over the usual numbers.
    Raises UnknownName, or BadRequest that names the role."""
    for role, count in given.items():
        if role not in usual:
            raise UnknownName("role", role, usual)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_NODES:
            raise BadRequest(
                f"nodes.{role} must be a whole number from 1 to {MAX_NODES}, not {count!r}"
            )
    return {**usual, **given}


def survives_as_claims(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a trial's table with `survives`, as older files have it, written as `claims`: these
    kinds to any extent, and no others."""
    kinds = table.get("survives")
    if not isinstance(kinds, list | tuple) or not all(isinstance(kind, str) for kind in kinds):
        return table
    claims = {ANY_KIND: "none", **dict.fromkeys(kinds, "all")}
    rest = {key: value for key, value in table.items() if key != "survives"}
    return {**rest, "claims": merge_claims(claims, rest.get("claims", {}))}


def merge_claims(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return claims merged by kind, those `above` taking precedence; with `*` they are complete."""
    return {**({} if ANY_KIND in above else below), **above}


def _check_claims(claims: Mapping[str, Any], where: str) -> None:
    for kind, extent in claims.items():
        if extent not in EXTENTS:
            extents = ", ".join(EXTENTS)
            raise BadRequest(
                f"{where}.{kind} must be one of {extents}, not {abbreviate(repr(extent))}"
            )


def _plain(value: Any) -> Any:
    """Convert mappings and sequences to TOML types."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _convert(now: Any, raw: Any, where: str) -> Any:
    """Convert `raw` to the type of the default `now`. Raises BadRequest if it has another type."""
    if isinstance(now, Rhythm):
        return _rhythm(now, raw, where)
    if isinstance(now, Mapping | MappingProxyType):
        return _require(raw, dict, "a table", where)
    if isinstance(now, tuple):
        items = _require(raw, list | tuple, "a list of strings", where)
        if not all(isinstance(item, str) for item in items):
            raise BadRequest(f"{where} must be a list of strings, not {raw!r}")
        return tuple(items)
    if isinstance(now, bool):
        return _require(raw, bool, "true or false", where)
    if isinstance(now, float):
        number = _require(raw, int | float, "a number", where)
        if isinstance(raw, bool) or not 0 < number <= MAX_SECONDS:
            most = f", {MAX_SECONDS:g} at most" if number > MAX_SECONDS else ""
            raise BadRequest(
                f"{where} must be a positive number{most}, not {abbreviate(repr(raw))}"
            )
        return float(number)
    if isinstance(now, int):
        number = _require(raw, int, "a whole number", where)
        if isinstance(raw, bool) or not 0 <= number <= MAX_INT:
            why = f"must be a whole number from 0, of 64 bits, not {abbreviate(repr(raw))}"
            raise BadRequest(f"{where} {why}")
        return number
    return _require(raw, str, "a string", where)


def _rhythm(now: Rhythm, raw: Any, where: str) -> Rhythm:
    table = _require(raw, dict, "a table", where)
    names = {f.name for f in fields(now)}
    for key in table:
        if key not in names:
            raise BadRequest(f"{where}: unknown key {key!r}{near_names(key, names)}")
    return replace(
        now, **{k: _convert(getattr(now, k), v, f"{where}.{k}") for k, v in table.items()}
    )


def _require(raw: Any, kind: Any, words: str, where: str) -> Any:
    if not isinstance(raw, kind):
        raise BadRequest(f"{where} must be {words}, not {abbreviate(repr(raw))}")
    return raw


def line_of(text: str, *path: str | int) -> str:
    """Return the line of a value in the TOML text of a trial or of a plan's [trial], as ' line 3';
    empty if it is not there."""
    return places.line_suffix(text, "trial", *path) or places.line_suffix(text, *path)
