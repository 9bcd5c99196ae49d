"""Every importer brings in what its format says: rows, names, notes, and where each came from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import registry
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.importers import _jepsen
from harness.importers.jepsen import FORMATS
from harness.judge.judge import judge_small
from harness.judge.verdict import Judgement
from harness.operation import F, Type, value_of

Import = Callable[..., RunDir]


FIRST = ("process", "op", "type", "f")


def rows(run: RunDir) -> list[dict[str, Any]]:
    """The operations of a run with words for numbers, without what is absent and times."""
    told = []
    for row in pq.read_table(run.history / "ops-import-000.parquet").to_pylist():
        row = {name: cell for name, cell in row.items() if cell is not None and name != "t"}
        told.append({**row, "type": Type(row["type"]).name, "f": F(row["f"]).name})
    return told


def short(run: RunDir) -> list[str]:
    """Each row in a few words: op type f and whatever else it has."""
    lines = []
    for row in rows(run):
        more = [f"{name}={cell}" for name, cell in row.items() if name not in FIRST]
        lines.append(" ".join([str(row["op"]), row["type"].lower(), row["f"].lower(), *more]))
    return lines


def notes(run: RunDir) -> list[str]:
    table = pq.read_table(run.history / "notes-import-000.parquet")
    return [str(text) for text in table.column("text").to_pylist()]


KAFKA = """\
{:index 0, :type :invoke, :process 0, :f :assign, :value [4 5], :time 1}
{:index 1, :type :ok, :process 0, :f :assign, :value [4 5], :time 2}
{:index 2, :type :invoke, :process 1, :f :send, :value [[:send 4 17]], :time 3}
{:index 3, :type :ok, :process 1, :f :send, :value [[:send 4 [0 17]]], :time 4}
{:index 4, :type :invoke, :process 0, :f :poll, :value [[:poll]], :time 5}
{:index 5, :type :invoke, :process 1, :f :send, :value [[:send 5 17]], :time 6}
{:index 6, :type :ok, :process 0, :f :poll, :value [[:poll {4 [[0 17]], 5 [[8 17]]}]], :time 7}
{:index 7, :type :info, :process 1, :f :send, :value [[:send 5 17]], :time 8, :error :timeout}
{:index 8, :type :info, :process :nemesis, :f :start-partition, :value nil, :time 9}
{:index 9, :type :invoke, :process 3, :f :txn, :value [[:send 4 18] [:poll]], :time 10}
{:index 10, :type :ok, :process 3, :f :txn, :value [[:send 4 [2 18]] [:poll {4 [[2 19]]}]], :time 11}
"""  # noqa: E501 - one line is one operation


@pytest.mark.parametrize("packed", [False, True])
def test_jepsen_kafka(imported: Import, packed: bool) -> None:
    """Sends, polls and transactions as rows; assignments, the nemesis and reading as notes."""
    run = imported("jepsen-kafka", KAFKA, packed=packed)
    first, other, third, unsent = value_of(1, 0), value_of(1, 1), value_of(3, 0), value_of(4, 0)
    assert short(run) == [
        f"3 invoke send key=0 value={first}",
        f"3 ok send key=0 value={first} offset=0",
        "5 invoke poll",
        f"6 invoke send key=1 value={other}",
        f"5 ok poll key=0 value={first} offset=0 pos=0",
        f"5 ok poll key=1 value={other} offset=8 pos=1",
        "5 ok poll",
        f"6 info send key=1 value={other}",
        f"10 invoke send key=0 value={third} mop=0",
        "10 invoke poll mop=1",
        "10 invoke send",
        f"10 ok send key=0 value={third} offset=2 mop=0",
        f"10 ok poll key=0 value={unsent} offset=2 pos=0 mop=1",
        "10 ok poll mop=1",
        "10 ok send",
    ]
    assert notes(run) == [
        'ASSIGN {"keys": [0, 1]}',
        "NEMESIS :start-partition nil",
        'PASSED {"key": 0, "to": 3}',
        'PASSED {"key": 1, "to": 9}',
    ]
    assert run.names()["keys"] == ["4", "5"]
    table = pq.read_table(run.path / "origin" / "messages.parquet").to_pylist()
    assert [(row["value"], row["original"], row["line"]) for row in table] == [
        (first, 17, 3),
        (other, 17, 6),
        (third, 18, 10),
        (unsent, 19, 10),
    ]
    lines = pq.read_table(run.path / "origin" / "lines.parquet").to_pylist()
    assert {"op": 6, "completed": 8} in lines


def test_jepsen_kafka_judged(imported: Import) -> None:
    """What nobody saw and somebody read past is lost; what nobody read past is not known."""
    sends = "".join(
        f"{{:type :invoke, :process 1, :f :send, :value [[:send x {v}]]}}\n"
        f"{{:type :ok, :process 1, :f :send, :value [[:send x [{v} {v}]]]}}\n"
        for v in range(4)
    )
    poll = "{{:type :{}, :process 2, :f :poll, :value [[:poll{}]]}}\n"
    seen = {"all": "[0 0] [1 1] [2 2] [3 3]", "hole": "[0 0] [2 2] [3 3]", "tail": "[0 0] [1 1]"}
    verdicts = {}
    for name, pairs in seen.items():
        text = sends + poll.format("invoke", "") + poll.format("ok", f" {{x [{pairs}]}}")
        run = imported("jepsen-kafka", text)
        verdicts[name] = judge_small(History.open(run))
    assert verdicts["all"].verdict is Judgement.VALID
    assert verdicts["hole"].convicting == ("LOST_ACKED",)
    (evidence,) = verdicts["hole"].first_finding.evidence  # type: ignore[union-attr]
    assert (evidence["original"], evidence["line"], evidence["queue"]) == (1, 3, "x")
    assert verdicts["tail"].verdict is Judgement.UNKNOWN
    assert [r.code for r in verdicts["tail"].reasons] == ["NO_FINAL_READ"]


def test_jepsen_kafka_that_says_nothing_of_a_send(imported: Import) -> None:
    """A send that ended without a value is the one that was asked for, so what failed and was read
    all the same is a phantom; an acknowledgement that says nothing proves nothing."""
    send = "{{:type :{}, :process 1, :f :send, :value {}}}\n"
    poll = "{{:type :{}, :process 2, :f :poll, :value [[:poll{}]]}}\n"
    read = poll.format("invoke", "") + poll.format("ok", " {x [[0 7]]}")
    asked = send.format("invoke", "[[:send x 7]]")
    run = imported("jepsen-kafka", asked + send.format("fail", "nil") + read)
    assert run.state()["slips"]["counts"] == {}
    assert judge_small(History.open(run)).convicting == ("PHANTOM_REFUSED",)
    run = imported("jepsen-kafka", asked + send.format("ok", "nil") + read)
    assert run.state()["slips"]["counts"] == {"ODD_VALUE": 1}
    assert judge_small(History.open(run)).verdict is Judgement.UNKNOWN


def test_jepsen_register(imported: Import) -> None:
    """Reads, writes and cas; one refused by the comparison says so, one with an error does not."""
    run = imported(
        "jepsen-register",
        """\
{:type :invoke, :f :write, :value 3, :process 0}
{:type :info, :f :write, :value 3, :process 0, :error :timeout}
{:type :invoke, :f :cas, :value [3 4], :process 1}
{:type :fail, :f :cas, :value [3 4], :process 1}
{:type :invoke, :f :cas, :value [3 4], :process 1}
{:type :fail, :f :cas, :value [3 4], :process 1, :error :refused}
{:type :invoke, :f :read, :value nil, :process 1}
{:type :ok, :f :read, :value nil, :process 1}
{:type :invoke, :f :read, :value nil, :process 1}
{:type :ok, :f :read, :value 3, :process 1}
""",
    )
    assert short(run) == [
        "1 invoke put key=0 value=3",
        "1 info put key=0 value=3",
        "3 invoke cas key=0 value=3 arg=4",
        "3 fail cas key=0 value=3 arg=4 pos=0",
        "5 invoke cas key=0 value=3 arg=4",
        "5 fail cas key=0 value=3 arg=4",
        "7 invoke get key=0",
        "7 ok get key=0",
        "9 invoke get key=0",
        "9 ok get key=0 value=3",
    ]


@pytest.mark.parametrize("copies", [1, 100])
def test_jepsen_register_with_an_error_of_nil(imported: Import, copies: int) -> None:
    """`:error nil` is no error, in a short file and in a long one: the comparison refused."""
    asked = "{:type :invoke, :f :write, :value 3, :process 0}\n"
    wrote = asked + asked.replace("invoke", "ok")
    cas = "{:type :invoke, :f :cas, :value [3 4], :process 1}\n"
    refused = "{:type :fail, :f :cas, :value [3 4], :process 1, :error nil}\n"
    run = imported("jepsen-register", wrote + (cas + refused) * copies)
    assert [row.get("pos") for row in rows(run)[3::2]] == [0] * copies


def test_jepsen_registers_by_key(imported: Import) -> None:
    """With pairs of key and value, each key is a register; texts are numbered, and named."""
    run = imported(
        "jepsen-register",
        """\
{:type :invoke, :f :write, :value [7 :a], :process 0}
{:type :ok, :f :write, :value [7 :a], :process 0}
{:type :invoke, :f :cas, :value [7 [:a "b"]], :process 0}
{:type :ok, :f :cas, :value [7 [:a "b"]], :process 0}
{:type :invoke, :f :read, :value [9 nil], :process 0}
{:type :ok, :f :read, :value [9 nil], :process 0}
""",
    )
    assert short(run)[1::2] == [
        "1 ok put key=0 value=0",
        "3 ok cas key=0 value=0 arg=1",
        "5 ok get key=1",
    ]
    assert (run.names()["keys"], run.names()["values"]) == (["7", "9"], [":a", '"b"'])


@pytest.mark.parametrize("by_key", [True, False])
@pytest.mark.parametrize("size", [200, 1 << 20])
def test_jepsen_registers_in_pieces(tmp_path: Path, by_key: bool, size: int) -> None:
    """Whether it is one register or many, the whole file says, wherever it is cut."""
    line = "{{:type :{}, :f :{}, :value {}, :process 0}}\n"
    rows = [("write", 1, 1), ("read", "nil", 1), ("cas", "[1 2]", "[1 2]"), ("read", "nil", 2)]
    lines = [
        line.format(kind, f, f"[7 {value}]" if by_key else value)
        for f, *values in rows
        for kind, value in zip(("invoke", "ok"), values, strict=True)
    ]
    path = tmp_path / "registers.edn"
    path.write_text("".join(lines))
    cut = _jepsen.recording(path, FORMATS["jepsen-register"], size)
    assert not cut.slips
    assert cut.parts.column("key").to_pylist() == [7 if by_key else 0] * 8
    assert cut.parts.column("value").to_pylist() == [1, 1, None, 1, 1, 1, None, 2]


def test_jepsen_append(imported: Import) -> None:
    """Micro-operations are numbered; a read list is a row an element and one that ends it."""
    text = """\
{:type :invoke, :process 0, :f :txn, :value [[:append 5 1] [:r 6 nil]]}
{:type :ok, :process 0, :f :txn, :value [[:append 5 1] [:r 6 [8 9]]]}
{:type :invoke, :process 0, :f :txn, :value [[:r 5 nil]]}
{:type :fail, :process 0, :f :txn, :value [[:r 5 nil]], :error [:aborted "x"]}
"""
    assert short(imported("jepsen-append", text)) == [
        "1 invoke append key=0 value=1 mop=0",
        "1 invoke list key=1 mop=1",
        "1 invoke append",
        "1 ok append key=0 value=1 mop=0",
        "1 ok list key=1 value=8 pos=0 mop=1",
        "1 ok list key=1 value=9 pos=1 mop=1",
        "1 ok list key=1 mop=1",
        "1 ok append",
        "3 invoke list key=0 mop=0",
        "3 invoke append",
        "3 fail list key=0 mop=0",
        "3 fail append",
    ]


def test_jepsen_wr(imported: Import) -> None:
    """Transactions over registers are reads and writes with numbers."""
    text = """\
