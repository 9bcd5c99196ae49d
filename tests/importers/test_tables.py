"""Tables that somebody wrote by hand: in another order, with rows and cells that do not fit."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import registry
from harness.errors import BadRequest
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.importers import _run_folder as _folder
from harness.judge.judge import judge_small
from harness.judge.verdict import Judgement

Import = Callable[..., RunDir]

HEAD = "process,type,f,key,value,time\n"
WRITER = "1,invoke,put,x,1,10\n1,ok,put,x,1,20\n1,invoke,put,x,2,100\n1,ok,put,x,2,110\n"
READER = "2,invoke,get,x,,{0}0\n2,ok,get,x,1,{0}5\n"


@pytest.mark.parametrize(("at", "expected"), [(5, Judgement.VALID), (20, Judgement.INVALID)])
@pytest.mark.parametrize("turned", [False, True])
def test_one_client_after_the_other(
    imported: Import, at: int, expected: Judgement, turned: bool
) -> None:
    """Clients' rows may stand one client after the other: their times say who came when."""
    clients = [WRITER, READER.format(at)]
    run = imported("csv", HEAD + "".join(clients[::-1] if turned else clients))
    assert run.state()["reasons"] == []
    assert judge_small(History.open(run)).verdict is expected


def test_a_process_that_goes_back_breaks_a_rule(imported: Import) -> None:
    """A process does one thing after the other, so its own times tell of a broken clock."""
    run = imported("csv", HEAD + WRITER.replace("110", "90"))
    assert run.state()["slips"]["counts"] == {"TIME_WENT_BACK": 1}


@pytest.mark.parametrize(
    ("row", "rule", "says"),
    [
        ("2,ok,ge\n", "ODD_LINE", "line 8: 3 cells, where the first line names 6"),
        ("2,ok,get,x,2,soon\n", "ODD_VALUE", "line 8: time is 'soon', not a whole number"),
        ("2,ok,get,x,2," + "9" * 20 + "\n", "ODD_VALUE", "or too large"),
        ("2,ok,got,x,2,\n", "UNKNOWN_WORD", "line 8: f is 'got'"),
        (",ok,get,x,2,\n", "NO_PROCESS", "line 8: no process"),
    ],
)
def test_a_row_that_does_not_fit_is_dropped(
    imported: Import, row: str, rule: str, says: str
) -> None:
    """The row is named by its line in the file, empty lines and all, and the rest is judged."""
    run = imported("csv", HEAD + "\n" + WRITER + "2,invoke,get,x,,200\n" + row)
    assert run.state()["slips"]["counts"] == {rule: 1}
    verdict = judge_small(History.open(run))
    assert verdict.verdict is Judgement.UNKNOWN
    assert any(says in reason.message for reason in verdict.reasons), verdict.reasons


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ({"value": [[1], [2]]}, "column 'value' must contain numbers or texts"),
        ({"process": [[1], [2]]}, "column 'process' must contain numbers or texts"),
        ({"value": pa.array([b"\xff", b"a"])}, "column 'value' must contain numbers or texts"),
        ({"pos": [1 << 40, 0]}, "column 'pos' must contain whole numbers"),
        ({"time": [0.5, 1.5]}, "column 'time' must contain whole numbers"),
    ],
)
def test_a_column_that_can_not_be_read_is_named(
    tmp_path: Path, column: dict[str, object], says: str
) -> None:
    """Nobody guesses what a list of values was meant to be."""
    rows = {"process": [1, 1], "type": ["invoke", "ok"], "f": ["put", "put"], "value": [1, 1]}
    pq.write_table(pa.table({**rows, **column}), tmp_path / "t.parquet")
    with pytest.raises(BadRequest, match=says):
        registry.load("importer", "parquet")(tmp_path / "t.parquet")


def test_a_name_that_two_columns_have(imported: Import) -> None:
    """Which of the two is meant, nobody can know."""
    with pytest.raises(BadRequest, match="more than one column 'key'"):
        imported("csv", "process,type,f,key,key\n1,invoke,put,x,x\n")


