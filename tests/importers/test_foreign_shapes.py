"""Histories of other tools have shapes of their own, and each is read for what it means."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import registry
from harness.errors import BadRequest
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.importers import _jepsen
from harness.importers import _run_folder as _folder
from harness.importers.jepsen import FORMATS
from harness.judge.judge import judge_small
from harness.judge.verdict import Judgement, Verdict

Import = Callable[..., RunDir]
VALID, INVALID, UNKNOWN = Judgement.VALID, Judgement.INVALID, Judgement.UNKNOWN


def judged(run: RunDir) -> Verdict:
    return judge_small(History.open(run))


def codes(verdict: Verdict) -> set[str]:
    return {f.code for result in verdict.checkers for f in result.findings if f.demand}


def op(kind: str, process: str, f: str, value: str, more: str = "") -> str:
    return f"{{:process {process}, :type :{kind}, :f :{f}, :value {value}{more}}}\n"


def done(process: str, f: str, value: str, read: str | None = None) -> str:
    return op("invoke", process, f, value) + op("ok", process, f, read or value)


SOUND = done("0", "write", "3") + done("1", "read", "nil", "3")
STALE = done("0", "write", "3") + done("1", "read", "nil", "8")

# ------------------------------------------------------------------------------------- the text


@pytest.mark.parametrize(
    "literal",
    [
        *(
            "0x1f2",
            "017",
            "2r11",
            "1/3",
            "12N",
            "1.5M",
            "##NaN",
            "1e400",
            r"\a",
            r"\newline",
            "a/b",
        ),
        *('#inst "2024-05-01"', '#uuid "f81d"', '#"a.b"', "#:n{:a 1}", "^:m [1]", "#{1 1}"),
        *("1x2", "08", r"\nothing", "127.0.0.1:80", "2024-05-01T10:00", '"half \\ud83d"', "{:a}"),
        *("#<Thread Thread[main,5]>", '#object[a.B 0x1 "b@1"]', "#function[user/f]", "#'user/f"),
        '#error {:cause "x" :via [{:type a.B}] :trace [[a.b$fn__12 invoke "x.clj" 3]]}',
        "[" * 300 + "]" * 300,
    ],
)
@pytest.mark.parametrize("key", [":error", ":conn", ":index"])
def test_no_value_under_another_key_spoils_a_line(imported: Import, literal: str, key: str) -> None:
    """What nothing here asks for may be anything, readable or not."""
    text = STALE.replace(":value 8}", f":value 8, {key} {literal}}}")
    run = imported("jepsen-register", text)
    assert run.state()["slips"]["counts"] == {}
    assert judged(run).verdict is INVALID


def test_a_value_of_the_nemesis_or_of_what_failed_is_not_needed(imported: Import) -> None:
    """Neither is read as a value of the register."""
    text = (
        op("info", ":nemesis", "start", "[1x2 #object[a.B 0x1 08]]")
        + op("invoke", "5", "write", "4")
        + op("info", "5", "write", "#<Closed 1x2>", ", :error [:closed 1x2]")
        + op("invoke", "6", "read", "08")
        + op("fail", "6", "read", "1x2", ", :error 1x2")
        + SOUND
    )
    run = imported("jepsen-register", text)
    assert run.state()["slips"]["counts"] == {}
    assert judged(run).verdict is VALID


def test_a_needed_value_that_can_not_be_read_is_named(imported: Import) -> None:
    """One that a client was told is a slip, with its text."""
    run = imported("jepsen-register", SOUND + done("2", "read", "nil", "[1 1x2]"))
    (slip,) = run.state()["slips"]["first"]
    assert (slip["rule"], slip["line"]) == ("ODD_VALUE", 6)
    assert "1x2" in slip["message"]


@pytest.mark.parametrize(
    "text",
    [
        "; a comment\n" + STALE,
        "#! a comment\n\n;; another\n" + STALE,
        "; a comment\n[" + STALE + "]",
        "#_{:process 0, :type :ok}\n" + STALE,
        "#_ [ignored]\n[" + STALE.replace("\n", " ; said\n") + "]\n; end",
        "^:history [" + STALE + "]",
        "#jepsen.history.History[" + STALE + "]",
        "(" + STALE + ")",
        "\ufeff" + STALE.replace("\n", "\r\n"),
        "\ufeff; first\r\n[" + STALE.replace("\n", "\r\n") + "]",
        STALE.replace(", ", ",\n "),
        STALE.replace(":type :ok", "#_ :gone #_ 1 :type ; kind\n :ok"),
        STALE.replace("}\n{", "} {"),
        STALE.replace(
            ":value 3}", ':value 3, :error #error {\n :cause "x"\n :via\n [{:type a.B}]}}'
        ),
        STALE.replace(":value 3}", ':value 3, :error "two\nlines"}'),
    ],
)
def test_comments_and_line_ends_are_where_clojure_lets_them_be(imported: Import, text: str) -> None:
    """The stale read is found, and no line is lost."""
    run = imported("jepsen-register", text)
    assert run.state()["slips"]["counts"] == {}
    assert judged(run).verdict is INVALID


@pytest.mark.parametrize("size", [40, 100, 1 << 21])
def test_two_operations_on_a_line_are_two(tmp_path: Path, size: int) -> None:
    """Then operations are counted, also where a file is read in pieces."""
    path = tmp_path / "history.edn"
    path.write_text(SOUND + STALE.replace("}\n{", "} {") + SOUND)
    found = _jepsen.recording(path, FORMATS["jepsen-register"], size)
    assert found.events.line.tolist() == list(range(1, 13))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("{:a 1, :b #{1 2}}", "{:b #{2 1}, :a 1}"),
        ("#{[1] {:x 1 :y 2}}", "#{{:y 2 :x 1} [1]}"),
        ("0x10", "16"),
        ("1/2", "2/4"),
        ('#inst "2024-05-01T10:00:00Z"', '#inst "2024-05-01T10:00:00.000-00:00"'),
    ],
)
def test_equal_values_are_one(imported: Import, one: str, other: str) -> None:
    """In registers, by key, in sets, in lists, and at first."""
    assert (
        judged(
            imported("jepsen-register", done("0", "write", one) + done("1", "read", "nil", other))
        ).verdict
        is VALID
    )
    by_key = done("0", "write", f"[{one} 1]") + done("1", "read", f"[{other} nil]", f"[{other} 1]")
    assert judged(imported("jepsen-register", by_key)).verdict is VALID
    added = done("0", "add", one) + done("1", "read", "nil", f"[{other}]")
    assert judged(imported("jepsen-set", added)).verdict is VALID
    listed = done("0", "txn", f"[[:append :k {one}]]")
    listed += done("1", "txn", "[[:r :k nil]]", f"[[:r :k [{other}]]]")
    assert judged(imported("jepsen-append", listed)).verdict is VALID
    first = done("1", "read", "nil", other) + done("0", "write", ":x")
    assert judged(imported("jepsen-register", first, initial=one)).verdict is VALID


def test_octal_numbers_are_octal_in_the_quick_reader_too(imported: Import) -> None:
    """Of processes, times, keys, offsets and messages."""
    lines = [
        "{:type :invoke, :process 010, :f :send, :value [[:send 012 07]], :time 010}",
        "{:type :ok, :process 8, :f :send, :value [[:send 10 [020 7]]], :time 9}",
        "{:type :invoke, :process 9, :f :poll, :value [[:poll]], :time 10}",
        "{:type :ok, :process 9, :f :poll, :value [[:poll {10 [[16 7]]}]], :time 11}",
    ]
    run = imported("jepsen-kafka", "\n".join(lines * 1))
    assert run.state()["slips"]["counts"] == {}
    assert codes(judged(run)) == set()


# ---------------------------------------------------------------------------------------- who


@pytest.mark.parametrize(
    "process", ['"a"', ":a", "a/b", "{:node 1}", "[:n1 3]", "-7", "99999999999", "1.5", "true"]
)
def test_a_client_may_be_called_anything(imported: Import, process: str) -> None:
    """What it did is judged as if it had a number."""
    sound = done(process, "write", "1") + done("1", "read", "nil", "1")
    assert judged(imported("jepsen-register", sound)).verdict is VALID
    stale = done(process, "write", "1") + done(process, "read", "nil", "2")
    assert judged(imported("jepsen-register", stale)).verdict is INVALID


def test_processes_of_several_names_are_several(imported: Import) -> None:
    """No number is given twice, and none that the file has."""
    overlapping = (
        op("invoke", ":a", "write", "1")
        + op("invoke", ":b", "write", "2")
        + op("invoke", "0", "write", "3")
        + "".join(
            op("ok", who, "write", value) for who, value in ((":b", "2"), ("0", "3"), (":a", "1"))
        )
        + done("1", "read", "nil", "2")
    )
    run = imported("jepsen-register", overlapping)
    assert run.state()["slips"]["counts"] == {}
    assert judged(run).verdict is VALID


@pytest.mark.parametrize("who", [":nemesis", '"nemesis"', "nemesis", ":nemesis-2"])
def test_the_nemesis_is_known_by_its_name_and_by_what_it_does(imported: Import, who: str) -> None:
    """It reports: `:info`. What it reports of a client's kind is a note; what it invokes is not."""
    text = op("info", who, "write", "9") + op("info", who, "start", "nil") + SOUND
    run = imported("jepsen-register", text)
    assert run.state()["slips"]["counts"] == {}
    assert run.state()["imported"]["events"] == 4
    assert judged(run).verdict is VALID
    acted = imported("jepsen-register", done(who, "write", "9") + done("1", "read", "nil", "9"))
    assert judged(acted).verdict is VALID


