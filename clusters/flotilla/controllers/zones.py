"""Zones that an operator has closed for masters (`drillZone`), until they are returned. Pure.

Before the power of a room is switched off, all masters leave it: the leading controller hands them
over one after the other, so no send fails. None comes back before `returnZone`, whatever the reason
would be: `preferredMaster`, an election after a failure, an election that an operator wants, or the
restart of a broker. A set without an eligible member in another zone keeps its master in the closed
zone, and has none if that one fails.

Closed zones are registers of the controllers (`closedZones`, the zone, `closed`), so they survive
restarts of controllers and are in their snapshots. The leader tries again in each scan to move the
masters that are left. RocketMQ's operators move masters one by one with electMaster, and its
elections may bring them back.
"""

from collections.abc import Collection, Mapping

from .registers import PutValue, Registers

NAMESPACE = "closedZones"
CLOSED = "closed"


def closed_zones(registers: Registers) -> Mapping[str, str]:
    return registers.get(NAMESPACE, {})


def may_lead_in(zone: str, closed: Collection[str]) -> bool:
    """Decide whether a broker in this zone may be elected."""
    return zone not in closed


def registers_in_snapshot(registers: Registers) -> Registers:
    """Return what a snapshot keeps of the registers: all of them. The identity is a rule of its
    own, so that a variant can replace it."""
    return registers


def put_zone(zone: str, *, closed: bool) -> PutValue:
    return PutValue(NAMESPACE, zone, CLOSED if closed else None)
