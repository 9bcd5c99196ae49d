"""What was recorded is judged, whatever happened to it: journals torn, cut or foreign, disks full.

Damage makes a sound run unknown, never invalid: what is missing may be the record's fault.
"""

import re
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest
import run_command

pytestmark = [pytest.mark.bed, pytest.mark.spark]


def unsealed(run: Path, name: str) -> Path:
    """The journal that was sealed, in its place again, a hundred rows to a batch."""
    (sealed,) = run.glob(f"history/{name}-*.parquet")
    journal = run / "journal" / f"{sealed.stem}.arrows"
    table = pa.parquet.read_table(sealed)
    with pa.ipc.new_stream(journal, table.schema) as stream:
        stream.write_table(table, max_chunksize=100)
    sealed.unlink()
    return journal


def torn(run: Path, name: str) -> int:
    """In the middle of a batch, as when a machine lost power. How many rows can be read."""
    journal = unsealed(run, name)
    data = journal.read_bytes()
    journal.write_bytes(data[: len(data) // 2])
    count = 0
    with suppress(OSError, pa.ArrowInvalid):  # in the body of a batch, or in its head
        for batch in pa.ipc.open_stream(journal.read_bytes()):
            count += batch.num_rows
    return count


def cut(run: Path, name: str) -> int:
    """Between two batches, which looks sound but for the writer's count."""
    journal = unsealed(run, name)
    first = pa.ipc.open_stream(journal.read_bytes()).read_next_batch()
    with pa.ipc.new_stream(journal, first.schema) as stream:
        stream.write_batch(first)
    return first.num_rows


def foreign(run: Path, name: str) -> int:
    """Somebody else's file in place of ours."""
    unsealed(run, name).write_bytes(b"PK\x03\x04 this is no journal")
    return 0


def strange(run: Path, name: str) -> int:
    """A sealed file with the columns of another table."""
    (sealed,) = run.glob(f"history/{name}-*.parquet")
    (other,) = run.glob("history/faults-runner-*.parquet")
    shutil.copy(other, sealed)
    return 0


def headless(run: Path, name: str) -> int:
    """Parquet keeps its list of contents at its end; without it nothing can be read."""
    (sealed,) = run.glob(f"history/{name}-*.parquet")
    sealed.write_bytes(sealed.read_bytes()[:-100])
    return 0


DAMAGES: dict[str, Callable[[Path, str], int]] = {
    "ops-client-1": torn,
    "ops-client-2": cut,
    "notes-client-1": foreign,
    "notes-client-2": strange,
    "faults-runner": headless,  # nothing says any more who killed the nodes that died
}


def test_a_damaged_history_is_read_up_to_the_damage_and_reported(
    storm: run_command.FinishedCommand, tmp_path: Path
) -> None:
    """Exit code 2: JOURNAL_DAMAGED names each file and the row, and the rest is judged."""
    run = tmp_path / "run"
    shutil.copytree(storm.run, run)
    events = dict(storm.verdict["events"])
    damaged = {}
    for name, damage in DAMAGES.items():
        (counter,) = run.glob(f"journal/{name}-*.count")
        (counted,) = struct.unpack("<q", counter.read_bytes())
        damaged[counter.stem] = damage(run, name)
        events[name.split("-")[0]] -= counted - damaged[counter.stem]
    checked = run_command.seatrial("check", run, "--json", runs=tmp_path)
    assert checked.code == 2, checked.words
    verdict = run_command.verdict(run)
    told = [r["message"] for r in verdict["reasons"] if r["code"] == "JOURNAL_DAMAGED"]
    assert len(told) == len(damaged)
    for stem, row in damaged.items():
        said = rf"the file {stem}\.(arrows|parquet) is readable up to row {row}: "
        assert any(re.match(said, text) for text in told)
    assert verdict["events"] == events


# The disk has room when the run begins; as soon as the load does, it has only so much more.
SHRINKING = """\
set -e
mkdir "$1"; mount -t tmpfs -o size=490m none "$1"
kept=$1.kept; left_kb=$2; cd "$1"; shift 2
(
    until grep -qs load_began_ns latest/run.json; do sleep 0.05; done
    until mount -o remount,size=$(($(df --output=used -k . | tail -1) + left_kb))k . ; do :; done
) &
code=0; "$@" || code=$?
cp -a . "$kept"; exit $code
"""


def test_a_full_disk_ends_the_run_and_what_was_recorded_is_judged(tmp_path: Path) -> None:
    """A sentence, whoever met it first, and judged as unknown: the brokers that had to stop are not
    convicted for it. Met by a broker the run ends early, met by the journal it is broken off."""
    runs = tmp_path / "runs"
    alone = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SHRINKING, "sh")
    command = ("run", "messages", "--duration", "20s", "--load", "rate=300,body_bytes=6000")
    ended = run_command.seatrial(*command, runs=runs, wrapper=(*alone, runs, 4_000))
    assert ended.code in (2, 255), ended.words
    assert "Traceback" not in ended.err
    kept = tmp_path / "runs.kept" / "latest"
    verdict = run_command.verdict(kept)
    assert verdict["verdict"] == "unknown"
    if ended.code == 255:
        assert re.search(r"seatrial: .*(nothing can be written|No space left on)", ended.err)
        assert not run_command.state(kept)["ended"]
        assert run_command.reasons(verdict) >= {"BED_FAILED", "INTERRUPTED"}
    else:
        assert run_command.state(kept)["ended"]
        assert "DISK_FULL" in run_command.reasons(verdict)
    assert verdict["events"] == run_command.counted(kept)
    assert verdict["events"]["ops"] > 0
