"""Inputs that were changed at random, for every decoder; and what became of each.

An input is drawn from its kind and its number alone, so that a failure is made again by naming
both. `decode` must read it or refuse it with an error of ours; anything else has escaped. `carried`
decodes a range of numbers in a process of its own, which may crash, hang, or run out of memory.
"""

import asyncio
import gzip
import io
import json
import mmap
import os
import random
import resource
import signal
import struct
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from clusters.flotilla.net import connection as net
from clusters.flotilla.net.wire import (
    Message,
    ProtocolError,
    PullReply,
    PullRequest,
    SendReply,
    SendRequest,
    Status,
    decode,
    frame,
    from_json,
    to_json,
)
from clusters.flotilla.raft import messages as raft
from clusters.flotilla.replication.divergence import LogShape
from clusters.flotilla.replication.epochs import EpochTable
from clusters.flotilla.replication.ha_protocol import (
    HandshakeReply,
    HandshakeRequest,
    LogData,
    pack_ack,
    unpack_ack,
)
from harness import registry
from harness.errors import BadRequest, SeatrialError
from harness.history.faults_and_events import events, fault_intervals
from harness.history.journal import UNREADABLE, read_stream
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.history.schema import LARGE, TABLES
from harness.judge.stored_verdict import BROKEN, read_verdict
from harness.suite.suite_file import read_suite
from harness.text.parsing import read_text
from harness.trial import Trial
from nemesis import load
from nemesis._runner.ledger import ledger_damage, open_entries

