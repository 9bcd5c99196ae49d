"""Make a node's fsync calls slow, fail with EIO, or hang.

`slow`: each takes `delay_s` longer. `fail`: the disk says that it could not write what it was
given; the kernel holds it for clean all the same, so whoever syncs again and believes it is
deceived, and a node does well to end (the healing starts it again). `hang`: none ends before the
healing, while the rest of the node goes on and sends its heartbeats. Real hosts hold up or refuse
the call itself. What a failed sync was to save is there until the power goes: by the fault `power`
on simulated hosts, by `unsynced` on any.
"""

from collections.abc import Mapping, Sequence
from math import inf
from random import Random
from typing import Any

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    DiskFault,
    Effects,
    FaultPlugin,
    Node,
    Param,
    PlannedFault,
    Scene,
)
from nemesis._process import victims as _processes
from nemesis._process.disk_fault import DiskTrouble
from nemesis._process.victims import check

WAYS = ("slow", "fail", "hang")


def takes_s(planned: PlannedFault, _nodes: Sequence[Node]) -> float:
    """As long as a slow sync."""
    return float(planned.params["delay_s"]) if planned.params["how"] == "slow" else 0.0


def drawn(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """A target and a way by lot; `targets` restrict whom it may hit."""
    target, _ = _processes.drawn(random, targets)
    return target, {"how": random.choice(WAYS)}


def fault(planned: PlannedFault, scene: Scene) -> DiskTrouble:
    how, delay_s = planned.params["how"], float(planned.params["delay_s"])
    sync_s = {"slow": delay_s, "hang": inf}.get(how, 0.0)
    wanted = DiskFault("", sync_fails=how == "fail", sync_s=sync_s)
    return DiskTrouble(scene, planned.kind, scene.aim(planned.target), wanted)


PLUGIN = FaultPlugin(
    fault=fault,
    # a node that cannot sync may end or be replaced by one that lacks what it has
    effects=Effects(may_break=ANY_BUT_INTEGRITY, spoils=True, excuses_exit=True),
    needs=frozenset({"disk", "restart"}),
    params={
        "how": Param("slow", "what becomes of a sync", among=WAYS),
        "delay_s": Param(0.3, "slow: how much longer it takes", unit="s", low=0.001, high=60.0),
    },
    shown=tuple(("one broker", {"how": how}) for how in WAYS),
    drawn=drawn,
    check=check,
    takes_s=takes_s,
)
