"""A Spark cluster of the tests' own, on loopback: a standalone master and workers, or a Connect
server, each a JVM on ports of its own choosing, with work folders of its own, ended by its pid, or
with us.

Executors get an interpreter that does not know this repository: what they need has to be sent.
"""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from harness.spark import java

HOME = Path(pyspark.__file__).parent
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
UP_WITHIN_S = 120.0
STEP_S = 0.05
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
LOGGED = """\
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %c{1}: %m%n
"""
SMALL = """\
# what spark-submit would have read
spark.executor.memory            600m
spark.executor.extraJavaOptions  -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
"""


@dataclass
class SparkCluster:
    """Spark's servers, and what they have said."""

    folder: Path
    processes: ExitStack
    url: str = ""
    said: dict[str, Path] = field(default_factory=dict)
    running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def master(self) -> str:
        """A standalone master; its address."""
        self._launch("master", [MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"])
        self.url = self.heard("master", r"spark://127\.0\.0\.1:\d+")
        return self.url

    def worker(self, name: str, master: str) -> None:
        """A worker with one core, and its own folder."""
        where = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        size = ["-c", "1", "-m", "1g", "-d", str(self.folder / name)]
        self._launch(name, [WORKER, *where, *size, master])
        self.heard(name, "Successfully registered with master")

    def kill(self, name: str) -> None:
        """Kill a server; executors of a worker end with it."""
        self.running[name].kill()
        self.running[name].wait()

    def connect(self, python: Path) -> str:
        """A Connect server with two threads; its address."""
        options = {"master": "local[2]", "connect.grpc.binding.port": "0", "ui.enabled": "false"}
        given = [f"-Dspark.{name}={text}" for name, text in options.items()]
        self._launch("connect", [*given, CONNECT], PYSPARK_PYTHON=str(python))
        port = self.heard("connect", r"Spark Connect server started at: .*:\d+").split(":")[-1]
        return f"sc://127.0.0.1:{port}"

    def heard(self, name: str, words: str) -> str:
        """What a server said, as soon as it says it."""
        deadline = time.monotonic() + UP_WITHIN_S
        while not (found := re.search(words, self.said[name].read_text())):
            late = time.monotonic() > deadline or self.running[name].poll() is not None
            assert not late, f"{name}: {self.said[name].read_text()[-2000:]}"
            time.sleep(STEP_S)
        return found.group()

    def _launch(self, name: str, arguments: list[str], **more: str) -> None:
        (self.folder / "log4j2.properties").write_text(LOGGED)
        self.said[name] = self.folder / f"{name}.log"
        runtime = java.find_java()
        log = self.processes.enter_context(self.said[name].open("wb"))
        process = subprocess.Popen(
            [
                str(runtime.executable),
                *(o for o in runtime.options("1g") if o != "-Xlog:disable"),
                f"-Dlog4j2.configurationFile={self.folder}/log4j2.properties",
                f"-Djava.io.tmpdir={self.folder}",
                *arguments,
            ],
            cwd=self.folder,
            env={**_environment(), **more},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_us,
        )
        self.processes.callback(_ended, process)
        self.running[name] = process


def _end_with_us() -> None:
    """Tests may be killed; the kernel then kills this process, and executors leave their worker."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """Nothing in it leads to this repository."""
    ours = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    jars = os.pathsep.join(str(jar) for jar in sorted((HOME / "jars").glob("*.jar")))
    servers = {"SPARK_HOME": str(HOME), "CLASSPATH": jars, "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**ours, **servers, "SPARK_SCALA_VERSION": "2.13"}  # which `bin/` would have set


def _ended(process: "subprocess.Popen[bytes]") -> None:
    """A worker that is asked ends its executors too."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def cluster(folder: Path) -> Iterator[SparkCluster]:
    """Servers that are ended when it is left, the last one first."""
    with ExitStack() as processes:
        yield SparkCluster(folder, processes)


def stranger(folder: Path) -> Path:
    """This Python and its libraries, without this repository: no `.pth` file is read."""
    libraries = Path(pyspark.__file__).parents[1]
    path = folder / "python-elsewhere"
    path.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="{libraries}:$PYTHONPATH"\nexec {sys.executable} -S "$@"\n'
    )
    path.chmod(0o755)
    return path