@pytest.mark.parametrize(("pos", "expected"), [("0", Judgement.INVALID), ("", Judgement.VALID)])
def test_a_refused_cas_tells_what_the_register_did_not_hold(
    imported: Import, pos: str, expected: Judgement
) -> None:
    """With a `pos` of 0 it was the comparison that refused, without it anything may have been."""
    wrote = "1,invoke,put,x,1,,\n1,ok,put,x,1,,\n1,invoke,get,x,,,\n1,ok,get,x,1,,\n"
    refused = f"2,invoke,cas,x,1,2,\n2,fail,cas,x,1,2,{pos}\n"
    run = imported("csv", "process,type,f,key,value,arg,pos\n" + wrote + refused)
    assert run.state()["reasons"] == []
    assert judge_small(History.open(run)).verdict is expected


def test_a_text_of_several_lines_in_a_large_file(imported: Import) -> None:
    """Wherever a block of the reader ends, a quoted text goes on, and so do the rows."""
    rows = [f'1,{kind},put,x,"a{n}\nb",{n}\n' for n in range(40_000) for kind in ("invoke", "ok")]
    run = imported("csv", HEAD + "".join(rows))
    assert run.state()["imported"]["events"] == 80_000
    assert run.state()["slips"]["counts"] == {}


@pytest.mark.parametrize("row", [b"1,ok,put,\xff,1,20\n", b"1,ok\xff\n"])
def test_bytes_that_are_no_text_are_refused(
    imported: Import, row: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two texts that can not be read might be the same or not; the first line of them is named."""
    with pytest.raises(BadRequest, match="line 2 is not UTF-8"):
        imported("csv", HEAD.encode() + row)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("process,type,f,key,value,mop\na,invoke,append,x,1,0\na,ok,append,x,1,0\n", 2),
        ("process,type,f,key,value,offset,pos\n\nb,ok,poll,orders,m-1,0,0\n", 3),
    ],
)
def test_rows_without_any_event_are_no_history(imported: Import, text: str, line: int) -> None:
    """Parts of transactions, or messages of polls, and never the event's own row."""
    says = (
        f"holds no operation: line {line}: rows with pos or mop, and the event's own row is missing"
    )
    with pytest.raises(BadRequest, match=says):
        imported("csv", text)


def test_what_messages_have_as_arg_is_passed_over(imported: Import) -> None:
    """A text there is somebody's remark: only registers and locks know an arg."""
    sent = "a,invoke,send,q,m-1,hello,,,\na,ok,send,q,m-1,hello,0,,\n"
    seen = "b,invoke,poll,,,,,,\nb,ok,poll,q,m-1,,0,0,\nb,ok,poll,,,,,,\n"
    run = imported("csv", "process,type,f,key,value,arg,offset,pos,time\n" + sent + seen)
    assert run.state()["reasons"] == []
    assert judge_small(History.open(run)).verdict is Judgement.VALID


def test_nothing_is_left_of_an_import_that_failed(tmp_path: Path) -> None:
    """The folder is made when there is something to put in it."""
    path = tmp_path / "t.csv"
    path.write_text("process,type,f,key,value\n1,invoke,put,x,1\n1,ok,put,x,1\n")
    recording = registry.load("importer", "csv")(path)
    recording.kind = "a kind that nobody knows"
    with pytest.raises(KeyError):
        _folder.write(recording, path, "csv", tmp_path / "run")
    assert not (tmp_path / "run").exists()


NAMES = "process,type,f,key,value,arg,offset,pos,mop\n"


def table(*rows: str) -> str:
    """Rows in few words, `a ok send q m1 - 0`: a dash is an empty cell, and so is what is left."""
    cells = [["" if cell == "-" else cell for cell in row.split()] for row in rows]
    return NAMES + "".join(",".join(row + [""] * (9 - len(row))) + "\n" for row in cells)


PAST = ("b invoke poll", "b ok poll q m2 - 1 0", "b ok poll")
LEFT_OUT = {
    "lost": (
        *("a invoke send q m1", "a ok send - - - 0", "a invoke send q m2", "a ok send - - - 1"),
        *PAST,
    ),
    "refused": (
        *("a invoke send q m1", "a fail send"),
        *("b invoke poll", "b ok poll q m1 - 0 0", "b ok poll"),
        *("a invoke send q m2", "a ok send - m2 - 1"),
    ),
    "told at the end": (
        *("a invoke send", "a ok send q m1 - 0", "a invoke send q m2", "a ok send - - - 1"),
        *PAST,
    ),
    "set": ("a invoke add s 1", "a ok add", "b invoke list s", "b ok list"),
    "queue": (
        *("a invoke enqueue q 1", "a ok enqueue", "b invoke dequeue q", "b ok dequeue - 1"),
        *("c invoke dequeue q", "c ok dequeue - 1"),
    ),
    "counter": ("a invoke add c 1", "a ok add", "b invoke count c", "b ok count - 5"),
    "lock": ("a invoke acquire l", "a ok acquire", "b invoke acquire l", "b ok acquire"),
    "register": ("a invoke put x 1", "a ok put", "b invoke get x", "b ok get - 7"),
}


@pytest.mark.parametrize("what", LEFT_OUT)
def test_what_one_row_of_an_operation_leaves_out_the_other_one_says(
    imported: Import, what: str
) -> None:
    """A completion need not repeat what was asked: what is wrong is found all the same."""
    run = imported("csv", table(*LEFT_OUT[what]))
    assert run.state()["slips"]["counts"] == {}
    assert judge_small(History.open(run)).verdict is Judgement.INVALID


SENT = ("a invoke send q m1", "a ok send q m1 - 0", "a invoke send q m2", "a ok send q m2 - 1")


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (
            ("b invoke poll", "b ok poll q m1 - 0 0", "b invoke send q m3", "b ok send"),
            7,
        ),
        (("b invoke poll", "b ok poll q m9 - 2 0", "b fail poll"), 7),
        (
            ("b invoke poll", "b ok poll q m1 - 0 0", "b invoke poll", *LEFT_OUT["lost"][-2:]),
            7,
        ),
        (
            ("b invoke poll", "b ok poll q m2 - 1 0", "b ok poll q m1 - 0 0", "b ok poll"),
            8,
        ),
    ],
)
def test_rows_whose_own_row_was_forgotten_belong_to_no_other_event(
    imported: Import, rows: tuple[str, ...], line: int
) -> None:
    """What follows is of another type, asks another thing, or has these places already."""
    run = imported("csv", table(*SENT, *rows))
    state = run.state()
    first = [slip["line"] for slip in state["slips"]["first"] if slip["rule"] == "NO_EVENT"]
    assert first == [line]
    assert judge_small(History.open(run)).verdict is Judgement.UNKNOWN


