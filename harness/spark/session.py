"""The one Spark session: started behind the user's back, gone when we are.

Spark is the engine of every checker, on a laptop as on a cluster, but a command line can not wait
ten seconds for it. So the JVM is launched directly (no shell script, no launcher JVM) on a class
archive, PySpark is handed its gateway by environment variables, and `prepare` does all of it,
including the first job that warms the Python workers, in the background while the trial runs.

The JVM leaves with us: it holds the other end of a pipe, and the kernel kills it when the thread
that started it, the main thread, is gone. Its output goes to a file that is read only when it
fails to start. `python -m harness.spark.session` makes the class archive.

Executors may be elsewhere: `harness.spark.master` says which masters there are, and what travels.
"""

import ctypes
import logging
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from harness import registry
from harness.errors import BadRequest, BedFailed, SeatrialError, SparkDown
from harness.spark import java
from harness.spark.master import CONNECT, DEFAULT, SAFE_PATH, Master, packed
from harness.spark.probe import within
from harness.spark.worker_daemon import AHEAD, PRELOAD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GATEWAY = "org.apache.spark.api.python.PythonGatewayServer"
START_WITHIN_S = 90.0
START_VARIABLE = "SEATRIAL_JAVA_WITHIN_S"
DAEMON = "harness.spark.worker_daemon"
STEP_S = 0.01
LEAVE_WITHIN_S = 10.0  # a cluster is told that we go

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Sessions(Protocol):
    """Spark on its way up. `session()` waits for it; `close()` ends it."""

    def session(self) -> "SparkSession": ...

    def close(self) -> None: ...


class Engine:
    """A JVM on its way up. `session()` waits for it; `close()` ends it at once.

    Make it in the main thread: the JVM dies with the thread that started it.
    """

    def __init__(
        self,
        master: str = DEFAULT,
        nice: int = 0,
        heap: str = "1g",
        warm_up: bool = False,
        archive_to: Path | None = None,
        compiler: bool = False,
    ) -> None:
        self._master, self._warm_up = Master.of(master), warm_up
        self._within_s = start_within_s() * (2 if self._master.here else 1)  # its first job, too
        self._address = self._master.reached_from()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 as long as the JVM
        self._folder = tempfile.TemporaryDirectory(prefix="seatrial-spark-")
        self._runtime = java.find()
        archive = (
            self._runtime.make_archive(archive_to) if archive_to else self._runtime.use_archive()
        )
        options = [*self._runtime.options(heap), *archive]
        folder = Path(self._folder.name)
        environment = _environment(self._master, self._address, folder, _preloaded(compiler))
        jvm = [str(self._runtime.executable), *options, f"-Djava.io.tmpdir={folder}", GATEWAY]
        self._jvm = _launch(jvm, self._output, nice, environment)
        self._daemon: subprocess.Popen[bytes] | None = None
        if self._master.here:  # it imports what workers need while the JVM starts
            daemon = [self._master.python, "-P", "-m", DAEMON, "ahead", environment[AHEAD]]
            self._daemon = _launch(daemon, self._output, nice, environment)
        self._session: SparkSession | None = None
        self._failure: BaseException | None = None
        self._ready = threading.Thread(target=self._start, name="spark-start", daemon=True)
        self._ready.start()

    def session(self) -> "SparkSession":
        """The session, as soon as it is there. SparkDown when Java does not start here, BedFailed
        when a master elsewhere does not answer."""
        self._ready.join(self._within_s)
        if self._session is not None and not self._ready.is_alive():
            return self._session
        if self._master.here:
            raise SparkDown(
                f"Spark did not start on {self._runtime.executable}: {self._why()}; "
                "`seatrial doctor` shows the Java it uses"
            ) from self._failure
        raise BedFailed(
            f"the Spark master {self._master.url} did not take our work: {self._why()}; see its "
            "log, and that it is Spark of the same version"
        ) from self._failure

    @property
    def lost(self) -> bool:
        """It will answer nobody: it did not start, or the JVM has ended."""
        return self._failure is not None or self._jvm.poll() is not None

    @property
    def jvm_pid(self) -> int:
        return self._jvm.pid

    def close(self, orderly: bool = False) -> None:
        """End the JVM: at once, or, to let it write its archive, by its own leave."""
        expect_silence()
        if orderly and self._session is not None:
            self._session.stop()
        else:
            if not self._master.here and self._session is not None:
                within(LEAVE_WITHIN_S, self._session.sparkContext.stop)
            _expect_the_end(self._session)
            self._jvm.kill()
        _closed(self._jvm, None)
        if self._daemon is not None:
            self._daemon.terminate()
            _closed(self._daemon, LEAVE_WITHIN_S)
        _forget_session()
        self._output.close()
        self._folder.cleanup()

    def _start(self) -> None:
        try:
            connection = Path(self._folder.name) / "gateway"
            _wait_for(connection, self._jvm)
            with _gateway_in_environment(connection, self._master.python, self._address):
                session = _build(self._master, self._address, Path(self._folder.name))
            if not self._master.here:
                session.sparkContext.addPyFile(str(packed(Path(self._folder.name))))
            self._session = session
            if self._warm_up and self._master.here:
                warm(session)
        except Exception as e:
            self._failure = e

    def _why(self) -> str:
        """The JVM's last words, or the exception's."""
        if self._ready.is_alive():
            return f"it did not answer within {self._within_s:g} s"
        self._output.seek(0)
        lines = [line for line in self._output.read().decode(errors="replace").splitlines() if line]
        failure = f"{self._failure}".splitlines() or [repr(self._failure)]
        if not self._master.here and "stopped SparkContext" in "".join(failure):
            return "it does not answer as a master of this version does"
        java_said = [line[2:] for line in failure if line.startswith(": ")]
        said = (java_said or failure)[0]
        return (lines[-1] if lines and self._jvm.poll() is not None else said).rstrip(".")


