"""Rows of findings are excused one by one by the time of the operations that contradict each other;
what has no time convicts. Each code of a finding has its place in the table."""

import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from harness import registry
from harness.history.journal import TableJournal
from harness.history.reader import History
from harness.judge.claims import unclaimed_faults
from harness.judge.judge import mark_excused
from harness.trial import Trial

MS = 1_000_000
# without events of sets a cluster is whole again after recover_within_s
NOTHING_CLAIMED = Trial(claims={"*": "none"}, recover_within_s=1e-9)

# by the nodes that held a message (checkers._messages.excused_rows): they have no times
BY_HOLDERS = {"LOST_ACKED", "PHANTOM_VANISHED", "UNREAD_ACKED"}
# the moment at which it was seen, by an event, an answer or the final look
MOMENTS = {
    *("ANSWERED_EARLY", "COMMITTED_CHANGED", "CONFIRM_WENT_BACK", "CUT_TOO_HIGH", "CUT_TOO_LOW"),
    *("DIGESTS_DIFFER", "ELECTED_OUTSIDE", "GROUP_WENT_BACK", "HEADLESS", "LATE_COMMIT_TAKEN"),
    *("METADATA_LOST", "METADATA_RETURNED", "NEEDLESS_ELECTION", "NODE_CRASHED", "ONE_LEADER"),
    *("NONMONOTONIC_POLL", "OFFSET_GAP", "ONE_MASTER", "PHANTOM_NEVER_SENT", "QUEUE_OWNED_TWICE"),
    *("QUEUE_WITHOUT_OWNER", "READ_SKIPPED", "RESET_UNDONE", "ROUTE_WENT_BACK", "SET_LACKS_ACKED"),
    *("EVENT_MISSED", "EVENT_OUT_OF_ORDER", "EVENT_STALE", "EVENT_TWICE", "EVENT_UNWRITTEN"),
    *("SEQUENCE_REUSED", "STATE_JUMPED", "UNACCEPTABLE", "VERSION_CONFLICT"),
    *("GHOST_BROKER", "INNER_FORGOTTEN", "STORE_SHARED", "LEADER_LACKS_COMMITTED"),
    *("LEASE_OVERLAP", "RETURNED_TOO_SOON", "ROUTE_OF_ZONE", "LED_IN_CLOSED_ZONE"),
    *("CONVERTED_EARLY", "CONVERTED_UNEQUAL", "GENERATIONS_MIXED", "GENERATION_WENT_BACK"),
    *("PROMISE_BROKEN", "WROTE_AS_SLAVE", "ESCAPED_HOME", "ESCAPED_TWICE"),
    *("COMMIT_LOST", "HALF_SEEN", "HALF_STUCK", "ROLLED_BACK_SEEN"),
}
# from the first to the last of the operations that contradict each other
SPANS = {
    *("ACKED_AGAIN", "CORRUPTED", "COUNTER_OUT_OF_RANGE", "DUPLICATED", "DUPLICATE_ELEMENT"),
    *("ELEMENT_LOST", "EPOCHS_DIFFER", "EPOCH_SHARED", "FENCING_BROKEN", "LOCK_HELD_TWICE"),
    *("LOCK_LOST", "LOCK_NOT_HELD", "LOG_HOLE", "NOT_EMPTY", "NOT_LINEARIZABLE", "NOT_RECOVERED"),
    *("OFFSET_CONFLICT", "OFFSET_MOVED", "PHANTOM_ELEMENT", "PHANTOM_REFUSED", "QUEUE_ORDER"),
    *("RECORD_CHANGED", "REORDERED", "REPLICAS_DIFFER", "STALE_READ"),
    # from when it was accepted to when it was delivered, or the queue was read to its end
    *("DELAY_LOST", "DELIVERED_EARLY"),
    # from when a message was invisible, or acknowledged, to when it was overdue, or given again
    *("POP_ACKED_AGAIN", "POP_LOST", "POP_TOO_SOON"),
}
# only in histories that other tools recorded: of their faults no effect is recorded, so that
# none is unclaimed
IMPORTED = {
    *("CONSUMER_SKIPPED", "CONSUMER_WENT_BACK", "G0", "G0_PROCESS", "G0_REALTIME", "G1A", "G1B"),
    *("G1C", "G1C_PROCESS", "G1C_REALTIME", "G2_ITEM", "G2_ITEM_PROCESS", "G2_ITEM_REALTIME"),
    *("G_NONADJACENT", "G_NONADJACENT_PROCESS", "G_NONADJACENT_REALTIME", "G_SINGLE"),
    *("G_SINGLE_PROCESS", "G_SINGLE_REALTIME", "INCOMPATIBLE_ORDER", "INTERNAL", "LOST_APPEND"),
    *("LOST_UPDATE", "NONMONOTONIC_SEND", "PHANTOM_VALUE", "POLL_SKIPPED", "PRECOMMITTED_READ"),
    "TXN_TORN",
}
INFORMS = {  # never convict
    *("CONSUMER_MOVED", "DUPLICATED_BY_RETRY", "DUPLICATED_BY_SCAN", "OFFSET_HOLE", "UNSEEN_ACKED")
}