def test_what_a_client_does_otherwise_is_of_an_unknown_kind(imported: Import) -> None:
    """A process that reads and writes under a name is no nemesis when it does something else."""
    text = done(":a", "write", "1") + done(":a", "clear", "nil") + done("1", "read", "nil", "1")
    run = imported("jepsen-register", text)
    assert run.state()["slips"]["counts"] == {"UNKNOWN_KIND": 2}


def test_a_file_of_the_nemesis_alone_is_refused_for_that(imported: Import) -> None:
    """The sentence says whose operations are in it, and which are missing."""
    with pytest.raises(
        BadRequest, match=r"only operations of the nemesis \(2, the first on line 1\)"
    ):
        imported("jepsen-register", op("info", ":nemesis", "start", "nil") * 2)
    with pytest.raises(BadRequest, match="line 1 has :f :enqueue"):
        imported("jepsen-register", done('"a"', "enqueue", "1"))


# --------------------------------------------------------------------------------------- JSON


TRANSACTIONS = [
    {"type": "invoke", "f": "txn", "process": 0, "value": [["append", "x", 1]]},
    {"type": "ok", "f": "txn", "process": 0, "value": [["append", "x", 1]]},
    {"type": "info", "f": "start", "process": "nemesis", "value": None},
    {"type": "invoke", "f": "txn", "process": 1, "value": [["r", "x", None]]},
    {"type": "ok", "f": "txn", "process": 1, "value": [["r", "x", [1]]]},
]


