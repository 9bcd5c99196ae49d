"""Flotilla's profiles, and the settings that a trial makes of one.

A profile is data in `_profiles/flotilla.toml`; a trial's own settings go over it. What comes out is
checked by Flotilla's own configuration reader before anything is started.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w

from clusters.flotilla.client.outcomes import overall
from clusters.flotilla.client.settings import KEYS as CLIENT_KEYS
from clusters.flotilla.client.settings import why_not
from clusters.flotilla.config import Config, ConfigError, loads
from clusters.flotilla_mutants import MUTANTS, Mutant
from harness.errors import BadRequest, UnknownName
from harness.trial import Trial

# keys that the driver decides for each node
_DRIVERS = frozenset(
    {
        "role", "nodeName", "listenHost", "listenPort", "haListenPort", "storePath",
        "eventLogPath", "brokerName", "namesrvAddr", "controllerAddr", "controllerDLegerSelfId",
        "controllerDLegerPeers", "topics", "totalReplicas", "seed", "enableControllerInNamesrv",
        "zone", "nodeResources",
    }
)  # fmt: skip
_NODE_KEYS = frozenset(f.metadata["key"] for f in fields(Config)) - _DRIVERS
_ANY_SIZE = 1_000_000  # of a set whose size is not known yet
BROKER_SETS = "brokerSets"
RETRIES = ("retryTimesWhenSendFailed", "retryTimesWhenSendAsyncFailed")
LEARNERS = "learners"  # how many brokers of each set are copies that are never elected
MUTANT = "mutant"  # which flaw all nodes have; unset: none
KEYS = _NODE_KEYS | CLIENT_KEYS | {BROKER_SETS, LEARNERS, MUTANT}


@dataclass(frozen=True)
class Profile:
    """A named configuration. `expected`: plan -> verdict, or the code that convicts it; `claims`:
    kind of fault -> extent that it survives (harness.judge.claims)."""

    name: str
    about: str
    settings: Mapping[str, Any]
    expected: Mapping[str, str]
    claims: Mapping[str, str]


@dataclass(frozen=True)
class Settings:
    """What a trial's cluster is configured with: RocketMQ's keys, milliseconds at timeScale 1."""

    values: Mapping[str, Any]

    @property
    def node(self) -> dict[str, Any]:
        return {key: value for key, value in self.values.items() if key in _NODE_KEYS}

    @property
    def client(self) -> dict[str, Any]:
        wanted = CLIENT_KEYS | {"timeScale"}
        return {key: value for key, value in self.values.items() if key in wanted}

    @property
    def client_mutant(self) -> str:
        """The mutant whose flaw is one of clients, or an empty string."""
        name = str(self.values.get(MUTANT, ""))
        return name if name and MUTANTS[name].overall is not overall else ""

    def without_retries(self) -> "Settings":
        """With clients that send nothing a second time."""
        return Settings({**self.values, **dict.fromkeys(RETRIES, 0)})

    @property
    def broker_sets(self) -> int:
        return int(self.values.get(BROKER_SETS, 1))

    @property
    def learners(self) -> int:
        return int(self.values.get(LEARNERS, 0))

    def whole(self, size: int) -> int:
        """Return how many members the full SyncStateSet of a set of so many brokers has."""
        electable = size - self.learners
        return min(2, electable) if self.values.get("enableSemiSync", False) else electable

    @property
    def program(self) -> tuple[str, ...]:
        """The module that a node runs, and what comes before its configuration's path."""
        mutant = self.values.get(MUTANT)
        return ("clusters.flotilla_mutants", mutant) if mutant else ("clusters.flotilla",)


@cache
def _file() -> Mapping[str, Any]:
    return tomllib.loads((Path(__file__).parent / "_profiles" / "flotilla.toml").read_text())


def profiles() -> Mapping[str, Profile]:
    """All profiles by name."""
    return {
        name: Profile(
            name,
            table["about"],
            table["settings"],
            table.get("expected", {}),
            {**_file()["claims"], **table.get("claims", {})},
        )
        for name, table in _file()["profiles"].items()
    }


def mutants() -> Mapping[str, Mutant]:
    """All known-bad variants by name."""
    return MUTANTS


def settings(trial: Trial) -> Settings:
    """The trial's settings over its profile's. UnknownName, or BadRequest that names the key."""
    known = profiles()
    name = trial.profile or _file()["default"]
    if name not in known:
        raise UnknownName("profile", name, known)
    for key in trial.settings:
        if key not in KEYS:
            raise UnknownName("setting", key, KEYS)
    values = {**_file()["common"], **known[name].settings, **trial.settings}
    _check(values)
    return Settings(values)


def claims(trial: Trial) -> Mapping[str, str]:
    """What the trial's profile claims to survive. UnknownName."""
    known = profiles()
    name = trial.profile or _file()["default"]
    if name not in known:
        raise UnknownName("profile", name, known)
    return known[name].claims


def in_force(trial: Trial) -> Mapping[str, Any]:
    """The settings of a trial's cluster, whoever says them."""
    return settings(trial).values


def _check(values: Mapping[str, Any]) -> None:
    """Every value has the type and range that its reader demands. BadRequest names the key."""
    node = {key: value for key, value in values.items() if key in _NODE_KEYS}
    here = {"role": "broker", "nodeName": "n", "listenHost": "h", "storePath": "s"}
    sample = {**here, "totalReplicas": _ANY_SIZE, **node}
    try:
        loads(tomli_w.dumps(sample))
    except ConfigError as e:
        raise BadRequest(f"the trial's settings: {e}") from e
    for key in CLIENT_KEYS & set(values):
        if why := why_not(key, values[key]):
            raise BadRequest(f"the trial's settings: {why}")
    _whole(BROKER_SETS, values.get(BROKER_SETS, 1), 1)
    _whole(LEARNERS, values.get(LEARNERS, 0), 0)
    if MUTANT in values and values[MUTANT] not in MUTANTS:
        raise UnknownName("mutant", str(values[MUTANT]), MUTANTS)


def _whole(key: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadRequest(
            f"the trial's settings: {key} must be a whole number from {least}, not {value!r}"
        )
