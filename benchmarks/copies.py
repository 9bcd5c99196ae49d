"""Cost in copies: `python benchmarks/copies.py`; simulated worlds without faults.

A cluster of each profile acknowledges messages for some seconds; at the end the messages in the
logs of all replicas are counted. Prints a JSON object: PROFILE, messages in all logs for each
message that was acknowledged; PROFILE_others, nodes that are neither broker, container nor
nameserver.
"""

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusters.systems.flotilla import layout
from clusters.systems.flotilla.modes import BROKER, CONTAINER, NAMESERVER
from clusters.systems.flotilla.profiles import settings
from harness.campaign.simulation import simulate
from harness.contracts import CLIENT
from harness.history.reader import History
from harness.trial import Trial

CLUSTERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "one": ("allack-min1", {"brokerSets": 3}),
    "switchless_sync": ("switchless-sync", {}),
    "container_cross": ("container-cross", {}),
    "raft_log": ("raft-log", {}),
    "allack_min2": ("allack-min2", {}),
    "unsafe_default": ("unsafe-default", {}),
    "zk_ha": ("zk-ha", {}),
}
USUAL = (BROKER, CONTAINER, NAMESERVER, CLIENT)


def counted(trial: Trial, folder: Path) -> tuple[float, int]:
    """Return the copies of each message, and how many other nodes the cluster has."""
    outcome = simulate(trial, "", folder)
    history = History.open(outcome.run)
    acknowledged: Any = outcome.verdict.stats("loss")["acknowledged"]
    nodes = layout.cluster_nodes(trial.nodes, settings(trial).mode)
    return history.row_counts["replicas"] / acknowledged, sum(n.role not in USUAL for n in nodes)


def main() -> int:
    figures: dict[str, float] = {}
    for name, (profile, own) in CLUSTERS.items():
        trial = Trial(
            name="copies",
            hosts="simulated",
            profile=profile,
            settings={"timeScale": 0.1, **own},
            nodes={CONTAINER: 3} if profile == "container-cross" else {},
            duration_s=5.0,
            load={"rate": 50, "client_selects": True},
        )
        with tempfile.TemporaryDirectory() as folder:
            copies, others = counted(trial, Path(folder) / "run")
        figures |= {name: round(copies, 3), f"{name}_others": others}
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
