"""Make a node's fsync calls slow, fail with EIO, or hang.

`slow`: each call takes `delay_s` longer. `fail`: the disk reports that it could not write the data,
but the kernel marks the pages clean, so a second sync succeeds without saving them; a node should
exit, and healing starts it again. `hang`: no call returns before the healing, while the rest of the
node continues and sends its heartbeats. On real hosts the call itself is delayed or refused. The
data of a failed sync is still there until the power is cut: by the fault `power` on simulated
hosts, by `unsynced` on any hosts.
"""

from collections.abc import Mapping, Sequence
from math import inf
from random import Random
from typing import Any

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    DiskFault,
    FaultContext,
    FaultEffects,
    FaultPlugin,
    Node,
    Param,
    PlannedFault,
)
from nemesis._process import victims as _processes
from nemesis._process.disk_fault import DiskInjection
from nemesis._process.victims import check

WAYS = ("slow", "fail", "hang")


def takes_s(planned: PlannedFault, _nodes: Sequence[Node]) -> float:
    """Return the time of a slow sync."""
    return float(planned.params["delay_s"]) if planned.params["how"] == "slow" else 0.0


def draw(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """Draw a target, from `targets` if there are any, and a kind of failure."""
    target, _ = _processes.draw(random, targets)
    return target, {"how": random.choice(WAYS)}


def fault(planned: PlannedFault, scene: FaultContext) -> DiskInjection:
    how, delay_s = planned.params["how"], float(planned.params["delay_s"])
    sync_s = {"slow": delay_s, "hang": inf}.get(how, 0.0)
    wanted = DiskFault("", sync_fails=how == "fail", sync_s=sync_s)
    return DiskInjection(scene, planned.kind, scene.resolve(planned.target), wanted)


PLUGIN = FaultPlugin(
    fault=fault,
    # a node that cannot sync may exit or be replaced by one that lacks its data
    effects=FaultEffects(may_break=ANY_BUT_INTEGRITY, spoils=True, excuses_exit=True),
    needs=frozenset({"disk", "restart"}),
    params={
        "how": Param("slow", "what happens to a sync", among=WAYS),
        "delay_s": Param(0.3, "slow: how much longer it takes", unit="s", low=0.001, high=60.0),
    },
    verify_examples=tuple(("one broker", {"how": how}) for how in WAYS),
    draw=draw,
    check=check,
    takes_s=takes_s,
)
