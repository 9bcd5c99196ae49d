"""All replicas hold the same log, once the cluster has come back, and agree on where epochs began.

Two replicas that hold different messages at one offset of a queue (`REPLICAS_DIFFER`) have parted
without noticing it. Readers see nothing of that: they read the master's log, until another replica
is elected, and then what they read changes. A copy with another check sum, or of another epoch,
counts as different too. One replica that holds two messages at an offset is a matter of `offsets`.

A fork is lawful while a deposed master has not yet been told. So nothing is concluded unless the
runner saw full redundancy at the end. An entry that a replica lacks convicts nobody, since copying
may lag behind; it is counted. A run that came back, and of which no entry is there twice, shows
nothing either way, and says so: somebody failed to read the replicas' logs. Of several broker sets
each has to show it for itself, if anything was written to it; so it is with looks in between.

Where the runner looked in between (`harness.run.replica_comparison`), the digests that it was
given must be the same at every look (`DIGESTS_DIFFER`): replicas that had parted and were brought
together again agree at the end. A trial that asks for such looks and got none shows nothing of
that time, and says so. In a simulated world nobody looks, for its laws hold the logs together at
every step.

Each epoch begins at one byte of the log, whoever tells of it (`EPOCHS_DIFFER`): the master that
begins it, and each slave that copies it. Tables that differ in that find no common point, or a
wrong one, at the next handshake. What brokers tell of their epochs is in their event logs, and of
which set each of them is; each set counts its epochs from 1.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from checkers._messages.message_census import SAMPLE
from checkers._messages.replica_logs import Copies, Row, copies
from checkers._messages.witness import dated, is_told, rows_of
from checkers._run.leader_terms import set_of_node
from checkers._run.run_facts import broker_sets, facts
from harness.contracts import CheckerPlugin
from harness.history.faults_and_events import Event, events
from harness.history.notes import NOT_COMPARED
from harness.history.reader import History
from harness.judge.claims import unclaimed_faults
from harness.judge.verdict import Finding, Reason, Result
from harness.operation import F, Type
from harness.run.broker_sets import Dealt, dealt_sets
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTEGRITY = "integrity"
WRITES = (F.SEND, F.APPEND)
MOST_EPOCHS = MOST_LOOKS = 20


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    told = events(history.read("events"))
    sets, _ = broker_sets(history.names, told)
    looks = [event for event in told if event.kind == "compared"]
    findings = [*_parted(told), *_unlike(looks)]
    replicas = sum(role == "broker" for role in history.names.get("roles", {}).values())
    several = replicas > len(sets)
    back = _came_back(history, told)
    found = copies(history, spark) if back else Copies(0)
    written = _written(history, trial, spark, found) if several else frozenset()
    reasons: list[Reason] = []
    if several and back:
        reasons += _nothing(written, found, history.names)
    if several and trial.compare_replicas:
        reasons += _unseen(history, looks, written)
    stats: dict[str, Any] = {"compared": found.compared}
    stats |= {"looks": len(looks)} if looks else {}
    if found.files:
        stats["lacking"] = found.lacking
    if found.differing:
        findings.append(_finding(found, history, _dated(found, history, trial, spark)))
    decided = {INTEGRITY: found.compared}
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
    history: History, trial: Trial, spark: "SparkSession | None", found: Copies
) -> frozenset[str]:
    """Of several broker sets those of several replicas in which there is an entry: it was read, or
    acknowledged."""
    dealt = dealt_sets(history.names)
    if len(dealt) < 2:
        return frozenset()
    answers = facts(history, trial, spark).answers
    return frozenset(
        name
        for number, (name, of) in enumerate(dealt.items())
        if len(of.nodes) > 1
        and (
            _keys(of, history.names) & found.keys
            or any(answers.total(f, Type.OK, number) for f in WRITES)
        )
    )


def _keys(of: Dealt, names: Mapping[str, Any]) -> frozenset[int]:
    """The numbers of the keys that live in this set."""
    return frozenset(n for n, key in enumerate(names.get("keys", ())) if key in of.keys)


def _nothing(written: frozenset[str], found: Copies, names: Mapping[str, Any]) -> Iterator[Reason]:
    """Each set shows for itself whether its replicas hold the same."""
    dealt = dealt_sets(names)
    unread = sorted(name for name in written if not _keys(dealt[name], names) & found.twice)
    if unread or not found.twice:
        where = f" of {', '.join(unread)}" if unread else ""
        yield Reason(
            "NOTHING_COMPARED",
            f"No entry of the log{where} was read from two replicas at the end, so nothing is "
            "known of whether they hold the same; see harness.log for why they could not be read",
        )


def _unseen(history: History, looks: Sequence[Event], written: frozenset[str]) -> Iterator[Reason]:
    """Of a run that was to be looked at between its faults, and never was, or not each set."""
    seen = {name for look in looks for name in _in_pairs(look)}
    unseen = sorted(written - seen)
    if "simulated" in history.state or (seen and not unseen):
        return
    tries = [note.text.partition(" ")[2] for note in history.notes(NOT_COMPARED)]
    why = (
        f"the last try failed, in {tries[-1]}"
        if tries
        else "its cluster was never whole there, or had nothing to compare; make the times between "
        "faults longer"
    )
    whose = f" of {', '.join(unseen)}" if unseen else ""
    asked = "were never compared between faults, which compare_replicas asks for"
    yield Reason("REPLICAS_NOT_COMPARED", f"The replicas{whose} {asked}: {why}")


def _in_pairs(look: Event) -> Iterator[str]:
    """The sets of which it shows two replicas."""
    for name, of in look.fields.get("sets", {}).items():
        if len(of["digests"]) > 1:
            yield name


def _came_back(history: History, told: Sequence[Event]) -> bool:
    """Whether the runner saw every replica in step after the last healing."""
    asked = [event for event in told if event.kind == "recovery"]
    return history.complete and bool(asked) and bool(asked[-1].fields.get("redundant"))


def _dated(
    found: Copies, history: History, trial: Trial, spark: "SparkSession | None"
) -> dict[str, Any]:
    """Return when clients first knew each place, and when the logs were read, if a fault was
    unclaimed."""
    if not unclaimed_faults(history, trial):
        return {}
    rows = rows_of(history, spark, (), [row[:2] for row in found.differing_rows])
    first = {row.place: row.t for row in reversed(rows) if is_told(row)}
    end = max(history.phases().values(), default=0)
    return dated(history.names, (((at[0],), (t, max(t, end))) for at, t in first.items()))


def _finding(found: Copies, history: History, times: dict[str, Any]) -> Finding:
    what = "1 offset holds" if found.differing == 1 else f"{found.differing:,} offsets hold"
    message = f"{what} different messages in the logs of different replicas at the end"
    evidence = placed(found.differing_rows[:SAMPLE], history.names)
    return Finding("REPLICAS_DIFFER", found.differing, message, INTEGRITY, evidence, **times)


def placed(rows: Sequence[Row], names: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Entries as evidence."""
    keys = names.get("keys", ())
    return tuple(
        {"queue": keys[key] if key < len(keys) else "?", "offset": offset, "value": value}
        for key, offset, value in rows
    )


