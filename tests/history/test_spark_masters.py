"""Checkers on executors elsewhere: a real standalone cluster, which knows nothing of us but what we
send; and masters that are none, are dead, or do not see the run."""

import os
import socket
import sys
import zipfile
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bucket_lab
import kafka_table
import pytest
import sinking
import small_histories
import spark_lab

from checkers._spark import spark_stages
from harness import registry
from harness.errors import BadRequest, BedFailed
from harness.history.reader import History
from harness.history.run_files import open_run
from harness.history.rundir import RunDir
from harness.history.seal import seal
from harness.judge.judge import judge, judge_by
from harness.spark import probe as spark_fit
from harness.spark import session as spark
from harness.spark.master import Master, pack_code
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_WAIT = "spark.hadoop.yarn.resourcemanager.connect.max-wait.ms"
PATIENCE_S = 200.0  # with a starved machine
WORKERS = ("worker-1", "worker-2")
OWN_CREDENTIALS = "".join(
    f"spark.executorEnv.{name} {text}\n" for name, text in bucket_lab.CREDENTIALS.items()
)


@pytest.mark.parametrize(
    "text",
    [
        *("local", "local[4]", "local[*]", "local[2,3]", "spark://a:7077,b:7077"),
        *("k8s://https://a:6443", "sc://a", "sc://a:15002", "sc://a:15002/;use_ssl=true"),
    ],
)
def test_masters_that_spark_has(text: str) -> None:
    assert Master.of(text).url == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "loca", "local[0]", "local[2", "local[2] ", "spark://a", "spark://a:x"),
        *("spark://a:70777", "mesos://a:1", "sc://", "k8s://", "yarn-client"),
    ],
)
def test_masters_that_spark_does_not_have(text: str) -> None:
    """Each is told which there are, before anything is started."""
    with pytest.raises(BadRequest, match=r"is not a Spark master"):
        Master.of(text)


def test_yarn_is_found_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them nobody knows where it is; with them they are on the driver's class path."""
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    with pytest.raises(BadRequest, match="set HADOOP_CONF_DIR"):
        Master.of("yarn")
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    yarn = Master.of("yarn")
    assert yarn.class_path() == ["/etc/hadoop"]
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text(f"{MAX_WAIT} 99\n")
    options = yarn.options(yarn.local_address())
    assert (options["spark.yarn.isPython"], options[MAX_WAIT]) == ("true", "99")
    assert "spark.driver.host" not in options  # Spark finds it


def test_an_absent_master_is_reported_before_the_trial() -> None:
    """A port that refuses, in the time of one connection, and no JVM is started for it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for begin in (spark.launch_in_background, spark.launch):
        with pytest.raises(BedFailed, match=rf"no response from .*:{port}: Connection refused"):
            begin(f"spark://127.0.0.1:{port}")


@pytest.mark.spark
def test_an_absent_api_server_of_kubernetes_is_reported() -> None:
    """Of a page of Java, the cause is shown, and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    said = r"ConnectException: Connection refused; see whether"
    master = f"k8s://http://127.0.0.1:{port}"
    with closing(spark.launch(master)) as engine, pytest.raises(BedFailed, match=said):
        engine.session()


def test_what_travels_is_code_of_ours_and_nothing_else(tmp_path: Path) -> None:
    """The packages that hold checkers and what they import."""
    with zipfile.ZipFile(pack_code(tmp_path)) as archive:
        names = archive.namelist()
    assert {"checkers/loss.py", "checkers/_linear/search.py", "harness/history/reader.py"} <= set(
        names
    )
    assert {name.split("/")[0] for name in names} == {"checkers", "harness"}
    assert all(name.endswith(".py") for name in names)


def test_the_users_own_options_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """spark-defaults.conf is read although nobody calls spark-submit."""
    (tmp_path / "spark-defaults.conf").write_text(spark_lab.SMALL + "spark.driver.host=10.1.2.3\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert Master.of("spark://a:1").options("10.9.9.9") == {
        "spark.driver.host": "10.1.2.3",
        "spark.driver.bindAddress": "10.9.9.9",
        "spark.executor.memory": "600m",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executorEnv.PYTHONSAFEPATH": "1",  # workers import nothing of their folder
    }


