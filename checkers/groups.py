"""A group's offset never goes back except by a reset: not over a failover (`GROUP_WENT_BACK`), and
a reset that was acknowledged is not undone by one either (`RESET_UNDONE`). Nor does a commit of a
lower offset take it back, which is late (`LATE_COMMIT_TAKEN`): that somebody asked for the very
offset where the group stands tells it from one that went back by itself.

Each group's offset is changed by one process. After a reset was acknowledged it is what it was
reset to, and every commit that was acknowledged since raises it; a change of unknown outcome may
happen at any later time, and allows what it would bring about. How many messages a group that asked
would have been given again (the original's copies are up to ten seconds old, spec 10.3) is counted:
`redelivered`. Without a reset it is none. With gaps among the operations nobody is convicted, since
a change that is missing explains whatever is seen.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from checkers._run.metadata_changes import DEMAND, Breach, Did, changes, unseen
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
    found = changes(history)
    asked = {
        key: row
        for key, row in found.of(F.COMMIT, F.RESET, F.QUERY).items()
        if any(did.f is F.QUERY for did in row)
    }
    breaches = [breach for row in asked.values() for breach in of_group(row)]
    findings, reasons = found.judged(breaches, MEANING)
    committed = sum(
        did.type is Type.OK and did.f is not F.QUERY for row in asked.values() for did in row
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
    yield from unseen(history, asked, F.QUERY, "groups")


def of_group(row: Sequence[Did]) -> Iterator[Breach]:
    """One group on one queue, kept by one process, an operation at a time."""
    low = top = NONE  # it stands at `low` at least, and not beyond `top` ...
    perhaps_low: list[int] = []  # ... unless one of these
    perhaps_top = NONE
    late: set[int] = set()  # offsets that were committed below `low` since
    for did in row:
        if did.f is F.COMMIT and did.type is not Type.FAIL and did.offset < low:
            late.add(did.offset)
        match did.f, did.type:
            case F.COMMIT, Type.OK:
                low, top = max(low, did.offset), max(top, did.offset)
            case F.RESET, Type.OK:
                low = top = did.offset
                late.clear()
            case F.COMMIT, Type.INFO:
                perhaps_top = max(perhaps_top, did.offset)
            case F.RESET, Type.INFO:
                perhaps_top = max(perhaps_top, did.offset)
                perhaps_low.append(did.offset)
            case F.QUERY, Type.OK:
                breach = _seen(did, min([low, *perhaps_low]), max(top, perhaps_top), late)
                if breach:
                    low = top = did.offset
                    yield breach


def _seen(did: Did, least: int, most: int, late: Collection[int]) -> Breach | None:
    where = (did.ended or 0, did.process, did.key)
    if did.offset < least:
        why = f"its offset was {did.offset}, and {least} had been acknowledged"
        code = LATE if did.offset in late else BACK
        return Breach(code, *where, why, least - max(did.offset, 0))
    if did.offset > most:
        return Breach(
            UNDONE,
            *where,
            f"its offset was {did.offset}, and at most {most} had been committed since",
        )
    return None