def start_within_s() -> float:
    """Return how long Java may take to start. BadRequest if the variable is not a number of
    seconds."""
    text = os.environ.get(START_VARIABLE, "")
    with suppress(ValueError):
        within_s = float(text or START_WITHIN_S)
        if 0 < within_s < 1e6:
            return within_s
    raise BadRequest(f"{START_VARIABLE} must be a number of seconds, not {text!r}")


def started(master: str = DEFAULT, compiler: bool = False) -> Sessions:
    """Spark, begun to start; with its kernels' compiler, which large histories need. BadRequest or
    BedFailed when there can be no such master."""
    if Master.of(master).kind == CONNECT:
        return _connected(master)
    return Engine(master, compiler=compiler)


def prepare(master: str = DEFAULT, nice: int = 19) -> Sessions:
    """Begin to start Spark in the background, out of the trial's way. Elsewhere there is no need:
    a cluster is asked whether it is there, and taken when there is something to judge."""
    if Master.of(master).here:
        return Engine(master, nice, warm_up=True, compiler=True)
    return Later(master)


class Later:
    """Spark elsewhere: nobody's cores are held while a trial runs."""

    def __init__(self, master: str) -> None:
        self._master = master
        self._engine: Sessions | None = None
        refuse_unreachable(Master.of(master))

    def session(self) -> "SparkSession":
        if self._engine is None:
            self._engine = started(self._master)
        return self._engine.session()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()


def refuse_unreachable(master: Master) -> None:
    """What can be known before a trial: that somebody answers, and speaks what he has to speak."""
    if master.kind == CONNECT:
        from harness.spark.connect import refuse

        refuse(master)
    else:
        master.reached_from()


def _connected(master: str) -> Sessions:
    from harness.spark.connect import Connected

    return Connected(Master.of(master))


@contextmanager
def session(master: str = DEFAULT) -> Iterator["SparkSession"]:
    """A session for a command that has nothing else to do meanwhile."""
    engine = Engine(master)
    try:
        yield engine.session()
    finally:
        engine.close()


def warm(spark: "SparkSession") -> None:
    """Run the smallest job of the checkers' kind, on every core, so that everything is loaded
    and Python workers are up."""
    cores = spark.sparkContext.defaultParallelism
    numbers = spark.range(cores, numPartitions=cores).mapInArrow(_unchanged, "id long")
    numbers = numbers.repartition(cores, "id").sortWithinPartitions("id")
    numbers.mapInArrow(_unchanged, "id long").toArrow()


def _unchanged(batches: Any) -> Any:
    yield from batches


def _environment(
    master: Master, address: str, folder: Path, preloaded: Sequence[str]
) -> dict[str, str]:
    """What the JVM is told of us, of its jars and of where executors are."""
    home = _spark_home()
    jars = [str(jar) for jar in sorted((home / "jars").glob("*.jar"))]
    return {
        **os.environ,
        **({"SPARK_LOCAL_IP": address} if address else {}),
        "CLASSPATH": os.pathsep.join([*master.class_path(), *jars]),
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": master.python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        SAFE_PATH: "1",
        PRELOAD: " ".join(preloaded),
        AHEAD: str(folder / "daemon"),
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(folder / "gateway"),
    }