def _parted(told: Sequence[Event]) -> Iterator[Finding]:
    """Epochs that begin at two places, by the words of the brokers."""
    starts: dict[tuple[str, int], tuple[int, str, int]] = {}
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    sets = set_of_node(told)
    for event in told:
        if event.kind == "epoch":
            epoch, start = int(event.fields["epoch"]), int(event.fields["start"])
            which = sets.get(event.node, ""), epoch
            known, who, since = starts.setdefault(which, (start, event.node, event.t))
            if known != start:
                row = {"epoch": epoch, "start": known, "told_by": who}
                spans.setdefault(which, (since, event.t))
                rows.setdefault(which, row | {"other": start, "told_by_other": event.node})
    if rows:
        what = "1 epoch begins" if len(rows) == 1 else f"{len(rows):,} epochs begin"
        message = f"{what} at different offsets in different replicas"
        evidence = tuple(rows.values())[:MOST_EPOCHS]
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


def _unlike(looks: Sequence[Event]) -> Iterator[Finding]:
    """Replicas that did not hold the same while the cluster served."""
    unlike = [
        (event.t, {"set": name, **of["digests"]})
        for event in looks
        for name, of in event.fields.get("sets", {}).items()
        if len(set(of["digests"].values())) > 1
    ]
    rows = [{"at_s": round(t / 1e9, 3), **row} for t, row in unlike]
    if rows:
        what = "1 comparison" if len(rows) == 1 else f"{len(rows):,} comparisons"
        message = f"the logs of replicas held different bytes in {what} between faults"
        spans = tuple((t, t) for t, _ in unlike)
        evidence = tuple(rows)[:MOST_LOOKS]
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
