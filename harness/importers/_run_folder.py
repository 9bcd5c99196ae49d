"""Writes a recording as the folder of a run, which `seatrial check` judges like a trial's.

trial.toml               what it is about, and the checkers that judge it
names.json               keys, texts of values ("values"), names of processes
run.json                 that it ended, its source, and what the file lacks: "reasons", "gaps"
history/*.parquet        ops and notes, as sealed journals are
origin/messages.parquet  each message's key, value and line in the file
origin/lines.parquet     for each operation the line on which it completed
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.errors import BadRequest, BedFailed
from harness.history.notes import PASSED
from harness.history.rundir import RunDir
from harness.history.schema import NOTES, SCHEMA_VERSION
from harness.history.seal import ROW_GROUP, parquet_writer
from harness.importers import _edn
from harness.importers._recording import (
    KINDS,
    MAX_NUMBER,
    HistoryKind,
    HistoryNote,
    Recording,
    Slip,
    Slips,
)
from harness.importers._rows import (
    ImportedRows,
    Originals,
    ended_ok,
    read_up_to,
    rows_of,
    total_counted,
)
from harness.operation import Type
from harness.run.interrupts import stop_signals_deferred
from harness.text.parsing import MAX_SECONDS, parse_integer
from harness.trial import DEMANDS, ISOLATION, Trial

MALFORMED, NOTHING_COMPLETED = "HISTORY_MALFORMED", "NOTHING_COMPLETED"
SERIALIZABLE = "serializable"
STRICTER = ISOLATION[ISOLATION.index(SERIALIZABLE) + 1 :]  # levels that depend on processes or time
ROWS_OF_A_FILE = 1 << 19  # more rows go to several files, for several tasks
MAX_FILES = 8


def write(
    recording: Recording,
    source: Path,
    name: str,
    out: Path,
    initial: str | None = None,
    contract: Sequence[str] | None = None,
) -> RunDir:
    """Write the folder of a run. `initial`: the value of each register at first; `contract`: the
    demands, if not all. Raises BadRequest if `out` is not empty."""
    refuse_existing(out)
    if initial is not None and recording.kind != "registers":
        raise BadRequest(f"{recording.kind} have no initial value; omit --initial")
    demands = _demands(recording, source, contract)
    initial = recording.initial if initial is None else initial
    rows = rows_of(recording, recording.slips)
    _refuse_too_large(rows, recording.kind, source)
    names: dict[str, Any] = {"keys": list(rows.keys), "nodes": [], "roles": {}, "processes": {}}
    if rows.values is not None:
        names["values"] = list(rows.values)
    if initial is not None:
        names["initial"] = _number_of(initial, names.get("values"))
    kind = KINDS[recording.kind]
    with _new_folder(out) as run:
        (run.path / "origin").mkdir()
        pool = ThreadPoolExecutor(2)
        try:
            for task in [pool.submit(write) for write in _writers(run, recording, rows)]:
                task.result()
        finally:
            with stop_signals_deferred():  # what is being written is removed after it
                pool.shutdown(cancel_futures=True)
        run.write_names(names)
        trial = Trial(
            name=source.name.split(".")[0],
            system="imported",
            hosts="imported",
            workload=recording.kind,
            duration_s=max(rows.end, 1) / 1e9,
            checkers=(*kind.checkers, *(kind.parted if _parted(rows.ops) else ())),
            contract=demands,
        )
        run.trial_file.write_text(trial.to_toml())
        run.update_state(
            schema_version=SCHEMA_VERSION,
            ended=True,
            interrupted=False,
            imported={"file": source.name, "as": name, "events": len(recording.events)},
            gaps=recording.slips.gaps,
            slips={
                "counts": dict(recording.slips.counts),
                "first": [_slip(slip) for slip in recording.slips.first],
            },
            reasons=list(_reasons(source, recording.slips, rows.ops, kind)),
            remarks=list(recording.caveats),
        )
    return run


def _demands(recording: Recording, source: Path, contract: Sequence[str] | None) -> tuple[str, ...]:
    """Return the demands. Raises BadRequest if one does not apply to this kind of history."""
    timeless = recording.kind == "transactions" and recording.completed_only
    if contract is None:
        return (*DEMANDS, SERIALIZABLE) if timeless else DEMANDS
    demands = KINDS[recording.kind].contract
    if strange := [word for word in contract if word not in demands]:
        what = (
            f"{', '.join(demands)} can be demanded"
            if demands
            else "nothing can be chosen; omit --contract"
        )
        raise BadRequest(f"--contract {strange[0]}: of {recording.kind} {what}")
    if timeless and (strict := [word for word in contract if word in STRICTER]):
        raise BadRequest(
            f"--contract {strict[0]}: no line of {source} invokes a transaction, so their order in"
            f" time is not known; demand {SERIALIZABLE} or less"
        )
    return tuple(contract)


def refuse_existing(out: Path) -> None:
    """Raise BadRequest if `out` is not an empty folder or absent."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadRequest(f"{out} is not an empty folder; name another with --out")


