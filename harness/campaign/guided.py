"""Guided search: plans whose runs showed something new are kept, and changed to find more.

The first candidates are drawn like the seeds of any campaign. A candidate whose run shows a
*feature* (`features`) that no run before it had is kept in the *corpus*. The later candidates are
mutations (`mutation`) of a kept one, where those with rare features and cheap runs are chosen more
often, and each choice makes the next less likely, or drawn, so that no part of the space is closed.
What pays off is learned by bandits: drawing or mutating, and the mutations, by the new features
that they brought, and the drawn kinds of faults, densities, settings, loads and workloads likewise;
what was tried seldom gets its turn.

The search is deterministic, whichever worker ends first: candidate n is made from the results of
the candidates up to n - `LAG` and of no others. So a campaign with more workers keeps the same
corpus, and an interrupted one is repeated from its stored results up to where it ended.
"""

import hashlib
import math
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from random import Random
from typing import Any

from harness import registry
from harness.campaign.checkpoint import FinishedSeed
from harness.campaign.features import unpacked
from harness.campaign.forms import Aims, Plan, draw_acts, draw_few, draw_standing, fits_standing
from harness.campaign.mutation import MUTATIONS, Material, Scenario, mutate
from harness.campaign.swarm import draw_faults, with_kinds
from harness.campaign.tally import SeedResult
from harness.errors import BadRequest, SeatrialError
from harness.run.launch import PlanLimits
from harness.trial import Trial

LAG = 16  # candidates of a campaign that may be in progress
DRAWN_FIRST = 16  # candidates of a campaign
DRAW, MUTATE = "draw", "mutate"  # ways to make a candidate
AT_LEAST = 0.2  # share of candidates that are made in each way
RESEEDED = 0.5  # share of mutated candidates that get another world, too
DENSE, FEW, ACTS, STANDING = "dense", "few", "acts", "standing"  # forms of drawn plans
FORMS = ((DENSE, 0.5), (FEW, 0.1), (ACTS, 0.2), (STANDING, 0.2))  # and their shares
OF_DRAWN = 3  # drawn for each, of which the most promising is run
COMBINED = (1, 1, 2, 4)  # mutations of one candidate
TRIES = 20  # of drawn or changed plans, until one is valid
MAX_OWN = 40  # features that a plan is kept for, at most: those count for its energy
MAX_PLANS = 1_000  # of the corpus
DISCOUNT = 0.98  # what an older reward counts for, at each newer one
RECENT = 64  # results with which a reward is compared
STEPS_OF_NODE, STEPS_OF_REQUEST = 240, 4  # of a world: for each second, and for each request
RERUN = "rerun"  # the same plan once more
EXPLORATION = 0.7  # weight of uncertainty in a bandit's score


@dataclass(frozen=True)
class SearchCandidate:
    """A world to try: a whole trial and its plan as TOML, as number `number` of the campaign."""

    number: int
    trial: Trial
    plan: str
    made_s: float = 0.0  # CPU time that it took to make

    @cached_property
    def digest(self) -> str:
        """A hash of the trial and the plan."""
        text = f"{self.trial.to_toml()}\n{self.plan}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class Bandit:
    """Scores of choices: their mean reward, older ones discounted, and a bonus for those that were
    seldom tried (discounted UCB, Kocsis and Szepesvari, 2006)."""

    def __init__(self) -> None:
        self._tried: dict[str, tuple[float, float]] = {}  # name -> weight and sum of rewards

    def reward(self, names: Iterable[str], reward: float) -> None:
        """Add a reward from 0 to 1 of choices made together."""
        for name in dict.fromkeys(names):
            weight, total = self._tried.get(name, (0.0, 0.0))
            self._tried[name] = (weight * DISCOUNT + 1, total * DISCOUNT + reward)

    def score(self, name: str) -> float:
        weight, total = self._tried.get(name, (0.0, 0.0))
        every = sum(weight for weight, _ in self._tried.values())
        bonus = math.sqrt(math.log(1 + every) / (weight + 1))
        return (total + 0.5) / (weight + 1) + EXPLORATION * bonus

    def mean(self, name: str) -> float:
        """Return the mean reward; 0 if the choice was never made."""
        weight, total = self._tried.get(name, (0.0, 0.0))
        return total / weight if weight else 0.0


@dataclass
class KeptPlan:
    """A plan of the corpus, and features that it was the first to show (`own`)."""

    number: int
    scenario: Scenario
    own: frozenset[int]
    steps: int = 1  # events of its world: what it costs
    chosen: int = 0
    steady: float = 1.0  # share of `own` that was seen again when it was run once more


