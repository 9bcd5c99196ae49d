"""Files that break rules: one sentence with line and rule; the rest is judged for what it is."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import registry
from harness.errors import BadRequest
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.importers import _source
from harness.importers._recording import Slips
from harness.judge.judge import judge_small
from harness.judge.verdict import Judgement

Import = Callable[..., RunDir]

INVOKE = "{{:type :invoke, :process {}, :f :send, :value [[:send k {}]]}}\n"
OK = "{{:type :ok, :process {}, :f :send, :value [[:send k [{} {}]]]}}\n"
ASK = "{:type :invoke, :process 9, :f :poll, :value [[:poll]]}\n"
GOT = "{{:type :ok, :process 9, :f :poll, :value [[:poll {{k [{}]}}]]}}\n"


def sound(messages: int = 3) -> list[str]:
    """Lines of a history in which everything that was sent is seen."""
    sends = [line for v in range(messages) for line in (INVOKE.format(1, v), OK.format(1, v, v))]
    return [*sends, ASK, GOT.format(" ".join(f"[{v} {v}]" for v in range(messages)))]


def test_a_sound_file_has_nothing_to_say(imported: Import) -> None:
    """The history that the other tests break is valid."""
    run = imported("jepsen-kafka", "".join(sound()))
    assert run.state()["reasons"] == []
    assert judge_small(History.open(run)).verdict is Judgement.VALID


@pytest.mark.parametrize(
    ("at", "line", "rule", "says"),
    [
        (2, "{:type :ok, :process\n", "NOT_EDN", "line 3, column 1: not EDN: { is never closed"),
        (2, "[1 2]\n", "NOT_A_MAP", "line 3: not a map"),
        (1, "{:type :ok, :process 1, :f :send, :value [[:send k]]}\n", "ODD_VALUE", "line 2"),
        (3, "{:type :okay, :process 1, :f :send}\n", "NO_TYPE", "line 4: :type is :okay"),
        (3, "{:type :ok, :f :send}\n", "NO_PROCESS", "line 4: :process is nil"),
        (2, "{:type :invoke, :process 5, :f :leap}\n", "UNKNOWN_KIND", "no operation :leap"),
        (2, OK.format(7, 0, 0), "NOT_INVOKED", "line 3: process 7 completes"),
        (2, OK.format(1, 0, 0), "COMPLETED_TWICE", "line 3: process 1 completes"),
        (1, INVOKE.format(1, 7), "OVERLAP", "line 2: process 1 invokes"),
        (1, "{:type :ok, :process 1, :f :poll}\n", "OTHER_KIND", "line 2: process 1 completes"),
        (2, INVOKE.format(4, 0), "SENT_TWICE", "line 3: this value was sent to this key before"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isupper() else "",
)
def test_each_rule_is_named(imported: Import, at: int, line: str, rule: str, says: str) -> None:
    """A line that breaks a rule is named, and makes the verdict unknown: neither valid, nor the
    system's fault."""
    lines = sound()
    run = imported("jepsen-kafka", "".join([*lines[:at], line, *lines[at:]]))
    state = run.state()
    assert rule in state["slips"]["counts"]
    verdict = judge_small(History.open(run))
    assert verdict.verdict is Judgement.UNKNOWN, verdict.sentence
    told = [reason.message for reason in verdict.reasons if reason.code == "HISTORY_MALFORMED"]
    assert any(rule in state["slips"]["counts"] and says in message for message in told), told


@pytest.mark.parametrize("process", ["-1", "-2", "2147483648"])
def test_a_number_that_no_process_of_jepsens_has_is_a_client_all_the_same(
    imported: Import, process: str
) -> None:
    """What it sent is imported, so who reads it has seen no phantom."""
    other = INVOKE.format(3, 8) + OK.format(3, 8, 8)
    sent = [line.replace(":process 1", f":process {process}") for line in sound()]
    run = imported("jepsen-kafka", other + "".join(sent))
    assert run.state()["slips"]["counts"] == {}
    findings = [
        f.code for result in judge_small(History.open(run)).checkers for f in result.findings
    ]
    assert not [code for code in findings if code.startswith("PHANTOM")]


@pytest.mark.parametrize("broken", [1, 2])
def test_a_first_line_that_broke_off_is_one_line(imported: Import, broken: int) -> None:
    """The lines behind it are whole, so it is no map of several lines."""
    run = imported("jepsen-kafka", "{:type :ok, :process\n" * broken + "".join(sound()))
    assert run.state()["slips"]["counts"] == {"NOT_EDN": broken}
    assert run.state()["imported"]["events"] == 8