[{:type :invoke, :process 0, :f :txn, :value [[:w :x 1] [:r :y nil]]}
 {:type :ok, :process 0, :f :txn, :value [[:w :x 1] [:r :y 2]]}]
"""
    run = imported("jepsen-wr", text)
    assert short(run)[3:] == [
        "1 ok put key=0 value=1 mop=0",
        "1 ok get key=1 value=2 mop=1",
        "1 ok put",
    ]
    assert run.names()["keys"] == [":x", ":y"]


def test_jepsen_queue(imported: Import) -> None:
    """Enqueues, dequeues, and a drain as the dequeues that it was; values below zero are named. A
    dequeue that failed because nothing was there is the answer "empty"."""
    text = """\
{:type :invoke, :process 0, :f :enqueue, :value 5}
{:type :ok, :process 0, :f :enqueue, :value 5}
{:type :invoke, :process 0, :f :dequeue, :value nil}
{:type :fail, :process 0, :f :dequeue, :value nil, :error :empty}
{:type :invoke, :process 0, :f :drain, :value nil}
{:type :ok, :process 0, :f :drain, :value [5 -6]}
"""
    run = imported("jepsen-queue", text)
    assert short(run) == [
        "1 invoke enqueue key=0 value=0",
        "1 ok enqueue key=0 value=0",
        "3 invoke dequeue key=0",
        "3 ok dequeue key=0",
        "5 invoke dequeue key=0 pos=0",
        "5 ok dequeue key=0 value=0 pos=0",
        "5 ok dequeue key=0 value=1 pos=1",
        "5 ok dequeue key=0",
    ]
    assert run.names()["values"] == ["5", "-6"]


LOCKED = """\
{:type :invoke, :process 0, :f :acquire, :value nil}
{:type :ok, :process 0, :f :acquire, :value {:fence 7}}
{:type :invoke, :process 1, :f :acquire, :value nil}
{:type :fail, :process 1, :f :acquire, :value nil, :error :held}
{:type :invoke, :process 0, :f :release, :value nil}
{:type :info, :process 0, :f :release, :value nil, :error :timeout}
"""


def test_jepsen_lock(imported: Import) -> None:
    """Acquires with their tokens, and releases."""
    run = imported("jepsen-lock", LOCKED)
    assert short(run) == [
        "1 invoke acquire key=0",
        "1 ok acquire key=0 offset=7",
        "3 invoke acquire key=0",
        "3 fail acquire key=0",
        "5 invoke release key=0",
        "5 info release key=0",
    ]
    assert judge_small(History.open(run)).verdict is Judgement.UNKNOWN  # no release ended ok


def test_jepsen_mutex(imported: Import) -> None:
    """From free to held, and back; what failed says nothing of what was held."""
    run = imported("jepsen-mutex", LOCKED)
    assert run.names()["values"] == [":free", ":held"]
    assert run.names()["initial"] == 0
    assert short(run) == [
        "1 invoke cas key=0 value=0 arg=1",
        "1 ok cas key=0 value=0 arg=1",
        "3 invoke cas key=0 value=0 arg=1",
        "3 fail cas key=0 value=0 arg=1",
        "5 invoke cas key=0 value=1 arg=0",
        "5 info cas key=0 value=1 arg=0",
    ]
    assert judge_small(History.open(run)).verdict is Judgement.VALID


def test_jepsen_set(imported: Import) -> None:
    """A read is a row an element, whether it is printed as a vector or as a set."""
    text = """\
{:type :invoke, :process 0, :f :add, :value 5}
{:type :info, :process 0, :f :add, :value 5, :error :timeout}
{:type :invoke, :process 1, :f :read, :value nil}
{:type :ok, :process 1, :f :read, :value #{5 7}}
"""
    assert short(imported("jepsen-set", text)) == [
        "1 invoke add key=0 value=5",
        "1 info add key=0 value=5",
        "3 invoke list key=0",
        "3 ok list key=0 value=5 pos=0",
        "3 ok list key=0 value=7 pos=1",
        "3 ok list key=0",
    ]


def test_jepsen_counter(imported: Import) -> None:
    """A counter's values are numbers, also below zero."""
    text = """\
{:type :invoke, :process 0, :f :add, :value -2}
{:type :ok, :process 0, :f :add, :value -2}
{:type :invoke, :process 0, :f :decrement, :value 3}
{:type :ok, :process 0, :f :decrement, :value 3}
{:type :invoke, :process 0, :f :read, :value nil}
{:type :ok, :process 0, :f :read, :value -5}
"""
    run = imported("jepsen-counter", text)
    assert short(run)[1::2] == [
        "1 ok add key=0 value=-2",
        "3 ok add key=0 value=-3",
        "5 ok count key=0 value=-5",
    ]
    assert "values" not in run.names()


def test_porcupine(imported: Import) -> None:
    """Lines of Jepsen's log; what else is in the log is passed over."""
    text = (
        "INFO  jepsen.core - Starting\n"
        "INFO  jepsen.util - :nemesis\t:info\t:start\tnil\n"
        "INFO  jepsen.util - 3\t:invoke\t:write\t4\n"
        "INFO  jepsen.util - 1\t:invoke\t:cas\t[4 1]\n"
        "INFO  jepsen.util - 3\t:info\t:write\t:timed-out\n"
        "INFO  jepsen.util - 1\t:fail\t:cas\t[4 1]\n"
    )
    run = imported("porcupine", text)
    assert short(run) == [
        "3 invoke put key=0 value=4",
        "4 invoke cas key=0 value=4 arg=1",
        "3 info put key=0 value=4",
        "4 fail cas key=0 value=4 arg=1 pos=0",
    ]
    assert run.state()["slips"]["counts"] == {}


def test_porcupine_kv(imported: Import) -> None:
    """Texts are numbered; the empty one is that of a key which was never written."""
    text = """\
{:process 0, :type :invoke, :f :append, :key "4", :value "x 0"}
{:process 0, :type :ok, :f :append, :key "4", :value "x 0"}
{:process 0, :type :invoke, :f :get, :key "4", :value nil}
{:process 0, :type :ok, :f :get, :key "4", :value "x 0"}
{:process 0, :type :invoke, :f :get, :key "5", :value nil}
{:process 0, :type :ok, :f :get, :key "5", :value ""}
"""
    run = imported("porcupine-kv", text)
    assert short(run)[1::2] == [
        "1 ok append key=0 value=0",
        "3 ok get key=0 value=0",
        "5 ok get key=1",
    ]
    assert run.names()["values"] == ["x 0"]


TABLE = """\
process,type,f,key,value,offset,pos,time
app-1,invoke,send,007,m-1,,,5
app-2,invoke,poll,,,,,6
app-1,ok,send,007,m-1,0,,9
app-2,ok,poll,007,m-1,0,0,14
app-2,ok,poll,007,"",1,1,14
app-2,ok,poll,,,,,14
"""


def test_csv(imported: Import) -> None:
    """Rows of one event are its parts; a quoted empty text is a value, an empty cell is none."""
    run = imported("csv", TABLE)
    assert short(run) == [
        "2 invoke send key=0 value=0",
        "3 invoke poll",
        "2 ok send key=0 value=0 offset=0",
        "3 ok poll key=0 value=0 offset=0 pos=0",
        f"3 ok poll key=0 value={value_of(1, 0)} offset=1 pos=1",
        "3 ok poll",
    ]
    assert run.names()["keys"] == ["007"]
    without = "\n".join(line for line in TABLE.splitlines() if '""' not in line)
    assert judge_small(History.open(imported("csv", without))).verdict is Judgement.VALID


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ("get put cas", "registers"),
        ("append get", "registers"),
        ("enqueue dequeue", "queue"),
        ("add list", "set"),
        ("add count", "counter"),
        ("acquire release", "lock"),
        ("append list", "transactions"),
        ("send poll", "messages"),
    ],
)
def test_parquet(tmp_path: Path, asked: str, kind: str) -> None:
    """The kinds of operation tell what a table is about; numbers stay numbers."""
    rows: list[dict[str, Any]] = [
        {"process": 4, "type": kind_, "f": f, "key": "k", "value": n, "other": 1.5}
        for n, f in enumerate(asked.split())
        for kind_ in ("invoke", "ok")
    ]
    path = tmp_path / "table.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    recording = registry.load("importer", "parquet")(path)
    assert recording.kind == kind
    assert recording.events.line.tolist() == list(range(1, len(rows) + 1))
    told = [None if kind == "lock" else row["value"] for row in rows]  # a lock has no values
    assert recording.parts.column("value").to_pylist() == told


def test_every_importer_has_its_test() -> None:
    """A new format comes with a test of its name."""
    source = Path(__file__).read_text()
    names = registry.names("importer")
    assert len(names) > 10
    assert not [n for n in names if f"def test_{n.replace('-', '_')}(" not in source]
