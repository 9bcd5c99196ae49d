"""Fill the disk under a node's data: writes fail with ENOSPC until it is healed.

What was allocated before can still be written over, as on any file system, and what the node has it
can read. Its event log and output lie elsewhere. A node that ends for it is started again by the
healing.
"""

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    DiskFault,
    Effects,
    FaultPlugin,
    PlannedFault,
    Scene,
)
from nemesis._process.disk_fault import DiskTrouble
from nemesis._process.victims import check, drawn


def fault(planned: PlannedFault, scene: Scene) -> DiskTrouble:
    victims = scene.aim(planned.target)
    return DiskTrouble(scene, planned.kind, victims, DiskFault("", full=True))


PLUGIN = FaultPlugin(
    fault=fault,
    # a node that cannot write may end or be replaced by one that lacks what it has
    effects=Effects(may_break=ANY_BUT_INTEGRITY, spoils=True, excuses_exit=True),
    needs=frozenset({"disk", "restart"}),
    shown=(("one broker", {}),),
    drawn=drawn,
    check=check,
)