WRITERS: dict[str, Callable[[list[object]], str]] = {
    "array": json.dumps,
    "indented array": lambda ops: json.dumps(ops, indent=2),
    "lines": lambda ops: "\n".join(map(json.dumps, ops)),
    "CRLF": lambda ops: "\ufeff" + "\r\n".join(json.dumps(o, separators=(",", ":")) for o in ops),
    "objects": lambda ops: "\n".join(json.dumps(each, indent=1) for each in ops),
    "history": lambda ops: json.dumps({"history": ops}),
}


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("writer", WRITERS)
def test_json_is_read_as_edn_is(imported: Import, writer: str, lost: bool) -> None:
    """One array, one object a line, objects of several lines, or under "history"."""
    ops = [*TRANSACTIONS, *({**each, "process": 3} for each in TRANSACTIONS[3:])]
    ops[-1] = {**ops[-1], "value": [["r", "x", None if lost else [1]]]}
    run = imported("jepsen-append", WRITERS[writer](list(ops)))
    assert run.state()["slips"]["counts"] == {}
    verdict = judged(run)
    assert verdict.verdict is (INVALID if lost else VALID), verdict.sentence


def test_json_of_other_kinds(imported: Import) -> None:
    """Keys of objects are texts in JSON; numbers may have a fraction of nothing; words a colon."""
    polled = [
        {"type": "invoke", "f": "send", "process": 0, "value": [["send", 4, 17]]},
        {"type": "ok", "f": "send", "process": 0, "value": [["send", 4, [0, 17]]]},
        {"type": "invoke", "f": "poll", "process": 1, "value": [["poll"]]},
        {"type": "ok", "f": "poll", "process": 1, "value": [["poll", {"4": [[0, 17]]}]]},
    ]
    assert codes(judged(imported("jepsen-kafka", json.dumps(polled)))) == set()
    register = [
        {"type": ":invoke", "f": ":write", "process": "a", "value": 1.0},
        {"type": ":ok", "f": ":write", "process": "a", "value": 1},
        {"type": ":invoke", "f": ":read", "process": 1, "value": None},
        {"type": ":ok", "f": ":read", "process": 1, "value": {"b": 1}},
    ]
    assert judged(imported("jepsen-register", json.dumps(register))).verdict is INVALID


