"""The one Spark session: started in the background, ended with this process.

Spark is the engine of every checker, on a laptop as on a cluster, but a command line cannot wait
ten seconds for it. So the JVM is launched directly (no shell script, no launcher JVM) on a class
archive, PySpark is given its gateway by environment variables, and `launch_in_background` does all
of it, including the first job that warms the Python workers, while the trial runs.

The JVM ends with this process: it holds the other end of a pipe, and the kernel kills it when the
thread that started it, the main thread, is gone. Its output goes to a file that is read only if it
fails to start. `python -m harness.spark.session` makes the class archive.

Executors may be remote: see `harness.spark.master`.
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
from harness.errors import BadRequest, BedFailed, SeatrialError, SparkUnavailable
from harness.spark import java
from harness.spark.master import CONNECT, DEFAULT, NONE, SAFE_PATH, Master, pack_code
from harness.spark.probe import finishes_within
from harness.spark.worker_daemon import AHEAD, PRELOAD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GATEWAY = "org.apache.spark.api.python.PythonGatewayServer"
START_WITHIN_S = 90.0
START_VARIABLE = "SEATRIAL_JAVA_WITHIN_S"
DAEMON = "harness.spark.worker_daemon"
LARGE_BYTES = 4 << 20  # of a history for which kernels are compiled
CAUSED = "Caused by: "  # in what Java prints about an exception
HADOOP_LINK = "; For more details see"  # at the end of what Hadoop says about one
STEP_S = 0.01
EXIT_WITHIN_S = 1.0  # from the first failed call of a JVM that was killed
LEAVE_WITHIN_S = 10.0  # to disconnect from a cluster

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class SparkLauncher(Protocol):
    """A Spark that is starting. `session()` waits for it; `close()` ends it."""

    master: Master

    def session(self) -> "SparkSession": ...

    def close(self) -> None: ...


class JvmLauncher:
    """A JVM that is starting. `session()` waits for it; `close()` ends it at once.

    Create it in the main thread: the JVM dies with the thread that started it.
    """

    def __init__(
        self,
        master: str = DEFAULT,
        nice: int = 0,
        heap: str = "1g",
        warm_up: bool = False,
        shuffles: bool = True,
        archive_to: Path | None = None,
        compiler: bool = False,
    ) -> None:
        self.master, self._warm_up, self._shuffles = Master.of(master), warm_up, shuffles
        self._within_s = start_within_s() * (2 if self.master.is_local else 1)  # its first job, too
        self._address = self.master.local_address()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 as long as the JVM
        self._folder = tempfile.TemporaryDirectory(prefix="seatrial-spark-")
        self._runtime = java.find_java()
        archive = (
            self._runtime.make_archive(archive_to) if archive_to else self._runtime.use_archive()
        )
        options = [*self._runtime.options(heap), *archive]
        folder = Path(self._folder.name)
        environment = _environment(self.master, self._address, folder, _preloaded(compiler))
        jvm = [str(self._runtime.executable), *options, f"-Djava.io.tmpdir={folder}", GATEWAY]
        self._jvm = _launch(jvm, self._output, nice, environment)
        self._daemon: subprocess.Popen[bytes] | None = None
        if self.master.is_local:  # it imports what workers need while the JVM starts
            daemon = [self.master.python, "-P", "-m", DAEMON, "ahead", environment[AHEAD]]
            self._daemon = _launch(daemon, self._output, nice, environment)
        self._session: SparkSession | None = None
        self._failure: BaseException | None = None
        self._ready = threading.Thread(target=self._start, name="spark-start", daemon=True)
        self._ready.start()

    def session(self) -> "SparkSession":
        """Return the session once it is ready. Raises SparkUnavailable if Java does not start here,
        BedFailed if a remote master does not answer."""
        self._ready.join(self._within_s)
        if self._session is not None and not self._ready.is_alive():
            return self._session
        if self.master.is_local:
            raise SparkUnavailable(
                f"Spark did not start on {self._runtime.executable}: {self._failure_text()}; "
                "`seatrial doctor` shows the Java it uses"
            ) from self._failure
        advice = (
            f"see whether it is up and has free memory and cores; {START_VARIABLE} is how many "
            "seconds it may take"
            if self.master.is_managed
            else "check its log, and that it is Spark of the same version"
        )
        raise BedFailed(
            f"the Spark master {self.master.url} did not accept the session: "
            f"{self._failure_text()}; {advice}"
        ) from self._failure

    @property
    def failed(self) -> bool:
        """Whether it did not start, or the JVM has exited."""
        return self._failure is not None or self._jvm.poll() is not None

    @property
    def jvm_pid(self) -> int:
        return self._jvm.pid

    def close(self, orderly: bool = False) -> None:
        """End the JVM: at once, or, so that it writes its archive, in an orderly way."""
        if orderly and self._session is not None:
            self._session.stop()
        else:
            if not self.master.is_local and self._session is not None:
                finishes_within(LEAVE_WITHIN_S, self._session.sparkContext.stop)
            _ignore_finalizers(self._session)
            self._jvm.kill()
        _wait_for_exit(self._jvm, None)
        if self._daemon is not None:
            self._daemon.terminate()
            _wait_for_exit(self._daemon, LEAVE_WITHIN_S)
        _forget_session()
        self._output.close()
        self._folder.cleanup()

    def _start(self) -> None:
        silence_py4j()
        try:
            import_drivers()

            connection = Path(self._folder.name) / "gateway"
            _wait_for_gateway(connection, self._jvm)
            with _gateway_in_environment(connection, self.master.python, self._address):
                session = _build(self.master, self._address, Path(self._folder.name))
            if not self.master.is_local:
                session.sparkContext.addPyFile(str(pack_code(Path(self._folder.name))))
            if server := session.sparkContext._accumulatorServer:  # prints a traceback, too
                server.handle_error = lambda *_: None  # type: ignore[method-assign]
            self._session = session
            if self._warm_up and self.master.is_local:
                warm_up(session, self._shuffles)
        except Exception as e:
            self._failure = e

    def _failure_text(self) -> str:
        """Return the signal that ended the JVM, its last output, or the exception's."""
        if self._ready.is_alive():
            return f"it did not answer within {self._within_s:g} s"
        with suppress(subprocess.TimeoutExpired):  # its connections close before it has exited
            self._jvm.wait(EXIT_WITHIN_S)
        ended = self._jvm.poll()
        if ended is not None and ended < 0:
            return f"signal {-ended} ended it; the kernel's log says whether memory had run out"
        self._output.seek(0)
        lines = [line for line in self._output.read().decode(errors="replace").splitlines() if line]
        failure = f"{self._failure}".splitlines() or [repr(self._failure)]
        if not self.master.is_local and "stopped SparkContext" in "".join(failure):
            return "it does not answer as a master of this version does"
        java_said = [line[2:] for line in failure if line.startswith(": ")]
        cause = (java_said or failure)[0]
        causes = [line.removeprefix(CAUSED) for line in failure if line.startswith(CAUSED)]
        if self.master.is_managed and causes and causes[-1] not in cause:
            cause = causes[-1]
        cause = cause.partition(HADOOP_LINK)[0]
        return (lines[-1] if lines and ended is not None else cause).rstrip(".")