@dataclass(frozen=True)
class _Made:
    """How a candidate was made."""

    scenario: Scenario
    parent: KeptPlan | None = None
    mutations: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()  # attributes


@dataclass
class SearchProgress:
    """What a guided campaign shows. `curve`: CPU seconds and features found so far, in the order of
    the candidates; `rewards`: means, from 0 to 1, of mutations and of kinds of faults."""

    features: int = 0
    kept: int = 0
    curve: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])
    rewards: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SearchRules:
    """How a search is done. Real systems need other rules than simulated worlds.

    forms         share of each form of drawn plans: as in any campaign (DENSE), and those of the
                  module `forms`; the first ones have the first form
    lag           candidate n is made from the results of the candidates up to n - lag
    drawn_first   so many candidates are drawn before any is mutated
    cheap_steps   events of a world that costs little; of those with n times as many, one in n is
                  considered
    rerun         a run may differ each time: before a kept plan is mutated, it is run once more,
                  and chosen less if it does not show its features again
    """

    forms: tuple[tuple[str, float], ...] = FORMS
    lag: int = LAG
    drawn_first: int = DRAWN_FIRST
    cheap_steps: float = math.inf
    rerun: bool = False


WORLDS = SearchRules(cheap_steps=25_000)


class GuidedSearch:
    """The search of one campaign: `bases` are the trials that candidates are drawn from."""

    def __init__(self, bases: Sequence[Trial], first: int, rules: SearchRules = WORLDS) -> None:
        self._bases, self._first, self._next, self._rules = bases, first, first, rules
        self._made: dict[int, _Made] = {}
        self._results: dict[int, SeedResult | None] = {}
        self._learned = first  # the first number that was not learned from
        self._hits: dict[int, int] = {}  # feature -> runs that showed it
        self._corpus: list[KeptPlan] = []
        self._ways, self._mutations, self._attributes = Bandit(), Bandit(), Bandit()
        self._rates: deque[float] = deque(maxlen=RECENT)
        self._targets = Aims.of(bases[0])
        self._kinds: set[str] = set()
        self._events: set[str] = set()  # kinds of them, of all runs
        self._cpu_s = 0.0
        self.progress = SearchProgress()

    def candidate(self) -> SearchCandidate | None:
        """Return the next candidate; None if a result is missing that it depends on."""
        upto = self._next - self._rules.lag
        self._learn_up_to(upto)
        if self._learned <= upto:
            return None
        began_s = time.thread_time()
        number, self._next = self._next, self._next + 1
        made = self._made[number] = self._make(number, Random(f"{number}/guided"))
        plan: str = registry.nemesis().dump(made.scenario.plan)
        made_s = time.thread_time() - began_s
        return SearchCandidate(number, made.scenario.trial, plan, made_s)

    def add(self, number: int, result: SeedResult | None) -> None:
        """Take the result of a candidate, in any order; None if it was lost."""
        self._results[number] = result

    def recall(self, candidate: SearchCandidate, stored: FinishedSeed | None) -> bool:
        """Return whether the stored result of a candidate's number counts, and take it then.

        It does if it is that of the same candidate. The search may have come to another one: a
        candidate that had been lost was learned from as lost, and is tried again now. A failure
        counts all the same, but nothing is learned from it.
        """
        if stored is None:
            return False
        same = stored.row.tried == candidate.digest
        if not same and not stored.row.failure:
            return False
        self.add(candidate.number, stored.row if same and not stored.lost else None)
        return True

    def learn_rest(self) -> None:
        """Learn from the results at the end of a campaign, up to the first that is missing."""
        self._learn_up_to(self._next - 1)

    # -------------------------------------------------------------------------------- learning

    def _learn_up_to(self, last: int) -> None:
        """Learn from results in order, up to this number or to the first that is missing."""
        while self._learned <= last and self._learned in self._results:
            self._learn(self._learned, self._results.pop(self._learned))
            self._learned += 1

    def _learn(self, number: int, row: SeedResult | None) -> None:
        made = self._made.pop(number)
        if row is None:
            return
        features = unpacked(row.features)
        self._events.update(row.events)
        new = frozenset(feature for feature in features if feature not in self._hits)
        for feature in features:
            self._hits[feature] = self._hits.get(feature, 0) + 1
        self._cpu_s += row.cpu_s
        if made.parent and made.mutations == (RERUN,):
            own = made.parent.own
            made.parent.steady = len(own & features) / len(own)
        else:
            reward = self._reward(len(new) / max(1, row.steps))
            self._ways.reward((MUTATE if made.mutations else DRAW,), reward)
            self._mutations.reward(made.mutations, reward)
            self._attributes.reward(made.drawn, reward)
            self._kinds.update(fault.kind for fault in made.scenario.plan if made.drawn)
            self._keep(number, made, row, features, new)
        self._show()

    def _reward(self, rate: float) -> float:
        """Return the share of the latest results that brought fewer features for their cost."""
        ranked = sorted(self._rates)
        self._rates.append(rate)
        return bisect_right(ranked, rate - 1e-12) / len(ranked) if ranked else 0.5

    def _keep(
        self,
        number: int,
        made: _Made,
        row: SeedResult,
        features: frozenset[int],
        new: frozenset[int],
    ) -> None:
        """Keep a plan with new features; or one that needs fewer faults for those of its parent.

        A run that failed or proves nothing is not kept: its mutations would repeat that.
        """
        if row.failure or row.doubtful:
            return
        seen = replace(made.scenario, events=tuple(sorted(row.events)), weak_s=row.weak_s)
        parent, own = made.parent, frozenset(sorted(new)[:MAX_OWN])
        if parent and _only_drops(made) and parent.own <= features:
            parent.scenario, parent.steps, parent.own = seen, max(1, row.steps), parent.own | own
            return
        if not new:
            return
        self._corpus.append(KeptPlan(number, seen, own, max(1, row.steps)))
        if len(self._corpus) > MAX_PLANS:
            self._corpus.remove(min(self._corpus, key=self._energy))

    def _energy(self, kept: KeptPlan) -> float:
        rarity = sum(1 / self._hits[feature] for feature in kept.own)
        return rarity * kept.steady / kept.steps / math.sqrt(1 + kept.chosen)

    def _show(self) -> None:
        show = self.progress
        show.features, show.kept = len(self._hits), len(self._corpus)
        show.curve.append((round(self._cpu_s, 1), show.features))
        names = [*MUTATIONS, *(f"kind {kind}" for kind in sorted(self._kinds))]
        means = (
            (name, self._mutations.mean(name) or self._attributes.mean(name)) for name in names
        )
        show.rewards = {name: round(mean, 2) for name, mean in means if mean}

    def plain(self) -> dict[str, Any]:
        """Return the progress for JSON, with the hash of the corpus."""
        return {**asdict(self.progress), "corpus": self.corpus_digest()}

    def corpus_digest(self) -> str:
        """Return a hash of the kept plans, in their order."""
        hashed = hashlib.blake2b(digest_size=8)
        for kept in self._corpus:
            hashed.update(f"{kept.number} {kept.scenario} {sorted(kept.own)}".encode())
        return hashed.hexdigest()

    # ---------------------------------------------------------------------------------- making

    def _make(self, number: int, random: Random) -> _Made:
        may = number >= self._first + self._rules.drawn_first and self._corpus
        made = self._mutated(number, random) if may and self._way(random) == MUTATE else None
        return made or self._drawn(number, random)

    def _way(self, random: Random) -> str:
        """Return how to make a candidate: usually as paid off more."""
        chance, ways = random.random(), (DRAW, MUTATE)
        if chance < 2 * AT_LEAST:
            return ways[chance < AT_LEAST]
        return max(ways, key=self._ways.score)

    def _drawn(self, number: int, random: Random) -> _Made:
        """Draw a few of one form, and return the most promising. Of worlds that cost more
        than others, so many are left out that they do not take most of the time."""
        first = number < self._first + self._rules.drawn_first
        form = self._rules.forms[0][0] if first else self._form(random)
        drawn: list[_Made] = []
        costly: list[_Made] = []
        for seed in (number, *(random.getrandbits(31) for _ in range(TRIES))):
            base = random.choice(self._bases_of(form))
            try:
                trial, plan = self._draw(seed, base, form)
            except SeatrialError:
                continue  # its sizes do not fit the targets that the trial names
            named = replace(trial, name=f"seed-{number}")
            made = _Made(Scenario(named, plan), drawn=tuple(_attributes(named, plan, base)))
            cheap = first or random.random() * _steps(trial) <= self._rules.cheap_steps
            (drawn if cheap else costly).append(made)
            if first or len(drawn) == OF_DRAWN:
                break
        best = max(drawn or costly, key=self._promise, default=None)
        if best is None:
            raise BadRequest(
                f"{TRIES} seeds drew sizes that do not fit what is given; set them with --nodes"
            )
        return best

    def _promise(self, made: _Made) -> float:
        return sum(map(self._attributes.score, made.drawn)) / len(made.drawn)

    def _form(self, random: Random) -> str:
        forms, shares = zip(*self._rules.forms, strict=True)
        return str(random.choices(forms, shares)[0])

    def _bases_of(self, form: str) -> Sequence[Trial]:
        """Return those whose load is long enough for faults of this form, or all."""
        if form == STANDING:
            return [base for base in self._bases if fits_standing(base)] or self._bases
        return self._bases

    def _draw(self, seed: int, base: Trial, form: str) -> tuple[Trial, Plan]:
        if form == DENSE:
            return draw_faults(seed, base, hosts=base.hosts)
        if form == FEW:
            return draw_few(seed, base)
        trial, plan = (draw_acts if form == ACTS else draw_standing)(seed, base, self._aims)
        if not _is_valid(Scenario(trial, plan)):
            raise BadRequest("a fault aims at nodes that are not there")
        return trial, plan

    def _mutated(self, number: int, random: Random) -> _Made | None:
        """Return a valid mutation of a kept plan; None if none was found."""
        parent = self._choose(random)
        other = self._choose(random)
        parent.chosen += 1
        if self._rules.rerun and parent.chosen == 1:
            trial = replace(parent.scenario.trial, name=f"seed-{number}")
            return _Made(replace(parent.scenario, trial=trial), parent, (RERUN,))
        base = self._base_of(parent.scenario.trial)
        for _ in range(TRIES):
            seed = random.getrandbits(31)
            try:
                drawn = Scenario(*self._draw(seed, base, self._form(random)))
            except SeatrialError:
                continue
            material = Material(drawn, other.scenario, self._aims)
            scenario, names = parent.scenario, []
            for _ in range(random.choice(COMBINED)):
                names.append(self._operator(random))
                scenario = mutate(names[-1], random, scenario, material)
            if random.random() < RESEEDED:
                scenario = mutate("reseed", random, scenario, material)
            trial = replace(scenario.trial, name=f"seed-{number}")
            scenario = replace(scenario, trial=with_kinds(trial, scenario.plan))
            if scenario.plan and _differ(scenario, parent.scenario) and _is_valid(scenario):
                return _Made(scenario, parent, tuple(names))
        return None

    @property
    def _aims(self) -> Aims:
        kinds, events = frozenset(self._kinds), tuple(sorted(self._events))
        return replace(self._targets, kinds=kinds, events=events)

    def _choose(self, random: Random) -> KeptPlan:
        energies = [self._energy(kept) for kept in self._corpus]
        least = max(energies) / 1e6 or 1.0  # none is never chosen
        return random.choices(self._corpus, [energy + least for energy in energies])[0]

    def _operator(self, random: Random) -> str:
        return max(random.sample(tuple(MUTATIONS), 2), key=self._mutations.score)

    def _base_of(self, trial: Trial) -> Trial:
        """Return the base that a trial was drawn from."""
        fits = (b for b in self._bases if b.workload == trial.workload)
        return next((b for b in fits if b.duration_s == trial.duration_s), self._bases[0])