def test_a_broken_line_of_json_is_named(imported: Import) -> None:
    """The others are read."""
    lines = [json.dumps(each) for each in TRANSACTIONS]
    run = imported("jepsen-append", "\n".join([*lines, '{"type": "ok", ', *lines]))
    (slip,) = run.state()["slips"]["first"]
    assert (slip["rule"], slip["line"]) == ("NOT_JSON", 6)
    assert run.state()["imported"]["events"] == 8


def test_edn_with_texts_for_keys_is_no_json(imported: Import) -> None:
    """A colon that belongs to a keyword is none of JSON's."""
    text = STALE.replace(":process", '"process"').replace(":type", '"type"')
    assert judged(imported("jepsen-register", text)).verdict is INVALID


# ------------------------------------------------------------------------------ what is missing


CYCLE = """\
[{:type :ok, :value [[:append :x 1] [:r :y [1]]]}
 {:type :ok, :value [[:append :x 2] [:append :y 1]]}
 {:type :ok, :value [[:r :x [1 2]]]}]"""


@pytest.mark.parametrize("process", ["", ":process 0, "])
def test_completed_transactions_alone_are_judged_by_what_they_read(
    imported: Import, process: str
) -> None:
    """Nothing is said of time, so the contract is `serializable`, and a stricter one is refused."""
    cycle = CYCLE.replace("{:type", f"{{{process}:type")
    assert "G1C" in codes(judged(imported("jepsen-append", cycle)))
    run = imported("jepsen-append", cycle.replace(" [:r :y [1]]", ""))
    assert run.state()["slips"]["counts"] == {}
    verdict = judged(run)
    assert verdict.verdict is VALID
    assert "serializable forbids" in verdict.sentence
    with pytest.raises(BadRequest, match="order in time is not known"):
        imported("jepsen-append", cycle, contract=["strict-serializable"])


def test_other_completions_alone_may_have_begun_at_any_time(imported: Import) -> None:
    """What no order explains is convicted; that nothing was invoked is told."""
    alone = op("ok", "0", "write", "1") + op("ok", "0", "read", "1") + op("ok", "1", "read", "{}")
    run = imported("jepsen-register", alone)
    assert run.state()["slips"]["counts"] == {"NOT_INVOKED": 3}
    assert judged(run).verdict is INVALID
    assert judged(imported("jepsen-register", alone.replace("{}", "1"))).verdict is UNKNOWN


@pytest.mark.parametrize("error", ["", ", :error :timeout"])
def test_a_failed_cas_proves_nothing_where_no_failure_has_an_error(
    imported: Import, error: str
) -> None:
    """A read that failed without an error shows that the file names none."""
    text = (
        done("0", "write", "4")
        + op("invoke", "1", "cas", "[4 5]")
        + op("fail", "1", "cas", "[4 5]")
        + op("invoke", "2", "read", "nil")
        + op("fail", "2", "read", "nil", error)
        + done("2", "read", "nil", "4")
    )
    assert judged(imported("jepsen-register", text)).verdict is (INVALID if error else VALID)


@pytest.mark.parametrize("size", [90, 1 << 21])
def test_whether_errors_are_named_is_asked_of_the_whole_file(tmp_path: Path, size: int) -> None:
    """However it is cut into pieces."""
    path = tmp_path / "history.edn"
    path.write_text(
        done("0", "write", "4")
        + op("invoke", "1", "cas", "[4 5]")
        + op("fail", "1", "cas", "[4 5]")
        + SOUND * 3
        + op("invoke", "2", "read", "nil")
        + op("fail", "2", "read", "nil")
    )
    found = _jepsen.recording(path, FORMATS["jepsen-register"], size)
    assert found.parts.column("pos").null_count == found.parts.num_rows