def import_drivers() -> None:
    """Import what PySpark would import with the JVM waiting for it."""
    import pyspark.sql
    import pyspark.testing  # noqa: F401 its converters of arguments ask that for numpy


def start_within_s() -> float:
    """Return how long Java may take to start. Raises BadRequest if the variable is not a number of
    seconds."""
    text = os.environ.get(START_VARIABLE, "")
    with suppress(ValueError):
        within_s = float(text or START_WITHIN_S)
        if 0 < within_s < 1e6:
            return within_s
    raise BadRequest(f"{START_VARIABLE} must be a number of seconds, not {text!r}")


def launch(
    master: str = DEFAULT, history_bytes: int = 0, *, warm_up: bool = False
) -> SparkLauncher:
    """Begin to start Spark; with the compiler of kernels, if the history is large. Raises
    BadRequest or BedFailed if there can be no such master, and SparkUnavailable if it is none."""
    if master == NONE:
        raise SparkUnavailable("Spark was not started, because its master is none")
    if Master.of(master).kind == CONNECT:
        return _connect_launcher(master)
    compiler = history_bytes >= LARGE_BYTES
    return JvmLauncher(master, warm_up=warm_up, shuffles=False, compiler=compiler)


def launch_in_background(master: str = DEFAULT, nice: int = 19) -> SparkLauncher:
    """Begin to start Spark in the background, at low priority. A remote cluster is only checked,
    and used when there is something to judge."""
    if Master.of(master).is_local:
        return JvmLauncher(master, nice, warm_up=True, compiler=True)
    return LazyLauncher(master)


class LazyLauncher:
    """Starts a session on a remote cluster when it is needed: no cores are held while a trial
    runs."""

    def __init__(self, master: str) -> None:
        self.master = Master.of(master)
        self._engine: SparkLauncher | None = None
        check_reachable(self.master)

    def session(self) -> "SparkSession":
        if self._engine is None:
            self._engine = launch(self.master.url)
        return self._engine.session()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()


def check_reachable(master: Master) -> None:
    """Check before a trial that the master is reachable, and speaks the right protocol."""
    if master.kind == CONNECT:
        from harness.spark.connect import check_server

        check_server(master)
    else:
        master.local_address()


def _connect_launcher(master: str) -> SparkLauncher:
    from harness.spark.connect import ConnectLauncher

    return ConnectLauncher(Master.of(master))


