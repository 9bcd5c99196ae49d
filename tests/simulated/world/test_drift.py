"""Clocks of the cluster that run too fast or too slow."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from clusters.hosts.simulated.options import SimulationOptions, swarm
from harness.campaign.simulation import simulate
from harness.contracts import ClockOffset
from harness.errors import BadRequest
from harness.history.reader import History
from harness.trial import Trial

TRIAL = Trial(
    hosts="simulated",
    seed=3,
    bed={"drift_ppm": 20_000.0},
    nodes={"controller": 3, "broker": 2, "client": 1, "nameserver": 1},
    duration_s=8.0,
    short_faults=True,
    faults=("kill",),
    settings={"timeScale": 0.2},
    load={"rate": 20.0, "queues": 1, "producers": 1, "consumers": 1},
)
PLAN = 'fault = [{ kind = "kill", at_s = 6.0, for_s = 0.5, target = "master" }]'
SOON_NS = 20_000_000


def test_what_nodes_tell_of_is_dated_by_the_worlds_clock(tmp_path: Path) -> None:
    """An elected broker is master right after its election, although their two clocks differ by
    more. Each clock has its own error; the clients' have none."""
    made = simulate(TRIAL, PLAN, tmp_path / "run")
    assert not made.failure, made.why
    clocks = made.run.state()["clocks"]
    rates = {name: clock.get("rate", 1.0) for name, clock in clocks.items()}
    assert rates.pop("client-1") == 1.0
    assert len(set(rates.values())) == 6
    assert all(0.98 <= rate <= 1.02 for rate in rates.values())
    assert max(abs(rate - 1) for rate in rates.values()) > 0.005
    told = History.open(made.run).events
    elected = {
        e.fields["epoch"]: e.t for e in told if e.kind == "election" and e.fields["masterId"]
    }
    reigns = {e.fields["epoch"]: e.t for e in told if e.fields.get("role") == "master"}
    assert len(elected) == len(reigns) == 2
    assert all(0 < reigns[epoch] - t < SOON_NS for epoch, t in elected.items())


def test_without_drift_nothing_is_different(tmp_path: Path) -> None:
    """Neither in a world without it, nor in the options that a campaign draws."""
    quick = replace(TRIAL, duration_s=0.5)
    none, right = replace(quick, bed={}), replace(quick, bed={"drift_ppm": 0.0})
    made = [simulate(t, "", tmp_path / str(n)) for n, t in enumerate((none, right, quick))]
    assert made[0].digest == made[1].digest != made[2].digest
    assert "clocks" not in made[0].run.state()
    assert "drift_ppm" not in swarm(Random(1))


@pytest.mark.parametrize("ppm", [-1, 20_001, "much"])
def test_no_clock_is_that_wrong(ppm: object) -> None:
    with pytest.raises(BadRequest, match=r"bed.drift_ppm must be a number from 0 to 20000"):
        SimulationOptions.of({"drift_ppm": ppm})


def test_a_reading_is_told_in_the_drivers_time() -> None:
    """Of a clock that is ahead, and of one that is fast."""
    assert ClockOffset(offset_ns=7).drivers_ns(10) == 3
    assert ClockOffset(offset_ns=100, rate=1.02).drivers_ns(100 + 10_200_000_000) == 10_000_000_000