def test_a_run_is_found_by_its_file_address(tmp_path: Path) -> None:
    """`file:` in each of its forms; storage that is no folder is refused with what to do."""
    folder = tmp_path / "a run"
    folder.mkdir()
    (folder / "trial.toml").write_text("")
    for text in (str(folder), f"file:{folder}", f"file://{folder}", folder.as_uri()):
        assert RunDir.open(Path(text)).path == folder.resolve()
    with pytest.raises(BadRequest, match="mount that storage, or copy the run"):
        RunDir.open(Path("gs://bucket/run"))


JAVA = """An error occurred while calling o79.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.ThreadUtils$.awaitResult(ThreadUtils.scala:359)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0
Caused by: java.io.IOException: error=2, No such file
\t... 28 more
Driver stacktrace:
Caused by: java.io.IOException: Cannot run program "/no/python": error=2, No such file
Caused by: java.io.IOException: error=2, No such file
\t... 28 more
"""
WORKER = """An error occurred while calling o79.getResult.
Caused by: org.apache.spark.SparkException:
Error from python worker:
  /usr/bin/python: No module named pyspark
PYTHONPATH was:
  /somewhere
org.apache.spark.SparkException: EOFException occurred while reading the port number
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (JAVA, 'java.io.IOException: Cannot run program "/no/python": error=2, No such file'),
        (WORKER, "/usr/bin/python: No module named pyspark"),
        ("[PYTHON_VERSION_MISMATCH] 3.9 and 3.11", "[PYTHON_VERSION_MISMATCH] 3.9 and 3.11"),
        ("a word", "a word"),
    ],
)
def test_of_a_page_of_java_one_line_is_said(text: str, line: str) -> None:
    """The one that says what went wrong, not the first and not the last."""
    assert spark_fit.error_line(RuntimeError(text)) == line


# --------------------------------------------------------------------------------- a real cluster


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """It has lost messages, was judged here, and is sealed."""
    run: RunDir = sinking.sunk(Path(tmp_path_factory.mktemp("elsewhere")) / "run").run
    seal(run)
    return run


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[spark_lab.SparkCluster]:
    """A master and two workers."""
    folder = tmp_path_factory.mktemp("spark")
    with spark_lab.cluster(folder) as servers:
        servers.master()
        for name in WORKERS:
            servers.worker(name, servers.url)
        (folder / "spark-defaults.conf").write_text(spark_lab.SMALL + OWN_CREDENTIALS)
        yield servers
    assert not list(folder.rglob("*.parquet"))  # what was fetched goes with its executor


@pytest.fixture(scope="module")
def session(cluster: spark_lab.SparkCluster) -> Iterator["SparkSession"]:
    """Our driver, with an executor on each worker, whose interpreter does not know this
    repository."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", str(spark_lab.stranger(cluster.folder)))
        patch.setenv("SPARK_CONF_DIR", str(cluster.folder))
        patch.setattr(spark, "START_WITHIN_S", PATIENCE_S)
        patch.setattr(spark_fit, "PROBE_WITHIN_S", PATIENCE_S)
        with closing(spark.launch_in_background(cluster.url)) as engine:
            session = engine.session()
            for name in WORKERS:
                cluster.heard(name, "Asked to launch executor")
            spark_fit.check_executors(session, cluster.folder)
            yield session


