"""Runs in object storage: judged and told as in a folder, from a real S3 server over HTTP."""

import pickle
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import bucket_lab
import pyarrow as pa
import pytest
import sinking
from pyarrow import fs

from harness import registry
from harness.cli.exit_codes import exit_code
from harness.errors import BadRequest, FetchFailed
from harness.history import object_store as storage
from harness.history import remote_run as shadow
from harness.history.reader import History, batches
from harness.history.remote_run import RunAddress
from harness.history.run_files import open_run
from harness.history.rundir import RunDir
from harness.history.seal import seal
from harness.judge.judge import judge_small, run_checker
from harness.spark import probe as spark_fit
from harness.trial import Trial

OPS = "history/ops-client-1-000.parquet"


@pytest.fixture(scope="module")
def server() -> Iterator[bucket_lab.Storage]:
    with bucket_lab.storage() as server:
        yield server


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However it ends, no shadow stays."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield
    assert not list(temporary.glob("seatrial-*"))


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Judged, and not sealed."""
    return sinking.sunk(tmp_path_factory.mktemp("storage") / "lossy").run


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Judged and sealed."""
    run = sinking.sunk(tmp_path_factory.mktemp("storage") / "sound", plan="").run
    seal(run)
    return run


@pytest.fixture
def address(server: bucket_lab.Storage, sound: RunDir, tmp_path: Path) -> Iterator[str]:
    """A sealed run in storage."""
    yield server.keep(sound.path, f"{tmp_path.name}/sound", without="nodes")
    server.refused.clear()


def ops_of(run: RunDir) -> int:
    return sum(batch.num_rows for path in History.open(run).files["ops"] for batch in batches(path))


