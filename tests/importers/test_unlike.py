"""A completion that writes something else than its invocation: neither of the two is believed."""

from collections.abc import Callable

import pytest

from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.judge.judge import judge_small
from harness.judge.verdict import Judgement

Import = Callable[..., RunDir]


def edn(*rows: str) -> str:
    """`process type f value`, a line each."""
    words = (row.split(" ", 3) for row in rows)
    return "".join(
        f"{{:type :{kind}, :process {who}, :f :{f}, :value {value}}}\n"
        for who, kind, f, value in words
    )


MIXED_UP = {
    "jepsen-register": edn(
        *("0 invoke write 1", "0 ok write 2", "1 invoke read nil", "1 ok read 2")
    ),
    "jepsen-queue": edn(
        *("0 invoke enqueue 1", "0 ok enqueue 2", "1 invoke dequeue nil", "1 ok dequeue 2")
    ),
    "jepsen-set": edn(*("0 invoke add 1", "0 ok add 2", "1 invoke read nil", "1 ok read [2]")),
    "jepsen-append": edn(
        *("0 invoke txn [[:append 5 1]]", "0 ok txn [[:append 5 2]]"),
        *("1 invoke txn [[:r 5 nil]]", "1 ok txn [[:r 5 [2]]]"),
    ),
    "jepsen-wr": edn(
        *("0 invoke txn [[:r 4 nil] [:w 5 1]]", "0 ok txn [[:r 4 nil] [:w 5 2]]"),
        *("1 invoke txn [[:r 5 nil]]", "1 ok txn [[:r 5 2]]"),
    ),
    "jepsen-kafka": edn(
        *("1 invoke assign [5]", "1 ok assign [5]", "0 invoke send [[:send 5 1]]"),
        *(
            "0 ok send [[:send 5 [0 2]]]",
            "1 invoke poll [[:poll]]",
            "1 ok poll [[:poll {5 [[0 2]]}]]",
        ),
    ),
    "csv": (
        "process,type,f,key,value\na,invoke,put,k,1\na,ok,put,k,2\nb,invoke,get,k,\nb,ok,get,k,2\n"
    ),
}


@pytest.mark.parametrize("name", list(MIXED_UP))
def test_what_contradicts_its_invocation_is_named(imported: Import, name: str) -> None:
    """Nobody is convicted by it, and nothing is proven."""
    verdict = judge_small(History.open(imported(name, MIXED_UP[name])))
    assert verdict.verdict is Judgement.UNKNOWN
    told = [reason.message for reason in verdict.reasons if reason.code == "HISTORY_MALFORMED"]
    assert len(told) == 1
    assert "completes a write of another value" in told[0]
    assert [f.code for r in verdict.checkers for f in r.findings if f.demand] == []


def test_registers_with_versions_are_not_judged_as_plain_ones(imported: Import) -> None:
    """The version that a write was given is no part of what it was asked to write."""
    text = edn(
        *("0 invoke write [3 [nil 1]]", "0 ok write [3 [1 1]]"),
        *("0 invoke read [3 [nil nil]]", "0 ok read [3 [1 1]]"),
    )
    assert judge_small(History.open(imported("jepsen-register", text))).verdict is Judgement.UNKNOWN
