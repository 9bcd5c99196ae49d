"""Judge a run on YARN and on Kubernetes. In both plans of `checkers._spark.spark_stages`, the
verdict must have the bytes that it has on this machine; a resource manager that has stopped must be
reported in one sentence.

    python tests/labs/machines/resource_managers.py [yarn] [kubernetes]

YARN is a resource manager and two node managers, in one JVM on loopback, with both of YARN's checks
of memory: Hadoop's own mini cluster, of the version of PySpark's Hadoop client, which Maven (`mvn`)
fetches and keeps. Of Kubernetes there is a server of the part of its API that Spark uses, which
starts pods as processes (`kubernetes_lab.py`). Executors have an interpreter that does not know
this repository. Exit code 1 when something is otherwise, 255 when YARN or Maven fails.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests" / "acceptance"))

import kubernetes_lab  # noqa: E402
import lab_paths  # noqa: E402, F401 - the labs below are found by it
import sinking  # noqa: E402
import spark_lab  # noqa: E402

from checkers._spark import spark_stages  # noqa: E402
from harness.errors import BedFailed  # noqa: E402
from harness.history.rundir import RunDir  # noqa: E402
from harness.judge.judge import judge_by  # noqa: E402
from harness.spark import java  # noqa: E402
from harness.spark.session import JvmLauncher  # noqa: E402

JARS = spark_lab.HOME / "jars"
PROJECT = """\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>seatrial</groupId><artifactId>mini-yarn</artifactId><version>1</version>
<dependencies>{}</dependencies></project>
"""
DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)
BESIDE = (  # what the mini cluster imports and does not depend on
    ("org.junit.jupiter", "junit-jupiter-api", "5.11.4"),
    ("org.bouncycastle", "bcpkix-jdk18on", "1.82"),
)
SETTINGS = """\
spark.executor.memory                        512m
spark.executor.instances                     2
spark.driver.host                            127.0.0.1
spark.driver.bindAddress                     127.0.0.1
spark.yarn.am.memory                         256m
spark.yarn.stagingDir                        file:{folder}/staging
spark.kubernetes.container.image             none
spark.kubernetes.executor.enableApiWatcher   false
spark.kubernetes.executor.apiPollingInterval 1s
"""
PLANS = {
    "stages": 0,
    "shares": 1 << 62,
}  # with the limits that lead to them
FETCH_WITHIN_S, STOP_WITHIN_S = 600.0, 60.0
DIFFERENT, BED_FAILED = 1, 255


def fetched(folder: Path) -> Path:
    """Return a folder with the jars of the mini cluster."""
    (client,) = JARS.glob("hadoop-client-api-*.jar")
    version = client.stem.rpartition("-")[2]
    hadoop = ("org.apache.hadoop", "hadoop-client-minicluster", version)
    project = "".join(DEPENDENCY.format(*each) for each in (hadoop, *BESIDE))
    (folder / "pom.xml").write_text(PROJECT.format(project))
    fetch = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}/jars"]
    subprocess.run(fetch, cwd=folder, check=True, timeout=FETCH_WITHIN_S)
    return folder / "jars"


@contextmanager
def yarn(folder: Path) -> Iterator[str]:
    """Yield YARN's address for Spark; its configuration is in the folder."""
    jars = [f"{fetched(folder)}/*", *map(str, JARS.glob("log4j-*.jar"))]
    source = Path(__file__).with_name("MiniYarn.java")
    command = [str(java.find_java().executable), "-cp", os.pathsep.join(jars), str(source)]
    with (
        (folder / "yarn.log").open("wb") as log,
        subprocess.Popen(
            [*command, str(folder)],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if not any(line.strip() == b"ready" for line in process.stdout):
                raise BedFailed(f"YARN did not start: {(folder / 'yarn.log').read_text()[-2000:]}")
            yield "yarn"
        finally:
            process.stdin.close()
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()


def verdict(run: RunDir, master: str) -> bytes:
    """Return the bytes of the verdict that a master comes to."""
    run.verdict_file.unlink(missing_ok=True)
    with closing(JvmLauncher(master)) as engine:
        judge_by(engine, run)
    return run.verdict_file.read_bytes()


@contextmanager
def kubernetes(folder: Path) -> Iterator[str]:
    """Yield the address of an API server for Spark. Raises BedFailed if pods were left, or too few
    were started."""
    with kubernetes_lab.api_server(folder) as (address, pods):
        yield address
        if pods.starts < 2 * len(PLANS) or pods.posted:
            raise BedFailed(f"{pods.starts} pods were started, and {len(pods.posted)} are left")


MANAGERS = {"yarn": yarn, "kubernetes": kubernetes}


def differences(name: str, folder: Path) -> list[str]:
    """Return what was otherwise on a resource manager than here."""
    wrong = []
    run: RunDir = sinking.sunk(folder / "run").run
    spark_stages.ONE_TASK_BYTES = 0
    here = verdict(run, "local[2]")
    with MANAGERS[name](folder) as master:
        for plan, limit in PLANS.items():
            spark_stages.SHARED_BYTES = spark_stages.CLUSTER_SHARED_BYTES = limit
            same = verdict(run, master) == here
            print(f"{name}, {plan}: {'the same' if same else 'ANOTHER'} verdict", flush=True)
            wrong += [] if same else [f"{name}, {plan}"]
    try:
        verdict(run, master)
        wrong.append(f"{name} has stopped and judged")
    except BedFailed as e:
        print(f"{name} has stopped: {e}", flush=True)
        wrong += [] if "Connection refused" in str(e) else [f"{name} has stopped"]
    return wrong


def tried(name: str) -> list[str]:
    """Return what was otherwise, with a folder and variables of its own."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "spark-defaults.conf").write_text(SETTINGS.format(folder=folder))
        os.environ |= {
            "HADOOP_CONF_DIR": str(folder),
            "SPARK_CONF_DIR": str(folder),
            "PYSPARK_PYTHON": str(spark_lab.stranger(folder)),
        }
        return differences(name, folder)


def main() -> int:
    names = sys.argv[1:] or list(MANAGERS)
    if unknown := set(names) - set(MANAGERS):
        sys.exit(f"resource_managers: {', '.join(unknown)}; write {' or '.join(MANAGERS)}")
    try:
        wrong = [line for name in names for line in tried(name)]
    except (BedFailed, OSError, subprocess.SubprocessError) as e:
        print(f"resource_managers: {e}", file=sys.stderr)
        return BED_FAILED
    print("; ".join(wrong) or "as expected")
    return DIFFERENT if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