@contextmanager
def session(master: str = DEFAULT) -> Iterator["SparkSession"]:
    """A session for a command that has nothing else to do meanwhile."""
    engine = JvmLauncher(master)
    try:
        yield engine.session()
    finally:
        engine.close()


def warm_up(spark: "SparkSession", shuffles: bool = True) -> None:
    """Run the smallest job of the checkers' kind, on every core, so that everything is loaded and
    Python workers are up. Most jobs on few cores shuffle nothing."""
    cores = spark.sparkContext.defaultParallelism
    numbers = spark.range(cores, numPartitions=cores)
    scanned = numbers.mapInArrow(_unchanged, numbers.schema)
    if shuffles:
        ordered = scanned.repartition(cores, "id").sortWithinPartitions("id")
        scanned = ordered.mapInArrow(_unchanged, numbers.schema)
    scanned.toArrow()


def _unchanged(batches: Any) -> Any:
    yield from batches


def _environment(
    master: Master, address: str, folder: Path, preloaded: Sequence[str]
) -> dict[str, str]:
    """Return the JVM's environment: our paths, its jars, and where executors are."""
    return {
        **os.environ,
        **({"SPARK_LOCAL_IP": address} if address else {}),
        "CLASSPATH": os.pathsep.join([*master.class_path(), *map(str, java.spark_jars())]),
        "SPARK_HOME": str(java.spark_home()),
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
            process_group=0,  # the terminal's Ctrl-C must not reach it
            preexec_fn=leave_with_us,
        )
    except OSError as e:
        raise BedFailed(f"cannot start {argv[0]}: {e.strerror}; set JAVA_HOME") from e


def _wait_for_exit(child: subprocess.Popen[bytes], within_s: float | None) -> None:
    """Wait until a child that is about to exit has; kill it if it takes longer."""
    if child.stdin is not None:
        with suppress(OSError):
            child.stdin.close()
    try:
        child.wait(within_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _preloaded(compiler: bool) -> list[str]:
    """Return the modules whose functions run in Python workers, and what loads their compiler."""
    package = registry.KINDS["checker"].package
    modules = [f"{package}.{name}" for name in registry.names("checker")]
    return [*modules, "harness.compiled:ready"] if compiler else modules


def _wait_for_gateway(connection: Path, jvm: subprocess.Popen[bytes]) -> None:
    """Wait until the JVM announces its port by renaming a file into place."""
    deadline = time.monotonic() + start_within_s()
    while not connection.exists():
        if jvm.poll() is not None:
            raise BedFailed(f"java exited with code {jvm.returncode}")
        if time.monotonic() > deadline:
            raise BedFailed(f"java printed nothing for {start_within_s():g} s")
        time.sleep(STEP_S)


@contextmanager
def _gateway_in_environment(connection: Path, python: str, address: str) -> Iterator[None]:
    """Set two environment variables by which PySpark finds a JVM that it did not start itself."""
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
    if master.is_local:  # remote workers get our modules after they have started
        options["spark.python.daemon.module"] = DAEMON
    builder = SparkSession.builder.master(master.url).appName("seatrial")
    return builder.config(map=options).getOrCreate()


def silence_py4j() -> None:
    """Silence py4j: it logs a JVM that exits as an error, in its own logger and the root logger.
    That is intended, or reported in one sentence."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_not_py4j)


def _not_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


def _ignore_finalizers(session: "SparkSession | None") -> None:
    """Let finalizers of Java objects send nothing to a JVM that is about to exit."""
    if session is not None:
        session.sparkContext._gateway._gateway_client.is_connected = False  # type: ignore[union-attr]


def _forget_session() -> None:
    """Let a later session start with a JVM of its own."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkSession._instantiatedSession = None
    SparkContext._active_spark_context = None
    if SparkContext._gateway is not None:
        with suppress(Exception):
            SparkContext._gateway.close()  # the JVM is gone
    SparkContext._gateway = None
    SparkContext._jvm = None


def make_archive() -> Path:
    """Start a session, run a job of the kind that checkers run, and let the JVM archive its
    classes."""
    runtime = java.find_java()
    temporary = runtime.archive.with_suffix(f".{os.getpid()}.tmp")
    try:
        runtime.archive.parent.mkdir(parents=True, exist_ok=True)
        engine = JvmLauncher(archive_to=temporary, warm_up=True)
        engine.session()
        engine.close(orderly=True)
        os.replace(temporary, runtime.archive)
        java.drop_old_archives()
    except OSError as e:
        why = f"no class archive was made: {e.strerror} ({runtime.archive})"
        raise BedFailed(f"{why}; checks work without it, but start slower") from e
    return runtime.archive


def main() -> int:
    """Make the class archive of the Java that would be used, unless it exists."""
    try:
        if not java.find_java().archive.is_file():
            make_archive()
    except SeatrialError as e:
        print(f"seatrial: {e}", file=sys.stderr)
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
