"""Flaws in what zones mean: in their count (`ackZones`), in routes (`zoneMode`) and drills; in
leases of masters (`enableMasterLease`), and in the return of the mastership to a preferred broker
(`preferredMaster`)."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from clusters.flotilla.controllers.registers import Registers
from clusters.flotilla.controllers.zones import NAMESPACE
from clusters.flotilla.replication import quorum
from clusters.flotilla.rules import RULES

from .mutant import Mutant


def zones_do_not_count(
    needed: int, end: int, own: str, acks: Mapping[int, int | None], of: Mapping[int, str]
) -> int:
    return end


def copies_for_zones(
    needed: int, end: int, own: str, acks: Mapping[int, int | None], of: Mapping[int, str]
) -> int:
    """Each slave counts as a zone of its own."""
    return quorum.zone_offset(needed, end, own, acks, {slave: f"of-{slave}" for slave in acks})


def keep_no_zone(
    needed: int,
    own: str,
    staying: Collection[int],
    leaving: Collection[int],
    of: Mapping[int, str],
) -> tuple[int, ...]:
    return ()


def serve_for_longer(lease_s: float, margin_s: float) -> float:
    return 3 * lease_s


def elect_at_once(now: float, ends_at: float) -> bool:
    return True


def lasts_since_granted(now: float, until: float) -> bool:
    """A master that had a lease once goes on as if it had renewed it."""
    return until > 0


def return_at_once(
    now: float, ready_since: float, returned_at: float, stable_s: float, pause_s: float
) -> bool:
    return True


def leave_out_all_others(masters: Mapping[str, str | None], zone: str) -> frozenset[str]:
    """As RocketMQ: also where no set has a master in the client's zone."""
    return frozenset(name for name, at in masters.items() if at is not None and at != zone)


def lead_anywhere(zone: str, closed: Collection[str]) -> bool:
    return True


def without_closed_zones(registers: Registers) -> Registers:
    return {name: rows for name, rows in registers.items() if name != NAMESPACE}


MUTANTS = (
    Mutant(
        "zone-not-counted",
        "acknowledges as soon as enough replicas have a message, in whatever zones",
        "LOST_ACKED",
        replace(RULES, zone_offset=zones_do_not_count),
    ),
    Mutant(
        "copies-for-zones",
        "counts two copies in one zone as two zones",
        "LOST_ACKED",
        replace(RULES, zone_offset=copies_for_zones),
    ),
    Mutant(
        "last-zone-leaves",
        "a silent member leaves the set although no other one is in its zone",
        "LOST_ACKED",
        replace(RULES, kept_for_zone=keep_no_zone),
    ),
    Mutant(
        "lease-longer-than-grant",
        "a master counts a longer lease than the controllers wait for",
        "LEASE_OVERLAP",
        replace(RULES, own_lease_s=serve_for_longer),
    ),
    Mutant(
        "elects-within-lease",
        "controllers elect another master while the present one has a lease",
        "LEASE_OVERLAP",
        replace(RULES, may_elect_after_lease=elect_at_once),
    ),
    Mutant(
        "lease-renewed-locally",
        "a master renews its lease itself",
        "LEASE_OVERLAP",
        replace(RULES, lease_lasts=lasts_since_granted),
    ),
    Mutant(
        "zone-without-fallback",
        "leaves sets of other zones out of a route although none has a master in the client's",
        "ROUTE_OF_ZONE",
        replace(RULES, left_out=leave_out_all_others),
    ),
    Mutant(
        "elects-in-closed-zone",
        "elects whichever broker is the best, also in a zone that an operator has closed",
        "LED_IN_CLOSED_ZONE",
        replace(RULES, may_lead_in=lead_anywhere),
    ),
    Mutant(
        "closed-zone-forgotten",
        "leaves closed zones out of the controllers' snapshots",
        "LED_IN_CLOSED_ZONE",
        replace(RULES, registers_in_snapshot=without_closed_zones),
    ),
    Mutant(
        "preferred-flaps",
        "the mastership returns to the preferred broker whenever it is there",
        "RETURNED_TOO_SOON",
        replace(RULES, may_return=return_at_once),
    ),
)