def _differ(one: Scenario, other: Scenario) -> bool:
    same = replace(one.trial, name="") == replace(other.trial, name="") and one.plan == other.plan
    return not same


def _only_drops(made: _Made) -> bool:
    """Return whether a mutation left faults out, and changed nothing else, not even the world."""
    assert made.parent
    before, after = made.parent.scenario, made.scenario
    shorter = len(after.plan) < len(before.plan) and {*made.mutations} == {"drop"}
    return shorter and after.trial.seed == before.trial.seed


def _is_valid(scenario: Scenario) -> bool:
    trial, nemesis = scenario.trial, registry.nemesis()
    try:
        registry.load("workload", trial.workload)(trial).check_options()
        stage = PlanLimits.of(trial)
        nemesis.check(scenario.plan, trial, stage.detection_s, stage.nodes, stage.can)
    except SeatrialError:
        return False
    return True


def _attributes(trial: Trial, plan: Sequence[object], base: Trial) -> Iterator[str]:
    """Yield what was drawn, in coarse words: what a bandit learns about."""
    yield f"workload {trial.workload}"
    yield f"duration {trial.duration_s:g}"
    yield from (f"kind {kind}" for kind in trial.faults)
    yield f"density {_magnitude(len(plan) / trial.duration_s)}"
    for name in ("nodes", "settings", "load", "bed"):
        given = getattr(base, name)
        for key, value in sorted(getattr(trial, name).items()):
            if key not in given:
                number = isinstance(value, int | float) and not isinstance(value, bool)
                yield f"{name} {key} {_magnitude(value) if number else value}"


def _steps(trial: Trial) -> float:
    """Estimate the events of a world."""
    nodes, rate = sum(trial.nodes.values()), float(trial.load.get("rate", 0))
    return trial.duration_s * (STEPS_OF_NODE * nodes + STEPS_OF_REQUEST * rate)


def _magnitude(number: float) -> int:
    """Return the power of two nearest to a number, as its exponent."""
    return round(math.log2(number)) if number > 0 else -99
