"""A simulated run that fails for sure: what a cut-off master acknowledges alone dies with it.

`sunk(folder)` makes it in a moment. Two faults are to blame; the others are there to be left out.
"""

from pathlib import Path

from harness.campaign.simulation import SeedOutcome, simulate
from harness.trial import Trial

PLAN = """\
[[fault]]
kind = "pause"
at_s = 0.3
for_s = 0.2
target = "controller-leader"

[[fault]]
kind = "kill"
at_s = 0.6
for_s = 0.2
target = "nameserver"

[[fault]]
kind = "partition"
at_s = 1.0
for_s = 2.0
target = "master"
params = { shape = "isolate", from = "slave" }

[[fault]]
kind = "kill"
at_s = 1.5
for_s = 1.5
target = "master"

[[fault]]
kind = "loss"
at_s = 2.6
for_s = 0.4
target = "one broker"
"""
TRIAL = Trial(
    name="sinking",
    hosts="simulated",
    profile="unsafe-default",
    duration_s=4.0,
    short_faults=True,
    nodes={"controller": 1, "client": 1},
    settings={"timeScale": 0.1},
    load={"rate": 60.0, "queues": 2},
)


def sunk(folder: Path, plan: str = PLAN) -> SeedOutcome:
    """The run in a folder, which is made."""
    return simulate(TRIAL, plan, folder)