HANGS_S = 20  # of CPU
SPACE = 3 << 30  # beside what the process has mapped before
MAX_BYTES = 100_000
SHAPE = LogShape(0, 4096, EpochTable(((1, 0), (2, 100))))
WORDS = {
    "text": (
        *(b"[", b"]", b"{", b"}", b"#{", b"#_", b'"', b"\\", b"\\u", b"\\uD800", b":", b"nil"),
        *(b"1e999", b"-1", b"9223372036854775808", b"9" * 4_400, b"1N", b"NaN", b"##Inf"),
        *(b"\0", b"\xff", b"\n", b"\r\n", b";", b",", b"\t", b'""', b"=", b".", b"'''", b"# "),
        *(b"[[", b"]]", b"true", b"0x", b"1979-05-27", b"inf", b'#inst "x"', b"null", b"a.b = 1\n"),
    ),
    "binary": (
        *(b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"PAR1", b"\x80", b"\x7f"),
        *(struct.pack("<q", n) for n in (-1, 1 << 31, 1 << 62, (1 << 63) - 1)),
        *(struct.pack(">Q", n) for n in (1, 1 << 31, 1 << 63, (1 << 64) - 1)),
    ),
}
EDN = (
    "{:type :invoke, :f :txn, :value [[:append 1 2] [:r 3 nil]], :process 0, :time 10, :index 0}\n"
    "{:type :ok, :f :txn, :value [[:append 1 2] [:r 3 [1 2]]], :process 0, :time 20, :index 1}\n"
    "{:type :info, :f :kill, :value nil, :process :nemesis, :time 15}\n",
    "{:type :invoke, :f :write, :value 3, :process 1, :time 1}\n"
    "{:type :ok, :f :write, :value 3, :process 1, :time 2}\n"
    '{:type :fail, :f :cas, :value [3 4], :process 2, :time 4, :error [:x "y"]}\n',
    "{:type :invoke, :f :enqueue, :value 3, :process 1, :time 1}\n"
    "{:type :ok, :f :drain, :value [3 #{1} {:a 1} {{:b 1} 2}], :process 1, :time 4}\n",
    "[{:type :invoke, :f :add, :value 1, :process 1, :time 1}\n"
    " {:type :ok, :f :read, :value #{1 2}, :process 1, :time 4}]\n",
    "{:type :ok, :f :send, :value [[:send 0 [5 1]]], :process 1, :time 2}\n"
    "{:type :ok, :f :poll, :value [[:poll {0 [[5 1]]}]], :process 2, :time 4}\n",
    '[{"type": "ok", "f": "read", "value": [1, "x"], "process": 1, "time": 4}]\n',
)
PORCUPINE = (
    "INFO  jepsen.util - 3\t:invoke\t:cas\t[1 4]\nINFO  jepsen.util - 3\t:ok\t:cas\t[1 4]\n"
    "INFO  jepsen.util - 1\t:invoke\t:read\tnil\nINFO  jepsen.util - 1\t:ok\t:read\t4\n",
    '{:process 0, :type :invoke, :f :put, :key "1", :value "x"}\n'
    '{:process 0, :type :ok, :f :put, :key "1", :value "x"}\n',
)
CSV = (
    "t,process,op,type,f,key,value\n1,0,0,invoke,write,x,1\n2,0,0,ok,write,x,1\n",
    'time,type,f,process,value,key,offset\n1,invoke,send,0,"a,b",k,\n2,ok,send,0,"a,b",k,5\n',
    "process,type,f,key,value,arg,mop,pos\n1,invoke,get,k,,,0,\n1,ok,get,k,3,,0,\n",
)
TOML = (
    'name = "x"\nduration_s = 5.0\nnodes = { broker = 3 }\nfaults = ["kill"]\n[load]\nrate = 3.5\n',
    '[[fault]]\nkind = "kill"\nat_s = 5.0\nfor_s = 1.0\ntarget = "master"\nparams = { a = 1 }\n'
    '[trial]\nname = "x"\nclaims = { power = "all" }\n',
    '[[trial]]\nrun = "messages"\nseeds = "1..2"\nexpect = "valid"\n[trial.settings]\na.b = 1\n',
)
LINES = (
    '{"is": "intent", "id": 0, "kind": "kill", "nodes": ["n1"], "params": {"a": [1]}}\n'
    '{"is": "closed", "id": 0}\n{"is": "intent", "id": 1, "kind": "x", "nodes": [], "params": {}}',
)
VERDICT = {
    "verdict": "invalid",
    "sentence": "Invalid: x",
    "schema_version": 1,
    "events": {"ops": 3},
    "reasons": [{"code": "A", "message": "b"}],
    "checkers": [
        {
            "checker": "loss",
            "reasons": [],
            "stats": {"proved": "x", "a": {"b": [1.5]}},
            "decided": {"no-loss": 3},
            "findings": [
                {"code": "LOST_ACKED", "count": 1, "message": "m", "demand": "no-loss",
                 "permitted": False, "faults": [0], "evidence": [{"value": 1, "key": "k"}]}
            ],
        }
    ],
}  # fmt: skip


@dataclass
class Tally:
    """What became of some inputs. `escaped`: number, and how it ended."""

    read: int = 0
    refused: int = 0
    escaped: list[tuple[int, str]] = field(default_factory=list)
    slow: list[tuple[int, float]] = field(default_factory=list)  # more than a second of CPU

    @property
    def inputs(self) -> int:
        return self.read + self.refused + len(self.escaped)

    def add(self, other: "Tally") -> None:
        self.read += other.read
        self.refused += other.refused
        self.escaped += other.escaped
        self.slow += other.slow


@dataclass(frozen=True)
class Kind:
    """Sound inputs, the words they are changed with, and what decodes them from a file."""

    sound: Callable[[], Sequence[tuple[str, bytes]]]  # with a name: which decoder, or which file
    words: str
    decode: Callable[[str, Path], None]


def drawn(kind: str, number: int) -> tuple[str, bytes]:
    """The input of this number, and the decoder's name."""
    luck = random.Random(f"{kind}-{number}")
    name, data = luck.choice(_sound(kind))
    return name, mutated(data, WORDS[KINDS[kind].words], luck)


@cache
def _sound(kind: str) -> Sequence[tuple[str, bytes]]:
    return KINDS[kind].sound()


