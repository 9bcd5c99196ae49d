"""Faults that meet on links of the simulated world are all observed, and so is their healing."""

import json
from pathlib import Path
from typing import Any

from harness.campaign.simulation import simulate
from harness.history.reader import History
from harness.trial import Trial

FAR = Trial(
    hosts="simulated",
    seed=1,
    bed={"latency_ms": 15.0, "jitter_ms": 0.0},
    nodes={"controller": 3, "broker": 2, "client": 1, "nameserver": 1},
    duration_s=4.0,
    short_faults=True,
    faults=("delay", "bandwidth"),
    load={"rate": 20.0},
)
PLAN = """
fault = [
  { kind = "bandwidth", at_s = 1.0, for_s = 1.0, target = "all broker", params = { bytes_per_s = 20000.0, per = "node" } },
  { kind = "bandwidth", at_s = 1.0, for_s = 0.2, target = "all broker", params = { bytes_per_s = 20000.0 } },
  { kind = "bandwidth", at_s = 1.0, for_s = 0.3, target = "all broker", params = { bytes_per_s = 1000000.0 } },
  { kind = "delay", at_s = 1.9, for_s = 0.3, target = "all controller", params = { delay_s = 0.01, direction = "both" } },
]
"""  # noqa: E501


def test_what_meets_on_a_far_and_narrow_link_is_seen_healed(tmp_path: Path) -> None:
    """Probes of a narrow link do not fill it, nor does what waited while it was narrower; and a
    delay that began while others made packets wait knows the distance between the nodes."""
    run = simulate(FAR, PLAN, tmp_path / "run").run
    last: dict[int, dict[str, Any]] = {}
    for row in History.open(run).read("faults").to_pylist():
        last[row["id"]] = row
    states = [last[number]["state"] for number in range(4)]
    assert states == ["installed", "installed", "failed", "installed"], "50 times as much is hidden"
    unhealed = [row for row in last.values() if row["healed"] is None]
    assert not unhealed, [json.loads(row["observation"])["healing"] for row in unhealed]
