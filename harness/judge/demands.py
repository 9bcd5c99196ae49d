"""The demands that a trial's contract may make of a system, by name.

A checker declares which of them it decides, a fault which of them it may break.
"""

DEMANDS = ("no-loss", "at-least-once", "order-per-queue", "keeps-metadata", "recovers")
ISOLATION = (  # levels of transactions, each implies all before it
    "read-uncommitted",
    "read-committed",
    "snapshot-isolation",
    "serializable",
    "strong-session-serializable",
    "strict-serializable",
)
INTEGRITY = "integrity"  # received data equals sent data: no contract can waive it
LINEARIZABLE = "linearizable"  # no contract can waive it either
ALL_DEMANDS = frozenset((*DEMANDS, *ISOLATION, INTEGRITY, LINEARIZABLE))