@pytest.mark.parametrize("f", ["send", "enqueue"])
def test_only_transactions_have_parts(imported: Import, f: str) -> None:
    """A table that numbers the parts of anything else is refused, with what it asks."""
    rows = (f"a invoke {f} q m1 - - - 0", f"a invoke {f}", f"a ok {f} q m1 - - - 0", f"a ok {f}")
    with pytest.raises(BadRequest, match=f"rows with mop, .* but no {f};"):
        imported("csv", table(*rows))


KEYLESS = {
    "messages": (
        *("a invoke send - m1", "a ok send - - - 0", "a invoke send - m2", "a ok send - - - 1"),
        *PAST,
    ),
    "register": ("a invoke put - 1", "a ok put", "b invoke get", "b ok get - 7"),
    "set": ("a invoke add - 1", "a ok add", "b invoke list", "b ok list - 2 - - 0", "b ok list"),
    "transactions": (
        *("a invoke put - 1 - - - 0", "a invoke put", "a ok put"),
        *("b invoke get - - - - - 0", "b invoke get", "b ok get - 7 - - - 0", "b ok get"),
    ),
}


@pytest.mark.parametrize("what", KEYLESS)
def test_without_any_key_all_is_about_one_object(imported: Import, what: str) -> None:
    """`key` may be left out by all rows, and what is wrong is found."""
    rows = [row.replace(" q ", " - ") for row in KEYLESS[what]]
    run = imported("csv", table(*rows))
    assert run.state()["slips"]["counts"] == {}
    assert judge_small(History.open(run)).verdict is Judgement.INVALID


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (("a invoke send q", "a ok send q - - 0"), "line 8: value is absent, and send proves"),
        (("a invoke send - m3", "a ok send - - - 2"), "line 8: key is absent, and send proves"),
        (
            ("b invoke poll", "b ok poll q - - 0 0", "b ok poll"),
            "line 9: value is absent, and poll",
        ),
        (("b invoke poll", "b ok poll - m1 - 0 0", "b ok poll"), "line 9: key is absent, and poll"),
    ],
)
def test_a_row_that_lacks_what_it_needs_says_nothing(
    imported: Import, rows: tuple[str, ...], says: str
) -> None:
    """Nobody is convicted of what nobody said, and nothing is proven."""
    sound = ("a invoke send q m1", "a ok send - - - 0", "b invoke poll", "b ok poll q m1 - 0 0")
    run = imported("csv", table(*sound, "b ok poll", "b invoke poll", *rows))
    verdict = judge_small(History.open(run))
    assert verdict.verdict is Judgement.UNKNOWN
    assert any(says in reason.message for reason in verdict.reasons), verdict.reasons


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (("a invoke put x - - - - 0", "a invoke put", "a ok put"), 2),
        (("a invoke put", "a ok put x 1 - - - 0", "a ok put"), 2),
        (("a invoke get x - - - - 0", "a invoke get", "a ok get - 7 - - - 0", "a ok get"), 4),
        (("a invoke get x - - - - 0", "a invoke get", "a ok get"), 4),
    ],
)
def test_a_part_of_a_transaction_has_a_key_and_what_it_writes(
    imported: Import, rows: tuple[str, ...], line: int
) -> None:
    """What is written is told when it is invoked, what is read when it has ended."""
    run = imported("csv", table(*rows, "b invoke put y 1 - - - 0", "b invoke put", "b fail put"))
    assert run.state()["slips"]["counts"] == {"ODD_VALUE": 1}
    assert run.state()["slips"]["first"][0]["line"] == line


