"""Results of a campaign's seeds, and their totals. Pure.

A seed failed, is unproven, or is clean. An unproven seed is no evidence: its planned faults and its
cost are added, but nothing that happened in it counts.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from itertools import groupby
from typing import Any, Self

LARGEST = (1 << 63) - 1  # number in a stored result
EXCUSED = "EXCUSED"  # code of a reason
TUPLES = ("failure", "unproven", "in_force", "before", "weak_s")
RARE = {"elections": "election", "truncations": "truncate", "set changes": "set"}


@dataclass(frozen=True)
class SeedResult:
    """One seed. `planned` and `counted` are faults by kind, `events` those of the cluster.

    `digest` is that of its world; `unproven` has the codes of the reasons why it proves nothing.
    `looks` says how often each invariant was checked, `unseen` how many events none could check.
    `choices` says how often the world chose an unusual way, by choice point of the system.
    The story of a failure is in `in_force` and `before`: see `SeedOutcome`.
    Of guided campaigns only: `steps`, what happened in its world; `features`, packed; `weak_s`, its
    weak moments (`harness.campaign.features`); `tried`, the digest of its trial and plan.
    """

    seed: int
    digest: str = ""
    failure: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()
    why: str = ""
    seconds: float = 0.0
    cpu_s: float = 0.0
    planned: Mapping[str, int] = field(default_factory=dict)
    counted: Mapping[str, int] = field(default_factory=dict)
    events: Mapping[str, int] = field(default_factory=dict)
    operations: int = 0
    acknowledged: int = 0
    looks: Mapping[str, int] = field(default_factory=dict)
    unseen: int = 0
    choices: Mapping[str, int] = field(default_factory=dict)
    in_force: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    steps: int = 0
    features: str = ""
    weak_s: tuple[float, ...] = ()
    tried: str = ""

    @property
    def words(self) -> str:
        return ", ".join(self.failure)

    @property
    def doubtful(self) -> bool:
        """Whether it proves nothing."""
        return bool(self.unproven) and not self.failure

    @property
    def weight(self) -> int:
        """Of two results of a seed the weightier one counts: a failure before a clean one, and that
        before one that proves nothing."""
        return 2 if self.failure else int(not self.doubtful)

    @property
    def excused(self) -> bool:
        """Whether faults explain its findings that the system does not claim to survive."""
        return self.doubtful and EXCUSED in self.unproven

    def plain(self) -> dict[str, Any]:
        figures = {key: value for key, value in asdict(self).items() if value}
        return {"seed": self.seed, **figures}

    def without_search(self) -> Self:
        """Return it without what only a search needs."""
        return replace(self, steps=0, features="", weak_s=())

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Self:
        """Read what `plain` returns. Raises TypeError or ValueError."""
        tuples = {key: tuple(plain.get(key, ())) for key in TUPLES}
        row = cls(**{**plain, **tuples})
        check_fields(row, cls(0))
        if not all(isinstance(text, str) for key in TUPLES[:-1] for text in getattr(row, key)):
            raise TypeError(f"{', '.join(TUPLES[:-1])} must be lists of texts")
        for moment_s in row.weak_s:
            _check_field("weak_s", moment_s, 0.0)
        return row


def check_fields(value: object, like: object) -> None:
    """Raise TypeError or ValueError if a field is of another type than in `like`, or a number is
    not finite, negative or too large, also as a value of a mapping."""
    for name, usual in vars(like).items():
        given = getattr(value, name)
        _check_field(name, given, usual)
        if isinstance(given, Mapping):
            for key, number in given.items():
                _check_field(f"a name in {name}", key, "")
                _check_field(f"{name}, {key}", number, 0)


def _check_field(name: str, given: object, usual: object) -> None:
    wanted = (int, float) if isinstance(usual, float) else type(usual)
    if isinstance(given, bool) or not isinstance(given, wanted):
        raise TypeError(f"{name} is of another type")
    if isinstance(given, int | float) and not 0 <= given <= LARGEST:
        raise ValueError(f"{name} must be a number from 0 to {LARGEST}")


@dataclass(frozen=True)
class CampaignTotals:
    """The sums over seeds."""

    seeds: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    planned: Mapping[str, int] = field(default_factory=dict)
    counted: Mapping[str, int] = field(default_factory=dict)
    events: Mapping[str, int] = field(default_factory=dict)
    operations: int = 0
    acknowledged: int = 0
    looks: Mapping[str, int] = field(default_factory=dict)
    unseen: int = 0
    choices: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # class -> seeds
    doubtful: int = 0  # seeds
    excused: int = 0  # of these
    unproven: Mapping[str, int] = field(default_factory=dict)  # code -> doubtful seeds

    @classmethod
    def of(cls, rows: Iterable[SeedResult]) -> Self:
        return reduce(cls.plus, rows, cls())

    def plus(self, row: SeedResult) -> Self:
        spent = replace(
            self,
            seeds=self.seeds + 1,
            seconds=self.seconds + row.seconds,
            cpu_s=self.cpu_s + row.cpu_s,
            planned=_add_counts(self.planned, row.planned),
        )
        return spent._doubted(row) if row.doubtful else spent._proved(row)

    def _doubted(self, row: SeedResult) -> Self:
        unproven = _add_counts(self.unproven, dict.fromkeys(row.unproven, 1))
        excused = self.excused + row.excused
        return replace(self, doubtful=self.doubtful + 1, excused=excused, unproven=unproven)

    def _proved(self, row: SeedResult) -> Self:
        return replace(
            self,
            counted=_add_counts(self.counted, row.counted),
            events=_add_counts(self.events, row.events),
            operations=self.operations + row.operations,
            acknowledged=self.acknowledged + row.acknowledged,
            looks=_add_counts(self.looks, row.looks),
            unseen=self.unseen + row.unseen,
            choices=_add_counts(self.choices, row.choices),
            failures=self._failures_with(row) if row.failure else self.failures,
        )

    def _failures_with(self, row: SeedResult) -> dict[str, tuple[int, ...]]:
        seeds = sorted((*self.failures.get(row.words, ()), row.seed))
        return {**self.failures, row.words: tuple(seeds)}

    @property
    def failed(self) -> int:
        """The number of failed seeds."""
        return sum(map(len, self.failures.values()))

    @property
    def clean(self) -> int:
        """The number of clean seeds."""
        return self.seeds - self.failed - self.doubtful

    @property
    def proved(self) -> int:
        """Seeds that are evidence, for or against."""
        return self.seeds - self.doubtful

    @property
    def faults(self) -> int:
        """The number of faults that count."""
        return sum(self.counted.values())

    @property
    def faults_per_minute(self) -> float:
        """Faults per minute and core."""
        return 60 * self.faults / self.cpu_s if self.cpu_s else 0.0

    @property
    def pace(self) -> float:
        """Simulated seconds in a second of one core."""
        return self.seconds / self.cpu_s if self.cpu_s else 0.0

    def per_thousand(self) -> dict[str, float]:
        """Rare events and acknowledgements for each 1,000 faults."""
        counts = {word: self.events.get(kind, 0) for word, kind in RARE.items()}
        counts["acknowledged"] = self.acknowledged
        faults = self.faults or math.inf
        return {word: round(1000 * n / faults, 1) for word, n in counts.items()}

    def per_thousand_seeds(self) -> dict[str, float]:
        """Failed seeds and counted faults by kind, for each 1,000 seeds that are evidence."""
        counts = {"failed": self.failed, **self.counted}
        return {word: round(1000 * n / max(1, self.proved), 1) for word, n in counts.items()}

    def plain(self) -> dict[str, Any]:
        return {
            "seeds": self.seeds,
            "seeds_failed": self.failed,
            "seeds_unproven": self.doubtful - self.excused,
            "seeds_excused": self.excused,
            "seeds_clean": self.clean,
            "simulated_hours": round(self.seconds / 3600, 3),
            "cpu_s": round(self.cpu_s, 1),
            "faults": {"planned": dict(self.planned), "counted": dict(self.counted)},
            "faults_counted": self.faults,
            "faults_per_minute_and_core": round(self.faults_per_minute),
            "simulated_s_per_cpu_s": round(self.pace, 1),
            "operations": self.operations,
            "acknowledged": self.acknowledged,
            "events": dict(self.events),
            "per_1000_faults": self.per_thousand(),
            "per_1000_seeds": self.per_thousand_seeds(),
            "looks": dict(self.looks),
            "unseen": self.unseen,
            "choices": dict(self.choices),
            "failures": {words: list(seeds) for words, seeds in self.failures.items()},
            "unproven": dict(self.unproven),
        }


def ranges(seeds: Iterable[int]) -> str:
    """Return `1..3,7`, as `--seeds` reads it."""
    spans = []
    for _, run in groupby(enumerate(sorted(seeds)), lambda pair: pair[1] - pair[0]):
        numbers = [seed for _, seed in run]
        first, last = numbers[0], numbers[-1]
        spans.append(f"{first}..{last}" if last > first else str(first))
    return ",".join(spans)


def _add_counts(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in sorted({**one, **other})}
