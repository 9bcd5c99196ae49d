"""A recording as a run's folder, the same as a recorded trial's: `seatrial check` judges it.

trial.toml               what it is about, and the checkers that judge it
names.json               keys, texts of values ("values"), who is who
run.json                 ended, imported from where, and what the file lacks: "reasons", "gaps"
history/*.parquet        ops and notes, as sealed journals are
origin/messages.parquet  each message's key, value and line in the file
origin/lines.parquet     for each operation the line on which it completed
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.errors import BadRequest
from harness.history.notes import PASSED
from harness.history.rundir import RunDir
from harness.history.schema import NOTES, SCHEMA_VERSION
from harness.history.seal import ROW_GROUP, written_to
from harness.importers._jepsen.quantities import most_counted
from harness.importers._recording.kinds import KINDS, Kind
from harness.importers._recording.messages import Originals, passed
from harness.importers._recording.recording import LARGEST, Recording, Remark, Slip, Slips
from harness.importers._recording.rows import Rows, ended_ok, rows_of
from harness.importers._text import edn as _edn
from harness.operation import Type
from harness.text.parsing import MOST_S, whole
from harness.trial import DEMANDS, ISOLATION, Trial

MALFORMED, NOTHING_COMPLETED = "HISTORY_MALFORMED", "NOTHING_COMPLETED"
SERIALIZABLE = "serializable"
STRICTER = ISOLATION[ISOLATION.index(SERIALIZABLE) + 1 :]  # that look at processes or time
ROWS_OF_A_FILE = 1 << 19  # more are shared out, so that several tasks can read them
MOST_FILES = 8


def write(
    recording: Recording,
    source: Path,
    name: str,
    out: Path,
    initial: str | None = None,
    contract: Sequence[str] | None = None,
) -> RunDir:
    """The folder of a recording; `initial`: the value that each register held at first; `contract`:
    what is demanded, if not everything. BadRequest when there is something in `out` already."""
    see_that_it_is_free(out)
    if initial is not None and recording.kind != "registers":
        raise BadRequest(f"{recording.kind} hold nothing at first; leave --initial out")
    demands = _demands(recording, source, contract)
    initial = recording.initial if initial is None else initial
    rows = rows_of(recording, recording.slips)
    _see_that_it_can_be_judged(rows, recording.kind, source)
    names: dict[str, Any] = {"keys": list(rows.keys), "nodes": [], "roles": {}, "processes": {}}
    if rows.values is not None:
        names["values"] = list(rows.values)
    if initial is not None:
        names["initial"] = _number_of(initial, names.get("values"))
    run = _made(out)
    kind = KINDS[recording.kind]
    run.history.mkdir()
    (run.path / "origin").mkdir()
    _write_ops(run, rows.ops)
    _write_notes(run, recording, rows)
    _write_origin(run, recording, rows)
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
        slips={"counts": dict(recording.slips.counts), "first": _shown(recording.slips)},
        reasons=list(_reasons(source, recording.slips, rows.ops, kind)),
        remarks=list(recording.caveats),
    )
    return run


def _demands(recording: Recording, source: Path, contract: Sequence[str] | None) -> tuple[str, ...]:
    """The words of a contract. BadRequest when they say nothing about this kind of history."""
    timeless = recording.kind == "transactions" and recording.completed_only
    if contract is None:
        return (*DEMANDS, SERIALIZABLE) if timeless else DEMANDS
    known = KINDS[recording.kind].contract
    if strange := [word for word in contract if word not in known]:
        what = (
            f"{', '.join(known)} can be demanded"
            if known
            else "nothing can be chosen; leave --contract out"
        )
        raise BadRequest(f"--contract {strange[0]}: of {recording.kind} {what}")
    if timeless and (strict := [word for word in contract if word in STRICTER]):
        raise BadRequest(
            f"--contract {strict[0]}: no line of {source} invokes a transaction, so their order in"
            f" time is not known; demand {SERIALIZABLE} or less"
        )
    return tuple(contract)


def see_that_it_is_free(out: Path) -> None:
    """BadRequest when it is not, before the work is done for nothing."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadRequest(f"{out} is not an empty folder; name another with --out")


