"""All replicas hold the same log, once the cluster has come back, and agree on where epochs began.

Two replicas that hold different messages at one offset of a queue (`REPLICAS_DIFFER`) have parted
without noticing it. Readers see nothing of that: they read the master's log, until another replica
is elected, and then what they read changes. A copy with another check sum, or of another epoch,
counts as different too. One replica that holds two messages at an offset is a matter of `offsets`.

A fork is lawful while a deposed master has not yet been told. So nothing is concluded unless the
runner saw full redundancy at the end. An entry that a replica lacks convicts nobody, since copying
may lag behind; it is counted. A run that came back, and of which no entry is there twice, shows
nothing either way, and says so: somebody failed to read the replicas' logs.

Where the runner looked in between (`harness.comparing`), the digests that it was given must be the
same at every look (`DIGESTS_DIFFER`): replicas that had parted and were brought together again
agree at the end. A trial that asks for such looks and got none shows nothing of that time, and says
so. In a simulated world nobody looks, for its laws hold the logs together at every step.

Each epoch begins at one byte of the log, whoever tells of it (`EPOCHS_DIFFER`): the master that
begins it, and each slave that copies it. Tables that differ in that find no common point, or a
wrong one, at the next handshake. What brokers tell of their epochs is in their event logs, and of
which set each of them is; each set counts its epochs from 1.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from checkers._copies import Copies, Row, copies
from checkers._facts import broker_sets
from checkers._reigns import set_of_node
from harness.history import History
from harness.intervals import Event, events
from harness.remarks import NOT_COMPARED
from harness.trial import Trial
from harness.verdict import Finding, Reason, Result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTEGRITY = "integrity"
MOST_EPOCHS = MOST_LOOKS = 20


def check(history: History, trial: Trial, spark: "SparkSession | None") -> Result:
    told = events(history.read("events"))
    sets, _ = broker_sets(history.names, told)
    looks = [event for event in told if event.kind == "compared"]
    findings = [*_parted(told), *_unlike(looks)]
    replicas = sum(role == "broker" for role in history.names.get("roles", {}).values())
    several = replicas > len(sets)
    unseen = _unseen(history, looks) if several and trial.compare_replicas else ()
    seen = {"looks": len(looks)} if looks else {}
    if not _came_back(history, told):
        return Result("replicas", tuple(findings), unseen, {"compared": 0, **seen})
    found = copies(history, spark)
    stats: dict[str, Any] = {"compared": found.compared, **seen}
    if found.files:
        stats["lacking"] = found.lacking
    if found.differing:
        findings.append(_finding(found, history))
    nothing = several and not found.twice and not found.differing
    return Result("replicas", tuple(findings), (*_nothing(nothing), *unseen), stats)


def _nothing(so: bool) -> tuple[Reason, ...]:
    why = (
        "No entry of the log was read from two replicas at the end, so nothing is known of whether "
        "they hold the same; harness.log says why they could not be read"
    )
    return (Reason("NOTHING_COMPARED", why),) if so else ()


def _unseen(history: History, looks: Sequence[Event]) -> tuple[Reason, ...]:
    """Of a run that was to be looked at between its faults, and never was."""
    if "simulated" in history.state or any(_two(look) for look in looks):
        return ()
    tries = [note.text.partition(" ")[2] for note in history.notes(NOT_COMPARED)]
    why = (
        f"the last try failed, in {tries[-1]}"
        if tries
        else "its cluster was never whole there, or had nothing to compare; make the times between "
        "faults longer"
    )
    told = "The replicas were never compared between faults, which compare_replicas asks for"
    return (Reason("REPLICAS_NOT_COMPARED", f"{told}: {why}"),)


def _two(look: Event) -> bool:
    """Whether it shows two replicas of one set."""
    return any(len(of["digests"]) > 1 for of in look.fields.get("sets", {}).values())


def _came_back(history: History, told: Sequence[Event]) -> bool:
    """Whether the runner saw every replica in step after the last healing."""
    asked = [event for event in told if event.kind == "recovery"]
    return history.complete and bool(asked) and bool(asked[-1].fields.get("redundant"))


def _finding(found: Copies, history: History) -> Finding:
    what = "1 offset holds" if found.differing == 1 else f"{found.differing:,} offsets hold"
    message = f"{what} different messages in the logs of different replicas at the end"
    evidence = placed(found.differing_rows, history.names)
    return Finding("REPLICAS_DIFFER", found.differing, message, INTEGRITY, evidence)


def placed(rows: Sequence[Row], names: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Entries as evidence."""
    keys = names.get("keys", ())
    return tuple(
        {"queue": keys[key] if key < len(keys) else "?", "offset": offset, "value": value}
        for key, offset, value in rows
    )


def _parted(told: Sequence[Event]) -> Iterator[Finding]:
    """Epochs that begin at two places, by the words of the brokers."""
    starts: dict[tuple[str, int], tuple[int, str]] = {}
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    sets = set_of_node(told)
    for event in told:
        if event.kind == "epoch":
            epoch, start = int(event.fields["epoch"]), int(event.fields["start"])
            which = sets.get(event.node, ""), epoch
            known, who = starts.setdefault(which, (start, event.node))
            if known != start:
                row = {"epoch": epoch, "start": known, "told_by": who}
                rows.setdefault(which, row | {"other": start, "told_by_other": event.node})
    if rows:
        what = "1 epoch begins" if len(rows) == 1 else f"{len(rows):,} epochs begin"
        message = f"{what} at different places of the log, as different replicas tell"
        evidence = tuple(rows.values())[:MOST_EPOCHS]
        yield Finding("EPOCHS_DIFFER", len(rows), message, INTEGRITY, evidence)


def _unlike(looks: Sequence[Event]) -> Iterator[Finding]:
    """Replicas that did not hold the same while the cluster served."""
    rows = [
        {"at_s": round(event.t / 1e9, 3), "set": name, **of["digests"]}
        for event in looks
        for name, of in event.fields.get("sets", {}).items()
        if len(set(of["digests"].values())) > 1
    ]
    if rows:
        what = "1 look" if len(rows) == 1 else f"{len(rows):,} looks"
        message = f"At {what} between faults the logs of replicas held different bytes"
        yield Finding("DIGESTS_DIFFER", len(rows), message, INTEGRITY, tuple(rows)[:MOST_LOOKS])
