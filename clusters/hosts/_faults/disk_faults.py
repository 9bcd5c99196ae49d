"""What several faults together want of one disk: the worst of each. Pure."""

from collections.abc import Iterable

from harness.contracts import DiskFault


def merged(faults: Iterable[DiskFault]) -> DiskFault | None:
    """None when nobody wants anything. All of them concern the same folder of the node."""
    every = tuple(faults)
    if not every:
        return None
    return DiskFault(
        every[0].below,
        full=any(fault.full for fault in every),
        read_only=any(fault.read_only for fault in every),
        sync_fails=any(fault.sync_fails for fault in every),
        sync_s=max(fault.sync_s for fault in every),
    )
