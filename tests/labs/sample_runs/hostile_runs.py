"""Run folders in which every file was replaced by hostile content, one kind of it in each folder.

`KINDS` are functions that replace one file; `made` applies one of them to all files of a copy of a
sound run, but those that are named. Whatever runs as code writes the file `ran` into the folder
`outside`, where links lead to as well, so that a test sees whether anything was run or changed.
"""

import json
import os
import random
import shutil
import socket
import tomllib
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

from harness.history.journal import table_of
from harness.history.schema import TABLES

GIANT_BYTES = 6 << 30  # of a file without content, which takes no room on the disk
LETTERS = (
    "</script><img src=x onerror=alert(1)>\"'`|**[a](javascript:alert(3))\x1b]0;owned\x07\x1b[2J"
    "\x9b31m\u202e\u2066# \r\nX: y"
)
CODE = "import os\nopen(os.environ['SEATRIAL_TEST_RAN'], 'w').close()\n"
CODE_FILES = (
    *(
        "harness/__init__.py",
        "harness/spark/worker_daemon.py",
        "harness/run/runner.py",
        "checkers/__init__.py",
    ),
    *("reports/__init__.py", "clusters/__init__.py", "nemesis/__init__.py", "numpy.py"),
    *("pyarrow.py", "pandas.py", "pyspark.py", "multiprocessing.py", "json.py", "click.py"),
    *("rich.py", "numba.py", "sitecustomize.py", "usercustomize.py", "conftest.py", "encodings.py"),
)
NUMBA = "cache_dir: .\ncaptured_errors: old_style\ndisable_jit: 1\n"
METADATA = "Metadata-Version: 2.1\nName: hostile\nVersion: 1.0\n"
SETTINGS = '[check]\nspark = "sc://127.0.0.1:1/;token=x"\n[report]\nformat = "badge"\n'

Spoil = Callable[[Path, Path], None]  # a file of the run, and the folder outside