def test_a_map_may_go_on_over_several_lines(imported: Import) -> None:
    """Its fields, and maps in it, may begin a line."""
    run = imported("jepsen-kafka", "".join(sound()).replace(", :value", ",\n :value\n"))
    assert run.state()["slips"]["counts"] == {}
    assert run.state()["imported"]["events"] == 8


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("porcupine-kv", '{:process 0, :type [1], :f :put, :key "k", :value "x"}\n'),
        ("porcupine-kv", '{:process 0, :type :ok, :f {:a 1}, :key "k", :value "x"}\n'),
        ("porcupine-kv", '{:process 0, :type :invoke, :f :put, :key "k", :value "\\ud800"}\n'),
        (
            "porcupine-kv",
            f'{{:process 0, :type :invoke, :f :put, :key {"9" * 5000}, :value "x"}}\n',
        ),
        ("jepsen-set", '{:process 0, :type :invoke, :f :add, :value "\\udc00\\ud800"}\n'),
        ("jepsen-set", f"{{:process 0, :type :invoke, :f :add, :value {'9' * 5000}}}\n"),
        (
            "jepsen-append",
            f"{{:process 0, :type :invoke, :f :txn, :value [[:r {'9' * 5000} nil]]}}\n",
        ),
        ("jepsen-counter", f"{{:process {'9' * 5000}, :type :invoke, :f :add, :value 1}}\n"),
        ("porcupine", f"INFO jepsen.util - 3\t:ok\t:read\t{'9' * 5000}\n"),
    ],
)
def test_no_value_is_too_odd(imported: Import, form: str, line: str) -> None:
    """Collections for words, halves of characters, numbers of 5,000 digits: one line, and named."""
    whole = {
        "porcupine-kv": '{:process 1, :type :invoke, :f :put, :key "k", :value "x"}\n',
        "jepsen-set": "{:process 1, :type :invoke, :f :add, :value 1}\n",
        "jepsen-append": "{:process 1, :type :invoke, :f :txn, :value [[:r 1 nil]]}\n",
        "jepsen-counter": "{:process 1, :type :invoke, :f :add, :value 1}\n",
        "porcupine": "INFO jepsen.util - 3\t:invoke\t:read\tnil\n",
    }
    run = imported(form, whole[form] + line)
    (slip,) = run.state()["slips"]["first"]
    assert slip["line"] == 2
    assert slip["rule"] in ("NOT_EDN", "NO_PROCESS", "NO_TYPE", "UNKNOWN_KIND", "ODD_VALUE")


def test_times_that_go_back_are_named(imported: Import) -> None:
    """The first line whose time is before an earlier one is named."""
    lines = [line.replace("}\n", f", :time {t}}}\n") for line, t in zip(sound(), T, strict=True)]
    (reason,) = imported("jepsen-kafka", "".join(lines)).state()["reasons"]
    assert reason["code"] == "HISTORY_MALFORMED"
    assert "line 4: the time 15 is before 20" in reason["message"]


T = (5, 10, 20, 15, 30, 35, 40, 45)


def test_what_is_certain_outweighs_what_is_missing(imported: Import) -> None:
    """One offset with two messages convicts, whatever else is wrong with the file."""
    twice = GOT.format("[0 0] [1 1]") + ASK + GOT.format("[0 2] [1 1]")
    lines = [*sound()[:-1], twice, "{:broken\n"]
    verdict = judge_small(History.open(imported("jepsen-kafka", "".join(lines))))
    assert "OFFSET_CONFLICT" in verdict.convicting
    assert "HISTORY_MALFORMED" in [reason.code for reason in verdict.reasons]


def test_nothing_is_lost_where_lines_are_missing(imported: Import) -> None:
    """A message that nobody saw may be in the line that could not be read."""
    lines = sound()
    lines[-1] = GOT.format("[0 0] [2 2]")
    assert judge_small(History.open(imported("jepsen-kafka", "".join(lines)))).convicting == (
        "LOST_ACKED",
    )
    lines[-1:] = [lines[-1], ASK, "{:type :ok, :process 9, :f :poll, :value [[:poll {k [[1 1\n"]
    verdict = judge_small(History.open(imported("jepsen-kafka", "".join(lines))))
    assert verdict.verdict is Judgement.UNKNOWN


