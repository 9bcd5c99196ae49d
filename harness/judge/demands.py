"""The demands that a trial's contract may make of a system, by name.

A checker declares which of them it decides, a fault which of them it may break.
"""

DEMANDS = ("no-loss", "at-least-once", "order-per-queue", "keeps-metadata", "recovers")
ISOLATION = (  # of transactions, each a promise of all before it
    "read-uncommitted",
    "read-committed",
    "snapshot-isolation",
    "serializable",
    "strong-session-serializable",
    "strict-serializable",
)
INTEGRITY = "integrity"  # what comes out is what was sent: no contract can waive it
LINEARIZABLE = "linearizable"  # no contract can waive it either
ALL_DEMANDS = frozenset((*DEMANDS, *ISOLATION, INTEGRITY, LINEARIZABLE))
