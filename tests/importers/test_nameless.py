"""Lines without `:f`: Elle's histories of transactions have none, and others need one."""

from collections.abc import Callable

import pyarrow.parquet as pq
import pytest

from harness.errors import BadRequest
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.judge.judge import judge_small
from harness.judge.verdict import Judgement

Import = Callable[..., RunDir]

FEW, MANY = 3, 400  # of transactions: read one by one, and as columns
MOPS = {
    "jepsen-append": ("[:append x {n}]", "[:r x nil]", "[:r x [{all}]]"),
    "jepsen-wr": ("[:w x {n}]", "[:r x nil]", "[:r x {n}]"),
}
WRITES = {"jepsen-set": ":add", "jepsen-queue": ":enqueue", "jepsen-register": ":write"}


def lines(name: str, count: int, f: str) -> str:
    write, ask, read = MOPS[name]
    told = []
    for n in range(count):
        seen = " ".join(map(str, range(max(0, n - 3), n + 1)))
        parts = (write.format(n=n), ask), (write.format(n=n), read.format(n=n, all=seen))
        for kind, value in zip(("invoke", "ok"), parts, strict=True):
            time = 2 * n + (kind == "ok")
            told.append(
                f"{{:type :{kind}, :process 0,{f} :value [{' '.join(value)}], :time {time}}}\n"
            )
    return "".join(told)


@pytest.mark.parametrize("name", list(MOPS))
@pytest.mark.parametrize("count", [FEW, MANY])
def test_a_transaction_needs_no_name(imported: Import, name: str, count: int) -> None:
    """With and without `:f :txn`, and with a nil there, it is the same history."""
    runs = [imported(name, lines(name, count, f)) for f in (" :f :txn,", "", " :f nil,")]
    tables = [pq.read_table(run.history / "ops-import-000.parquet") for run in runs]
    assert tables[0].num_rows > 2 * count
    assert tables[1].equals(tables[0])
    assert tables[2].equals(tables[0])
    assert not runs[1].state().get("slips", {})["counts"]


def test_what_elle_writes_is_judged(imported: Import) -> None:
    """The second transaction read nothing of the first one, which had ended before."""
    text = """\
{:index 0, :type :invoke, :process 0, :value [[:append 8 1]], :time 1}
{:index 1, :type :ok, :process 0, :value [[:append 8 1]], :time 2}
{:index 2, :type :invoke, :process 1, :value [[:r 8 nil]], :time 3}
{:index 3, :type :ok, :process 1, :value [[:r 8 nil]], :time 4}
{:index 4, :type :invoke, :process 1, :value [[:r 8 nil]], :time 5}
{:index 5, :type :ok, :process 1, :value [[:r 8 [1]]], :time 6}
"""
    verdict = judge_small(History.open(imported("jepsen-append", text)))
    assert verdict.verdict is Judgement.INVALID


@pytest.mark.parametrize("name", list(WRITES))
def test_others_need_one(imported: Import, name: str) -> None:
    """A line that does not say what was asked is named; where none does, nothing is imported."""
    nameless = "{:type :invoke, :process 0, :value 1}\n{:type :ok, :process 0, :value 1}\n"
    with pytest.raises(BadRequest, match=f"line 1 has no :f, and {name} has :"):
        imported(name, nameless)
    named = f"{{:type :invoke, :process 1, :f {WRITES[name]}, :value 1}}\n"
    [slip] = imported(name, named + nameless).state()["slips"]["first"]
    assert (slip["rule"], slip["line"]) == ("UNKNOWN_KIND", 2)
    assert slip["message"] == "it has no :f; the line is dropped"
