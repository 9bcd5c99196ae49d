"""What Spark forks its Python workers from ends with Spark, also while it is still importing."""

import os
import subprocess
import sys
from pathlib import Path

IMPORTING = b"importing"
ENDLESS = f"import os, time\nos.write(1, {IMPORTING!r})\ntime.sleep(600)\n"
ENDS_WITHIN_S = 60.0


def test_it_ends_when_spark_does_in_the_middle_of_an_import(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    paths = os.pathsep.join([str(tmp_path), os.getcwd()])
    with subprocess.Popen(
        [sys.executable, "-m", "harness.spark_daemon", "pyspark.worker"],
        env={**os.environ, "PYTHONPATH": paths, "SEATRIAL_PRELOAD": "endless"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as daemon:
        try:
            assert daemon.stdin
            assert daemon.stdout
            assert daemon.stdout.read(len(IMPORTING)) == IMPORTING
            daemon.stdin.close()
            assert daemon.wait(ENDS_WITHIN_S) != 0
        finally:
            daemon.kill()


def test_it_ends_at_once_when_spark_has_ended_before() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harness.spark_daemon", "pyspark.worker"],
        input=b"",
        capture_output=True,
        timeout=ENDS_WITHIN_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")
