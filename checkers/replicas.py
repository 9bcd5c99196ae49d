"""All replicas hold the same log once the cluster has recovered, and agree on where epochs began.

Two replicas that hold different messages at one offset of a queue (`REPLICAS_DIFFER`) have diverged
without noticing it. Readers see nothing of that: they read the master's log, until another replica
is elected, and then what they read changes. A copy with another checksum is different too. One
replica that holds two messages at an offset is checked by `offsets`.

Logs may differ while a deposed master has not yet learned of its successor. So nothing is concluded
unless the runner saw full redundancy at the end. An entry that a replica lacks is no violation,
since copying may lag behind; it is counted. A run that recovered, and in which no entry was read
from two replicas, shows nothing, and says so: the replicas' logs could not be read. Of several
broker sets each has to show it by itself, if anything was written to it; the same holds for
comparisons between faults.

Where the runner compared replicas between faults (`harness.run.replica_comparison`), their digests
must be equal every time (`DIGESTS_DIFFER`): replicas that diverged and were brought together again
agree at the end. Some systems have digests at the end, too. A trial that requests comparisons
between faults and has none shows nothing of that time, and says so. A simulated world has none,
because its laws compare the logs at every step.

Each epoch begins at one byte of the log (`EPOCHS_DIFFER`), according to the master that begins it
and to each slave that copies it. With tables that differ, the next handshake finds no common point,
or a wrong one. Brokers' event logs contain their epochs and their broker set; each set numbers its
epochs from 1. Where no event tells, the copies at the end do: one message with two epochs.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from checkers._messages.replica_logs import ReplicaLogEntry, ReplicaLogs, replica_logs
from checkers._messages.witness import is_certain, op_rows
from checkers._run.evidence import SAMPLE, name_of, span_fields
from checkers._run.leader_terms import set_of_node
from checkers._run.run_facts import broker_sets, facts
from harness.contracts import CheckerPlugin
from harness.history.faults_and_events import ClusterEvent
from harness.history.notes import NOT_COMPARED
from harness.history.reader import History
from harness.judge.claims import unclaimed_faults
from harness.judge.verdict import Finding, Reason, Result
from harness.operation import F, Type
from harness.run.broker_sets import BrokerSetData, broker_sets_in, data_nodes
from harness.text.plurals import quantity
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTEGRITY = "integrity"
WRITES = (F.SEND, F.APPEND)
MAX_EPOCHS = MAX_LOOKS = 20


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    event_log = history.events
    sets, _ = broker_sets(history.names, event_log)
    compared = [event for event in event_log if event.kind == "compared"]
    findings = [*_epochs_differ(event_log), *_digests_differ(compared)]
    ends = [event for event in compared if event.fields.get("at_end")]
    looks = [event for event in compared if event not in ends]
    replicas = len(data_nodes(history.names.get("roles", {})))
    several = replicas > len(sets)
    back = _recovered(history, event_log)
    found = replica_logs(history, spark) if back else ReplicaLogs(0)
    written = _written(history, trial, spark, found) if several else frozenset()
    reasons: list[Reason] = []
    if several and back:
        reasons += _nothing_compared(written, found, ends, history.names)
    if several and trial.compare_replicas:
        reasons += _not_compared(history, looks, written)
    stats: dict[str, Any] = {"compared": found.compared}
    stats |= {"looks": len(looks)} if looks else {}
    if found.files:
        stats["lacking"] = found.lacking
    if found.differing:
        times = _times(found.differing_rows, history, trial, spark)
        findings.append(_finding(found, history, times))
    if found.dated and not any(finding.code == "EPOCHS_DIFFER" for finding in findings):
        findings.append(_epochs_of_copies(found, history, trial, spark))
    digests = sum(1 for end in ends for _ in _in_pairs(end))
    stats |= {"digests": digests} if digests else {}
    decided = {INTEGRITY: found.compared + digests}
    return Result("replicas", tuple(findings), tuple(reasons), stats, decided)


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset({"DIGESTS_DIFFER", "EPOCHS_DIFFER", "REPLICAS_DIFFER"}),
    decides=frozenset({"integrity"}),
    compares=True,
    reasons=frozenset({"NOTHING_COMPARED", "REPLICAS_NOT_COMPARED"}),
    cut_short=frozenset({"REPLICAS_NOT_COMPARED"}),
    needs_clocks=False,
)


def _written(
    history: History, trial: Trial, spark: "SparkSession | None", found: ReplicaLogs
) -> frozenset[str]:
    """Return those of several broker sets that have several replicas and an entry, which was read
    or acknowledged."""
    dealt = broker_sets_in(history.names)
    if len(dealt) < 2:
        return frozenset()
    answers = facts(history, trial, spark).timeline
    return frozenset(
        name
        for number, (name, of) in enumerate(dealt.items())
        if len(of.nodes) > 1
        and (
            _keys(of, history.names) & found.keys
            or any(answers.total(f, Type.OK, number) for f in WRITES)
        )
    )


def _keys(of: BrokerSetData, names: Mapping[str, Any]) -> frozenset[int]:
    """Return the numbers of this set's keys."""
    return frozenset(n for n, key in enumerate(names.get("keys", ())) if key in of.keys)


def _nothing_compared(
    written: frozenset[str],
    found: ReplicaLogs,
    ends: Sequence[ClusterEvent],
    names: Mapping[str, Any],
) -> Iterator[Reason]:
    """Yield a reason if no entry of a set was read from two replicas, and no digests of two
    replicas of it were compared at the end."""
    dealt = broker_sets_in(names)
    seen = {name for end in ends for name in _in_pairs(end)}
    unread = sorted(
        name for name in written if name not in seen and not _keys(dealt[name], names) & found.twice
    )
    if unread or not (found.twice or seen):
        where = f" of {', '.join(unread)}" if unread else ""
        yield Reason(
            "NOTHING_COMPARED",
            f"No entry of the log{where} was read from two replicas at the end, so nothing is "
            "known of whether they hold the same; see harness.log for why they could not be read",
        )