def truncated(path: Path, outside: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def emptied(path: Path, outside: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path, outside: Path) -> None:
    path.write_bytes(random.Random(path.name).randbytes(5_000))


def giant(path: Path, outside: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(GIANT_BYTES)


def link_out(path: Path, outside: Path) -> None:
    path.unlink()
    path.symlink_to(outside / "secret")


def pipe(path: Path, outside: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path, outside: Path) -> None:
    """/dev/zero has no end. Only root may make one; a socket otherwise."""
    path.unlink()
    try:
        os.mknod(path, 0o20644, os.makedev(1, 5))
    except PermissionError:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.relpath(path))


def folder(path: Path, outside: Path) -> None:
    path.unlink()
    path.mkdir()


def nested(path: Path, outside: Path) -> None:
    deep = {"json": "[" * 200_000, "toml": ".".join("a" * 40_000) + " = 1\n"}
    path.write_text(deep.get(path.suffix[1:], "{" * 200_000))


def wrong_types(path: Path, outside: Path) -> None:
    """Sound JSON, TOML or tables, in which everything has another type."""
    if path.suffix == ".json":
        path.write_text(json.dumps(_other(json.loads(path.read_text()))))
    elif path.suffix == ".toml":
        path.write_text('name = [1]\nfault = "kill"\nsettings = 7\n[claims]\npower = [[]]\n')
    elif path.suffix == ".parquet":
        pq.write_table(pa.table({"t": ["x"], "text": [[1]]}), path)
    elif path.suffix == ".jsonl":
        path.write_text('[]\n7\n{"id": {}}\n"x"\nnull\n')


def bomb(path: Path, outside: Path) -> None:
    """Small files that are large once they are unpacked."""
    if path.suffix in (".parquet", ".arrows") and table_of(path) in TABLES:
        path.write_bytes(_bomb(table_of(path), path.suffix))
    elif path.suffix == ".json":
        path.write_text('{"nodes": [' + "[]," * 12_000_000 + "[]]}")
    elif path.suffix == ".toml":
        path.write_text("".join(f"a.b{i}.c=1\n" for i in range(120_000)))


def letters(path: Path, outside: Path) -> None:
    """Control characters, directions and markup behind every text."""
    if path.suffix == ".json":
        path.write_text(json.dumps(_with(json.loads(path.read_text()))))
    elif path.suffix in (".log", ".jsonl"):
        path.write_text(LETTERS * 20)
    elif path.suffix == ".parquet" and not path.name.startswith(("ops", "replicas")):
        rows = pq.read_table(path)
        for at, field in enumerate(rows.schema):
            if pa.types.is_string(field.type) and field.name not in ("state", "params", "targets"):
                more = [None if x is None else x + LETTERS for x in rows.column(at).to_pylist()]
                rows = rows.set_column(at, field, pa.array(more, field.type))
        pq.write_table(rows.cast(TABLES[table_of(path)]), path)
    elif path.name == "trial.toml":
        trial = tomllib.loads(path.read_text())
        path.write_text(tomli_w.dumps({**trial, "name": LETTERS}))


KINDS: Mapping[str, Spoil] = {
    spoil.__name__: spoil
    for spoil in (
        *(truncated, emptied, garbage, giant, link_out, pipe, device, folder, nested),
        *(wrong_types, bomb, letters),
    )
}


def made(base: Path, to: Path, outside: Path, kind: str, keep: Collection[str] = ()) -> Path:
    """A copy of a run with every file spoiled, but those whose names are in `keep`. `mixed-SEED`:
    each file in another way; `code`: nothing but files beside them that may be run."""
    shutil.copytree(base, to)
    files = sorted(path for path in to.rglob("*") if path.is_file() and path.name != ".lock")
    if kind == "code":
        return _with_code(to)
    luck = random.Random(kind)
    for path in files:
        if path.name not in keep:
            name = luck.choice(sorted(KINDS)) if kind.startswith("mixed") else kind
            KINDS[name](path, outside)
    return to


def _with_code(run: Path) -> Path:
    for name in CODE_FILES:
        path = run / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(CODE)
    info = run / "hostile-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    kinds = ("checkers", "importers", "reports", "systems", "hosts", "faults", "workloads")
    entries = (f"[seatrial.{kind}]\nhostile = numpy\n" for kind in kinds)
    (info / "entry_points.txt").write_text("".join(entries))
    (run / ".numba_config.yaml").write_text(NUMBA)
    (run / "spark-defaults.conf").write_text("spark.driver.extraJavaOptions -Dx=1\n")
    (run / "log4j2.properties").write_text("rootLogger.level = trace\n")
    (run / "hostile.pth").write_text("import numpy\n")
    return run


def _other(value: Any) -> Any:
    match value:
        case dict():
            return {name: _other(item) for name, item in value.items()}
        case bool() | None:
            return -(2**63)
        case int() | float():
            return [str(value)]
        case str():
            return {"x": value}
    return 3.5


def _with(value: Any, keys: bool = False) -> Any:
    """Words that decide how the rest is read stay as they are, and keys but those of evidence."""
    if isinstance(value, str):
        return value if value in ("valid", "invalid", "unknown") else value + LETTERS
    if isinstance(value, dict):
        return {
            f"{key}{LETTERS}" if keys else key: _with(item, keys or key == "evidence")
            for key, item in value.items()
        }
    return [_with(item, keys) for item in value] if isinstance(value, list) else value


@cache  # it is large while it is made
def _bomb(table: str, suffix: str) -> bytes:
    """Of a table with texts 2 GB of equal ones in each of its groups; of one of numbers a million
    equal rows, and in a group of its own more than any group may have."""
    schema = TABLES[table]
    texts = sum(pa.types.is_string(field.type) for field in schema)
    rows = 30_000 // texts if texts else (1 << 20) + 1
    column = pa.repeat(pa.scalar("[" * 65_536), rows if texts else 0)
    columns = [
        column
        if pa.types.is_string(f.type)
        else pa.repeat(pa.scalar(1, f.type), rows)
        if not f.nullable
        else pa.nulls(rows, f.type)
        for f in schema
    ]
    sink = pa.BufferOutputStream()
    if suffix == ".arrows":
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(sink, schema, options=options) as stream:
            stream.write_batch(batch)
    else:
        with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
            for _ in range(6 if texts else 1):
                writer.write_table(pa.Table.from_arrays(columns, schema=schema), rows)
    return bytes(sink.getvalue())