def test_each_code_has_its_place() -> None:
    """A new finding is excused by nothing until it is decided how."""
    kinds = [BY_HOLDERS, MOMENTS, SPANS, IMPORTED, INFORMS]
    assert sorted(code for some in kinds for code in some) == list(registry.finding_codes())


def power(begin: int, healed: int, *nodes: str) -> tuple[Any, ...]:
    hit = json.dumps({"broker": nodes or ["broker-1", "broker-2"]})
    times = (0, 0, begin * MS, begin * MS, begin * MS, healed * MS, healed * MS)
    return (0, "power", "{}", "", hit, *times, "installed", "{}")


def write(history: History, table: str, rows: list[Any]) -> None:
    journal = TableJournal(history.run.journal, table, "more")
    for row in rows:
        journal.append(row)
    journal.close()


EVENTS = {  # what brokers and the runner tell, t in ms
    "EPOCHS_DIFFER": [
        (2, "broker-1", "epoch", '{"epoch": 1, "start": 0}'),
        (11, "broker-2", "epoch", '{"epoch": 1, "start": 7}'),
    ],
    "DIGESTS_DIFFER": [
        (11, "", "compared", '{"sets": {"a": {"digests": {"broker-1": "x", "broker-2": "y"}}}}')
    ],
    "REPLICAS_DIFFER": [(12, "", "recovery", '{"redundant": true, "took_s": 1.0}')],
    "OFFSET_GAP": [],
}
COPIES = {
    "REPLICAS_DIFFER": [(0, 0, 0, 1, 1, 0), (1, 0, 0, 9, 1, 0)],
    "READ_SKIPPED": [(2, 2, 0, 1, 1, 0)],  # broker-3's log was read, too
    "OFFSET_GAP": [(node, 0, at, at, 1, 0) for node in (0, 1) for at in (1, 3)],
}
SENT = "send 1 ok@0 [1..2]\n"


ROWS = (
    ("checker", "code", "text", "span"),
    [
        ("offsets", "OFFSET_CONFLICT", SENT + "send 2 ok@0 [10..11]", (2, 11)),
        # what readers were told later adds nothing
        ("offsets", "OFFSET_CONFLICT", SENT + "send 2 ok@0 [3..4]\nread 2@0 [10..11]", (2, 4)),
        ("offsets", "RECORD_CHANGED", SENT + "poll 1@0/2/900 [10..11]", (2, 11)),
        (
            "offsets",
            "RECORD_CHANGED",
            SENT + "poll 1@0/1/900 [3..4]\nread 1@0/1/901 [10..11]",
            (4, 11),
        ),
        ("offsets", "OFFSET_MOVED", SENT + "read 1@3 [10..11]", (2, 11)),
        ("offsets", "OFFSET_GAP", SENT, (12, 12)),
        ("order", "REORDERED", "send 1 ok@5 [1..2]\nsend 2 ok@3 [10..11]", (2, 10)),
        ("order", "NONMONOTONIC_POLL", "poll 1@3 2@2 [10..11]", (11, 11)),
        ("linearizable", "NOT_LINEARIZABLE", "send 1 ok@5 [1..2]\nsend 2 ok@3 [10..11]", (2, 10)),
        ("duplicates", "DUPLICATED", SENT + "read 1@0 1@7 [10..11]", (2, 11)),
        ("phantom", "PHANTOM_REFUSED", "send 1 fail [1..2]\nread 1@0 [10..11]", (2, 11)),
        ("phantom", "PHANTOM_NEVER_SENT", "read 9@0 [10..11]", (11, 11)),
        ("replicas", "REPLICAS_DIFFER", SENT, (2, 12)),
        ("replicas", "EPOCHS_DIFFER", SENT, (2, 11)),
        ("replicas", "DIGESTS_DIFFER", SENT, (11, 11)),
    ],
)