def mutated(data: bytes, words: Sequence[bytes], luck: random.Random) -> bytes:
    """Words put in, pieces cut out, copied or moved, letters changed; sometimes compressed."""
    made = bytearray(data)
    for _ in range(luck.randint(1, 8)):
        at, end = luck.randrange(len(made) + 1), len(made)
        match luck.randrange(8):
            case 0 | 1:
                made[at:at] = luck.choice(words) * (300 if luck.random() < 0.02 else 1)
            case 2:
                made[at : at + 8] = luck.choice(words)
            case 3:
                del made[at : at + luck.randint(1, 20)]
            case 4 if made:
                made[min(at, end - 1)] = luck.randrange(256)
            case 5:
                here = luck.randrange(end + 1)
                made[at:at] = made[here : here + luck.randint(1, 80)]
            case 6 if luck.random() < 0.3:
                del made[max(1, at) :]
            case _:
                lines = bytes(made).split(b"\n")
                luck.shuffle(lines)
                made = bytearray(b"\n".join(lines))
    found = bytes(made[:MAX_BYTES])
    return gzip.compress(found, 1) if luck.random() < 0.02 else found


# ------------------------------------------------------------------------------------ decoders


def _frames() -> Sequence[tuple[str, bytes]]:
    entry = raft.LogEntry(1, b"abc")
    bodies = {
        "SendRequest": SendRequest("t", 1, b"k", b"body").pack(),
        "SendReply": SendReply(Status.SUCCESS, 1, 2, 3, "r").pack(),
        "PullRequest": PullRequest("t", 1, 0, 32, 100).pack(),
        "PullReply": PullReply(
            Status.SUCCESS, 1, 0, 5, (Message(0, 1, 7, b"k", b"b"),) * 3, 2
        ).pack(),
        "HandshakeRequest": HandshakeRequest(1, 2, 3, SHAPE, True, True).pack(),
        "HandshakeReply": HandshakeReply(Status.SUCCESS, 1, 1024, SHAPE, 1024).pack(),
        "LogData": LogData(1, 2, 3, 4, b"x" * 50).pack(),
        "ack": pack_ack(9),
        "raft": raft.pack(
            raft.Append(term=1, source="n1", prev_index=1, prev_term=1, commit=1, stamp=1.0,
                        entries=(entry, raft.LogEntry(1, b"")))
        ),
        "vote": raft.pack(
            raft.VoteRequest(term=1, source="n1", last_index=1, last_term=1, pre=True)
        ),
        "json": to_json({"a": [1, {"b": None}], "c": "x"}),
    }  # fmt: skip
    return list(bodies.items())


BODIES: Mapping[str, Callable[[bytes], Any]] = {
    **{
        one.__name__: one.unpack
        for one in (
            SendRequest,
            SendReply,
            PullRequest,
            PullReply,
            HandshakeRequest,
            HandshakeReply,
            LogData,
        )
    },
    "ack": unpack_ack,
    "raft": raft.unpack,
    "vote": raft.unpack,
    "json": from_json,
}


class _Wire:
    """A transport that goes nowhere."""

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("x", 1)

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None: ...

    def close(self) -> None: ...

    def write(self, data: bytes) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


class _Handler:
    """Understands each body as every other one, too."""

    def opened(self, connection: Any) -> None: ...

    def closed(self, connection: Any, why: Any) -> None: ...

    def protocol_error(self, connection: Any, why: Any) -> None: ...

    def frame(self, connection: Any, op: int, request: int, body: bytes) -> None:
        decode([*BODIES.values()][op % len(BODIES)], body)


