"""Worlds that choose unusual ways at the choice points of Flotilla."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from clusters.flotilla.world.choices import POINTS, USUAL
from clusters.hosts._world import ports
from clusters.hosts._world.network import SimNetwork
from clusters.hosts._world.ports import DrawnChoices, WorldChoices
from clusters.hosts._world.process import SimHost, SimProcess
from clusters.hosts._world.world import World
from clusters.hosts.simulated.options import SimulationOptions, swarm
from harness.campaign.simulation import simulate
from harness.errors import BadRequest
from harness.trial import Trial

TRIAL = Trial(
    hosts="simulated",
    seed=3,
    nodes={"controller": 3, "broker": 3, "client": 1, "nameserver": 1},
    duration_s=12.0,
    short_faults=True,
    faults=("kill",),
    settings={"timeScale": 0.2, "raftSnapshotEntries": 4},
    load={"rate": 50.0, "queues": 2, "producers": 1, "consumers": 1},
)
PLAN = """fault = [
    { kind = "kill", at_s = 3.0, for_s = 0.5, target = "controller-leader" },
    { kind = "kill", at_s = 5.0, for_s = 0.5, target = "master" },
    { kind = "kill", at_s = 7.0, for_s = 0.5, target = "master" },
    { kind = "kill", at_s = 9.0, for_s = 0.5, target = "master" },
]"""


async def _nothing(process: SimProcess) -> int:
    return 0


def _host(world: World) -> SimHost:
    return SimHost(world, SimNetwork(world), "a", "10.0.0.1")


def _made(chosen: object) -> list[tuple[bool, float, int]]:
    """Ask three questions at each point."""
    assert isinstance(chosen, DrawnChoices)
    return [(chosen.chance(p), chosen.moment_s(p, 2.0), chosen.fewer(p, 9)) for p in POINTS]


def test_every_point_is_reached_and_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all points enabled a trial makes a choice at each, the run counts them, and a sound
    cluster breaks no law."""
    monkeypatch.setattr(ports, "ENABLED", 1.0)
    made = simulate(replace(TRIAL, bed={"choices": 0.4}), PLAN, tmp_path / "run")
    assert not made.failure, made.why
    counts = made.run.state()["simulated"]["choices"]
    assert counts == made.choices
    assert set(counts) == set(POINTS)
    assert {point for point, n in counts.items() if not n} == set()


def test_without_choices_nothing_is_drawn(tmp_path: Path) -> None:
    """The run is that of a world without the option, and the run counts no choices."""
    quick = replace(TRIAL, duration_s=1.0)
    none, right = replace(quick, bed={}), replace(quick, bed={"choices": 0.0})
    some = replace(quick, bed={"choices": 0.5})
    made = [simulate(t, "", tmp_path / str(n)) for n, t in enumerate((none, right, some))]
    assert made[0].digest == made[1].digest != made[2].digest
    assert "choices" not in made[0].run.state()["simulated"]
    assert made[0].choices == {}


def test_the_same_seed_makes_the_same_choices(tmp_path: Path) -> None:
    trial = replace(TRIAL, duration_s=1.0, bed={"choices": 0.5})
    one, other = (simulate(trial, "", tmp_path / str(n)) for n in range(2))
    assert (one.digest, one.choices) == (other.digest, other.choices)


def test_each_boot_draws_from_its_own_stream() -> None:
    """One boot's questions change no answer of the next."""
    answers = []
    for questions in (0, 1):
        world = World(1)
        chosen, host = WorldChoices(world, 0.5), _host(world)
        first = host.start("node", _nothing)
        for _ in range(questions):
            _made(chosen.of(first))
        first.kill()
        answers.append(_made(chosen.of(host.start("node", _nothing))))
        if not questions:
            answers.append(_made(chosen.of(first)))
    second, first_boots, again = answers
    assert second == again != first_boots


def test_a_world_enables_a_quarter_of_the_points() -> None:
    """Which ones depends on the seed alone; a point that is not enabled is always usual."""
    enabled = []
    for seed in range(200):
        world = World(seed)
        chosen = WorldChoices(world, 0.5)
        process = _host(world).start("node", _nothing)
        answers = chosen.of(process)
        for _ in range(20):
            _made(answers)
        assert chosen.made is not None
        enabled.append(frozenset(point for point, n in chosen.made.items() if n))
    total = sum(map(len, enabled))
    assert 0.2 < total / (200 * len(POINTS)) < 0.3
    assert frozenset().union(*enabled) == set(POINTS)
    assert len(set(enabled)) > 100


def test_answers_stay_within_their_bounds() -> None:
    made = Counter[str]()
    chosen = DrawnChoices(Random(1), 0.5, frozenset(("a", "b")), made)
    moments = {chosen.moment_s("a", 2.0) for _ in range(200)}
    assert 0.0 in moments
    assert 0.0 < max(moments) <= 2.0
    assert {chosen.fewer("b", 3) for _ in range(200)} == {1, 2, 3}
    assert {chosen.fewer("b", 5, least=4) for _ in range(200)} == {4, 5}
    assert {chosen.fewer("b", 3, least=4) for _ in range(200)} == {3}
    assert not any(chosen.chance("c") for _ in range(200))
    assert set(made) == {"a", "b"}
    assert WorldChoices(World(1), 0.0).of(_host(World(1)).start("n", _nothing)) is USUAL


def test_campaigns_draw_it_last_and_for_half_of_the_seeds() -> None:
    """So the other options of a seed are what they were before there were choices."""
    assert {k: v for k, v in swarm(Random(1)).items() if k != "choices"} == BEFORE
    assert list(swarm(Random(1)))[-1] == "choices"
    drawn = [swarm(Random(seed))["choices"] for seed in range(400)]
    on = [chance for chance in drawn if chance]
    assert 150 < len(on) < 250
    assert min(on) >= 0.01
    assert max(on) <= 0.3
    assert sum(chance < 0.055 for chance in on) > len(on) / 3  # the middle of the logarithms


BEFORE = {
    "latency_ms": 0.633,
    "jitter_ms": 0.317,
    "spread": 20.0,
    "split": 0.02,
    "join": 0.2,
    "sync_ms": 3.598,
    "slow_sync_ms": 35.983,
    "slow_syncs": 0.0,
}


@pytest.mark.parametrize("chance", [-0.1, 0.6, "often"])
def test_a_node_makes_progress_between_choices(chance: object) -> None:
    """A chance of 1 would put off a batch again and again, so that it is never sent."""
    with pytest.raises(BadRequest, match=r"bed.choices must be a number from 0 to 0.5"):
        SimulationOptions.of({"choices": chance})
