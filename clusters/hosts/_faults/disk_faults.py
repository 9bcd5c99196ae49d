"""Several faults on one disk at the same time: the worst of each kind applies. Pure."""

from collections.abc import Iterable

from harness.contracts import DiskFault


def merge(faults: Iterable[DiskFault]) -> DiskFault | None:
    """Return the fault in force, or None. All faults concern the same folder of the node."""
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