def _decode_frame(name: str, path: Path) -> None:
    """The body; then the same as a frame of a connection, in pieces, and without its own frame."""
    body = path.read_bytes()
    luck = random.Random(body)

    async def received() -> None:
        for data in (frame(luck.randrange(128), luck.randrange(1 << 32), body), body):
            connection = net.FrameConnection(_Handler())  # type: ignore[arg-type]
            connection.connection_made(_Wire())  # type: ignore[arg-type]
            at = 0
            while at < len(data):
                size = luck.randint(1, len(data))
                connection.data_received(data[at : at + size])
                at += size

    _loop().run_until_complete(received())
    decode(BODIES[name], body)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def _named(texts: Sequence[str], prefix: str = "", *names: str) -> Sequence[tuple[str, bytes]]:
    """Each text for each importer."""
    chosen = names or [n for n in registry.names("importer") if n.startswith(prefix)]
    return [(name, text.encode()) for name in chosen for text in texts]


def _decode_import(name: str, path: Path) -> None:
    registry.load("importer", name)(path)


def _parquet_tables() -> Sequence[tuple[str, bytes]]:
    columns = {"process": [1, 1], "type": ["invoke", "ok"], "f": ["put", "put"], "value": [1, 1]}
    more = {"key": ["k", "k"], "time": [5, 6]}
    found = []
    for compression in ("zstd", "none"):
        sink = io.BytesIO()
        pq.write_table(pa.table({**columns, **more}), sink, compression=compression)
        found.append(("parquet", sink.getvalue()))
    return found


def _table(name: str) -> pa.Table:
    columns = [
        pa.array(["{}" if f.name != "targets" else '{"master": ["n1"]}'] * 5, f.type)
        if pa.types.is_string(f.type)
        else pa.array(range(5), f.type)
        for f in TABLES[name]
    ]
    return pa.table(columns, schema=TABLES[name])


def _sealed() -> Sequence[tuple[str, bytes]]:
    found = []
    for name in TABLES:
        sink = io.BytesIO()
        pq.write_table(_table(name), sink, compression="zstd")
        found.append((f"{name}-x-000.parquet", sink.getvalue()))
    return found


def _streams() -> Sequence[tuple[str, bytes]]:
    found = []
    for name in TABLES:
        sink = io.BytesIO()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(sink, TABLES[name], options=options) as stream:
            stream.write_table(_table(name))
        found.append((f"{name}-x-000.arrows", sink.getvalue()))
    return found


def _decode_history(name: str, path: Path) -> None:
    """As a file of a run: what can be read of it is, and the rest is damage."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        run = RunDir(Path(folder))
        place = run.history if name.endswith(".parquet") else run.journal
        place.mkdir()
        os.link(path, place / name)
        history = History.open(run)
        assert isinstance(history.damage, tuple)
        kind = name.partition("-")[0]
        try:
            table = history.read(kind)
        except UNREADABLE as e:  # a checker of such a table fails, and the verdict is unknown
            assert kind in LARGE
            raise BadRequest(str(e)) from e
        if name.startswith("events"):
            events(table)
        if name.startswith("faults"):
            fault_intervals(table)
        list(read_stream(place / name, [])) if name.endswith(".arrows") else None
        assert isinstance(history.phases, dict)


def _toml() -> Sequence[tuple[str, bytes]]:
    return [(name, text.encode()) for name, text in zip(TOML_READERS, TOML, strict=True)]


TOML_READERS: Mapping[str, Callable[[Path], object]] = {
    "trial": lambda path: Trial.from_toml(read_text(path, "the trial"), "x"),
    "plan": lambda path: load(read_text(path, "the plan")),
    "suite": read_suite,
}


def _decode_toml(name: str, path: Path) -> None:
    TOML_READERS[name](path)


def _decode_ledger(name: str, path: Path) -> None:
    open_entries(path)
    ledger_damage(path)


def _decode_json(name: str, path: Path) -> None:
    """A verdict, whose readers expect BROKEN; and the state of a run."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        run = RunDir(Path(folder))
        os.link(path, run.verdict_file)
        os.link(path, run.path / "run.json")
        run.state()
        read_verdict(run)