def _refuse_too_large(rows: ImportedRows, kind: str, source: Path) -> None:
    """Raise BadRequest if times exceed those of a run, or sums exceed 64 bits."""
    if rows.end > MAX_SECONDS * 1e9:
        raise BadRequest(
            f"the times in {source} are {rows.end / 1e9:,.0f} s apart, and no run lasts more than"
            f" {MAX_SECONDS:,.0f} s; write all of them in nanoseconds of one clock"
        )
    if kind == "counter" and total_counted(rows.ops) > MAX_NUMBER:
        raise BadRequest(
            f"the increments in {source} add up to more than {MAX_NUMBER:,}, the largest"
            " number that is supported; import a part of the file"
        )


def _number_of(text: str, values: list[str] | None) -> int:
    """Return the number of a value; where values have texts, a new one is added to them."""
    if values is not None:
        with suppress(ValueError):
            same = _edn.canonical(_edn.read(text))
            text = same if text not in values and same in values else text
        values += [] if text in values else [text]
        return values.index(text)
    with suppress(ValueError):
        text = _edn.canonical(_edn.read(text))
    if not (text.isascii() and text.isdecimal()):
        raise BadRequest(f"--initial {text}: values of this history are whole numbers from 0")
    return parse_integer(text)


def _parted(ops: pa.Table) -> bool:
    """Return whether an operation has several parts."""
    return bool((pc.max(ops.column("mop")).as_py() or 0) > 0)


@contextmanager
def _new_folder(out: Path) -> Iterator[RunDir]:
    """Create the folder of a run, and in it that of its history, which no other import has made.
    If the block fails, or is interrupted, nothing of it is left. Raises BedFailed if it cannot be
    written."""
    was_there = out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        run = RunDir(out.resolve())
        run.history.mkdir()
    except OSError as e:
        raise BadRequest(f"{out} cannot be created: {e.strerror}") from e
    try:
        yield run
    except BaseException as e:
        with suppress(OSError):
            for path in run.path.iterdir():
                if path.is_dir():
                    rmtree(path)
                else:
                    path.unlink()
            if not was_there:
                run.path.rmdir()
        if isinstance(e, OSError):
            why = e.strerror or e
            raise BedFailed(
                f"cannot write {out}: {why}; free space, or name another folder with --out"
            ) from e
        raise


def _reasons(
    source: Path, slips: Slips, ops: pa.Table, kind: HistoryKind
) -> Iterator[dict[str, str]]:
    """Yield why the history is incomplete; `judge` adds these reasons to the verdict."""
    for rule, count in sorted(slips.counts.items()):
        first = min((s for s in slips.first if s.rule == rule), key=lambda slip: slip.line)
        lines = f"{count:,} lines of {source.name} break a rule ({rule}), the first of them "
        what = f"{source.name} {first}" if count == 1 else f"{lines}{first}"
        yield {"code": MALFORMED, "message": what}
    for fs in kind.needs:
        if not ended_ok(ops, fs):
            what = " or ".join(f.name.lower() for f in fs)
            message = f"no {what} of {source.name} ended ok, so nothing is known about it"
            yield {"code": NOTHING_COMPLETED, "message": message}


