"""Small files that are large once they are unpacked: a sentence, and little memory.

Each runs in a process of its own, whose address space is limited; without the limits of ours these
files take from 3 to 12 GB.
"""

import gzip
import os
import subprocess
import sys
import zlib
from pathlib import Path

import hostile_runs
import page_lab
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import registry
from harness.campaign.simulation import simulate
from harness.errors import BadRequest
from harness.history.journal import MAX_BATCH_BYTES, read_stream, unpacked_bytes
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.history.schema import NOTES, TABLES
from harness.importers import _edn
from harness.text.parsing import MAX_JSON_VALUES, parse_json, parse_toml, read_json

SPACE = 2 << 30
PAGE = """\
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
from harness.history.reader import History
from harness.judge.judge import judge_small
from harness.history.rundir import RunDir
from reports import page
from reports._run import read_run
run = RunDir(Path(sys.argv[1]))
told = read_run(run)
page.page_html(told)
print(*told.shown_doubts, sep="\\n")
print(judge_small(History.open(run)).sentence)
"""
IMPORT = """\
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
from harness import registry
from harness.errors import BadRequest
try:
    registry.load("importer", sys.argv[3])(Path(sys.argv[1]))
except BadRequest as e:
    print(e)
"""


def limited(program: str, path: Path, *words: str) -> str:
    argv = [sys.executable, "-c", program, str(path), str(SPACE), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=600).stdout


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "run"
    simulate(page_lab.SOUND, page_lab.PLAN, folder)
    return folder


@pytest.mark.parametrize("name", ["notes-x-000.parquet", "events-x-000.parquet"])
def test_equal_texts_of_a_table(base: Path, tmp_path: Path, name: str) -> None:
    """Half a megabyte of Parquet holds 12 GB of texts, and no list in the file says so."""
    run = hostile_runs.made(base, tmp_path / "run", tmp_path, "emptied", keep=_names(base))
    path = run / "history" / name
    path.parent.mkdir()
    hostile_runs.bomb(path, tmp_path)
    assert path.stat().st_size < 1_000_000
    told = limited(PAGE, run)
    assert (
        f"the file {name} is readable up to row 0: {name.partition('-')[0]} are read up to" in told
    )
    assert "Unknown: " in told


@pytest.mark.parametrize("name", ["notes-x-000.arrows", "ops-x-000.arrows"])
def test_a_batch_of_a_journal(base: Path, tmp_path: Path, name: str) -> None:
    """A compressed buffer says how large it is before it is unpacked."""
    run = hostile_runs.made(base, tmp_path / "run", tmp_path, "emptied", keep=_names(base))
    path = run / "journal" / name
    path.parent.mkdir(exist_ok=True)
    hostile_runs.bomb(path, tmp_path)
    told = limited(PAGE, run)
    assert f"the file {name} is readable up to row 0" in told
    assert f"at most {MAX_BATCH_BYTES:,} are read" in told


def _names(base: Path) -> set[str]:
    return {path.name for path in base.rglob("*")}


def test_the_size_of_a_batch_is_what_it_takes(tmp_path: Path) -> None:
    """Compressed or not, of every table; a sound journal is read as ever."""
    for compression in (None, "zstd", "lz4"):
        for name, schema in TABLES.items():
            columns = [
                pa.array(["text"] * 1000 if pa.types.is_string(f.type) else [7] * 1000, f.type)
                for f in schema
            ]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            sink = pa.BufferOutputStream()
            options = pa.ipc.IpcWriteOptions(compression=compression)
            with pa.ipc.new_stream(sink, schema, options=options) as stream:
                stream.write_batch(batch)
            data = sink.getvalue()
            _, message = pa.ipc.MessageReader.open_stream(data)
            assert batch.nbytes <= unpacked_bytes(message) <= batch.nbytes + 100 * len(schema)
            path = tmp_path / f"{name}-{compression}-000.arrows"
            path.write_bytes(data.to_pybytes())
            assert [b.num_rows for b in read_stream(path)] == [1000]


def test_row_groups_larger_than_any_of_ours(tmp_path: Path) -> None:
    """A million equal rows take some hundred bytes: the file is damage, and not read."""
    run = RunDir(tmp_path)
    run.history.mkdir()
    hostile_runs.bomb(run.history / "ops-x-000.parquet", tmp_path)
    (damage,) = (reason for reason in History.open(run).damage if "ops-x-000" in reason.message)
    assert "a row group of 1,048,577 rows" in damage.message