KINDS: Mapping[str, Kind] = {
    "frames": Kind(_frames, "binary", _decode_frame),
    "edn": Kind(partial(_named, EDN, "jepsen"), "text", _decode_import),
    "porcupine": Kind(partial(_named, PORCUPINE, "porcupine"), "text", _decode_import),
    "csv": Kind(partial(_named, CSV, "", "csv"), "text", _decode_import),
    "parquet": Kind(_parquet_tables, "binary", _decode_import),
    "sealed": Kind(_sealed, "binary", _decode_history),
    "streams": Kind(_streams, "binary", _decode_history),
    "toml": Kind(_toml, "text", _decode_toml),
    "lines": Kind(lambda: [("x", text.encode()) for text in LINES], "text", _decode_ledger),
    "json": Kind(lambda: [("x", json.dumps(VERDICT).encode())], "text", _decode_json),
}
REFUSED: Mapping[str, tuple[type[BaseException], ...]] = {
    "frames": (ProtocolError,),
    "json": BROKEN,
}


# -------------------------------------------------------------------------------------- carried


def carried(kind: str, first: int, count: int) -> Tally:
    """Decode the inputs of these numbers, in processes of their own."""
    tally = Tally()
    while count > 0:
        done, more = _chunk(kind, first, min(count, 5_000))
        tally.add(more)
        first, count = first + done, count - done
    return tally


def _chunk(kind: str, first: int, count: int) -> tuple[int, Tally]:
    """How many were decoded before the end, and what became of them."""
    _sound(kind)
    _warm(kind)
    shared = mmap.mmap(-1, 8)
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(ours)
            with os.fdopen(theirs, "w") as pipe:
                _decode_all(kind, first, count, shared, pipe)
        finally:
            os._exit(0)
    os.close(theirs)
    tally, done = Tally(), 0
    with os.fdopen(ours) as pipe:
        for line in pipe:
            word, number, what = json.loads(line)
            done = number - first + 1
            if word == "escaped":
                tally.escaped.append((number, what))
            elif word == "slow":
                tally.slow.append((number, what))
            else:
                tally.read, tally.refused = what
    _, status = os.waitpid(child, 0)
    if status or tally.inputs < count:  # it crashed, or hung
        number = struct.unpack("<q", shared[:8])[0]
        tally.escaped.append((number, f"the process ended: {status}"))
        tally.refused = number - first - len(tally.escaped) + 1
        return number - first + 1, tally
    return max(done, count), tally


@cache
def _warm(kind: str) -> None:
    """Decode sound inputs, so that each process has imported what it needs."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, suppress(*BROKEN):
        for number, (name, data) in enumerate(_sound(kind)):
            path = Path(folder, str(number))
            path.write_bytes(data)
            KINDS[kind].decode(name, path)


def _decode_all(kind: str, first: int, count: int, shared: mmap.mmap, pipe: io.TextIOBase) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    space = pages * resource.getpagesize() + SPACE
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    read = refused = 0
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder, "input")
        for number in range(first, first + count):
            shared[:8] = struct.pack("<q", number)
            signal.setitimer(signal.ITIMER_PROF, HANGS_S)
            name, data = drawn(kind, number)
            path.write_bytes(data)
            began_s = time.process_time()
            try:
                KINDS[kind].decode(name, path)
                read += 1
            except REFUSED.get(kind, (SeatrialError,)):
                refused += 1
            except BaseException as e:
                where = traceback.extract_tb(e.__traceback__)[-1]
                words = f"{name}: {type(e).__name__}: {e}"[:200]
                at = f"{Path(where.filename).name}:{where.lineno}"
                print(json.dumps(["escaped", number, f"{words} at {at}"]), file=pipe)
            if (took_s := time.process_time() - began_s) > 1:
                print(json.dumps(["slow", number, round(took_s, 1)]), file=pipe)
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(json.dumps(["done", first + count - 1, [read, refused]]), file=pipe, flush=True)


def kinds() -> Iterator[str]:
    yield from KINDS