def test_a_read_of_nil_tells_nothing_where_registers_hold_something_at_first(
    imported: Import,
) -> None:
    """With `--initial` nil is a value that is not known, as for Knossos; else it is nothing."""
    text = done("0", "read", "nil") + done("1", "write", "4") + done("0", "read", "nil")
    assert judged(imported("jepsen-register", text, initial="0")).verdict is VALID
    assert judged(imported("jepsen-register", text)).verdict is INVALID
    wrong = text + done("0", "read", "nil", "3")
    assert judged(imported("jepsen-register", wrong, initial="0")).verdict is INVALID


def test_a_fault_under_which_nothing_succeeded_is_told(imported: Import) -> None:
    """The verdict stands, and its sentence says which fault, and from where to where."""
    quiet = op("invoke", "5", "write", "4") + op("fail", "5", "write", "4", ", :error :no-leader")
    start = op("info", ":nemesis", "start-partition", "nil")
    stop = op("info", ":nemesis", "stop-partition", "nil")
    verdict = judged(imported("jepsen-register", SOUND + start + quiet + stop + SOUND))
    assert verdict.verdict is VALID
    assert "while :start-partition lasted, from line 5 to line 8" in verdict.sentence
    noisy = judged(imported("jepsen-register", SOUND + start + quiet + SOUND + stop))
    assert "no operation was acknowledged" not in noisy.sentence
    kill, restart = (op("info", ":nemesis", f, "nil") for f in ("kill", "start"))
    twice = (kill + quiet + restart + SOUND) * 2 + kill + SOUND
    sentence = judged(imported("jepsen-register", twice)).sentence
    assert "during 2 of 3 faults, first while :kill lasted, from line 1 to line 4" in sentence


# ------------------------------------------------------------------------------------- queues


PUT = done("0", "enqueue", "1") + done("0", "enqueue", "2")
DRAINED = done("3", "drain", "nil", "[]")


@pytest.mark.parametrize("end", [op("info", "1", "drain", "nil", ", :error :timeout"), ""])
@pytest.mark.parametrize("value", ["nil", "#<Timeout 1x2>"])
def test_a_drain_of_unknown_outcome_may_have_taken_everything(
    imported: Import, end: str, value: str
) -> None:
    """All that was there, and not what was put later."""
    lost = op("invoke", "1", "drain", "nil") + end.replace("nil", value)
    assert judged(imported("jepsen-queue", PUT + lost + DRAINED)).verdict is VALID
    again = PUT.replace("2", "1") + lost + DRAINED
    assert judged(imported("jepsen-queue", again)).verdict is VALID
    before = lost.replace(" 1,", " 7,") + DRAINED + PUT + op("fail", "1", "dequeue", "nil")
    assert judged(imported("jepsen-queue", PUT + DRAINED)).verdict is INVALID
    assert judged(imported("jepsen-queue", before)).verdict is UNKNOWN


@pytest.mark.parametrize(
    ("error", "right"),
    [
        (":empty", INVALID),
        (":exhausted", INVALID),
        ("[:empty 3]", INVALID),
        ('"queue-empty"', INVALID),
        (":timeout", UNKNOWN),
        ("nil", UNKNOWN),
    ],
)
def test_a_dequeue_that_found_nothing_says_so_by_its_error(
    imported: Import, error: str, right: Judgement
) -> None:
    """What was acknowledged and never seen is lost then; else nothing is known of it."""
    tail = op("invoke", "1", "dequeue", "nil") + op(
        "fail", "1", "dequeue", "nil", f", :error {error}"
    )
    verdict = judged(imported("jepsen-queue", PUT + done("1", "dequeue", "nil", "1") + tail))
    assert verdict.verdict is right
    if right is INVALID:
        assert codes(verdict) == {"ELEMENT_LOST"}
        assert verdict.sentence.endswith(": 2.")
    else:
        assert "OBJECTS_NOT_READ" in {reason.code for reason in verdict.reasons}


