"""Make the disk under a node's data read-only: writes, new files and renames fail with EROFS.

A kernel does this after an error of the medium, while the node runs and has files open. Healing
starts a node again that exited because of the fault.
"""

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    DiskFault,
    FaultContext,
    FaultEffects,
    FaultPlugin,
    PlannedFault,
)
from nemesis._process.disk_fault import DiskInjection
from nemesis._process.victims import check, draw


def fault(planned: PlannedFault, scene: FaultContext) -> DiskInjection:
    victims = scene.resolve(planned.target)
    return DiskInjection(scene, planned.kind, victims, DiskFault("", read_only=True))


PLUGIN = FaultPlugin(
    fault=fault,
    # a node that cannot write may exit or be replaced by one that lacks its data
    effects=FaultEffects(may_break=ANY_BUT_INTEGRITY, spoils=True, excuses_exit=True),
    needs=frozenset({"disk", "restart"}),
    verify_examples=(("one broker", {}),),
    draw=draw,
    check=check,
)