def test_small_tables_are_read_up_to_their_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, text and brackets are counted over all files of a table; just within is whole."""
    run = RunDir(tmp_path)
    run.history.mkdir()
    for number in range(3):
        table = pa.table(
            {"t": [number] * 4, "process": [0] * 4, "op": [0] * 4, "text": ["[1]"] * 4}
        )
        pq.write_table(table.cast(NOTES), run.history / f"notes-x-{number:03}.parquet")
    for limit, enough in (("MAX_ROWS", 12), ("MAX_TEXT_BYTES", 36), ("MAX_BRACKETS", 12)):
        with monkeypatch.context() as patch:
            patch.setattr(f"harness.history.reader.{limit}", enough)
            assert History.open(run).read("notes").num_rows == 12
            patch.setattr(f"harness.history.reader.{limit}", enough - 1)
            history = History.open(run)
            assert history.read("notes").num_rows == 8
            assert [damage.path.name for damage in history.cut] == ["notes-x-002.parquet"]
            assert "notes-x-002.parquet is readable up to row 0" in history.damage[-1].message


def test_gzip(tmp_path: Path) -> None:
    """3 MB hold 3 GB of empty lines; the sentence names the option that raises the limit."""
    squeeze = zlib.compressobj(9, wbits=31)
    lines = b"".join(squeeze.compress(b"\n" * (64 << 20)) for _ in range(16)) + squeeze.flush()
    path = tmp_path / "lines.gz"
    path.write_bytes(lines)
    for form in ("porcupine", "csv", "jepsen-append"):
        assert "--max-unpacked-mb" in limited(IMPORT, path, form)


def test_gzip_of_many_members(tmp_path: Path) -> None:
    """100,000 empty ones behind a sound one: they are passed over, each once."""
    path = tmp_path / "members.gz"
    member = gzip.compress(b"", 1, mtime=0)
    path.write_bytes(gzip.compress(b"t,process\n1,2\n") + member * 100_000)
    assert "has no column 'type'" in limited(IMPORT, path, "csv")


@pytest.mark.parametrize("shared", [True, False])
def test_parquet_of_another_tool(tmp_path: Path, shared: bool) -> None:
    """Half a megabyte with a column of 6 GB, whether it says that its texts are shared or not."""
    rows = 300_000
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["A" * 20_000])
    columns = {"process": [0] * rows, "type": ["invoke"] * rows, "f": ["put"] * rows}
    table = pa.table({**columns, "value": texts})
    path = tmp_path / "table.parquet"
    pq.write_table(table, path, compression="zstd", store_schema=shared)
    assert path.stat().st_size < 1_000_000
    assert "--max-unpacked-mb" in limited(IMPORT, path, "parquet")


def test_maps_in_keys_of_maps() -> None:
    """The text of a key holds that of the key within it once, however deep they are."""
    deep = "{" * 200 + '"a" 1}' + " 1}" * 199
    (key,) = _edn.read(deep)
    assert len(key) < len(deep)
    assert len(_edn.canonical(_edn.read(deep))) < len(deep) * 2


def test_json_and_toml(tmp_path: Path) -> None:
    """Values are counted before they are made; keys are looked at before they are nested."""
    for text in ("[" + "[]," * MAX_JSON_VALUES + "[]]", "[" * 200_000):
        with pytest.raises(ValueError, match=r"more than|too deep"):
            parse_json(text)
    path = tmp_path / "run.json"
    with path.open("wb") as file:
        file.truncate(hostile_runs.GIANT_BYTES)
    with pytest.raises(ValueError, match="more than 128 MB"):
        read_json(path)
    with pytest.raises(BadRequest, match="too deep"):
        parse_toml(".".join("a" * 40_000) + " = 1\n", "it")
    with pytest.raises(BadRequest, match="too deep"):
        parse_toml("[" + " . ".join(['"a b"', "'c'"] * 20) + "]\n", "it")
    assert parse_toml('a = "1.2.3.4.5.6.7.8.9.10.11"\nb.c.d = 1.5\n', "it")["b"] == {
        "c": {"d": 1.5}
    }


@pytest.mark.parametrize("form", ["porcupine", "csv", "jepsen-append", "parquet"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, form: str) -> None:
    """Nobody writes to it; and a device has no end."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for place in (path, Path("/dev/zero")):
        with pytest.raises(BadRequest, match="is not a regular file"):
            registry.load("importer", form)(place)