@pytest.mark.parametrize("word", [":exhausted", ":empty", ":done", '"drained"', "nil", "[]"])
def test_a_drain_that_came_to_its_end_in_a_word(imported: Import, word: str) -> None:
    """It found nothing more. What it took stands in dequeues of its own."""
    taken = done("1", "dequeue", "nil", "1") + done("1", "dequeue", "nil", "2")
    run = imported("jepsen-queue", PUT + taken + done("1", "drain", "nil", word))
    assert run.state()["slips"]["counts"] == {}
    assert judged(run).verdict is VALID
    lost = imported(
        "jepsen-queue", PUT + taken[: len(taken) // 2] + done("1", "drain", "nil", word)
    )
    assert codes(judged(lost)) == {"ELEMENT_LOST"}


def test_a_drain_that_ended_in_another_word_is_a_slip(imported: Import) -> None:
    """Whether it came to the end is not known, so it may have taken everything."""
    run = imported("jepsen-queue", PUT + done("1", "drain", "nil", ":interrupted") + DRAINED)
    assert run.state()["slips"]["counts"] == {"ODD_VALUE": 1}
    assert judged(run).verdict is UNKNOWN


OVERTAKEN = PUT + done("1", "dequeue", "nil", "2") + done("1", "dequeue", "nil", "1") + DRAINED
AGAIN = PUT + done("1", "dequeue", "nil", "1") + done("2", "drain", "nil", "[1 2]")


@pytest.mark.parametrize(
    ("text", "contract", "expected"),
    [
        (OVERTAKEN, None, {"QUEUE_ORDER"}),
        (OVERTAKEN, ["no-loss", "at-least-once"], set()),
        (AGAIN, ["no-loss", "at-least-once"], {"DUPLICATE_ELEMENT"}),
        (AGAIN, ["no-loss"], set()),
        (PUT + done("1", "dequeue", "nil", "2") + DRAINED, ["no-loss"], {"ELEMENT_LOST"}),
        (
            PUT.replace("2", "1") + done("1", "dequeue", "nil", "3") + DRAINED,
            ["no-loss"],
            {"PHANTOM_ELEMENT"},
        ),
    ],
)
def test_an_unordered_queue_is_no_fifo_queue(
    imported: Import, text: str, contract: list[str] | None, expected: set[str]
) -> None:
    """Without `order-per-queue` any order will do; without `at-least-once` twice will do."""
    verdict = judged(imported("jepsen-queue", text, contract=contract))
    convicting = {
        f.code for r in verdict.checkers for f in r.findings if f.demand and not f.permitted
    }
    assert convicting == expected


def test_what_was_overtaken_is_not_lost_without_an_order(imported: Import) -> None:
    """In a queue it is; where any order will do it may still be there."""
    text = PUT + done("1", "dequeue", "nil", "2")
    assert codes(judged(imported("jepsen-queue", text))) == {"ELEMENT_LOST"}
    verdict = judged(imported("jepsen-queue", text, contract=["no-loss"]))
    assert (verdict.verdict, codes(verdict)) == (UNKNOWN, set())


@pytest.mark.parametrize(
    ("form", "text", "word"),
    [
        ("jepsen-queue", PUT, "serializable"),
        ("jepsen-set", done("0", "add", "1"), "order-per-queue"),
        ("jepsen-register", SOUND, "no-loss"),
        ("jepsen-append", CYCLE, "no-loss"),
    ],
)
def test_a_contract_is_made_of_the_words_of_its_kind(
    imported: Import, form: str, text: str, word: str
) -> None:
    """Others are refused, with those that there are."""
    with pytest.raises(BadRequest, match=f"--contract {word}: of "):
        imported(form, text, contract=[word])


# --------------------------------------------------------------------------------- sets, locks


def test_what_was_added_after_the_last_read_is_not_known(imported: Import) -> None:
    """A read that was open then may have come before it; one that began later would have told."""
    text = done("1", "read", "nil", "#{}") + done("0", "add", "1")
    verdict = judged(imported("jepsen-set", text))
    assert verdict.verdict is UNKNOWN
    assert [reason.code for reason in verdict.reasons] == ["OBJECTS_NOT_READ"]
    assert judged(imported("jepsen-set", text + done("1", "read", "nil", "#{1}"))).verdict is VALID
    assert judged(imported("jepsen-set", text + done("1", "read", "nil", "#{}"))).verdict is INVALID


def test_a_phantom_is_named(imported: Import) -> None:
    """In the sentence, in the row of evidence, and in its explanation."""
    text = done("0", "add", '"hé"') + done("1", "read", "nil", '#{"hé" "海"}')
    verdict = judged(imported("jepsen-set", text))
    ((finding,),) = [result.findings for result in verdict.checkers]
    assert finding.code == "PHANTOM_ELEMENT"
    assert '"海"' in finding.message
    assert finding.evidence[0]["original"] == '"海"'
    assert 'element "海": list of 2 elements' in str(finding.evidence[0]["explanation"])


HELD = done("0", "acquire", "nil")
FREED = done("0", "release", "nil")


@pytest.mark.parametrize(
    ("text", "lock", "mutex"),
    [
        (HELD + FREED + HELD, VALID, VALID),
        (HELD + done("1", "acquire", "nil"), INVALID, INVALID),
        (HELD + done("1", "release", "nil") + done("2", "acquire", "nil"), INVALID, VALID),
        (HELD + FREED + FREED, INVALID, INVALID),
        (
            HELD + op("invoke", "1", "acquire", "nil") + op("fail", "1", "acquire", "nil") + FREED,
            VALID,
            VALID,
        ),
        (
            HELD
            + op("invoke", "0", "release", "nil")
            + op("info", "0", "release", "nil")
            + done("1", "acquire", "nil")
            + done("1", "release", "nil"),
            VALID,
            VALID,
        ),
    ],
)
def test_locks_and_knossos_mutex(
    imported: Import, text: str, lock: Judgement, mutex: Judgement
) -> None:
    """A lock is its holder's; anybody may release a mutex."""
    held = text if ":release" in text else text + FREED
    assert judged(imported("jepsen-lock", held)).verdict is lock
    assert judged(imported("jepsen-mutex", text)).verdict is mutex
    by_key = text.replace(":value nil", ":value [7 nil]")
    assert judged(imported("jepsen-mutex", by_key)).verdict is mutex


def test_fencing_tokens_rise(imported: Import) -> None:
    """They stand under `:fence` in the value of an acquire."""

    def held(process: str, token: int) -> str:
        return done(process, "acquire", "nil", f"{{:fence {token}}}") + done(
            process, "release", "nil"
        )

    assert judged(imported("jepsen-lock", held("0", 3) + held("1", 4))).verdict is VALID
    assert "FENCING_BROKEN" in codes(judged(imported("jepsen-lock", held("0", 3) + held("1", 3))))


# ------------------------------------------------------------------- what was never there


def opened(f: str, value: str, count: int = 600) -> str:
    """Clients that were never answered, more than any search could go through."""
    return "".join(op("invoke", str(100 + n), f, value.format(n % 5)) for n in range(count))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (opened("write", "{}") + done("0", "read", "nil", "77"), 601),
        (opened("cas", "[{} 3]") + done("0", "cas", "[77 78]"), 601),
        (opened("cas", "[77 78]") + done("0", "read", "nil", "78"), 601),
        (done("0", "read", "nil", "4") + opened("write", "{}"), 1),
    ],
)
def test_what_no_register_can_have_held_needs_no_search(
    imported: Import, text: str, line: int
) -> None:
    """However many operations are open: it was never written, or not yet, or by nobody who can."""
    verdict = judged(imported("jepsen-register", text))
    assert verdict.verdict is INVALID
    (result,) = verdict.checkers
    assert result.stats["searched"] == 0
    assert result.findings[0].evidence[0]["op"] == line
    assert "can have written that" in str(result.findings[0].evidence[0]["explanation"])