@pytest.mark.spark
def test_a_run_in_storage_is_judged_as_in_a_folder(
    server: bucket_lab.Storage, lossy: RunDir, sound: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdict has the same bytes, and is put there; so are the sealed files of a run that was
    not, in the place of its journals."""
    for run, code in ((lossy, 1), (sound, 0)):
        name = f"judged/{run.path.name}"
        address = server.keep(run.path, name, without="nodes")
        server.write(f"{name}/verdict.json", b"of another day")
        assert exit_code(["check", address, "--json"]) == code
        here = run.verdict_file.read_bytes()
        assert capsys.readouterr().out.encode() == here
        assert server.read(f"{name}/verdict.json") == here
        assert OPS in server.names(name)
        assert not [each for each in server.names(name) if each.endswith(".arrows")]
        assert not [each for each in server.names(name) if "/." in f"/{each}"]


def test_a_story_and_reports_are_those_of_the_folder(
    server: bucket_lab.Storage, lossy: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    """`explain` says the same; `report` puts the page beside the verdict, and says where."""
    address = server.keep(lossy.path, "told/lossy")
    assert exit_code(["explain", str(lossy.path)]) == 0
    here = capsys.readouterr().out
    assert exit_code(["explain", address]) == 0
    assert capsys.readouterr().out == here
    assert exit_code(["report", address, "--format", "page,junit,terminal"]) == 0
    said = capsys.readouterr().out
    assert f"{address}/report.html" in said
    assert f"explain {address}" in said
    assert "seatrial-stored" not in said
    assert b"</html>" in server.read("told/lossy/report.html")
    assert b"seatrial-stored" not in server.read("told/lossy/report.html")


def test_of_large_files_only_what_is_read_is_fetched(
    server: bucket_lab.Storage, address: str, sound: RunDir
) -> None:
    """How many rows there are, and whose, is in the end of a file, or in a column."""
    with open_run(address) as run:
        history = History.open(run)
        assert history.counts == History.open(sound).counts
        assert history.complete
        (path,) = history.files["replicas"]
        nodes = [batch["node"] for batch in batches(path, ("node",), remote=True)]
        assert pa.chunked_array(nodes).unique().to_pylist()
        assert path.stat().st_size == (sound.history / path.name).stat().st_size
        assert not run.history.exists()
        server.asked.clear()
        assert ops_of(run) == ops_of(run) == ops_of(sound)
        assert [path.name for path in run.history.glob("[!.]*")] == [Path(OPS).name]
        read = [path for method, path in server.asked if method == "GET"]
        assert read == [f"/{address.removeprefix('s3a://')}/{OPS}"]
        server.asked.clear()
    assert not [method for method, _ in server.asked if method not in ("GET", "HEAD")]


def test_what_changed_in_storage_is_fetched_again(
    server: bucket_lab.Storage,
    address: str,
    lossy: RunDir,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a machine that has the file as it was, too; and whoever reads while it changes is told."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/executor,{tmp_path}/another")
    with open_run(address) as run:
        (path,) = History.open(run).files["ops"]
        there = pickle.loads(pickle.dumps(path))
        before = there.read_bytes()
        assert there.is_relative_to(tmp_path / "executor")
        assert there.name == path.name
        assert not path.fetched  # type: ignore[attr-defined]
        seal(lossy)
        server.write(f"{tmp_path.name}/sound/{OPS}", (lossy.path / OPS).read_bytes())
        with pytest.raises(FetchFailed, match="was changed while the run was read"):
            ops_of(run)
    with open_run(address) as run:
        (path,) = History.open(run).files["ops"]
        assert ops_of(run) == ops_of(lossy)
        again = pickle.loads(pickle.dumps(path))
        assert again.read_bytes() == (lossy.path / OPS).read_bytes() != before


def test_what_can_not_be_fetched_is_not_taken_for_torn(
    server: bucket_lab.Storage, address: str
) -> None:
    """A torn file is read up to the damage; here nothing may be left out, nor anything judged."""
    with open_run(address) as run:
        (path,) = History.open(run).files["ops"]
        server.refused.update(("GET", "HEAD"))
        with pytest.raises(FetchFailed, match="refuses access"):
            list(batches(path))
        with pytest.raises(FetchFailed, match="refuses access"):
            judge_small(History.open(run))
        with pytest.raises(BadRequest, match="refuses access"):
            list(batches(path, ("op",), remote=True))
        with pytest.raises(BadRequest, match="refuses access"):
            assert History.open(run).counts


def test_what_an_executor_could_not_fetch_is_told_in_its_words(
    sound: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a page of Java that sentence; and there is no verdict, rather than an unknown one."""

    def check(*_: object) -> None:
        raise RuntimeError(
            f"Job aborted\n  {FetchFailed.__module__}.FetchFailed: it is gone; do\n at"
        )

    monkeypatch.setattr(registry, "load", lambda kind, name: check)
    with pytest.raises(FetchFailed, match=r"^it is gone; do$"):
        run_checker("loss", History.open(sound), Trial(), spark=None)  # type: ignore[arg-type]


def test_an_executor_that_may_not_read_says_so(
    server: bucket_lab.Storage, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any checker is asked; what it needs are credentials."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    number = pa.record_batch([[0]], ["id"])
    with open_run(address) as run:
        job = spark_fit._probe_job(pickle.loads(pickle.dumps(run.probe_path)))
        server.refused.update(("GET", "HEAD"))
        (said,) = next(job([number])).column(0).to_pylist()
    assert "AWS_ACCESS_KEY_ID" in said
    assert said.endswith("they have credentials of their own")


def test_what_may_not_be_written_is_said(
    server: bucket_lab.Storage, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bucket that may only be read."""
    server.refused.update(("PUT", "POST"))
    assert exit_code(["report", address]) == 254
    assert f"{address}/report.html cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "code", "says"),
    [
        ("s3a://nowhere/run", 254, "there is no bucket nowhere"),
        (
            "s3://host_lab/nowhere",
            254,
            "s3://host_lab/nowhere is not a run: there is no trial.toml",
        ),
        ("s3a://host_lab/a/../b", 254, "names no run: write s3a://BUCKET/PATH"),
        ("hdfs://host:port/run", 254, "names no host; write hdfs://HOST:PORT/PATH"),
        ("hdfs:///run", 254, "names no run: write hdfs://HOST:PORT/PATH"),
    ],
)
@pytest.mark.parametrize("command", ["check", "explain", "report", "replay", "shrink"])
def test_what_is_no_run_is_said(
    server: bucket_lab.Storage,
    capsys: pytest.CaptureFixture[str],
    command: str,
    place: str,
    code: int,
    says: str,
) -> None:
    """One sentence, whatever was to be done with it."""
    assert exit_code([command, place]) == code
    (said,) = capsys.readouterr().err.splitlines()
    assert says in said


def test_who_may_not_read_is_told_what_to_set(
    server: bucket_lab.Storage, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.refused.add("GET")
    assert exit_code(["check", address]) == 254
    (said,) = capsys.readouterr().err.splitlines()
    assert "refuses access" in said
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE" in said


def test_nobody_there_is_said_in_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A port that refuses, and one behind which nobody speaks."""
    monkeypatch.setattr(shadow, "FOUND_WITHIN_S", 1.0)
    monkeypatch.setattr(storage, "TRIES", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", where)
        assert exit_code(["check", "s3a://silent/run"]) == 255
        assert "did not answer within 1 s" in capsys.readouterr().err
    monkeypatch.setattr(shadow, "FOUND_WITHIN_S", 60.0)
    assert exit_code(["check", "s3a://refusing/run"]) == 255
    said = capsys.readouterr().err
    assert f"the bucket refusing at {where} does not answer" in said
    assert "check the network and AWS_ENDPOINT_URL" in said


def test_hadoop_without_its_library_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What Arrow looked for is a page long."""

    def missing(host: str, port: int) -> None:
        assert (host, port) == ("ship", 9000)
        raise OSError("Unable to load libhdfs: cannot open\nlooked here\nlooked there")

    monkeypatch.setattr(fs, "HadoopFileSystem", missing)
    assert exit_code(["check", "hdfs://ship:9000/run"]) == 254
    (said,) = capsys.readouterr().err.splitlines()
    assert "need Hadoop's libhdfs, which is not here (Unable to load libhdfs: cannot open)" in said
    assert "HADOOP_HOME" in said


def test_a_folder_of_such_a_name_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there has the name first."""
    monkeypatch.chdir(tmp_path)
    Path("s3a:/bucket/run").mkdir(parents=True)
    assert RunAddress.of("s3a:/bucket/run") is None
    with pytest.raises(BadRequest, match=r"no trial\.toml in it"), open_run("s3a:/bucket/run"):
        pass
