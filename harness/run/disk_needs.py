"""What the faults of a plan need of the disks of nodes, so that nothing else is done to them."""

from typing import cast

from harness import registry
from harness.contracts import Hosts, OwnDiskAgent, OwnDiskHosts, TestBed
from harness.plans import planned_kinds
from harness.run.tasks import run_all

OWN_DISK = "own-disk"
# abilities for which nodes are prepared before the system is installed
DISK_NEEDS = frozenset({"disk", "unsynced", OWN_DISK})


def disk_needs(plan_text: str, can: frozenset[str]) -> frozenset[str]:
    """Return which of DISK_NEEDS the faults of a plan have on hosts with these abilities."""
    kinds = planned_kinds(plan_text)
    if not any(registry.fault(kind).needs & DISK_NEEDS for kind in kinds):
        return frozenset()
    plan = registry.nemesis().load(plan_text).faults
    needs = (registry.fault(fault.kind).needs_for(fault, can) for fault in plan)
    return frozenset().union(*needs) & DISK_NEEDS


def prepare_own_disks(plan_text: str, hosts: Hosts) -> None:
    """Prepare hosts, before they are entered, for a plan that needs file systems of the nodes'
    own."""
    if isinstance(hosts, OwnDiskHosts) and OWN_DISK in disk_needs(plan_text, hosts.can):
        hosts.prepare_own_disks()


def why_no_own_disks(hosts: Hosts, kind: str) -> str:
    """Return why hosts of a kind cannot cut the power of a node's disk, and what to do."""
    if isinstance(hosts, OwnDiskHosts):
        return hosts.why_no_own_disks()
    return f"{kind} hosts have none; to fix it: choose local hosts, as root"


async def sync_own_disks(bed: TestBed) -> None:
    """Make what was installed durable, so that no cut takes it."""
    own = [agent for agent in bed.agents.values() if hasattr(agent, "cut_disk")]
    await run_all(*(cast(OwnDiskAgent, agent).keep_unsynced() for agent in own))
