"""Histories in a few words: each line is one operation, later lines happen later.

    send 7 ok@3         value 7 is sent and acknowledged at offset 3
    send 7 fail         ... certainly failed; `info`: nobody knows; `open`: never completed
    send 7 ok@3 x2      ... at the second attempt
    poll 7@3 8@4        a consumer of group-0 is given two messages; `?@5`: one without a value
    poll 7@3/2/900      ... that was stored in epoch 2 at 900 ms (else in epoch 1, time not known)
    read 7@3            the fresh reader finds one
    stored 7@3          every replica has it at the end
    drained             the fresh reader and the group read the queue to its end
    drained reader      only the fresh reader did; `drained group`, `undrained reader` likewise

`q1` anywhere in a line says that it is about queue 1, `any` in that of a send that its client
selected the queue, `[5..9]` when it happened (milliseconds), and `2.7` is value 7 of producer 2.
The rows go through the real journal.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from harness.history.journal import TableJournal
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.importers import _run_folder as _folder
from harness.importers import jepsen_kafka
from harness.importers._jepsen import recording
from harness.operation import NONE, F, Type, value_of
from harness.trial import Trial

MS = 1_000_000
BROKERS = ("broker-1", "broker-2")
READER, CONSUMER = 9, 8
Written = Callable[..., History]


@dataclass
class Scribe:
    """Writes the lines of one history as a crew would."""

    run: RunDir
    now: int = 0
    op: int = 0
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    notes: list[tuple[Any, ...]] = field(default_factory=list)
    stored: list[tuple[Any, ...]] = field(default_factory=list)

    def line(self, text: str) -> None:
        begin, end, words = self._times(text)
        key = next((int(w[1:]) for w in words if re.fullmatch(r"q\d+", w)), 0)
        words = [w for w in words if not re.fullmatch(r"q\d+", w)]
        getattr(self, words[0])(key, words[1:], begin, end)
        self.op += 1

    def _times(self, text: str) -> tuple[int, int, list[str]]:
        self.now += 10
        found = re.search(r"\[(\d+)\.\.(\d+)\]", text)
        if found is None:
            return self.now * MS, (self.now + 5) * MS, text.split()
        begin, end = (int(number) * MS for number in found.groups())
        return begin, end, text[: found.start()].split()

    def send(self, key: int, words: list[str], begin: int, end: int) -> None:
        value, outcome = _value(words[0]), words[1]
        attempts = next((int(w[1:]) for w in words if re.fullmatch(r"x\d+", w)), 1)
        process = value >> 32
        selected = "any" in words
        self.row(begin, process, Type.INVOKE, F.SEND, NONE if selected else key, value)
        kind, _, offset = outcome.partition("@")
        if kind != "open":
            at = int(offset) if offset else NONE
            key = NONE if selected and kind != "ok" else key
            self.row(end, process, Type[kind.upper()], F.SEND, key, value, at, NONE, attempts)

    def poll(self, key: int, words: list[str], begin: int, end: int) -> None:
        self._batch(CONSUMER, F.POLL, key, words, begin, end)

    def read(self, key: int, words: list[str], begin: int, end: int) -> None:
        self._batch(READER, F.READ, key, words, begin, end)

    def stored_(self, key: int, words: list[str]) -> None:
        for value, offset in map(_placed, words):
            self.stored += [(node, key, offset, value, 1, 0) for node in range(len(BROKERS))]

    def drained(self, key: int, words: list[str], begin: int, end: int, word: str = "DRAINED"):
        for who in words or ["reader", "group"]:
            group = {"group": "group-0"} if who == "group" else {}
            note = f"{word} {json.dumps({'key': key, 'from': 0, 'to': 100, **group})}"
            self.notes.append((end, CONSUMER if group else READER, NONE, note))

    def undrained(self, key: int, words: list[str], begin: int, end: int) -> None:
        self.drained(key, words, begin, end, "NOT_DRAINED")

    def _batch(self, process: int, f: F, key: int, words: list[str], begin: int, end: int) -> None:
        parts = [word.split("/") for word in words]
        placed = [_placed(place) for place, *_ in parts]
        first = placed[0][1] if placed else 0
        self.row(begin, process, Type.INVOKE, f, key, NONE, first)
        for pos, (value, offset) in enumerate(placed):
            epoch, stored = map(int, parts[pos][1:] or (1, NONE))
            self.row(end, process, Type.OK, f, key, value, offset, NONE, NONE, pos, epoch, stored)
        self.row(end, process, Type.OK, f, key, NONE, placed[-1][1] + 1 if placed else 0)

    def row(
        self,
        t: int,
        process: int,
        kind: Type,
        f: F,
        key: int,
        value: int,
        offset: int = NONE,
        node: int = NONE,
        attempts: int = NONE,
        pos: int = NONE,
        epoch: int = 1,
        arg: int = NONE,
    ) -> None:
        what = (t, process, self.op, kind, f, key, value, arg, offset, pos, NONE)
        self.rows.append((*what, epoch if kind is Type.OK else NONE, node, attempts))

    def close(self, crews: int) -> None:
        """Rows in time order, by process over so many crews, each with a journal of its own."""
        rows = sorted(self.rows, key=lambda row: row[0])
        for crew in range(crews):
            mine = [row for row in rows if row[1] % crews == crew]
            _write(self.run, "ops", f"client-{crew + 1}", mine)
        _write(self.run, "notes", "client-1", self.notes)
        _write(self.run, "replicas", "runner", self.stored)


def _write(run: RunDir, table: str, writer: str, rows: list[tuple[Any, ...]]) -> None:
    journal = TableJournal(run.journal, table, writer)
    for row in rows:
        journal.append(row)
    journal.close()


def _value(word: str) -> int:
    if word == "?":
        return NONE
    producer, _, sequence = word.rpartition(".")
    return value_of(int(producer or 0), int(sequence))


def _placed(word: str) -> tuple[int, int]:
    value, _, offset = word.partition("@")
    return _value(value), int(offset)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """`written(text)`: the history that these lines tell, opened. `crews`: journals to spread it
    over; `faults`: rows of the faults table; `state`: more of run.json."""
    number = 0

    def write(text: str, crews: int = 1, faults: list[Any] | None = None, **state: Any) -> History:
        nonlocal number
        number += 1
        path = tmp_path / f"run-{number}"
        path.mkdir()
        run = RunDir(path)
        run.trial_file.write_text(Trial().to_toml())
        roles = dict.fromkeys(BROKERS, "broker")
        processes = {str(READER): "reader 0", str(CONSUMER): "consumer 0 of group-0"}
        names = {"keys": ["orders-0", "orders-1", "orders-2"], "processes": processes}
        run.write_names({**names, "nodes": list(BROKERS), "roles": roles})
        run.update_state(**{"ended": True, "interrupted": False, **state})
        scribe = Scribe(run)
        for line in filter(None, (raw.split("#")[0].strip() for raw in text.splitlines())):
            if line.startswith("stored"):
                scribe.stored_(0, line.split()[1:])
            else:
                scribe.line(line)
        scribe.close(crews)
        _write(run, "faults", "runner", faults or [])
        return History.open(run)

    return write


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., RunDir]:
    """`imported(text)`: the run folder of a history in Jepsen's form. A line is one operation,
    `process f outcome value`, and perhaps ` | ` and more fields of its completion; offsets stand
    in the completion only. `more`: fields of the trial."""

    def make(text: str, **more: Any) -> RunDir:
        number = len(list(tmp_path.iterdir()))
        path = tmp_path / f"history-{number}.edn"
        path.write_text("".join(_edn_lines(text)))
        run = _folder.write(
            recording(path, jepsen_kafka.FORMAT), path, "jepsen-kafka", tmp_path / f"{number}"
        )
        run.trial_file.write_text(replace(run.trial(), **more).to_toml())
        return run

    return make


def _edn_lines(text: str) -> list[str]:
    lines = []
    for line in text.splitlines():
        process, f, outcome, value = line.split(" ", 3)
        value, _, extra = value.partition(" | ")
        asked = re.sub(r":poll {.*?}", ":poll", re.sub(r"\[\d+ (\d+)\]\]", r"\1]", value))
        for kind, said in (("invoke", asked), (outcome, value)):
            more = f", {extra}" if extra and kind != "invoke" else ""
            lines.append(
                f"{{:index {len(lines)}, :type :{kind}, :process {process}, :f :{f}, "
                f":value {said}, :time {len(lines)}000{more}}}\n"
            )
    return lines