def _not_compared(
    history: History, looks: Sequence[ClusterEvent], written: frozenset[str]
) -> Iterator[Reason]:
    """Yield a reason if a set was never compared between faults."""
    seen = {name for look in looks for name in _in_pairs(look)}
    unseen = sorted(written - seen)
    if "simulated" in history.state or (seen and not unseen):
        return
    tries = [note.text.partition(" ")[2] for note in history.notes[NOT_COMPARED]]
    why = (
        f"the last try failed, in {tries[-1]}"
        if tries
        else "its cluster was never whole there, or had nothing to compare; make the times between "
        "faults longer"
    )
    whose = f" of {', '.join(unseen)}" if unseen else ""
    asked = "were never compared between faults, which compare_replicas asks for"
    yield Reason("REPLICAS_NOT_COMPARED", f"The replicas{whose} {asked}: {why}")


def _in_pairs(look: ClusterEvent) -> Iterator[str]:
    """Yield the sets of which a comparison has two replicas."""
    for name, of in look.fields.get("sets", {}).items():
        if len(of["digests"]) > 1:
            yield name


def _recovered(history: History, event_log: Sequence[ClusterEvent]) -> bool:
    """Whether the runner saw full redundancy after the last healing."""
    asked = [event for event in event_log if event.kind == "recovery"]
    return history.complete and bool(asked) and bool(asked[-1].fields.get("redundant"))


def _times(
    rows: Sequence[ReplicaLogEntry],
    history: History,
    trial: Trial,
    spark: "SparkSession | None",
) -> dict[str, Any]:
    """Return when clients first learned of each entry, and when the logs were read, if a fault was
    unclaimed."""
    if not unclaimed_faults(history, trial):
        return {}
    ops = op_rows(history, spark, (), [(row.key, row.offset) for row in rows])
    first = {row.place: row.t for row in reversed(ops) if is_certain(row)}
    end = max(history.phases.values(), default=0)
    return span_fields(history.names, (((at[0],), (t, max(t, end))) for at, t in first.items()))


def _finding(found: ReplicaLogs, history: History, times: dict[str, Any]) -> Finding:
    what = quantity(found.differing, "offset holds", "offsets hold")
    message = f"{what} different messages in the logs of different replicas at the end"
    evidence = entry_rows(found.differing_rows[:SAMPLE], history.names)
    return Finding("REPLICAS_DIFFER", found.differing, message, INTEGRITY, evidence, **times)


def _epochs_of_copies(
    found: ReplicaLogs, history: History, trial: Trial, spark: "SparkSession | None"
) -> Finding:
    what = quantity(found.dated, "offset holds a message", "offsets hold messages")
    message = f"{what} of different epochs in the logs of different replicas at the end"
    evidence = entry_rows(found.dated_rows[:SAMPLE], history.names)
    times = _times(found.dated_rows, history, trial, spark)
    return Finding("EPOCHS_DIFFER", found.dated, message, INTEGRITY, evidence, **times)


def entry_rows(
    rows: Sequence[ReplicaLogEntry], names: Mapping[str, Any]
) -> tuple[dict[str, Any], ...]:
    """Return entries as evidence."""
    return tuple(
        {"queue": name_of(names, "keys", key), "offset": offset, "value": value}
        for key, offset, value in rows
    )


def _epochs_differ(event_log: Sequence[ClusterEvent]) -> Iterator[Finding]:
    """Yield a finding of epochs that begin at two places, by the brokers' events."""
    starts: dict[tuple[str, int], tuple[int, str, int]] = {}
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    sets = set_of_node(event_log)
    for event in event_log:
        if event.kind == "epoch":
            epoch, start = int(event.fields["epoch"]), int(event.fields["start"])
            which = str(event.fields.get("inner") or sets.get(event.node, "")), epoch
            known, who, since = starts.setdefault(which, (start, event.node, event.t))
            if known != start:
                row = {"epoch": epoch, "start": known, "told_by": who}
                spans.setdefault(which, (since, event.t))
                rows.setdefault(which, row | {"other": start, "told_by_other": event.node})
    if rows:
        what = quantity(len(rows), "epoch begins", "epochs begin")
        message = f"{what} at different offsets in different replicas"
        evidence = tuple(rows.values())[:MAX_EPOCHS]
        times, whose = tuple(spans.values()), tuple(name for name, _ in spans)
        yield Finding(
            "EPOCHS_DIFFER",
            len(rows),
            message,
            INTEGRITY,
            evidence,
            spans=times,
            broker_sets=whose,
        )


def _digests_differ(looks: Sequence[ClusterEvent]) -> Iterator[Finding]:
    """Yield a finding of replicas whose logs differed between faults."""
    unlike = [
        (event.t, {"set": name, **of["digests"]})
        for event in looks
        for name, of in event.fields.get("sets", {}).items()
        if len(set(of["digests"].values())) > 1
    ]
    rows = [{"at_s": round(t / 1e9, 3), **row} for t, row in unlike]
    if rows:
        what = quantity(len(rows), "comparison")
        message = f"replicas had different digests at one point of their history in {what}"
        spans = tuple((t, t) for t, _ in unlike)
        evidence = tuple(rows)[:MAX_LOOKS]
        whose = tuple(str(row["set"]) for _, row in unlike)
        yield Finding(
            "DIGESTS_DIFFER",
            len(rows),
            message,
            INTEGRITY,
            evidence,
            spans=spans,
            broker_sets=whose,
        )
