"""The roles from the event logs equal the roles from the nodes' answers."""

import pytest
from simulated_fleet import BROKER_SET, Fleet, Sailor

from clusters.systems.flotilla.event_view import EventView
from clusters.systems.flotilla.layout import PORTS
from harness.contracts import ClusterState

PARTS = ("masters", "slaves", "in_set", "out_of_set", "controller_leader", "epochs")


def seen(fleet: Fleet) -> ClusterState:
    """Return the view from all events so far, in the order of their times."""
    found = EventView(fleet.layout.sets)
    names = [name for role in PORTS for name in fleet.nodes(role)]
    rows = [(row["mono"], name, row) for name in names for row in fleet.events(name)]
    for _, name, row in sorted(rows, key=lambda each: each[:2]):
        found.read(name, row["kind"], row)
    return found.cluster_state()


def alike(fleet: Fleet, now: ClusterState) -> None:
    told = seen(fleet)
    for part in PARTS:
        assert getattr(told, part) == getattr(now, part), part


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_is_seen_is_what_nodes_say(seed: int) -> None:
    """At rest, after a failover, and while the old master is dead."""
    fleet = Fleet(seed)

    async def scenario(sailor: Sailor) -> None:
        first = await sailor.healthy()
        alike(fleet, first)
        old = first.masters[BROKER_SET]
        await sailor.kill(old)
        alike(fleet, await sailor.new_master(old))
        await sailor.kill(first.controller_leader)
        await sailor.start(old)
        await sailor.start(first.controller_leader)
        alike(fleet, await sailor.healthy())

    fleet.sail(scenario)
