"""The codes of findings that a suite may expect: those of our own checkers.

docs/verdicts.md says in words what each means. Where a package from outside adds a checker, its
findings are its own, and any code may be one of them.
"""

from collections.abc import Iterable

from harness import registry
from harness.errors import UnknownName

CODES = (
    *("ANSWERED_EARLY", "COMMITTED_CHANGED", "CONFIRM_WENT_BACK", "CONSUMER_MOVED"),
    *("CONSUMER_SKIPPED", "CONSUMER_WENT_BACK", "CORRUPTED", "COUNTER_OUT_OF_RANGE"),
    *("CUT_TOO_HIGH", "CUT_TOO_LOW", "DIGESTS_DIFFER", "DUPLICATED", "DUPLICATED_BY_RETRY"),
    *("DUPLICATE_ELEMENT", "ELECTED_OUTSIDE", "ELEMENT_LOST", "EPOCHS_DIFFER", "EPOCH_SHARED"),
    *("FENCING_BROKEN", "G0", "G0_PROCESS", "G0_REALTIME", "G1A", "G1B", "G1C", "G1C_PROCESS"),
    *("G1C_REALTIME", "G2_ITEM", "G2_ITEM_PROCESS", "G2_ITEM_REALTIME", "GROUP_WENT_BACK"),
    *("G_NONADJACENT", "G_NONADJACENT_PROCESS", "G_NONADJACENT_REALTIME", "G_SINGLE"),
    *("G_SINGLE_PROCESS", "G_SINGLE_REALTIME", "HEADLESS", "INCOMPATIBLE_ORDER", "INTERNAL"),
    *("LOCK_HELD_TWICE", "LOCK_LOST", "LOCK_NOT_HELD", "LOG_HOLE", "LOST_ACKED", "LOST_APPEND"),
    *("LOST_UPDATE", "METADATA_LOST", "METADATA_RETURNED", "NEEDLESS_ELECTION", "NODE_CRASHED"),
    *("NONMONOTONIC_POLL", "NONMONOTONIC_SEND", "NOT_EMPTY", "NOT_LINEARIZABLE", "NOT_RECOVERED"),
    *("OFFSET_CONFLICT", "OFFSET_GAP", "OFFSET_HOLE", "OFFSET_MOVED", "ONE_LEADER", "ONE_MASTER"),
    *("PHANTOM_ELEMENT", "PHANTOM_NEVER_SENT", "PHANTOM_REFUSED", "PHANTOM_VALUE"),
    *("PHANTOM_VANISHED", "POLL_SKIPPED", "PRECOMMITTED_READ", "QUEUE_ORDER"),
    *("QUEUE_OWNED_TWICE", "READ_SKIPPED", "REORDERED", "REPLICAS_DIFFER", "RESET_UNDONE"),
    *("ROUTE_WENT_BACK", "SET_LACKS_ACKED", "STALE_READ", "TXN_TORN", "UNACCEPTABLE"),
    *("UNREAD_ACKED", "UNSEEN_ACKED"),
)


def check_codes(codes: Iterable[str]) -> None:
    """UnknownName for the first that no checker can ever find."""
    if any(not module.startswith("checkers.") for module in registry.modules("checker")):
        return
    for code in codes:
        if code not in CODES:
            raise UnknownName("finding", code, CODES)