def test_a_gzip_file_that_breaks_off(imported: Import) -> None:
    """What can be unpacked is imported; that the rest is missing is said."""
    text = "".join(INVOKE.format(v, v) + OK.format(v, v, v * 7919) for v in range(5000))
    packed = gzip.compress(text.encode())
    for data, says in (
        (packed[: len(packed) // 2], "breaks off"),
        (packed[:9000] + b"\xff" * 999, "damaged"),
    ):
        run = imported("jepsen-kafka", data)
        state = run.state()
        assert 100 < state["imported"]["events"] < 10_000
        assert state["slips"]["counts"]["BROKEN_GZIP"] == 1
        assert any(says in slip["message"] for slip in state["slips"]["first"])
        assert judge_small(History.open(run)).verdict is Judgement.UNKNOWN


def test_many_slips_are_counted_and_few_are_kept(imported: Import) -> None:
    """Counts are exact, over all pieces of a file; words are kept of the first."""
    broken = "{:type :ok, :process\n" * 30_000
    run = imported("jepsen-kafka", "".join(sound()) + broken)
    slips = run.state()["slips"]
    assert slips["counts"] == {"NOT_EDN": 30_000}
    assert [slip["line"] for slip in slips["first"]] == list(range(9, 29))
    assert "30,000 lines" in run.state()["reasons"][0]["message"]


def test_where_nothing_succeeded_nothing_is_known(imported: Import) -> None:
    """A history without an acknowledged send proves nothing about loss."""
    text = INVOKE.format(1, 1) + ASK + GOT.format("")
    verdict = judge_small(History.open(imported("jepsen-kafka", text)))
    assert verdict.verdict is Judgement.UNKNOWN
    assert [reason.code for reason in verdict.reasons] == ["NOTHING_COMPLETED"]


@pytest.mark.parametrize("name", registry.names("importer"))
@pytest.mark.parametrize(
    "data", [b"", b"  \n\n", b"\x00\xff\xfe" * 50, b"hello\nworld\n", b"[", b"{}\n"]
)
def test_no_importer_takes_what_is_no_history(tmp_path: Path, name: str, data: bytes) -> None:
    """What is not of the format is refused in one sentence that names the file."""
    path = tmp_path / "strange"
    path.write_bytes(data)
    with pytest.raises(BadRequest, match="strange") as raised:
        registry.load("importer", name)(path)
    assert "\n" not in str(raised.value)


def test_a_history_of_another_format_says_which_line(tmp_path: Path) -> None:
    """--as jepsen-kafka of a queue's history names a line, what is on it, and what was expected."""
    path = tmp_path / "queue.edn"
    path.write_text("{:type :invoke, :process 0, :f :enqueue, :value 5}\n")
    with pytest.raises(BadRequest, match="line 1 has :f :enqueue, and jepsen-kafka has :send"):
        registry.load("importer", "jepsen-kafka")(path)


@pytest.mark.parametrize("size", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("packed", [False, True])
def test_pieces_are_whole_lines(tmp_path: Path, size: int, packed: bool) -> None:
    """However a file is cut, its lines and their numbers are the same."""
    lines = [b"a" * n + b"\n" for n in (0, 3, 70, 1, 0, 9)] + [b"no newline"]
    data = b"".join(lines)
    path = tmp_path / "lines"
    path.write_bytes(gzip.compress(data[:50]) + gzip.compress(data[50:]) if packed else data)
    slips = Slips()
    found = list(_source.pieces(path, slips, size))
    assert b"".join(piece for _, piece in found) == data
    assert all(piece.endswith(b"\n") for _, piece in found[:-1])
    numbers = [number for number, piece in found for _ in piece.splitlines()]
    assert [number for number, _ in found] == sorted(set(numbers))
    assert found[-1][0] + found[-1][1].count(b"\n") == data.count(b"\n") + 1
    assert not slips


def test_large_files_are_read_by_several_processes(tmp_path: Path) -> None:
    """A file of many pieces gives the same as one of a single piece."""
    from harness.importers import _jepsen, jepsen_kafka

    path = tmp_path / "large.edn"
    path.write_text("".join(sound(4000)))
    many = _jepsen.recording(path, jepsen_kafka.FORMAT, size=1 << 15)
    one = _jepsen.recording(path, jepsen_kafka.FORMAT)
    assert many.parts.equals(one.parts)
    assert many.events.line.tolist() == one.events.line.tolist()
    assert json.dumps(many.slips.counts) == json.dumps(one.slips.counts)


def _judged(imported: Import, form: str, *lines: str) -> tuple[Judgement, RunDir]:
    """Operations as `process type f value` and what is wanted after it, as a history's lines."""
    told = []
    for line in lines:
        process, kind, f, rest = line.split(" ", 3)
        told.append(f"{{:process {process}, :type :{kind}, :f :{f}, :value {rest}}}\n")
    run = imported(form, "".join(told))
    return judge_small(History.open(run)).verdict, run


def test_one_odd_line_does_not_turn_many_registers_into_one(imported: Import) -> None:
    """A history by key stays one when a read is invoked without its key: that line is dropped."""
    sound = [
        *("0 invoke write [1 1]", "0 ok write [1 1]", "0 invoke write [2 2]", "0 ok write [2 2]"),
        *("1 invoke read [1 nil]", "1 ok read [1 1]", "1 invoke read [2 nil]", "1 ok read [2 2]"),
    ]
    assert _judged(imported, "jepsen-register", *sound)[0] is Judgement.VALID
    verdict, run = _judged(imported, "jepsen-register", *sound, "2 invoke read nil")
    assert verdict is Judgement.UNKNOWN
    assert run.state()["slips"]["counts"] == {"ODD_VALUE": 1}


def test_two_completions_that_say_different_things_prove_neither(imported: Import) -> None:
    """The answer of an operation before, once more, is not taken for that of the next one."""
    verdict, run = _judged(
        imported,
        "jepsen-append",
        *("0 invoke txn [[:r 1 nil]]", "0 ok txn [[:r 1 []]]"),
        *("1 invoke txn [[:append 1 1]]", "1 ok txn [[:append 1 1]]"),
        *("0 invoke txn [[:r 1 nil]]", "0 ok txn [[:r 1 []]]", "0 ok txn [[:r 1 [1]]]"),
        *("1 invoke txn [[:r 1 nil]]", "1 ok txn [[:r 1 [1]]]"),
    )
    assert verdict is Judgement.UNKNOWN
    assert run.state()["slips"]["counts"] == {"COMPLETED_TWICE": 1}


@pytest.mark.parametrize("times", [[7] * 8, [1, 9, 8, 7, 6, 5, 4, 3]])
def test_lines_keep_their_order_where_times_do_not_tell_it(
    imported: Import, times: list[int]
) -> None:
    """A Jepsen history stands in the order of its events, whatever its clock says: what is stale by
    its lines is stale, and what is fresh is fresh."""
    rows = ["0 {} [[:w 1 1]]", "0 {} [[:w 1 2]]", "1 {} [[:r 1 {}]]", "0 {} [[:w 2 3]]"]
    for seen, expected in ((1, {"invalid"}), (2, {"valid", "unknown"})):
        lines = [
            row.format(f"{kind} txn", seen if kind == "ok" else "nil")
            for row in rows
            for kind in ("invoke", "ok")
        ]
        timed = [f"{line}, :time {t}" for line, t in zip(lines, times, strict=True)]
        verdict, _ = _judged(imported, "jepsen-wr", *timed)
        assert str(verdict) in expected


def test_a_mark_of_byte_order_is_no_part_of_the_first_line(imported: Import) -> None:
    """Some editors write three bytes in front of the text."""
    run = imported("jepsen-kafka", b"\xef\xbb\xbf" + "".join(sound()).encode())
    assert run.state()["reasons"] == []


def test_a_gzip_file_that_holds_nothing_is_not_called_empty(imported: Import) -> None:
    """It is damaged, and that is said."""
    with pytest.raises(BadRequest, match="cannot be unpacked: the gzip data breaks off"):
        imported("jepsen-set", b"\x1f\x8b")


def test_only_a_newline_ends_a_line(imported: Import) -> None:
    """Texts may hold what Unicode calls a line's end, and lines are counted as editors do."""
    wrote = '{{:process 0, :type :{}, :f :{}, :key "k", :value "a\u2028b\x85c"}}\n'
    lines = [wrote.format(t, f) for f in ("put", "get") for t in ("invoke", "ok")]
    run = imported("porcupine-kv", "".join(lines))
    assert run.state()["reasons"] == []
    assert judge_small(History.open(run)).verdict is Judgement.VALID


@pytest.mark.parametrize(
    ("form", "wrote", "read"),
    [
        ("jepsen-queue", "enqueue nil", "dequeue nil"),
        ("jepsen-set", "add nil", "read [nil]"),
        ("jepsen-append", "txn [[:append 1 nil]]", "txn [[:r 1 [nil]]]"),
    ],
)
def test_nothing_is_no_value(imported: Import, form: str, wrote: str, read: str) -> None:
    """Nil says that there is nothing, so what was written as nil is dropped, and that is said."""
    asked = read.replace("[nil]", "nil")
    lines = [f"0 invoke {wrote}", f"0 ok {wrote}", f"1 invoke {asked}", f"1 ok {read}"]
    verdict, run = _judged(imported, form, *lines)
    assert verdict is Judgement.UNKNOWN
    assert run.state()["slips"]["counts"] == {"ODD_VALUE": 1}
    stored = json.loads(run.verdict_file.read_text())
    codes = [reason["code"] for checker in stored["checkers"] for reason in checker["reasons"]]
    assert "CHECKER_FAILED" not in codes


def test_a_set_that_was_read_as_nil_was_not_read(imported: Import) -> None:
    """As Jepsen's own checker sees it: nobody knows whether the element is there."""
    lines = ["0 invoke add 1", "0 ok add 1", "1 invoke read nil", "1 ok read nil"]
    verdict, run = _judged(imported, "jepsen-set", *lines)
    assert verdict is Judgement.UNKNOWN
    assert run.state()["slips"]["counts"] == {"ODD_VALUE": 1}
