"""The final phase of a run, as its notes describe it: who read to the end of what, and therefore
what the census may conclude.

In a run of Seatrial a *final reader* has no state and reads each queue from its first message to
its last; each consumer group reads to the end of its queues. An imported history has no such
reader: there, a consumer that received an offset of a queue had everything below it to read.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from checkers._messages.blocks import MAX_OFFSETS, NO_MEMBERS, OFFSET_BITS, Bools, Ints, Members
from checkers._run.evidence import SAMPLE, rows_kept
from checkers._spark.spark_stages import arrays
from harness.history.faults_and_events import ClusterEvent
from harness.history.notes import GAVE_UP, MEMBER, OPEN_OPERATIONS, PASSED
from harness.history.reader import CORRUPTED, DRAINED, NOT_DRAINED, History, Note
from harness.run.broker_sets import broker_sets_in

READER = "reader "  # how the name of a final reader's process begins
GROUP_BIT = 16  # of a message's flags: group g's deliveries are bit GROUP_BIT + g
MAX_GROUPS = 64 - GROUP_BIT


@dataclass(frozen=True)
class CensusScope:
    """What was read to its end, so what the census may conclude.

    drained     keys that the final reader read from the first message to the last
    required    key -> bits of the groups that read it to the end
    replicas    every replica's log was read at the end
    groups      process -> number of its consumer group
    passed      key -> offset below which an imported history's consumers had everything to read
    imported    recorded by another tool: no final reader, and every consumer counts as one
    displaced   acknowledged at offsets at which others were seen: no loss, but two at one offset
    committed   of unknown outcome, in a transaction of which another part was seen
    until       when the final phase began, if sends were still open then; else None
    spoiled     places at which a reader received a body that differs from what was sent
    skipped     held by every replica at the offset of their acknowledgement, but not received by
                the final reader
    deleted     key -> the queue's first offset, where its nodes deleted what was before it
    sample      how many values of a class a finding shows
    rows        how many are kept of a class whose messages have times
    group_names names of the consumer groups, by number
    """

    drained: frozenset[int] = frozenset()
    required: Mapping[int, int] = field(default_factory=dict)
    replicas: bool = False
    groups: Mapping[int, int] = field(default_factory=dict)
    passed: Mapping[int, int] = field(default_factory=dict)
    imported: bool = False
    displaced: Members = NO_MEMBERS
    committed: Members = NO_MEMBERS
    until: int | None = None
    spoiled: frozenset[int] = frozenset()
    skipped: Members = NO_MEMBERS
    deleted: Mapping[int, int] = field(default_factory=dict)
    sample: int = SAMPLE
    rows: int = SAMPLE
    group_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReaderNote:
    """A reader's note: the group that it is in, or a queue, where it began there, and whether it
    read to the end."""

    process: int
    group: str | None
    key: int = -1
    first: int = 0
    to_end: bool = False

    @classmethod
    def of(cls, note: Note) -> "ReaderNote":
        word, _, text = note.text.partition(" ")
        values = json.loads(text)
        return cls(
            -1 if note.process is None else note.process,
            values.get("group"),
            values.get("key", -1),
            values.get("from", 0),
            word == DRAINED,
        )


def census_scope(history: History) -> CensusScope:
    """Return what the notes of the final phase say. In a history with gaps nothing was read to its
    end: rows that are missing may be missing from the record only."""
    texts = [note for word in (DRAINED, NOT_DRAINED, MEMBER) for note in history.notes[word]]
    phases, complete, faults = history.phases, history.complete, history.faults
    happened = history.events
    rows = rows_kept(faults)
    notes = [ReaderNote.of(note) for note in texts]
    names = tuple(sorted({note.group for note in notes if note.group is not None}))
    number = {name: index for index, name in enumerate(names[:MAX_GROUPS])}
    ended = [note for note in notes if note.to_end and complete]
    required: dict[int, int] = {}
    for note in ended:
        if note.group in number:
            required[note.key] = required.get(note.key, 0) | 1 << number[note.group]
    alone = [note for note in ended if note.group is None]
    return CensusScope(
        drained=frozenset(note.key for note in alone),
        passed=_passed(history) if complete else {},
        required=required,
        groups=_members(history, notes, number),
        imported="imported" in history.state,
        until=phases.get("drain") if given_up(history, OPEN_OPERATIONS) else None,
        spoiled=frozenset(_spoiled(history)),
        deleted=_deleted(history, alone, happened),
        sample=SAMPLE,
        rows=rows,
        group_names=names,
        replicas=complete and _all_replicas(history),
    )


def given_up(history: History, part: str) -> tuple[str, ...]:
    """Return the runner's notes that it gave up on this part of the trial."""
    notes = history.notes[GAVE_UP.split()[0]]
    return tuple(note.text for note in notes if note.text.startswith(f"{GAVE_UP} {part}"))