@pytest.mark.parametrize(*ROWS)
def test_a_row_lasts_from_the_first_to_the_last_of_its_operations(
    written: Callable[..., History], checker: str, code: str, text: str, span: tuple[int, int]
) -> None:
    """A power cut that is not claimed excuses it if they meet, and neither earlier nor later."""
    first, last = span
    for begin, healed, left in ((last, 40, 0), (0, first, 0), (last + 1, 40, 1), (0, first - 1, 1)):
        history = written(text, faults=[power(begin, healed)])
        write(history, "events", [(t * MS, *rest) for t, *rest in EVENTS.get(code, ())])
        write(history, "replicas", COPIES.get(code, []))
        write(history, "notes", [(12 * MS, None, None, "drain")])
        history = History.open(history.run)
        found = import_module(f"checkers.{checker}").check(history, NOTHING_CLAIMED, None)
        (one,) = [f for f in found.findings if f.code == code]
        assert one.spans == ((first * MS, last * MS),)
        faults = unclaimed_faults(history, NOTHING_CLAIMED)
        assert [u.fault.id for u in faults] == [0]
        (judged,) = [f for f in mark_excused(found, faults).findings if f.code == code]
        assert judged.count - judged.excused == left, (begin, healed)


SETS = {
    "a": {"nodes": ["broker-1", "broker-2"], "full": 2, "keys": ["orders-0", "orders-1"]},
    "b": {"nodes": ["broker-3"], "full": 1, "keys": ["orders-2"]},
}
BROKERS = ["broker-1", "broker-2", "broker-3"]
ROLE = [(1, node, "role", '{"brokerName": "a"}') for node in BROKERS[:2]]
SKIPPED = (
    "send 1 ok@0 [1..2]\nsend 2 ok@1 [3..4]\nread 2@1 [13..14]\nstored 1@0 2@1\ndrained [15..16]"
)
NOTES = {"CORRUPTED": [(11 * MS, None, None, 'CORRUPTED {"key": 0, "offset": 0, "claimed": 1}')]}


@pytest.mark.parametrize(
    ROWS[0],
    [
        *ROWS[1],
        ("phantom", "CORRUPTED", SENT, (11, 11)),
        ("loss", "READ_SKIPPED", SKIPPED, (12, 16)),
    ],
)
def test_a_fault_of_another_broker_set_excuses_no_row(
    written: Callable[..., History], checker: str, code: str, text: str, span: tuple[int, int]
) -> None:
    """Each row that names a queue, a node or a set belongs to one broker set: a power cut at
    another one is no excuse, whatever its time is."""
    for node, left in (("broker-3", 1), ("broker-1", 0)):
        history = written(text, faults=[power(0, 40, node)])
        roles = dict.fromkeys(BROKERS, "broker")
        history.run.write_names({**history.names, "nodes": BROKERS, "roles": roles, "sets": SETS})
        told = [*ROLE, *EVENTS.get(code, ())]
        write(history, "events", [(t * MS, *rest) for t, *rest in told])
        write(history, "replicas", COPIES.get(code, []))
        write(history, "notes", [(12 * MS, None, None, "drain"), *NOTES.get(code, ())])
        history = History.open(history.run)
        found = import_module(f"checkers.{checker}").check(history, NOTHING_CLAIMED, None)
        faults = unclaimed_faults(history, NOTHING_CLAIMED)
        (judged,) = [f for f in mark_excused(found, faults).findings if f.code == code]
        assert judged.count - judged.excused == left, node


def test_every_row_is_looked_at_and_few_are_shown(written: Callable[..., History]) -> None:
    """Of 60 offsets that held two messages each is excused or convicts; evidence is capped."""
    lines = [f"send {n} ok@{n} [{n + 1}..{n + 1}]" for n in range(60)]
    lines += [f"send {100 + n} ok@{n} [{n + 2}..{n + 2}]" for n in range(60)]
    history = written("\n".join(lines), faults=[power(0, 40)])
    found = import_module("checkers.offsets").check(history, NOTHING_CLAIMED, None)
    (one,) = mark_excused(found, unclaimed_faults(history, NOTHING_CLAIMED)).findings
    assert (one.count, one.excused, len(one.evidence)) == (60, 40, 20)
