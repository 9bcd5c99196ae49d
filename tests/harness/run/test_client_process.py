"""A client process, spoken to as the runner speaks to it.

There is no cluster: the nameserver's address is one where nobody listens, so every send is a
definite failure. What matters here is the protocol, the journal and the ends.
"""

import asyncio
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusters.hosts._agent.archive import archive
from harness.contracts import ClockOffset, Node
from harness.history.journal import read_stream
from harness.history.rundir import RunDir
from harness.operation import Completion, F, Type
from harness.run.broker_sets import set_number_by_key
from harness.run.client_pool import ClientPool, RowReceiver
from harness.run.client_process import ClientProcess, ControlSession, LiveCounts
from harness.trial import Trial

NODES = ("nameserver-1", "controller-1", "broker-1", "client-1", "client-2")
TRIAL = Trial(
    profile="unsafe-default",
    nodes={"controller": 1, "broker": 1},
    load={"rate": 200},
    recover_within_s=0.2,
)


def run_folder(path: Path) -> RunDir:
    run = RunDir(path)
    run.trial_file.write_text(TRIAL.to_toml())
    run.write_names(
        {
            "keys": [f"orders-{n}" for n in range(4)],
            "nodes": list(NODES),
            "roles": {name: name.rsplit("-", 1)[0] for name in NODES},
            "addresses": dict.fromkeys(NODES, "127.0.0.1"),
        }
    )
    return run