def _spoiled(history: History) -> Iterator[int]:
    """Yield the places at which a reader received a body that differs from what was sent."""
    for note in history.notes[CORRUPTED]:
        values = json.loads(note.text.partition(" ")[2])
        if "key" in values and "offset" in values:
            known = 0 <= values["offset"] < MAX_OFFSETS - 1
            yield values["key"] << OFFSET_BITS | (values["offset"] + 1 if known else 0)


def _deleted(
    history: History, drained: Sequence[ReaderNote], happened: Sequence[ClusterEvent]
) -> dict[int, int]:
    """Return where each queue began for the final reader, if its nodes deleted something: every
    queue of the node's broker set, as its segments hold messages of all of them."""
    nodes = {event.node for event in happened if event.kind == "deleted"}
    if not nodes:
        return {}
    names = history.names
    sets = broker_sets_in(names).values()
    elsewhere = {key for of in sets if not nodes & set(of.nodes) for key in of.keys}
    keys = names.get("keys", ())
    return {
        note.key: note.first for note in drained if note.first and keys[note.key] not in elsewhere
    }


def _members(
    history: History, notes: Sequence[ReaderNote], number: Mapping[str, int]
) -> dict[int, int]:
    """Return the group of each process. A note of a process also holds for its earlier
    incarnations, whose smaller numbers have the same remainder."""
    ours = "imported" not in history.state
    every = (ours and len(history.names.get("processes", {}))) or 1 << 31
    return {
        process: number[note.group]
        for note in notes
        if note.group is not None and note.group in number
        for process in range(note.process % every, note.process + 1, every)
    }


def _passed(history: History) -> dict[int, int]:
    """Return how far each queue of an imported history was read."""
    notes = [json.loads(note.text.partition(" ")[2]) for note in history.notes[PASSED]]
    return {values["key"]: values["to"] for values in notes}


def _all_replicas(history: History) -> bool:
    """Whether every broker's log was read at the end."""
    nodes, roles = history.names.get("nodes", []), history.names.get("roles", {})
    brokers = {index for index, name in enumerate(nodes) if roles.get(name) == "broker"}
    found: set[int] = set()
    for rows in arrays(history.files["replicas"], ("node",), afar=True):  # read by the driver
        found |= set(np.unique(rows["node"]).tolist())
    return bool(brokers) and brokers <= found


# ------------------------------------------------------------------------------ final readers


@dataclass(frozen=True)
class FinalReaders:
    """Processes that read at the end. Later incarnations of a process have numbers of the same
    remainder, divided by `every`. Empty where the workload has no final readers."""

    processes: tuple[int, ...] = ()
    every: int = 1

    def among(self, process: Ints) -> Bools:
        mine: Bools = np.isin(process % self.every, self.processes)
        return mine


def final_readers(history: History) -> FinalReaders:
    """Return the final readers of a run of Seatrial; an imported history has none."""
    named = history.names.get("processes", {})
    if "imported" in history.state or not isinstance(named, dict) or not named:
        return FinalReaders()
    mine = (int(p) for p, name in named.items() if p.isdecimal() and str(name).startswith(READER))
    return FinalReaders(tuple(sorted(mine)), len(named))
