"""Every decision that the safety or liveness of Flotilla hangs on, as one value of pure functions.

A node's main takes a `Rules`; nothing in Flotilla reaches a decision by another way. A known-bad
variant is `replace(RULES, elect=careless_elect)`, started through the same main: no patching.

Fields are added where the decision is written (raft.core, controller_state, sync_state, epochs,
quorum ...); each is named for what it decides and documented at its function.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """The decisions of a cluster. Defaults are the sound ones."""


RULES = Rules()
