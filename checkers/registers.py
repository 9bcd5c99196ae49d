"""Registers and strings are linearizable: all reads, writes, compare-and-sets and appends of a key
fit one order that respects real time.

Each key is judged by itself, since a history is linearizable exactly when each of its objects is
(Herlihy and Wing 1990). A key with appends holds a string, any other key a value. An operation of
unknown outcome may have happened at any time since its call, or never. A key is `NOT_LINEARIZABLE`
if no order explains all of its operations. Its witness is the smallest contradiction that was
found: a few operations that cannot all be correct, whatever the other operations did.

If writes repeat values, a decision can take exponential time. Then a budget ends the search, and
the key is not decided (`REGISTERS_NOT_DECIDED`): the trial is unknown, unless another key is
illegal. With gaps in the record nothing is concluded, because a missing write explains any read. In
a run of Seatrial, a final reader reads each key that was written, or the run is unknown
(`OBJECTS_NOT_READ`): a value that was seen during the load may be lost later.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from checkers._linear.buckets import row_location
from checkers._linear.encoding import RULES
from checkers._linear.explanations import Explanation, explain_keys
from checkers._linear.registers import (
    MIXED,
    SPENT,
    TOO_LONG,
    RegisterVerdicts,
    UndecidedKey,
    judge_registers,
)
from checkers._messages.message_census import given_up
from checkers._run.evidence import SAMPLE, name_of
from harness.contracts import CheckerPlugin
from harness.history.notes import FINAL_PHASE
from harness.history.reader import History
from harness.judge.claims import in_effect
from harness.judge.verdict import Finding, Reason, Result
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALWAYS = "linearizable"  # independent of the contract
MAX_EXPLAINED = 100  # illegal keys, where a fault may excuse them; others convict
WHY = {
    SPENT: "some order explains the first {passed:,} of its {returns:,} returns, and the search for"
    " the rest ran out of its budget; write each value once, or go on to new keys after some"
    " hundred operations",
    TOO_LONG: "its strings are too long to be held in memory; go on to new keys earlier",
    MIXED: "it is a string, and those know no compare-and-set; use different keys for them",
}


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    found = judge_registers(history, spark)
    findings = tuple(_findings(found, history, spark)) if history.complete else ()
    reasons = tuple(_reasons(found, history))
    keys = sum(found.keys.values())
    stats: dict[str, Any] = {"operations": found.operations, "keys": keys}
    stats |= {"searched": found.searched, "steps": found.steps}
    if not findings and not reasons:
        stats["proved"] = f"{found.operations:,} operations on {_keys(keys)} are linearizable"
    decided = dict.fromkeys((ALWAYS, "no-loss"), found.operations)
    return Result("registers", findings, reasons, stats, decided)


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset({"NOT_LINEARIZABLE"}),
    decides=frozenset({"linearizable", "no-loss"}),
    reasons=frozenset(
        {
            "HISTORY_MALFORMED",
            "NO_FINAL_READ",
            "NO_REGISTERS",
            "OBJECTS_NOT_READ",
            "OPERATIONS_UNRECORDED",
            "REGISTERS_NOT_DECIDED",
        }
    ),
    cut_short=frozenset({"NO_FINAL_READ"}),
    standstill=frozenset({"NO_FINAL_READ", "OBJECTS_NOT_READ"}),
)


def _findings(
    found: RegisterVerdicts, history: History, spark: "SparkSession | None"
) -> Iterator[Finding]:
    count = len(found.illegal)
    if not count:
        return
    most = MAX_EXPLAINED if any(map(in_effect, history.faults)) else SAMPLE
    explained = {s.key: s for s in explain_keys(history, spark, found.illegal[:most])}
    rows = [_row(history, key, explained.get(key)) for key in found.illegal[:SAMPLE]]
    what = f"of {_keys(count)}" if count == 1 else f"of each of {_keys(count)}"
    message = f"no order of the operations {what} explains the answers that clients got"
    spans = tuple(
        (explanation.span[0], explanation.span[1])
        for explanation in explained.values()
        if explanation.span
    )
    yield Finding("NOT_LINEARIZABLE", count, message, ALWAYS, tuple(rows), spans=spans)


def _row(history: History, key: int, explanation: Explanation | None) -> dict[str, Any]:
    row: dict[str, Any] = {"key": name_of(history.names, "keys", key)}
    if explanation is None:  # illegal, and too large for an explanation
        return row
    row |= {
        "kind": explanation.kind,
        "op": explanation.op,
        "ops": " ".join(map(str, explanation.ops)),
    }
    row |= {"at_s": round(explanation.span[1] / 1e9, 6)} if explanation.span else {}
    row["explanation"] = "; ".join(explanation.steps)
    return row | ({"held": " or ".join(explanation.held)} if explanation.held else {})


def _reasons(found: RegisterVerdicts, history: History) -> Iterator[Reason]:
    if not found.observed:
        yield Reason(
            "NO_REGISTERS",
            "no read of a register or string succeeded, so nothing is proven; "
            "check that the history has reads that ended ok",
        )
    if found.flawed:
        yield Reason("HISTORY_MALFORMED", _flawed(found, history))
    if found.unread:
        first = name_of(history.names, "keys", found.unread[0])
        yield Reason(
            "OBJECTS_NOT_READ",
            f"{_keys(len(found.unread))}, {first} among them, "
            f"{'was' if len(found.unread) == 1 else 'were'} written and not read in the "
            "final phase, so what was written may be lost; let the run finish, or give it more "
            "time to recover (recover_within_s)",
        )
    for text in given_up(history, FINAL_PHASE):
        yield Reason(
            "NO_FINAL_READ",
            f"the runner {text}, so not every register may have been read; use fewer, or "
            "find out why it is so slow",
        )
    if found.open:
        yield Reason("REGISTERS_NOT_DECIDED", _undecided(found.open, history))
    if found.illegal and not history.complete:
        yield Reason(
            "OPERATIONS_UNRECORDED",
            f"no order explains {_keys(len(found.illegal))}, but the recording has gaps that may "
            "explain it; run it again",
        )


def _flawed(found: RegisterVerdicts, history: History) -> str:
    first = found.flaws[0]
    where = f"{row_location(history, first.row)} (operation {first.op}, process {first.process})"
    rows = "1 row breaks" if found.flawed == 1 else f"{found.flawed:,} rows break"
    return f"{rows} a rule, the first is {where}: {RULES[first.rule]}"


def _undecided(left: Sequence[UndecidedKey], history: History) -> str:
    first = left[0]
    why = WHY[first.why].format(passed=first.passed, returns=first.returns)
    among = "" if len(left) == 1 else " among them"
    return (
        f"{_keys(len(left))} not decided, {name_of(history.names, 'keys', first.key)} "
        f"({first.operations:,} operations){among}: {why}"
    )


def _keys(count: int) -> str:
    return "1 key" if count == 1 else f"{count:,} keys"
