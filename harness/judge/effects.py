"""What a recorded fault may have done, by its kind: from the plug-in that carries it out."""

from functools import cache

from harness import registry
from harness.contracts.faults import NEUTRAL, Effects


def is_known(kind: str) -> bool:
    """Whether an installed plug-in provides this kind of fault."""
    return kind in registry.names("fault")


@cache
def effects_of(kind: str) -> Effects:
    """Return what the kind of fault declares; nothing where no installed plug-in provides it."""
    if not is_known(kind):
        return NEUTRAL
    return registry.fault(kind).effects
