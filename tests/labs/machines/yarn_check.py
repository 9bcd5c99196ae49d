"""Judge a run on YARN: a resource manager and two node managers, in one JVM on loopback, with both
of YARN's checks of memory. In both plans of `checkers._spark.spark_stages`, the verdict must have
the bytes that it has on this machine; once YARN has stopped, one sentence must report that.

    python tests/labs/machines/yarn_check.py

Hadoop's own mini cluster, of the version of PySpark's Hadoop client, is fetched by Maven (`mvn`),
which keeps it. Executors have an interpreter that does not know this repository. Exit code 1 when a
verdict differs or the sentence is another, 255 when YARN or Maven fails.
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
<groupId>seatrial</groupId><artifactId>yarn-check</artifactId><version>1</version>
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
spark.executor.memory     512m
spark.executor.instances  2
spark.yarn.am.memory      256m
spark.yarn.stagingDir     file:{folder}/staging
"""
PLANS = {"stages": 0, "shares": 1 << 62}  # with the value of SHARED_BYTES that leads to them
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
def yarn(folder: Path) -> Iterator[None]:
    """YARN, while it is entered; its configuration is in the folder."""
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
            yield
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


def differences(folder: Path) -> list[str]:
    """Return what was otherwise on YARN than here."""
    wrong = []
    run: RunDir = sinking.sunk(folder / "run").run
    spark_stages.ONE_TASK_BYTES = 0
    here = verdict(run, "local[2]")
    with yarn(folder):
        for plan, limit in PLANS.items():
            spark_stages.SHARED_BYTES = limit
            same = verdict(run, "yarn") == here
            print(f"{plan}: {'the same verdict' if same else 'ANOTHER verdict'}", flush=True)
            wrong += [] if same else [plan]
    try:
        verdict(run, "yarn")
        wrong.append("YARN that has stopped judged")
    except BedFailed as e:
        print(f"stopped: {e}")
        wrong += [] if "Connection refused" in str(e) else ["another sentence"]
    return wrong


def main() -> int:
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "spark-defaults.conf").write_text(SETTINGS.format(folder=folder))
        os.environ |= {
            "HADOOP_CONF_DIR": str(folder),
            "SPARK_CONF_DIR": str(folder),
            "PYSPARK_PYTHON": str(spark_lab.stranger(folder)),
        }
        try:
            wrong = differences(folder)
        except (BedFailed, OSError, subprocess.SubprocessError) as e:
            print(f"yarn_check: {e}", file=sys.stderr)
            return BED_FAILED
    print("; ".join(wrong) or "as expected")
    return DIFFERENT if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
