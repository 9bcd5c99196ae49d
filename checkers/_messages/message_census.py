"""The survey of a history's messages: one Spark job that loss, phantom and duplicates share.

A task reads files and reduces them to blocks (`messages`); blocks with the same number meet in
one task and merge; what comes back to us is a row for each block: counts, the first few offenders
of each kind, and, where messages are missing, one bit for each. Spark moves files' names and
blocks, never rows.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from checkers._messages.blocks import (
    BLOCK,
    MOST_BLOCKS,
    Array,
    Block,
    Blocks,
    Bools,
    Ints,
    Members,
    bits,
    members,
    merged,
)
from checkers._messages.final_reads import given_up
from checkers._messages.loss_recheck import Doubts, held_by_all, look
from checkers._messages.messages import (
    GROUP_BIT,
    MESSAGE_FIELDS,
    MOST_GROUPS,
    Classes,
    Rows,
    Scope,
    Seen,
    absorb,
    classify,
    has,
    observe,
    observe_replica,
    of_unknown_outcome,
    offset_of,
    place_of,
    producer_of_block,
    values_in,
)
from checkers._spark.spark_stages import (
    PARTIALS,
    Batches,
    Step,
    Unit,
    arrays,
    once,
    packed,
    reduced,
    stored,
    units_of,
)
from harness.history.faults_and_events import events
from harness.history.notes import MEMBER, OPEN_OPERATIONS, PASSED
from harness.history.reader import CORRUPTED, DRAINED, NOT_DRAINED, History, Note
from harness.judge.claims import in_effect
from harness.run.broker_sets import dealt_sets, replicas_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLE = 20  # offenders of each kind that a finding may show
MOST_DATED = 5000  # of a kind that are dated, where a fault may excuse them; more convict
DATED = ("moved", "doubled", "refused", "never_sent", "skipped")  # classes that are
ASKED = ("process", "type", "f", "key", "value", "offset", "attempts")  # columns of ops
HELD = ("value", "key", "offset")  # columns of replicas
REPORT = pa.schema(
    [
        ("block", pa.int64()),
        ("report", pa.string()),  # JSON: counts, samples, extent
        ("gone", pa.binary()),  # a bit for each value of the block, or null
        ("lost", pa.binary()),
        ("late", pa.binary()),  # values, then their places
        ("missed", pa.binary()),  # the same of lost ones
        ("unsure", pa.binary()),  # bits, of imported histories only
        ("kept", pa.binary()),  # bits: lost, though a replica holds it at the end
        ("unread", pa.binary()),  # by group: its number in one byte, then bits
    ]
)
ALL = [BLOCK, 0, 0, 0]  # the extent of a block of which every message was read
KEPT = ("unread", "ungiven", "late", "found", "unsure")  # classes that are not counted as they are
COUNTED = (
    *(Seen.INVOKED, Seen.ACKED, Seen.FAILED, Seen.READ, Seen.POLLED, Seen.PART),
    Seen.GIVEN_TWICE,
)


@dataclass(frozen=True)
class Extent:
    """Reads in one block of a producer's sequence, and lost messages around them."""

    reads: int
    before: int
    between: int
    after: int


@dataclass(frozen=True)
class Survey:
    """What became of all messages."""

    scope: Scope
    groups: tuple[str, ...]  # names of the consumer groups, by number
    counts: Mapping[str, int]  # of each class (`messages.Classes`) and flag
    samples: Mapping[str, tuple[int, ...]]  # the lowest values of each class
    offenders: Mapping[str, tuple[int, ...]]  # more of those that are dated
    lost: Members
    kept: Members  # of these, what some replica's log holds at the end
    unread: Mapping[int, Members]  # by number of the group
    gone: Members  # acknowledged or delivered, and no longer in the log
    late: tuple[Ints, Ints]  # values of unknown outcome that were seen, and their places
    missed: tuple[Ints, Ints]  # lost values and their places
    unsure: Members  # values that were seen, and not at the one place of a message that was sent
    where_lost: Mapping[str, int]

    def count(self, name: str) -> int:
        return self.counts.get(name, 0)


def survey(history: History, spark: "SparkSession | None") -> Survey:
    """The survey of this history: made once, however many checkers ask."""
    return once(history, "survey", lambda: _survey(history, spark))


def _survey(history: History, spark: "SparkSession | None") -> Survey:
    names, scope = scope_of(history)
    found = surveyed(history, spark, scope, names)
    if scope.passed:
        return settled(history, spark, found)
    return skips_apart(history, spark, found) if scope.replicas else found


