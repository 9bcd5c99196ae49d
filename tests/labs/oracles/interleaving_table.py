"""Small histories of transactions over messages as one file, and their causes by definition.

Brokers keep the logs, and append what transactions send, each part at its own time, so cycles are
frequent. Some messages are put before earlier ones, some are read at two offsets, some offsets have
two messages, some transactions are refused although their messages are in the log, and some have an
unknown outcome.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import networkx as nx
from kafka_dice import Event, polls_of, sends_of

from harness.history.reader import History
from harness.importers import _run_folder as _folder
from harness.importers import jepsen_kafka
from harness.importers._jepsen import recording

KEYS, MOST = 3, 8  # of one history: queues, operations
EACH = 16  # numbers of processes that one history may use

Logs = dict[int, dict[int, int]]  # of each queue the values by offset
Graph = dict[str, set[tuple[int, int]]]  # ww, wr: who came before whom


@dataclass
class Table:
    """`expected`: of each history how many causes, by code; `ordered`: whether some order of its
    transactions explains all, real time included."""

    history: History
    expected: list[Counter[str]] = field(default_factory=list)
    ordered: list[bool] = field(default_factory=list)
    of_op: dict[int, int] = field(default_factory=dict)  # number of the history


def table(folder: Path, seed: int, count: int) -> Table:
    """Return this many histories, imported together."""
    dice = Random(seed)
    drawn, line = [], 1
    for number in range(count):
        drawn.append(_history(dice, number, line))
        line += len(drawn[-1])
    path = folder / "history.edn"
    folder.mkdir(exist_ok=True)
    path.write_text("".join(event.text() for events in drawn for event in events))
    run = _folder.write(recording(path, jepsen_kafka.FORMAT), path, "jepsen-kafka", folder / "run")
    found = Table(History.open(run))
    for number, events in enumerate(drawn):
        found.of_op |= {event.op: number for event in events}
        found.expected.append(causes(events))
        found.ordered.append(explained(events))
    return found


# ----------------------------------------------------------------------------------------- drawn


def _history(dice: Random, number: int, line: int) -> list[Event]:
    keys = [number * KEYS + k for k in range(KEYS)]
    logs: Logs = {key: {} for key in keys}
    ops = [_asked(dice, keys, 100 * n) for n in range(dice.randint(2, MOST))]
    turns = [n for n, parts in enumerate(ops) for _ in range(len(parts) + 2)]
    dice.shuffle(turns)
    if dice.random() < 0.5:
        turns.sort(key=lambda n: n // 2)  # two at a time
    events: list[Event] = []
    invoked: dict[int, int] = {}
    done: dict[int, list[Any]] = defaultdict(list)
    for n in turns:
        parts, process = ops[n], number * EACH + n
        f = "txn" if len(parts) > 1 else "poll" if parts[0] is None else "send"
        if n not in invoked:
            invoked[n] = line + len(events)
            events.append(Event(invoked[n], "invoke", f, process, parts, invoked[n]))
        elif len(done[n]) < len(parts):
            done[n].append(_done(dice, parts[len(done[n])], logs))
        else:
            kind = dice.choices(("ok", "info", "fail"), (8, 1, 1))[0]
            told = done[n] if kind == "ok" or dice.random() < 0.3 else parts
            events.append(Event(line + len(events), kind, f, process, told, invoked[n]))
    return events


def _asked(dice: Random, keys: list[int], value: int) -> list[Any]:
    """Parts of one operation: messages, and polls."""
    return [
        None if dice.random() < 0.35 else (dice.choice(keys), value + part, None)
        for part in range(dice.choice((1, 2, 2, 2, 3)))
    ]


def _done(dice: Random, part: Any, logs: Logs) -> Any:
    """A part when its turn has come: where the message went, or what was polled."""
    if part is None:
        seen = {key: sorted(log.items()) for key, log in logs.items() if dice.random() < 0.6}
        return {key: _polled(dice, log) for key, log in seen.items() if log}
    key, value, _ = part
    log = logs[key]
    free = [offset for offset in range(max(log, default=-1)) if offset not in log]
    late = free and dice.random() < 0.3  # it goes before what has long been there
    offset = dice.choice(free) if late else max(log, default=-1) + dice.choice((1, 2, 2))
    log[offset] = value
    if dice.random() < 0.03:
        offset += 1  # its client is told another place
    return key, value, offset if dice.random() < 0.8 else None


def _polled(dice: Random, log: list[tuple[int, int]]) -> list[tuple[int, int]]:
    begin = dice.randrange(len(log))
    seen = log[begin : begin + dice.randint(1, 2)]
    if dice.random() < 0.03:
        offset, value = seen[-1]
        seen = [*seen[:-1], dice.choice(((offset + 1, value), (offset, value + 1)))]
    return seen


# -------------------------------------------------------------------------------- the definitions


def causes(events: list[Event]) -> Counter[str]:
    """Strongly connected parts of what was written, then of what is left with reads."""
    edges = _edges(events)
    found: Counter[str] = Counter()
    for code, kinds in (("G0", ("ww",)), ("G1C", ("ww", "wr"))):
        graph = nx.DiGraph(pair for kind in kinds for pair in edges[kind])
        parts = [part for part in nx.strongly_connected_components(graph) if len(part) > 1]
        found[code] = len(parts)
        for kind, pairs in edges.items():
            edges[kind] = {(a, b) for a, b in pairs if not any({a, b} <= part for part in parts)}
    return +found


def explained(events: list[Event]) -> bool:
    """Whether the transactions have an order that all data and the clock agree with."""
    edges = _edges(events)
    end = {e.op: e.line for e in events if e.type == "ok" and len(e.mops) > 1}
    refused = {e.op for e in events if e.type == "fail"}
    begun = {e.op: e.line for e in events if e.type == "invoke" and len(e.mops) > 1}
    time = {(a, b) for a in end for b in begun if end[a] < begun[b] and b not in refused}
    graph = nx.DiGraph([*edges["ww"], *edges["wr"], *time])
    return nx.is_directed_acyclic_graph(graph)


def _edges(events: list[Event]) -> Graph:
    """Return the dependencies between the senders and pollers of each queue's messages."""
    logs = _logs(events)
    found: Graph = {"ww": set(), "wr": set()}
    for log in logs.values():
        in_order = [op for _, op in sorted(log)]
        found["ww"].update(pairwise(in_order))
    for event in events:
        if event.type != "ok" or len(event.mops) < 2:
            continue
        furthest: dict[int, int] = {}
        for key, seen in polls_of(event):
            furthest[key] = max([furthest.get(key, -1), *(offset for offset, _ in seen)])
        for key, upto in furthest.items():
            before = [(offset, op) for offset, op in logs.get(key, ()) if offset <= upto]
            if before:
                found["wr"].add((max(before)[1], event.op))
    return {kind: {(a, b) for a, b in pairs if a != b} for kind, pairs in found.items()}


