"""A group's offset never goes back except by a reset: not over a failover (`GROUP_WENT_BACK`), and
an acknowledged reset is not undone by one either (`RESET_UNDONE`). A late commit of a lower offset
does not take it back (`LATE_COMMIT_TAKEN`): such a commit of exactly the group's offset tells this
from an offset that went back by itself.

Each group's offset is changed by one process. After an acknowledged reset it is the offset of the
reset, and every later acknowledged commit raises it; a change of unknown outcome may happen at any
later time, and its result is allowed. How many messages a group would receive again (RocketMQ's
copies are up to ten seconds old, spec 10.3) is counted: `redelivered`. Without a reset it is none.
With gaps among the operations nothing is concluded, since a missing change explains any answer.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from checkers._run.metadata_changes import (
    DEMAND,
    MetadataBreach,
    MetadataOp,
    metadata_changes,
    unread_at_end,
)
from harness.contracts import CheckerPlugin
from harness.history.reader import History
from harness.judge.verdict import Reason, Result
from harness.operation import NONE, F, Type
from harness.trial import Trial

BACK, UNDONE, LATE = "GROUP_WENT_BACK", "RESET_UNDONE", "LATE_COMMIT_TAKEN"
MEANING = {
    BACK: "a group's offset was below an acknowledged commit ({times})",
    UNDONE: "a group's offset was beyond every commit since its last reset ({times})",
    LATE: "a commit of a lower offset took a group back ({times})",
}


def check(history: History, trial: Trial, spark: Any) -> Result:
    found = metadata_changes(history)
    asked = {
        key: row
        for key, row in found.of(F.COMMIT, F.RESET, F.QUERY).items()
        if any(op.f is F.QUERY for op in row)
    }
    breaches = [breach for row in asked.values() for breach in of_group(row)]
    findings, reasons = found.judged(breaches, MEANING)
    committed = sum(
        op.type is Type.OK and op.f is not F.QUERY for row in asked.values() for op in row
    )
    again = sum(breach.by for breach in breaches if breach.code != UNDONE)
    stats: dict[str, Any] = {"offsets_changed": committed, "redelivered": again}
    if committed and not breaches:
        stats["proved"] = f"{committed:,} acknowledged group offsets survived every failover"
    reasons += _reasons(history, asked, committed)
    return Result("groups", tuple(findings), tuple(reasons), stats, {DEMAND: committed})


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset({BACK, LATE, UNDONE}),
    decides=frozenset({"keeps-metadata"}),
    reasons=frozenset({"NO_FINAL_LOOK", "NO_OFFSETS", "OPERATIONS_UNRECORDED"}),
    standstill=frozenset({"NO_FINAL_LOOK"}),
)


def _reasons(history: History, asked: Any, committed: int) -> Iterator[Reason]:
    if not committed:
        why = "no committed offset of a group was read back, so nothing is proven"
        yield Reason("NO_OFFSETS", why)
    yield from unread_at_end(history, asked, F.QUERY, "groups")


def of_group(row: Sequence[MetadataOp]) -> Iterator[MetadataBreach]:
    """Yield the breaches of one group on one queue, which one process changes, one operation after
    the other."""
    low = top = NONE  # its offset is at least `low`, and at most `top` ...
    perhaps_low: list[int] = []  # ... unless one of these
    perhaps_top = NONE
    late: set[int] = set()  # offsets that were committed below `low` since
    for op in row:
        if op.f is F.COMMIT and op.type is not Type.FAIL and op.offset < low:
            late.add(op.offset)
        match op.f, op.type:
            case F.COMMIT, Type.OK:
                low, top = max(low, op.offset), max(top, op.offset)
            case F.RESET, Type.OK:
                low = top = op.offset
                late.clear()
            case F.COMMIT, Type.INFO:
                perhaps_top = max(perhaps_top, op.offset)
            case F.RESET, Type.INFO:
                perhaps_top = max(perhaps_top, op.offset)
                perhaps_low.append(op.offset)
            case F.QUERY, Type.OK:
                breach = _query_breach(op, min([low, *perhaps_low]), max(top, perhaps_top), late)
                if breach:
                    low = top = op.offset
                    yield breach


def _query_breach(
    op: MetadataOp, least: int, most: int, late: Collection[int]
) -> MetadataBreach | None:
    where = (op.ended or 0, op.process, op.key)
    if op.offset < least:
        why = f"its offset was {op.offset}, and {least} had been acknowledged"
        code = LATE if op.offset in late else BACK
        return MetadataBreach(code, *where, why, least - max(op.offset, 0))
    if op.offset > most:
        return MetadataBreach(
            UNDONE,
            *where,
            f"its offset was {op.offset}, and at most {most} had been committed since",
        )
    return None