def test_the_first_line_is_the_first_whatever_its_column(imported: Import) -> None:
    """Columns are read one after the other, and lines are told in their order."""
    rows = "".join(f"9,ok,get,x,{n},soon\n" for n in range(30))
    run = imported("csv", HEAD + WRITER + "1,invoke,put,,3,200\n" + rows)
    (message,) = [reason["message"] for reason in run.state()["reasons"][:1]]
    assert "31 lines" in message
    assert "the first of them line 6: key is absent" in message


def test_what_no_table_can_have_is_named(imported: Import) -> None:
    """Topics are made in trials alone."""
    with pytest.raises(BadRequest, match="has create, which no table can have"):
        imported("csv", "process,type,f,key\n1,invoke,create,x\n1,ok,create,x\n")


def test_processes_with_names_of_digits_are_two(imported: Import) -> None:
    """007 is another than 7, and 7.0 is the same."""
    rows = "007,invoke,put,x,1,\n7,invoke,put,x,2,\n007,ok,put,x,1,\n7,ok,put,x,2,\n"
    run = imported("csv", HEAD + rows)
    assert run.state()["reasons"][0]["code"] == "NOTHING_COMPLETED"  # nobody read
    run = imported("csv", HEAD + "7.0,invoke,put,x,1,\n7.0,ok,put,x,1,\n")
    table = pq.read_table(run.history / "ops-import-000.parquet")
    assert set(table.column("process").to_pylist()) == {7}


def test_a_refused_cas_that_nobody_invoked_is_invoked_at_the_beginning(imported: Import) -> None:
    """As any other completion is."""
    rows = ("a invoke put x 1", "a ok put x 1", "b fail cas x 1 2 - 0")
    run = imported("csv", table(*rows))
    assert run.state()["slips"]["counts"] == {"NOT_INVOKED": 1}
    ops = pq.read_table(run.history / "ops-import-000.parquet").to_pylist()
    mine = [(row["type"], row["pos"]) for row in ops if row["op"] == 4]
    assert mine == [(0, None), (2, 0)]
