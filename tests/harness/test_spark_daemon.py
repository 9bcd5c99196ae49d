"""What Spark forks its Python workers from: it ends with Spark, also while it is still importing,
and may have been started beforehand."""

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

IMPORTING = b"importing"
SAYS = f"import os\ndef say(): os.write(1, {IMPORTING!r})\ndef fail(): 1 / 0\n"
ENDLESS = f"import os, time\nos.write(1, {IMPORTING!r})\ntime.sleep(600)\n"
DAEMON = (sys.executable, "-m", "harness.spark.worker_daemon")
ENDS_WITHIN_S = 60.0


def environment(folder: Path, module: str) -> dict[str, str]:
    """In which this module is to be imported, and somebody may be there already."""
    (folder / "module.py").write_text(module)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), os.getcwd()]),
        "SEATRIAL_PRELOAD": "module module:fail module:say",
        "SEATRIAL_AHEAD": str(folder / "door"),
    }


def started(*words: object, **environment: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen((*DAEMON, *map(str, words)), env=environment, stdin=pipe, stdout=pipe)


def test_it_ends_when_spark_does_in_the_middle_of_an_import(tmp_path: Path) -> None:
    """Nobody was there before: it imports by itself."""
    with started("pyspark.worker", **environment(tmp_path, ENDLESS)) as daemon:
        try:
            assert daemon.stdin
            assert daemon.stdout
            assert daemon.stdout.read(len(IMPORTING)) == IMPORTING
            daemon.stdin.close()
            assert daemon.wait(ENDS_WITHIN_S) != 0
        finally:
            daemon.kill()


def test_it_ends_at_once_when_spark_has_ended_before() -> None:
    closed, end = os.pipe()
    os.close(end)  # before it starts: while it imports, a signal would end it
    done = subprocess.run(
        (*DAEMON, "pyspark.worker"),
        stdin=closed,
        capture_output=True,
        timeout=ENDS_WITHIN_S,
        check=False,
    )
    os.close(closed)
    assert (done.returncode, done.stdout) == (1, b"")


def test_one_that_was_started_before_does_the_work(tmp_path: Path) -> None:
    """It has imported and called all, whatever failed; Spark is told its port and has its workers,
    and both end with Spark."""
    told = environment(tmp_path, SAYS)
    with started("ahead", tmp_path / "door", **told) as before:
        try:
            assert before.stdout
            assert before.stdout.read(len(IMPORTING)) == IMPORTING
            with started("pyspark.worker", **told) as daemon:
                assert daemon.stdin
                assert daemon.stdout
                (port,) = struct.unpack(">i", daemon.stdout.read(4))
                with socket.create_connection(("127.0.0.1", port)) as spark:
                    (worker,) = struct.unpack(">i", spark.recv(4, socket.MSG_WAITALL))
                    assert parent_of(worker) == before.pid
                daemon.stdin.close()
                assert daemon.wait(ENDS_WITHIN_S) == 0
            before.wait(ENDS_WITHIN_S)
            assert not (tmp_path / "door").exists()
        finally:
            before.kill()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