@pytest.fixture
def in_many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small history is judged as if it were large."""
    monkeypatch.setattr(spark_stages, "ONE_TASK_BYTES", 0)


@pytest.mark.spark
@pytest.mark.usefixtures("in_many_tasks")
def test_a_cluster_does_what_a_machine_does(
    session: "SparkSession", run: RunDir, tmp_path: Path
) -> None:
    """With an executor on each of two workers, the verdict has the same bytes; and of a run that
    they do not see the check says so."""
    here = run.verdict_file.read_bytes()
    run.verdict_file.unlink()
    judge(run, session)
    assert run.verdict_file.read_bytes() == here
    assert _homes(session) == {str(find_spec("pyspark").origin), "seatrial.zip"}  # type: ignore[union-attr]
    with pytest.raises(BedFailed, match=r"nowhere is not there; put the run where all of them"):
        spark_fit.check_executors(session, tmp_path / "nowhere")


@pytest.mark.spark
@pytest.mark.usefixtures("in_many_tasks")
def test_a_cluster_fetches_a_run_from_storage_itself(
    cluster: spark_lab.SparkCluster, session: "SparkSession", run: RunDir
) -> None:
    """Executors fetch a table's file once, with credentials and into folders of their own, and the
    driver none of them; the verdict has the same bytes, and is where the run is."""
    here = run.verdict_file.read_bytes()
    with bucket_lab.storage() as storage:
        address = storage.keep(run.path, "night/run", without="nodes")
        storage.write("night/run/verdict.json", b"of another day")
        with open_run(address) as stored:
            judge(stored, session)
            kept = {path.name for path in stored.history.iterdir()}
        assert storage.read("night/run/verdict.json") == here
    tables = [path.name for of in ("ops", "replicas") for path in run.find("history", f"{of}-*")]
    assert len(tables) > 1
    assert not kept & set(tables)
    for name in tables:
        assert 1 <= len(list(cluster.folder.rglob(name))) <= 2  # Spark deals tasks as it likes


@pytest.mark.spark
@pytest.mark.usefixtures("in_many_tasks")
@pytest.mark.parametrize("name", small_histories.TABLES)
def test_a_cluster_agrees_on_small_histories(
    name: str, session: "SparkSession", tmp_path: Path
) -> None:
    """Two workers come to the whole answer that the kernels give without Spark, about small
    histories."""
    count = small_histories.HISTORIES
    history = small_histories.run_of(tmp_path / "run", small_histories.TABLES[name](count))
    check = registry.load("checker", name)
    alone = check(history, Trial(), None)
    assert alone.findings
    assert check(History.open(history.run), Trial(), session) == alone


@pytest.mark.spark
@pytest.mark.usefixtures("in_many_tasks")
def test_a_cluster_finds_in_messages_what_the_definitions_say(
    small_messages: kafka_table.Table, session: "SparkSession"
) -> None:
    """Every finding, as on this machine."""
    found = kafka_table.judged(History.open(small_messages.history.run), session)
    assert kafka_table.differences(found, small_messages.expected) == {}


def _homes(session: "SparkSession") -> set[str]:
    """Where an executor's Python has PySpark and checkers from."""

    def look(batches: Any) -> Any:
        import pyarrow
        import pyspark

        import checkers.loss

        archive = Path(checkers.loss.__file__).parents[1].name
        for _ in batches:
            yield pyarrow.record_batch([[pyspark.__file__, archive]], ["home"])

    homes = session.range(1, numPartitions=1).mapInArrow(look, "home string").toArrow()
    return set(homes["home"].to_pylist())


@pytest.mark.spark
def test_a_connect_server_judges_too(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its client the verdict has the same bytes; without it, one sentence says what to do."""
    if find_spec("grpc") is None:
        with pytest.raises(BadRequest, match=r"pip install 'seatrial\[connect\]'"):
            spark.launch("sc://127.0.0.1")
        return
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr("harness.spark.connect.GRPC_WITHIN_S", 1.0)
        with pytest.raises(BedFailed, match="is not a Spark Connect server"):
            spark.launch(f"sc://127.0.0.1:{silent.getsockname()[1]}")
    monkeypatch.undo()
    here = run.verdict_file.read_bytes()
    run.verdict_file.unlink()
    with (
        spark_lab.cluster(tmp_path) as servers,
        closing(spark.launch(servers.connect(spark_lab.stranger(tmp_path)))) as engine,
    ):
        judge_by(engine, run)
    assert run.verdict_file.read_bytes() == here
    assert "SPARK_REMOTE" not in os.environ
    assert History.open(run).row_counts["ops"]


def test_a_client_that_ends_the_process_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark ends a process without a main file with a 0 where its client is not installed; that
    would read as a valid run."""

    class Ends:
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            if name.startswith("pyspark.sql.connect"):
                sys.exit(0)

    for name in [name for name in sys.modules if name.startswith("pyspark.sql.connect")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Ends(), *sys.meta_path])
    with pytest.raises(BadRequest, match=r"pip install 'seatrial\[connect\]'"):
        spark.launch("sc://127.0.0.1:1")