def settled(history: History, spark: "SparkSession | None", found: Survey) -> Survey:
    """The survey of an imported history with what only a second look tells: which of the lost are
    none, since others were seen at their offsets, and how far the certain ones were read."""
    parts = found.count("part") and len(found.late[0])
    if not found.count("lost") and not parts:
        return found
    seen = look(units_of(history, "ops"), spark, Doubts(found.missed, found.unsure, found.late[0]))
    value, place = found.missed
    passed = {k: min(to, seen.passed.get(k, 0)) for k, to in found.scope.passed.items()}
    displaced, committed = members(value[np.isin(place, seen.taken)]), members(seen.committed)
    if not len(displaced) and not len(committed) and passed == found.scope.passed:
        return found
    scope = replace(found.scope, passed=passed, displaced=displaced, committed=committed)
    return surveyed(history, spark, scope, found.groups)


def skips_apart(history: History, spark: "SparkSession | None", found: Survey) -> Survey:
    """Return the survey with messages apart that the fresh reader did not find, and that every
    replica of their broker set holds at the offset of their acknowledgement."""
    values, places = found.missed
    if not len(values):
        return found
    skipped = held_by_all(
        units_of(history, "replicas"), spark, values, places, replicas_of(history.names)
    )
    if not len(skipped):
        return found
    scope = replace(found.scope, skipped=members(skipped))
    return surveyed(history, spark, scope, found.groups)


def surveyed(
    history: History, spark: "SparkSession | None", scope: Scope, names: tuple[str, ...]
) -> Survey:
    units = units_of(history, "ops", "replicas")
    by = ("block",)
    table = reduced(spark, units, scan_with(scope), PARTIALS, merge_with(scope), REPORT, by, by)
    return add_up(table.to_pylist(), scope, names)


# ------------------------------------------------------------------------------------ the scope


def scope_of(history: History) -> tuple[tuple[str, ...], Scope]:
    """The groups' names, and what the notes of the final phase say was reached. In a history
    with gaps nothing was reached: rows that are missing may be missing from the record only."""
    notes = [_drain(note, history.complete) for note in history.notes(DRAINED, NOT_DRAINED)]
    joined = [_said(note) for note in history.notes(MEMBER)]
    names = tuple(sorted({d["group"] for d in (*notes, *joined) if "group" in d}))
    number = {name: index for index, name in enumerate(names[:MOST_GROUPS])}
    done = [d for d in notes if d["done"]]
    required: dict[int, int] = {}
    for drain in done:
        if drain.get("group") in number:
            bit = 1 << number[drain["group"]]
            required[drain["key"]] = required.get(drain["key"], 0) | bit
    return names, Scope(
        drained=frozenset(d["key"] for d in done if "group" not in d),
        passed=_passed(history) if history.complete else {},
        required=required,
        replicas=history.complete and _all_replicas(history),
        groups=_members(history, (*notes, *joined), number),
        imported="imported" in history.state,
        until=history.phases().get("drain") if given_up(history, OPEN_OPERATIONS) else None,
        spoiled=frozenset(_spoiled(history)),
        deleted=_deleted(history, done),
        rows=rows_kept(history),
    )


def rows_kept(history: History) -> int:
    """Return how many offenders of a kind are kept: more than are shown where a fault was observed
    in effect, which may excuse them."""
    return MOST_DATED if any(map(in_effect, history.faults)) else SAMPLE


def _spoiled(history: History) -> Iterator[int]:
    """Yield the places at which a reader was given a body that differs from what was sent."""
    for note in history.notes(CORRUPTED):
        said = json.loads(note.text.partition(" ")[2])
        if "key" in said and "offset" in said:
            yield int(place_of(np.array([said["key"]]), np.array([said["offset"]]))[0])


