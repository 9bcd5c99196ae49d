"""Numbers of tables as other tools write them: 5.0 for 5, nanoseconds since 1970, time stamps.

A quantity that is none is never taken for a number: its line says nothing, and that is said.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import registry
from harness.errors import BadRequest
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.importers import _run_folder as _folder
from harness.judge.judge import judge_small
from harness.judge.verdict import Judgement, Verdict

Import = Callable[..., RunDir]

VALID, INVALID, UNKNOWN = Judgement.VALID, Judgement.INVALID, Judgement.UNKNOWN
EPOCH_NS = 1_763_720_000_000_000_000


def counted(first: str, second: str, seen: str) -> str:
    """A counter that two numbers are added to, and that is read then."""
    rows = [
        *(f"a,invoke,add,c,{first}", f"a,ok,add,c,{first}"),
        *(f"a,invoke,add,c,{second}", f"a,ok,add,c,{second}"),
        *("b,invoke,count,c,", f"b,ok,count,c,{seen}"),
    ]
    return "\n".join(["process,type,f,key,value", *rows, ""])


def leased(first: str, second: str) -> str:
    """A lock that two take, one after the other, for so many milliseconds."""
    rows = [
        *("a,invoke,acquire,l,,,,1", f"a,ok,acquire,l,a,{first},1,2"),
        *("b,invoke,acquire,l,,,,3", f"b,ok,acquire,l,b,{second},2,4"),
        *("b,invoke,release,l,,,,5", "b,ok,release,l,,,,6"),
    ]
    return "\n".join(["process,type,f,key,value,arg,offset,time", *rows, ""])


def judged(run: RunDir) -> Verdict:
    return judge_small(History.open(run))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (counted("5", "3", "8"), VALID),
        (counted("5.0", "3.0", "8.0"), VALID),
        (counted("5.0", "3", "8"), VALID),
        (counted("-5.0", "3.0", "-2.0"), VALID),
        (counted("5.0", "3.0", "9.0"), INVALID),
        (leased("1000", "1000"), INVALID),
        (leased("1000.0", "1000.0"), INVALID),
        (leased("1000.0", "1000"), INVALID),
    ],
)
def test_whole_numbers_with_a_point_are_numbers(
    imported: Import, text: str, expected: Judgement
) -> None:
    """Where numbers are missing, some tools write all whole ones of the column as 5.0."""
    run = imported("csv", text)
    assert run.state()["reasons"] == []
    assert judged(run).verdict is expected
    assert "values" not in run.names()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (counted("5", "five", "8"), "line 4: value is 'five', not a whole number"),
        (counted("5", "3", "8.5"), "line 7: value is '8.5', not a whole number"),
        (
            counted("5", "9" * 19, "8"),
            "line 4: value is '9999999999999999999', not a whole number, or",
        ),
        (counted("5", "", "8"), "line 4: value is absent"),
        (counted("5", "3", ""), "line 6: value is absent"),
        (leased("soon", "1000"), "line 3: arg is 'soon', not a whole number"),
        (leased("1000", "-1"), "line 5: arg is '-1', not a whole number from 0"),
        (leased("1000", "10000000000000"), "line 5: arg is '10000000000000', not a whole"),
    ],
)
def test_a_quantity_that_is_none_says_nothing(imported: Import, text: str, says: str) -> None:
    """It is never numbered like a name: nobody is convicted of it, and nothing is proven."""
    run = imported("csv", text)
    state = run.state()
    assert set(state["slips"]["counts"]) == {"ODD_VALUE"}
    assert state["gaps"]
    verdict = judged(run)
    assert verdict.verdict is UNKNOWN, verdict.sentence
    assert any(says in reason.message for reason in verdict.reasons), verdict.reasons


def test_more_than_64_bits_can_not_be_added_up(imported: Import, tmp_path: Path) -> None:
    """A sum that wraps around would convict, or acquit, anybody."""
    much = "4" + "0" * 17
    row = f"a,invoke,add,c,{much}\na,ok,add,c,{much}\n"
    text = "process,type,f,key,value\n" + row * 12 + "b,invoke,count,c,\nb,ok,count,c,1\n"
    with pytest.raises(BadRequest, match=r"history-0 add up to more than 4,611,686,018"):
        imported("csv", text)
    assert [path.name for path in tmp_path.iterdir()] == ["history-0"]


@pytest.mark.parametrize(
    ("number", "expected", "rules"),
    [
        ("8", VALID, {}),
        ("8.0", VALID, {}),
        ("8.5", UNKNOWN, {"ODD_VALUE": 3}),
        (str(1 << 63), UNKNOWN, {"ODD_VALUE": 3}),
    ],
)
def test_a_counter_of_jepsen_has_numbers(
    imported: Import, number: str, expected: Judgement, rules: Mapping[str, int]
) -> None:
    """What 64 bits do not hold is none that can be reckoned with."""
    rows = [("invoke", "add", number), ("ok", "add", number)]
    rows += [("invoke", "read", "nil"), ("ok", "read", number)]
    lines = [f"{{:process 0, :type :{t}, :f :{f}, :value {v}}}\n" for t, f, v in rows]
    run = imported("jepsen-counter", "".join(lines))
    assert run.state()["slips"]["counts"] == rules
    assert judged(run).verdict is expected
    assert "values" not in run.names()


@pytest.mark.parametrize(
    ("wrote", "read", "expected"),
    [
        ("5", "5.0", VALID),
        ("5.0", "6", INVALID),
        ("x", "x", VALID),
        ("007", "7", INVALID),
        ("1.10", "1.1", INVALID),
    ],
)
def test_a_number_is_one_value_however_it_is_written(
    imported: Import, wrote: str, read: str, expected: Judgement
) -> None:
    """Where all are whole numbers, 5.0 is 5; versions and numbers with zeros before are texts."""
    rows = [f"1,invoke,put,x,{wrote}", f"1,ok,put,x,{wrote}", "1,invoke,get,x,"]
    text = "\n".join(["process,type,f,key,value", *rows, f"1,ok,get,x,{read}", ""])
    assert judged(imported("csv", text)).verdict is expected


def test_offsets_and_places_may_have_a_point(imported: Import) -> None:
    """These columns nearly always have holes."""
    sent = "1,invoke,send,q,m-1,,,5.0\n1,ok,send,q,m-1,0.0,,6.0\n"
    seen = "2,invoke,poll,,,,,7.0\n2,ok,poll,q,m-1,0.0,0.0,8.0\n2,ok,poll,,,,,8.0\n"
    run = imported("csv", "process,type,f,key,value,offset,pos,time\n" + sent + seen)
    assert run.state()["reasons"] == []
    assert judged(run).verdict is VALID


def parquet(tmp_path: Path, **columns: Any) -> RunDir:
    """Put and get of a register, as columns; what is named here is added, or instead."""
    table = {
        "process": [1, 1, 2, 2],
        "type": ["invoke", "ok", "invoke", "ok"],
        "f": ["put", "put", "get", "get"],
        "key": ["x"] * 4,
        "value": [1, 1, None, 1],
    }
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({**table, **columns}), path)
    recording = registry.load("importer", "parquet")(path)
    return _folder.write(recording, path, "parquet", tmp_path / "run")


@pytest.mark.parametrize(
    "column",
    [
        {"value": pa.array([1.0, 1.0, float("nan"), 1.0])},
        {"value": pa.array(["1", "1.0", None, "1"], pa.large_string())},
        {"value": pa.array([1, 1, None, 1], pa.uint8()).dictionary_encode()},
        {"key": pa.array([7.0] * 4), "pos": pa.array([float("nan")] * 4)},
    ],
)
def test_columns_of_any_type(tmp_path: Path, column: Mapping[str, pa.Array]) -> None:
    """What pandas, polars and others make of whole numbers with holes."""
    run = parquet(tmp_path, **column)
    assert run.state()["reasons"] == []
    assert judged(run).verdict is VALID
    assert "values" not in run.names()


@pytest.mark.parametrize("column", [[5.0, 5.5, None, 5.0], [5.0, 1e300, None, 5.0]])
def test_quantities_that_are_none_in_a_column_of_numbers(
    tmp_path: Path, column: Sequence[float | None]
) -> None:
    """Half a step is no step."""
    f = ["add", "add", "count", "count"]
    run = parquet(tmp_path, f=f, value=pa.array(column))
    assert run.state()["slips"]["counts"] == {"ODD_VALUE": 1}
    assert judged(run).verdict is UNKNOWN


def ended_ns(run: RunDir) -> int:
    """When the last thing happened. The trial can be read."""
    assert run.trial().duration_s < 1
    table = pq.read_table(run.history / "ops-import-000.parquet")
    times = table.column("t").to_pylist()
    assert min(times) == 0
    return int(max(times))


SPACED = (5, 9, 12, 14)  # what is told in some unit since 2025


@pytest.mark.parametrize(
    ("kind", "ns"),
    [
        (pa.int64(), 1),
        (pa.uint64(), 1),
        (pa.string(), 1),
        (pa.timestamp("ns"), 1),
        (pa.timestamp("us"), 1000),
        (pa.timestamp("ms", "Europe/Berlin"), 1_000_000),
        (pa.duration("us"), 1000),
        (pa.time64("us"), 1000),
    ],
)
def test_times_of_day_and_calendar(tmp_path: Path, kind: pa.DataType, ns: int) -> None:
    """Only differences count, in nanoseconds, whatever a clock counts and since when."""
    since = 0 if pa.types.is_time(kind) else EPOCH_NS // ns
    times = pa.array([since + at for at in SPACED], pa.int64()).cast(kind)
    run = parquet(tmp_path, time=times)
    assert run.state()["reasons"] == []
    assert ended_ns(run) == (SPACED[-1] - SPACED[0]) * ns
    assert judged(run).verdict is VALID


@pytest.mark.parametrize("since", [0, EPOCH_NS, -100, -9])
def test_wall_clocks_of_text(imported: Import, since: int) -> None:
    """19 digits, or below zero: no moment is special, and rows may stand client after client."""
    reader = [f"2,invoke,get,x,,{since + 12}", f"2,ok,get,x,1,{since + 14}"]
    writer = [f"1,invoke,put,x,1,{since + 5}", f"1,ok,put,x,1,{since + 8}"]
    text = "\n".join(["process,type,f,key,value,time", *reader, *writer, ""])
    run = imported("csv", text)
    assert run.state()["reasons"] == []
    assert ended_ns(run) == 9
    assert judged(run).verdict is VALID


def test_wall_clocks_of_jepsen(imported: Import) -> None:
    """The same for EDN, and for what the nemesis did."""
    told = [("0", "invoke", "write", "1", 5), ("0", "ok", "write", "1", 9)]
    told += [("1", "invoke", "read", "nil", 12), ("1", "ok", "read", "1", 14)]
    told += [(":nemesis", "info", "kill", "nil", 20)]
    line = "{{:process {}, :type :{}, :f :{}, :value {}, :time {}}}\n"
    rows = [line.format(*row[:4], EPOCH_NS + row[4]) for row in told]
    run = imported("jepsen-register", "".join(rows))
    assert ended_ns(run) == 9
    assert pq.read_table(run.history / "notes-import-000.parquet")["t"].to_pylist() == [9]
    assert judged(run).verdict is VALID


@pytest.mark.parametrize("form", ["csv", "jepsen-register"])
def test_times_of_several_clocks_are_refused(imported: Import, tmp_path: Path, form: str) -> None:
    """Half a history in 1970 lasts longer than a run can; nothing is left behind."""
    texts = {
        "csv": "process,type,f,key,value,time\n1,invoke,put,x,1,0\n1,ok,put,x,1,{}\n",
        "jepsen-register": "{{:process 0, :type :invoke, :f :write, :value 1, :time 0}}\n"
        "{{:process 0, :type :ok, :f :write, :value 1, :time {}}}\n",
    }
    with pytest.raises(BadRequest, match="write all of them in nanoseconds of one clock"):
        imported(form, texts[form].format(EPOCH_NS))
    assert [path.name for path in tmp_path.iterdir()] == ["history-0"]


@pytest.mark.parametrize("time", ["9" * 19, "-" + "9" * 19])
def test_times_beyond_all_clocks(imported: Import, time: str) -> None:
    """What does not fit is named, and its line is dropped."""
    rows = f"1,invoke,put,x,1,5\n1,ok,put,x,1,{time}\n1,ok,put,x,1,7\n"
    run = imported("csv", "process,type,f,key,value,time\n" + rows)
    assert run.state()["slips"]["counts"] == {"ODD_VALUE": 1}