def _slip(slip: Slip) -> dict[str, Any]:
    fields = {"rule": slip.rule, "line": slip.line, "message": slip.message}
    return fields | ({"column": slip.column} if slip.column else {})


# --------------------------------------------------------------------------------------- tables


def _writers(run: RunDir, recording: Recording, rows: ImportedRows) -> Iterator[Callable[[], None]]:
    """Yield what writes the tables: of operations one file, or several for a large history, where
    the rows of a process go to one file."""
    yield partial(_write_notes, run, recording, rows)
    yield partial(_write_origin, run, recording, rows)
    ops = rows.ops
    files = min(MAX_FILES, 1 + ops.num_rows // ROWS_OF_A_FILE)
    if files == 1:
        yield partial(_write_table, run.history / "ops-import-000.parquet", ops)
        return
    process = ops.column("process").combine_chunks()
    number = pc.index_in(process, pc.unique(process).sort()).to_numpy()

    def write(file: int) -> None:
        mine = ops.take(pa.array(np.flatnonzero(number % files == file)))
        _write_table(run.history / f"ops-import{file}-000.parquet", mine)

    yield from (partial(write, file) for file in range(files))


def _write_table(path: Path, table: pa.Table) -> None:
    with path.open("wb") as file, parquet_writer(file, table.schema) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP)


def _write_notes(run: RunDir, recording: Recording, rows: ImportedRows) -> None:
    numbers = {key: number for number, key in enumerate(rows.keys)}
    notes = [_note(note, recording, rows, numbers) for note in recording.notes]
    if recording.kind == "messages":
        for key, to in sorted(read_up_to(rows.ops).items()):
            notes.append((rows.end, None, None, f"{PASSED} {json.dumps({'key': key, 'to': to})}"))
    notes.sort(key=lambda note: note[0])
    columns: Sequence[Sequence[Any]] = list(zip(*notes, strict=True)) or [()] * len(NOTES)
    arrays = [pa.array(column, f.type) for column, f in zip(columns, NOTES, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=NOTES)
    _write_table(run.history / "notes-import-000.parquet", table)


def _note(
    note: HistoryNote, recording: Recording, rows: ImportedRows, numbers: Mapping[str, int]
) -> tuple[int, Any, Any, str]:
    t = int(rows.t_of_event[note.event])
    text = note.text
    if note.keys is not None:
        keys = [numbers[key] for key in note.keys if key in numbers]
        text = f"{text} {json.dumps({'keys': keys})}"
    if note.alone:
        return t, None, None, text
    process = int(recording.events.process[note.event])
    return t, process, int(recording.events.line[note.event]), text


def _write_origin(run: RunDir, recording: Recording, rows: ImportedRows) -> None:
    folder = run.path / "origin"
    if rows.originals is not None:
        _write_table(folder / "messages.parquet", _messages(rows.originals))
    ops = rows.ops
    op, kind = ops.column("op").to_numpy(), ops.column("type").to_numpy()
    line = rows.line
    ends = np.flatnonzero(kind != Type.INVOKE)
    last = np.full(int(op.max(initial=0)) + 1, -1)  # an operation is a line of the file
    np.maximum.at(last, op[ends], ends)
    at = last[last >= 0]
    table = pa.table({"op": pa.array(op[at]), "completed": pa.array(line[at])})
    _write_table(folder / "lines.parquet", table)


def _messages(originals: Originals) -> pa.Table:
    return pa.table(
        {
            "value": pa.array(originals.value),
            "key": pa.array(originals.key),
            "original": originals.original,
            "line": pa.array(originals.line),
        }
    )