def _see_that_it_can_be_judged(rows: Rows, kind: str, source: Path) -> None:
    """BadRequest when the numbers in it are more than 64 bits, or a run's time, can hold."""
    if rows.end > MOST_S * 1e9:
        raise BadRequest(
            f"the times in {source} are {rows.end / 1e9:,.0f} s apart, and no run lasts more than"
            f" {MOST_S:,.0f} s; write all of them in nanoseconds of one clock"
        )
    if kind == "counter" and most_counted(rows.ops) > LARGEST:
        raise BadRequest(
            f"the increments in {source} add up to more than {LARGEST:,}, which is not supported;"
            " import a part of the file"
        )


def _number_of(text: str, values: list[str] | None) -> int:
    """A value's number; where values have texts, one that occurs nowhere is added to them."""
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
    return whole(text)


def _parted(ops: pa.Table) -> bool:
    """Whether an operation has several parts."""
    return bool((pc.max(ops.column("mop")).as_py() or 0) > 0)


def _made(out: Path) -> RunDir:
    """The folder, once there is something to put in it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise BadRequest(f"{out} cannot be made: {e.strerror}") from e
    return RunDir(out.resolve())


def _reasons(source: Path, slips: Slips, ops: pa.Table, kind: Kind) -> Iterator[dict[str, str]]:
    """Why the history does not say everything; `judge` tells them with the verdict."""
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


def _shown(slips: Slips) -> list[dict[str, Any]]:
    return [_slip(slip) for slip in slips.first]


def _slip(slip: Slip) -> dict[str, Any]:
    fields = {"rule": slip.rule, "line": slip.line, "message": slip.message}
    return fields | ({"column": slip.column} if slip.column else {})


# --------------------------------------------------------------------------------------- tables


def _write_ops(run: RunDir, ops: pa.Table) -> None:
    """Small histories are one writer's; of large ones each process's rows go to one of several."""
    files = min(MOST_FILES, 1 + ops.num_rows // ROWS_OF_A_FILE)
    if files == 1:
        _write_table(run.history / "ops-import-000.parquet", ops)
        return
    process = ops.column("process").to_numpy()
    _, number = np.unique(process, return_inverse=True)

    def one(file: int) -> None:
        mine = ops.take(pa.array(np.flatnonzero(number % files == file)))
        _write_table(run.history / f"ops-import{file}-000.parquet", mine)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, range(files)))


def _write_table(path: Path, table: pa.Table) -> None:
    with path.open("wb") as file, written_to(file, table.schema) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP)


def _write_notes(run: RunDir, recording: Recording, rows: Rows) -> None:
    numbers = {key: number for number, key in enumerate(rows.keys)}
    notes = [_note(remark, recording, rows, numbers) for remark in recording.remarks]
    if recording.kind == "messages":
        for key, to in sorted(passed(rows.ops).items()):
            notes.append((rows.end, None, None, f"{PASSED} {json.dumps({'key': key, 'to': to})}"))
    notes.sort(key=lambda note: note[0])
    columns: Sequence[Sequence[Any]] = list(zip(*notes, strict=True)) or [()] * len(NOTES)
    arrays = [pa.array(column, f.type) for column, f in zip(columns, NOTES, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=NOTES)
    _write_table(run.history / "notes-import-000.parquet", table)


def _note(
    remark: Remark, recording: Recording, rows: Rows, numbers: Mapping[str, int]
) -> tuple[int, Any, Any, str]:
    t = int(rows.t_of_event[remark.event])
    text = remark.text
    if remark.keys is not None:
        keys = [numbers[key] for key in remark.keys if key in numbers]
        text = f"{text} {json.dumps({'keys': keys})}"
    if remark.alone:
        return t, None, None, text
    process = int(recording.events.process[remark.event])
    return t, process, int(recording.events.line[remark.event]), text


def _write_origin(run: RunDir, recording: Recording, rows: Rows) -> None:
    folder = run.path / "origin"
    if rows.originals is not None:
        _write_table(folder / "messages.parquet", _messages(rows.originals))
    ops = rows.ops
    op, kind = ops.column("op").to_numpy(), ops.column("type").to_numpy()
    line = rows.line
    ends = np.flatnonzero(kind != Type.INVOKE)
    _, last = np.unique(op[ends][::-1], return_index=True)
    at = ends[len(ends) - 1 - last]
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