def _launch(
    argv: list[str], output: IO[bytes], nice: int, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    parent = os.getpid()

    def leave_with_us() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.nice(nice)

    try:
        return subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,  # the terminal's Ctrl-C is not for it
            preexec_fn=leave_with_us,
        )
    except OSError as e:
        raise BedFailed(f"cannot start {argv[0]}: {e.strerror}; set JAVA_HOME") from e


def _closed(child: subprocess.Popen[bytes], within_s: float | None) -> None:
    """Wait for a child's end, which is on its way; kill it when it takes longer."""
    if child.stdin is not None:
        with suppress(OSError):
            child.stdin.close()
    try:
        child.wait(within_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def _preloaded(compiler: bool) -> list[str]:
    """Modules whose functions run in Python workers, and what loads their compiler."""
    package = registry.KINDS["checker"].package
    modules = [f"{package}.{name}" for name in registry.names("checker")]
    return [*modules, f"{package}._compiled:ready"] if compiler else modules


def _wait_for(connection: Path, jvm: subprocess.Popen[bytes]) -> None:
    """The JVM announces its port by renaming a file into place."""
    deadline = time.monotonic() + start_within_s()
    while not connection.exists():
        if jvm.poll() is not None:
            raise BedFailed(f"java exited with code {jvm.returncode}")
        if time.monotonic() > deadline:
            raise BedFailed(f"java was silent for {start_within_s():g} s")
        time.sleep(STEP_S)


@contextmanager
def _gateway_in_environment(connection: Path, python: str, address: str) -> Iterator[None]:
    """PySpark finds a JVM that it did not start itself by two environment variables."""
    data = connection.read_bytes()
    port, size = struct.unpack_from(">ii", data)
    names = {
        "PYSPARK_GATEWAY_PORT": str(port),
        "PYSPARK_GATEWAY_SECRET": data[8 : 8 + size].decode(),
        "PYSPARK_PYTHON": python,
        **({"SPARK_LOCAL_IP": address} if address else {}),
    }
    os.environ.update(names)
    try:
        yield
    finally:
        for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
            os.environ.pop(name, None)


def _build(master: Master, address: str, folder: Path) -> "SparkSession":
    from pyspark.sql import SparkSession

    options: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "131072",
        "spark.sql.codegen.wholeStage": "false",  # columns pass through; compiling costs seconds
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.shuffle.compress": "true",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **master.options(address),
    }
    if master.here:  # elsewhere, our modules come when workers have started
        options["spark.python.daemon.module"] = DAEMON
    builder = SparkSession.builder.master(master.url).appName("seatrial")
    return builder.config(map=options).getOrCreate()


def expect_silence() -> None:
    """A JVM that goes away is an error to py4j, which tells its own logger and the root of all."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_not_py4j)


def _not_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


def _expect_the_end(session: "SparkSession | None") -> None:
    """A JVM that goes away is an error to PySpark's accumulator server, and to the finalizers of
    Java objects; here it is meant."""
    if session is None:
        return
    if session.sparkContext._accumulatorServer:
        session.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    session.sparkContext._gateway._gateway_client.is_connected = False  # type: ignore[union-attr]


def _forget_session() -> None:
    """Let a later session start afresh, with a JVM of its own."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkSession._instantiatedSession = None
    SparkContext._active_spark_context = None
    if SparkContext._gateway is not None:
        with suppress(Exception):
            SparkContext._gateway.close()  # without a word to a JVM that is gone
    SparkContext._gateway = None
    SparkContext._jvm = None


def make_archive() -> Path:
    """Start a session, run a job of the kind that checkers run, and let the JVM archive itself."""
    runtime = java.find()
    temporary = runtime.archive.with_suffix(f".{os.getpid()}.tmp")
    try:
        runtime.archive.parent.mkdir(parents=True, exist_ok=True)
        engine = Engine(archive_to=temporary, warm_up=True)
        engine.session()
        engine.close(orderly=True)
        os.replace(temporary, runtime.archive)
        java.drop_old_archives()
    except OSError as e:
        why = f"no class archive was made: {e.strerror} ({runtime.archive})"
        raise BedFailed(f"{why}; checks work without it, but start slower") from e
    return runtime.archive


def main() -> int:
    """Make the class archive of the Java that would be used, unless it is there."""
    try:
        if not java.find().archive.is_file():
            make_archive()
    except SeatrialError as e:
        print(f"seatrial: {e}", file=sys.stderr)
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