class Process:
    """A client process and its messages."""

    def __init__(self, run: RunDir, name: str, errors: Path, packages: Path | None = None) -> None:
        self.errors = errors
        self.portions: list[Mapping[str, Any]] = []  # of rows, where it streams them
        apart = ("-S", "-s") if packages else ()
        stream = ("--stream",) if packages else ()
        with errors.open("w") as log:
            self._child = subprocess.Popen(
                [
                    sys.executable,
                    *apart,
                    "-m",
                    "harness.run.client_process",
                    str(run.path),
                    name,
                    *stream,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={"PYTHONPATH": str(packages)} if packages else None,
            )

    def order(self, do: str, **fields: Any) -> None:
        assert self._child.stdin
        self._child.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
        self._child.stdin.flush()

    def hear(self, key: str, word: Any = None) -> Mapping[str, Any]:
        """The next message that has this key, and this word there if one is given."""
        assert self._child.stdout
        for line in self._child.stdout:
            message: Mapping[str, Any] = json.loads(line)
            if "rows" in message:
                self.portions.append(message)
            if key in message and word in (None, message[key]):
                return message
            assert "is" not in message, f"it says {message} instead of {word}"
        raise AssertionError(f"it ended without {word}: {self.errors.read_text()}")

    def hang_up(self) -> None:
        assert self._child.stdin
        self._child.stdin.close()

    def end(self) -> int:
        return self._child.wait(timeout=600)

    def take_away(self) -> None:
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe
            with suppress(BrokenPipeError):
                pipe.close()


@contextmanager
def client_process(
    tmp_path: Path, name: str = "client-1", packages: Path | None = None
) -> Iterator[Process]:
    process = Process(run_folder(tmp_path), name, tmp_path / "clients.log", packages)
    try:
        yield process
    finally:
        process.take_away()


def rows(folder: Path, pattern: str) -> list[Mapping[str, Any]]:
    paths = sorted((folder / "journal").glob(pattern))
    return [row for path in paths for batch in read_stream(path) for row in batch.to_pylist()]


@pytest.mark.bed
def test_a_client_process_does_as_it_is_told(tmp_path: Path) -> None:
    """ready, loading, stopped, drained, gone; and what it did is in its journal."""
    with client_process(tmp_path, "client-2") as process:
        epoch_ns = time.monotonic_ns()
        sail(process, epoch_ns)
    ops = rows(tmp_path, "ops-client-2-*.arrows")
    sends = [row for row in ops if row["f"] == F.SEND]
    assert {row["process"] for row in sends} == {1, 3}, "every second process lives here"
    assert {row["type"] for row in sends} == {Type.INVOKE, Type.FAIL}
    assert {row["op"] >> 40 for row in ops} == {1}, "numbers of another process differ"
    assert all(0 <= row["t"] < time.monotonic_ns() - epoch_ns for row in ops)
    begun = [row["op"] for row in ops if row["type"] == Type.INVOKE]
    assert sorted(begun) == sorted(row["op"] for row in ops if row["type"] != Type.INVOKE)
    notes = [row["text"] for row in rows(tmp_path, "notes-client-2-*.arrows")]
    assert any(note.startswith("NOT_DRAINED ") for note in notes)


def sail(process: Process, epoch_ns: int) -> None:
    """From the first order to the last."""
    process.hear("is", "ready")
    process.order("load", epoch_ns=epoch_ns, error_ns=0)
    process.hear("is", "loading")
    while process.hear("stats")["stats"]["fail"] == 0:
        pass
    process.order("stop")
    process.hear("is", "stopped")
    process.order("drain")
    process.hear("is", "drained")
    process.order("quit")
    assert process.end() == 0


@pytest.mark.bed
def test_a_client_process_apart_needs_our_archive_and_no_package(tmp_path: Path) -> None:
    """Started without site packages it streams its rows; what arrives is the same journal."""
    with tarfile.open(fileobj=io.BytesIO(archive())) as packed:
        packed.extractall(tmp_path / "packages", filter="data")
    (tmp_path / "run").mkdir()
    epoch_ns = time.monotonic_ns()
    with client_process(tmp_path / "run", "client-2", tmp_path / "packages") as process:
        sail(process, epoch_ns)
        assert not (tmp_path / "run/journal").exists()
        intake = RowReceiver(tmp_path / "run/journal", "client-2", error_ns=0)
        for portion in process.portions:
            intake.receive(portion)
        intake.close()
    ops = rows(tmp_path / "run", "ops-client-2-*.arrows")
    assert {row["process"] for row in ops if row["f"] == F.SEND} == {1, 3}
    assert all(0 <= row["t"] < time.monotonic_ns() - epoch_ns for row in ops)
    begun = [row["op"] for row in ops if row["type"] == Type.INVOKE]
    assert begun
    assert sorted(begun) == sorted(row["op"] for row in ops if row["type"] != Type.INVOKE)
    notes = rows(tmp_path / "run", "notes-client-2-*.arrows")
    assert any(row["text"].startswith("NOT_DRAINED ") for row in notes)


@pytest.mark.bed
def test_rows_come_before_the_word_that_follows_them(tmp_path: Path) -> None:
    """When it says `stopped`, its reader has received every row of the load."""
    with tarfile.open(fileobj=io.BytesIO(archive())) as packed:
        packed.extractall(tmp_path / "packages", filter="data")
    (tmp_path / "run").mkdir()
    with client_process(tmp_path / "run", packages=tmp_path / "packages") as process:
        process.hear("is", "ready")
        process.order("load", epoch_ns=time.monotonic_ns(), error_ns=0)
        process.hear("is", "loading")
        while process.hear("stats")["stats"]["fail"] == 0:
            pass
        process.order("stop")
        process.hear("is", "stopped")
        before = [p for p in process.portions if p["rows"] == "ops"]
        process.order("quit")
        with suppress(AssertionError):
            process.hear("nothing of the kind")
        after = [p for p in process.portions if p["rows"] == "ops"]
    assert before
    assert after == before


@pytest.mark.bed
def test_a_client_process_goes_when_the_runner_is_gone(tmp_path: Path) -> None:
    """The end of its input ends it, in the midst of the load; the journal is readable."""
    with client_process(tmp_path) as process:
        process.hear("is", "ready")
        process.order("load", epoch_ns=time.monotonic_ns(), error_ns=0)
        process.hear("is", "loading")
        while process.hear("stats")["stats"]["fail"] == 0:
            pass
        process.hang_up()
        assert process.end() != 0
    assert rows(tmp_path, "ops-client-1-*.arrows")


@pytest.mark.bed
def test_a_journal_that_can_not_be_written_is_said(tmp_path: Path) -> None:
    """The runner gets one sentence, and the process ends by itself."""
    (tmp_path / "journal").write_text("a file where the folder should be")
    with client_process(tmp_path) as process:
        assert "client-1" in process.hear("is", "failed")["why"]
        assert process.end() == 255


@pytest.mark.bed
def test_a_full_disk_is_said(tmp_path: Path) -> None:
    """In the midst of the load: one sentence that names the journal, then the end."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))"
    site = tmp_path / "limited"
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"import signal; {limit}\n")
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        with client_process(tmp_path) as process:
            process.hear("is", "ready")
            process.order("load", epoch_ns=time.monotonic_ns(), error_ns=0)
            process.hear("is", "loading")
            assert "journal" in process.hear("is", "failed")["why"]
            assert process.end() == 255


class Rows(list[tuple[int, ...]]):
    """A log in memory."""

    def flush(self) -> None: ...

    def close(self) -> None: ...


def hand(*times_ns: int, ops: Rows, set_of_key: Sequence[int] = ()) -> ClientProcess:
    """A client process whose clock shows these times, one after the other."""
    times = iter(times_ns)
    return ClientProcess(
        client=None,  # type: ignore[arg-type]  # nobody is asked
        ops=ops,
        notes=Rows(),
        index=0,
        client_processes=1,
        total_processes=1,
        seed=1,
        clock_ns=lambda: next(times),
        set_of_key=set_of_key,
    )


class Endless:
    """A workload whose final phase does not end, and which reads on until it is left alone."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.left = False

    async def load(self, context: Any) -> None: ...

    async def drain(self, context: Any) -> None:
        self.begun.set()
        try:
            await asyncio.Future()
        finally:
            await asyncio.sleep(0)
            self.left = True


def test_who_is_to_quit_leaves_off_what_it_does() -> None:
    """Otherwise the runner would have to kill it, with rows that are not written yet. When the
    session is over nobody writes any more."""

    async def story() -> bool:
        class Client:
            async def open(self) -> None: ...

        process: Any = SimpleNamespace(client=Client(), stopping=False, flush=lambda: None)
        workload: Any = Endless()
        session = ControlSession(process, workload, lambda word: None, lambda: None)
        running = asyncio.create_task(session.run())
        session.data_received(b'{"do": "drain"}\n')
        await workload.begun.wait()
        session.data_received(b'{"do": "quit"}\n')
        async with asyncio.timeout(20):
            await running
        return bool(workload.left and process.stopping)

    assert asyncio.run(story())


def test_what_was_read_is_written_before_the_word_that_it_was() -> None:
    """A kill between the two must not leave a queue that was read to its end, without messages."""
    written: list[str] = []

    class Log(Rows):
        def flush(self) -> None:
            written.append(f"{len(self)} rows")

    ops = Log()
    process = hand(0, 10, 20, 30, ops=ops)
    process.begin(epoch_ns=0)
    process.invoke(0, F.READ, 0, offset=0)
    process.note('NOT_DRAINED {"key": 0}')
    assert written == []
    process.note('DRAINED {"key": 0}')
    assert written == ["1 rows"]


def test_a_clock_that_may_be_off_widens_every_interval() -> None:
    """Begun earlier, completed later, by the error; the latency that is shown stays."""
    ops = Rows()
    process = hand(1_000, 1_050, 1_090, ops=ops)
    process.begin(epoch_ns=900, error_ns=7)
    op = process.invoke(0, F.SEND, 0, 5)
    process.complete(0, op, F.SEND, 0, 5, Completion(Type.OK))
    assert [row[0] for row in ops] == [1_050 - 900 - 7, 1_090 - 900 + 7]
    assert process.counts.latencies_ns == [40]


def test_whoever_waits_for_an_answer_learns_when_it_was_asked_for() -> None:
    """An acknowledgement that came after a healing proves nothing if its send was before it; one
    that was refused proves nothing at all."""
    process = hand(0, 10, 20, 50, 60, 80, ops=Rows())
    process.begin(epoch_ns=0)
    early, late = (process.invoke(0, F.SEND, 0, value) for value in (1, 2))
    assert process.counts.stats()["answered_ns"] == [-1]
    process.complete(0, late, F.SEND, 0, 2, Completion(Type.FAIL))
    assert process.counts.stats()["answered_ns"] == [-1]
    process.complete(0, early, F.SEND, 0, 1, Completion(Type.OK))
    assert process.counts.stats()["answered_ns"] == [10]


def test_every_broker_set_has_to_answer(tmp_path: Path) -> None:
    """Both client processes heard from both sets, and one not again from the second."""
    names = ("client-1", "client-2")
    bed: Any = SimpleNamespace(
        of_role=lambda role: [Node(name, role) for name in names],
        agents=dict.fromkeys(names),
        hosts=SimpleNamespace(clock=lambda node: ClockOffset()),
    )

    async def answered(*told: Mapping[str, Any]) -> int:
        clients = ClientPool(bed, RunDir(tmp_path))
        for handle, stats in zip(clients._handles, told, strict=True):
            handle.stats = stats
        return clients.answered_ns()

    assert asyncio.run(answered({}, {})) == -1
    assert asyncio.run(answered({"answered_ns": [50, -1]}, {"answered_ns": [10, 20]})) == 20


def test_a_client_process_knows_in_which_set_a_queue_lives() -> None:
    """From names.json; of a cluster that does not tell, all are one."""
    sets = {name: {"nodes": [], "full": 1, "keys": [f"orders-{n}"]} for n, name in enumerate("ab")}
    keys = {"keys": ["orders-1", "orders-0"]}
    assert (set_number_by_key(keys | {"sets": sets}), set_number_by_key(keys)) == ([1, 0], [0, 0])
    process = hand(0, 10, 20, 30, ops=Rows(), set_of_key=[1, 0])
    process.begin(epoch_ns=0)
    process.complete(0, process.invoke(0, F.SEND, 0, 1), F.SEND, 0, 1, Completion(Type.OK))
    assert process.counts.stats()["answered_ns"] == [-1, 10]


def test_quantiles_are_of_the_recent_past() -> None:
    """A quarter of a second without sends keeps the last quantiles."""
    tally = LiveCounts()
    tally.latencies_ns = [n * 1_000_000 for n in range(100, 0, -1)]
    first = tally.stats()
    assert (first["p50_ms"], first["p99_ms"]) == (51.0, 100.0)
    assert tally.stats()["p50_ms"] == 51.0