def _logs(events: list[Event]) -> dict[int, list[tuple[int, int]]]:
    """Of each queue the offsets of what transactions sent, and the transactions, where all that
    was seen agrees."""
    refused = {event.op for event in events if event.type == "fail"}
    senders = {
        (key, value): event.op
        for event in events
        if event.type == "invoke" and len(event.mops) > 1 and event.op not in refused
        for key, value, _ in sends_of(event)
    }
    seen = set(_seen(events))
    logs = defaultdict(list)
    for (key, value), op in senders.items():
        places = {offset for k, offset, v in seen if (k, v) == (key, value)}
        if len(places) == 1:
            (offset,) = places
            if len({v for k, o, v in seen if (k, o) == (key, offset)}) == 1:
                logs[key].append((offset, op))
    return logs


def _seen(events: list[Event]) -> Iterator[tuple[int, int, int]]:
    """Return queue, offset and value of messages that clients received or had acknowledged. Of
    messages that were only sent nothing is known; those that were polled are in the log, whatever
    their transaction's outcome."""
    for event in events:
        for key, seen in polls_of(event):
            yield from ((key, offset, value) for offset, value in seen)
        if len(event.mops) > 1 and event.type == "ok":
            for key, value, offset in sends_of(event):
                if offset is not None:
                    yield key, offset, value