def test_what_no_string_can_have_been_needs_no_search(imported: Import) -> None:
    """A text that is not made of what was put and appended."""

    def line(kind: str, f: str, process: int, value: str) -> str:
        return f'{{:process {process}, :type :{kind}, :f :{f}, :key "k", :value {value}}}\n'

    many = "".join(line("invoke", "append", 100 + n, f'"x{n % 5}"') for n in range(600))
    read = line("invoke", "get", 0, "nil") + line("ok", "get", 0, '"x1x2y"')
    verdict = judged(imported("porcupine-kv", many + read))
    assert verdict.verdict is INVALID
    assert verdict.checkers[0].stats["searched"] == 0
    pieces = enumerate(("x1", "x2", "y"))
    few = "".join(line("invoke", "append", 9 + n, f'"{x}"') for n, x in pieces)
    assert judged(imported("porcupine-kv", few + read)).verdict is not INVALID


def test_the_folder_names_what_it_is_made_of(tmp_path: Path) -> None:
    """A contract is the trial's, so `check` and `report` show it."""
    path = tmp_path / "queue.edn"
    path.write_text(OVERTAKEN)
    recording = registry.load("importer", "jepsen-queue")(path)
    run = _folder.write(recording, path, "jepsen-queue", tmp_path / "run", contract=["no-loss"])
    assert run.trial().contract == ("no-loss",)
