"""The history of one run, as checkers and reports read it.

What was recorded lies in files, one writer each: Arrow streams in `journal/` as long as nobody has
sealed them, Parquet in `history/` afterwards; a reader takes whichever there is. The tables and
their conventions are in `harness/schema.py`. Large tables (ops, replicas) are never collected:
checkers hand `files` to Spark. Small ones are read whole.
"""

from harness.schema import (
    CORRUPTED,
    DRAINED,
    EVENTS,
    FAULTS,
    NOT_DRAINED,
    NOTES,
    OPS,
    PHASES,
    REPLICAS,
    SCHEMA_VERSION,
    TABLES,
)

__all__ = [
    "CORRUPTED",
    "DRAINED",
    "EVENTS",
    "FAULTS",
    "NOTES",
    "NOT_DRAINED",
    "OPS",
    "PHASES",
    "REPLICAS",
    "SCHEMA_VERSION",
    "TABLES",
]
