"""What a recorded fault may have done, by its kind: as its plug-in declares."""

from functools import cache

from harness import registry
from harness.contracts.faults import NEUTRAL, FaultEffects


def is_known(kind: str) -> bool:
    """Whether an installed plug-in provides this kind of fault."""
    return kind in registry.names("fault")


@cache
def effects_of(kind: str) -> FaultEffects:
    """Return the effects that the kind of fault declares; none if no installed plug-in provides
    it."""
    if not is_known(kind):
        return NEUTRAL
    return registry.fault(kind).effects