def _deleted(history: History, done: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Return where each queue began for the fresh reader, of those whose nodes deleted something:
    every queue of the node's broker set, as its segments hold messages of all of them."""
    nodes = {event.node for event in events(history.read("events")) if event.kind == "deleted"}
    if not nodes:
        return {}
    names = history.names
    sets = dealt_sets(names).values()
    elsewhere = {key for of in sets if not nodes & set(of.nodes) for key in of.keys}
    keys = names.get("keys", ())
    return {
        d["key"]: d["from"]
        for d in done
        if "group" not in d and d["from"] and keys[d["key"]] not in elsewhere
    }


def _members(
    history: History, notes: Sequence[Mapping[str, Any]], number: Mapping[str, int]
) -> dict[int, int]:
    """Who reads for which group. The last life of a process says it of its earlier ones, too, which
    had smaller numbers of the same rest."""
    ours = "imported" not in history.state
    every = (ours and len(history.names.get("processes", {}))) or 1 << 31
    return {
        process: number[said["group"]]
        for said in notes
        if said.get("group") in number
        for process in range(said["process"] % every, said["process"] + 1, every)
    }


def _drain(note: Note, complete: bool) -> dict[str, Any]:
    return {**_said(note), "done": note.text.split(" ")[0] == DRAINED and complete}


def _said(note: Note) -> dict[str, Any]:
    """Return what a note holds after its first word, and whose note it is."""
    return {**json.loads(note.text.partition(" ")[2]), "process": note.process}


def _passed(history: History) -> dict[int, int]:
    """How far somebody read each queue of an imported history."""
    notes = [json.loads(note.text.partition(" ")[2]) for note in history.notes(PASSED)]
    return {said["key"]: said["to"] for said in notes}


def _all_replicas(history: History) -> bool:
    """Every broker's log was read at the end."""
    nodes, roles = history.names.get("nodes", []), history.names.get("roles", {})
    brokers = {index for index, name in enumerate(nodes) if roles.get(name) == "broker"}
    found: set[int] = set()
    for rows in arrays(history.files("replicas"), ("node",), afar=True):  # this is the driver
        found |= set(np.unique(rows["node"]).tolist())
    return bool(brokers) and brokers <= found


# ---------------------------------------------------------------------------------- the two steps


def scan_with(scope: Scope) -> Callable[[Unit], Batches]:
    groups = np.full(max(scope.groups, default=-1) + 1, -1, np.int64)
    for process, group in scope.groups.items():
        groups[process] = group

    def scan(unit: Unit) -> Batches:
        table, paths = unit
        blocks = Blocks(MESSAGE_FIELDS)
        columns = (*ASKED, "mop") if scope.imported else ASKED
        columns = columns if scope.until is None else (*columns, "t")
        for rows in stored(paths, columns) if table == "ops" else arrays(paths, HELD):
            if table == "ops":
                observe(blocks, Rows(rows), groups, imported=scope.imported, until=scope.until)
            else:
                observe_replica(blocks, *(rows[name] for name in HELD))
            if len(blocks) > MOST_BLOCKS:
                yield from packed(blocks)
                blocks = Blocks(MESSAGE_FIELDS)
        yield from packed(blocks)

    return scan


def merge_with(scope: Scope) -> Step:
    def merge(partials: Batches) -> Batches:
        for number, block in merged(partials, MESSAGE_FIELDS, absorb):
            yield pa.RecordBatch.from_pylist([report_on(number, block, scope)], schema=REPORT)

    return merge


def report_on(number: int, block: Block, scope: Scope) -> dict[str, Any]:
    """A merged block in a few numbers; bits only where something is wrong."""
    if _nothing_to_tell(block["flags"], scope):
        return _row(number, dict.fromkeys(("invoked", "acked", "read", "polled"), BLOCK), {}, ALL)
    classes = classify(number, block, scope)
    masks, flags, places = _masks(classes), block["flags"], block["place"]
    counts = {name: int(mask.sum()) for name, mask in masks.items()}
    for flag in COUNTED:
        counts[str(flag.name).lower()] = int(np.count_nonzero(flags & np.uint64(flag)))
    counts["info"] = int(np.count_nonzero(of_unknown_outcome(flags)))
    counts |= {f"ungiven-{group}": int(m.sum()) for group, m in classes.ungiven.items()}
    gone = classes.lost | classes.vanished | classes.torn
    placed = offset_of(places) >= 0
    late, missed = classes.late & ~gone & placed, classes.lost & placed
    stood = np.where(classes.left, block["acked"], places)
    unsure = classes.unsure & scope.imported
    most = {name: max(SAMPLE, scope.rows if name in DATED else 0) for name in masks}
    samples = {n: values_in(number, mask)[: most[n]].tolist() for n, mask in masks.items()}
    counts = {name: n for name, n in counts.items() if n}
    samples = {name: some for name, some in samples.items() if some}
    kept = classes.lost & has(flags, Seen.STORED)
    unread = b"".join(bytes([g]) + bits(m) for g, m in classes.unread.items() if m.any())
    extent = _extent(classes.found, classes.lost)
    return _row(number, counts, samples, extent) | {
        "gone": bits(gone) if gone.any() else None,
        "lost": bits(classes.lost) if classes.lost.any() else None,
        "late": _placed(number, late, places),
        "missed": _placed(number, missed, stood),
        "unsure": bits(unsure) if unsure.any() else None,
        "kept": bits(kept) if kept.any() else None,
        "unread": unread or None,
    }


def _nothing_to_tell(flags: Array, scope: Scope) -> bool:
    """Every message was acknowledged, read, given to every group, and seen at one place: true of
    most blocks of most runs, and quickly said."""
    groups = sum(1 << (GROUP_BIT + group) for group in set(scope.groups.values()))
    wanted = int(Seen.INVOKED | Seen.ACKED | Seen.READ | Seen.POLLED) | groups
    ignored = Seen.RETRIED if scope.replicas else Seen.RETRIED | Seen.STORED
    wanted |= int(Seen.STORED) if scope.replicas else 0
    return bool(((flags & ~np.uint64(ignored)) == np.uint64(wanted)).all())


def _row(
    number: int, counts: dict[str, int], samples: dict[str, list[int]], extent: list[int]
) -> dict[str, Any]:
    report = json.dumps({"counts": counts, "samples": samples, "extent": extent})
    return {"block": number, "report": report}


def _placed(number: int, mask: Bools, places: Ints) -> bytes | None:
    """Values of a block, and their places."""
    both = np.stack([values_in(number, mask), places[mask]])
    return both.astype(np.int64).tobytes() if both.size else None


def _masks(classes: Classes) -> dict[str, Bools]:
    """Every class by name; those of groups are `unread-0`, `unread-1` ..."""
    named = {name: mask for name, mask in vars(classes).items() if name not in KEPT}
    return named | {f"unread-{group}": mask for group, mask in classes.unread.items()}


def _extent(found: Bools, lost: Bools) -> list[int]:
    reads = np.flatnonzero(found)
    missing = np.flatnonzero(lost)
    if not len(reads):
        return [0, 0, len(missing), 0]
    before = int((missing < reads[0]).sum())
    after = int((missing > reads[-1]).sum())
    return [len(reads), before, len(missing) - before - after, after]


# ------------------------------------------------------------------------------------- adding up


def add_up(rows: list[dict[str, Any]], scope: Scope, groups: tuple[str, ...]) -> Survey:
    """The blocks' reports as one survey."""
    counts: Counter[str] = Counter()
    samples: dict[str, list[int]] = defaultdict(list)
    extents: dict[int, list[Extent]] = defaultdict(list)
    rows = sorted(rows, key=lambda row: int(row["block"]))
    for row in rows:
        report = json.loads(row["report"])
        counts.update(report["counts"])
        for name, values in report["samples"].items():
            samples[name] += values
        extents[producer_of_block(row["block"])].append(Extent(*report["extent"]))
    return Survey(
        scope=scope,
        groups=groups,
        counts=dict(counts),
        samples={name: tuple(sorted(values)[:SAMPLE]) for name, values in samples.items()},
        offenders={n: tuple(sorted(samples[n])[: scope.rows]) for n in DATED if n in samples},
        lost=Members({row["block"]: row["lost"] for row in rows if row["lost"]}),
        kept=Members({row["block"]: row["kept"] for row in rows if row["kept"]}),
        unread=_unread(rows),
        gone=Members({row["block"]: row["gone"] for row in rows if row["gone"]}),
        late=_pairs(rows, "late"),
        missed=_pairs(rows, "missed"),
        unsure=Members({row["block"]: row["unsure"] for row in rows if row["unsure"]}),
        where_lost=_where(extents.values()),
    )


def _unread(rows: list[dict[str, Any]]) -> dict[int, Members]:
    found: dict[int, dict[int, bytes]] = {}
    for row in (row for row in rows if row["unread"]):
        packed, size = row["unread"], 1 + BLOCK // 8
        for at in range(0, len(packed), size):
            found.setdefault(packed[at], {})[row["block"]] = packed[at + 1 : at + size]
    return {group: Members(blocks) for group, blocks in sorted(found.items())}


def _pairs(rows: list[dict[str, Any]], name: str) -> tuple[Ints, Ints]:
    pairs = [np.frombuffer(row[name], np.int64).reshape(2, -1) for row in rows if row[name]]
    both = np.concatenate(pairs, axis=1) if pairs else np.zeros((2, 0), np.int64)
    return both[0], both[1]


def _where(producers: Iterable[list[Extent]]) -> Mapping[str, int]:
    """Lost messages by where they stand in their producer's sequence: what was read before and
    after them tells a log that was cut off from one that has a hole."""
    total = dict.fromkeys(("prefix", "middle", "tail"), 0)
    for extents in producers:
        read = [index for index, extent in enumerate(extents) if extent.reads]
        first, last = (read[0], read[-1]) if read else (len(extents), len(extents))
        for index, extent in enumerate(extents):
            total["prefix" if index <= first else "middle"] += extent.before
            total["prefix" if index < first else "tail" if index > last else "middle"] += (
                extent.between
            )
            total["tail" if index >= last else "middle"] += extent.after
    return total
