"""Transactions in a short notation, and the checker's verdicts on them."""

import json
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from isolation_dice import drawn, placed
from transacting import KEYS, Transaction, from_edn, gathered_here, parsed, table, told, write_run

from checkers import transactions
from checkers._cycles import cycle_findings
from checkers._cycles import rows as rows_module
from checkers._cycles.arrays import NULL
from checkers._cycles.cycle_findings import CycleText
from checkers._cycles.edges import EdgeKind
from checkers._cycles.paths import Hop
from checkers._cycles.rows import COLUMNS, Rows, _column, transaction_chunk
from harness.history.reader import History
from harness.judge.judge import mark_permitted
from harness.judge.verdict import Finding, Judgement, Result
from harness.trial import DEMANDS, ISOLATION, Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNCOMMITTED, COMMITTED, SNAPSHOT, SERIALIZABLE, SESSION, STRICT = ISOLATION


def judged(history: list[Transaction], level: str = STRICT, complete: bool = True) -> Result:
    trial = Trial(contract=(*DEMANDS, level))
    found = gathered_here([told(history)], cycle_findings.layer_of(trial))
    answer = transactions.judged(found, {"keys": list(KEYS)}, trial, complete)
    return mark_permitted(answer, trial)


def test_transactions_that_began_together_are_in_no_order() -> None:
    """A coarse clock gives the same time to successive transactions of one process."""
    history = """T1 p1 [0..9]: get x 2, put x 1
                 T2 p2 [1..3]: put x 2
                 T3 p3 [5..5]: get x 2
                 T4 p3 [5..5]: get x 1"""
    assert judged(parsed(history), SESSION).findings == ()


def test_values_have_the_names_that_their_file_gave_them() -> None:
    """In every sentence; what was never named stays a number."""
    story = CycleText({0: "x"}, {}, ["one", "two"])
    assert [story.value(value) for value in (0, 1, 2, NULL)] == ["one", "two", "2", "nothing"]
    hop = Hop(1, 2, EdgeKind.WW, 0, 0, 1)
    assert story.explain([hop]).startswith("T1 wrote one to x and T2 wrote two next")


@pytest.mark.parametrize("level", [SNAPSHOT, SERIALIZABLE, STRICT])
@pytest.mark.parametrize("mine", ["append x 1, list x 1", "list x, append x 1", "append x 1"])
@pytest.mark.parametrize("theirs", ["append x 2, list x 2", "list x, append x 2"])
@pytest.mark.parametrize("more", ["", "T3 [20..30]: list x 1 2", "T3 [20..30]: list x 2 1"])
def test_two_that_replaced_one_version_lost_an_update_in_whichever_order(
    mine: str, theirs: str, more: str, level: str
) -> None:
    """A list that a transaction read behind its own append shows which version it replaced."""
    result = judged(parsed(f"T1 [0..9]: {mine} \n T2 [0..9]: {theirs} \n {more}"), level)
    blind = mine == "append x 1" and not more.endswith("1 2")
    assert bool(result.findings) is not blind
    if not blind:
        (finding,) = result.findings
        assert not finding.permitted
        assert finding.demand in (COMMITTED, SNAPSHOT)
    weak = judged(parsed(f"T1 [0..9]: {mine} \n T2 [0..9]: {theirs}"), COMMITTED)
    assert all(finding.permitted for finding in weak.findings)


def test_who_read_the_end_of_a_list_wrote_the_next_version() -> None:
    """So what another appended, which no read shows, came after it: with a read that missed it, one
    dependency of the cycle is no missed write, and snapshot isolation forbids it."""
    history = """T1 [0..20]: append y 1, append x 1, list x 1
                 T2 [0..20]: append x 2, list y"""
    assert only(judged(parsed(history), SNAPSHOT)).demand == SNAPSHOT


def only(result: Result) -> Finding:
    assert [f.code for f in result.findings] == [result.findings[0].code]
    return result.findings[0]


CASES = {
    "INTERNAL": (UNCOMMITTED, "T1: append x 1, list x"),
    "PHANTOM_VALUE": (UNCOMMITTED, "T1: list x 7"),
    "DUPLICATE_ELEMENT": (UNCOMMITTED, "T1: append x 1 \n T2: list x 1 1"),
    "G0": (
        UNCOMMITTED,
        """T1 [0..9]: append x 1, append y 1
           T2 [0..9]: append x 2, append y 2
           T3: list x 1 2, list y 2 1""",
    ),
    "G1A": (COMMITTED, "T1 fail: append x 1 \n T2: list x 1"),
    "G1B": (
        COMMITTED,
        "T1 [0..9]: append x 1, append x 2 \n T2 [0..9]: list x 1 \n T3: list x 1 2",
    ),
    "G1C": (COMMITTED, "T1 [0..9]: append x 1, list y 2 \n T2 [0..9]: append y 2, list x 1"),
    "INCOMPATIBLE_ORDER": (
        COMMITTED,
        """T1 [0..9]: append x 1
           T2 [0..9]: append x 2
           T3 [0..20]: list x 1 2
           T4 [0..20]: list x 2 1""",
    ),
    "G_SINGLE": (
        SNAPSHOT,
        """T1: append x 1, append y 1
           T2 [0..20]: list x, list y 1
           T3 [0..20]: list x 1""",
    ),
    "LOST_UPDATE": (
        SNAPSHOT,
        """T1 [0..9]: list x, append x 1
           T2 [0..9]: list x, append x 2
           T3: list x 1 2""",
    ),
    "G_NONADJACENT": (
        SNAPSHOT,
        """T1 [0..20]: append x 1
           T2 [0..20]: append y 1
           T3 [0..20]: list x 1, list y
           T4 [0..20]: list x, list y 1""",
    ),
    "G2_ITEM": (
        SERIALIZABLE,
        """T1 [0..9]: list x, append y 1
           T2 [0..9]: list y, append x 1
           T3 [0..20]: list x 1, list y 1""",
    ),
    "G_SINGLE_PROCESS": (
        SESSION,
        """T1 [0..5]: append x 1
           T2 p2 [0..9]: list x 1
           T3 p2 [10..12]: list x""",
    ),
    "G1C_PROCESS": (
        SESSION,
        """T1 p1 [0..5]: list x 1
           T2 p1 [6..9]: append x 1
           T3 [0..20]: list x 1""",
    ),
    "G0_REALTIME": (
        STRICT,
        """T1 [0..5]: append x 1
           T2 [6..9]: append x 2
           T3 [0..20]: list x 2 1""",
    ),
    "G_SINGLE_REALTIME": (
        STRICT,
        """T1 [0..5]: append x 1
           T2 [6..9]: list x
           T3 [0..20]: list x 1""",
    ),
    "LOST_APPEND": (STRICT, "T1 [0..5]: append x 1 \n T2 [6..9]: list x"),
}


@pytest.mark.parametrize("code", CASES)
def test_each_anomaly_offends_its_level_and_no_weaker_one(code: str) -> None:
    """Invalid at the weakest level that forbids it and at all above; permitted below."""
    demand, text = CASES[code]
    assert (only(judged(parsed(text))).code, only(judged(parsed(text))).demand) == (code, demand)
    for level in ISOLATION:
        held = ISOLATION.index(level) < ISOLATION.index(demand)
        expected = Judgement.VALID if held else Judgement.INVALID
        assert judged(parsed(text), level).judgement is expected, level


REGISTERS = {
    "INTERNAL": (UNCOMMITTED, "T1: put x 1, get x none"),
    "PHANTOM_VALUE": (UNCOMMITTED, "T1: get x 7"),
    "G1A": (COMMITTED, "T1 fail: put x 1 \n T2: get x 1"),
    "G1B": (COMMITTED, "T1 [0..9]: put x 1, put x 2 \n T2 [0..9]: get x 1"),
    "G1C": (COMMITTED, "T1 [0..9]: put x 1, get y 2 \n T2 [0..9]: put y 2, get x 1"),
    "LOST_UPDATE": (
        SNAPSHOT,
        """T1 [0..9]: get x none, put x 1
           T2 [0..9]: get x none, put x 2""",
    ),
    "G_SINGLE": (SNAPSHOT, "T1: put x 1, put y 1 \n T2 [0..20]: get x none, get y 1"),
    "G2_ITEM": (
        SERIALIZABLE,
        """T1 [0..9]: get x none, put y 1
           T2 [0..9]: get y none, put x 1""",
    ),
    "G_SINGLE_PROCESS": (
        SESSION,
        """T1 p1 [0..5]: put x 1
           T2 p1 [6..9]: put x 2
           T3 p1 [10..12]: get x 1""",
    ),
    "G_SINGLE_REALTIME": (
        STRICT,
        """T1 p1 [0..5]: put x 1
           T2 p2 [6..9]: put x 2
           T3 p3 [10..12]: get x 1""",
    ),
}


@pytest.mark.parametrize("code", REGISTERS)
def test_each_anomaly_of_registers(code: str) -> None:
    """The same of registers, whose versions are known only in part."""
    demand, text = REGISTERS[code]
    assert (only(judged(parsed(text))).code, only(judged(parsed(text))).demand) == (code, demand)


@pytest.mark.parametrize(
    "text",
    [
        "T1: append x 1, list x 1 \n T2: list x 1, append x 2, list x 1 2 \n T3: list x 1 2",
        "T1 info: append x 1 \n T2: list x \n T3: list x 1",  # it took effect late
        "T1 info: append x 1, append y 1 \n T2: list x",  # or never
        "T1 [0..9]: append x 1 \n T2 [5..20]: list x",  # at the same time
        """T1: put x 1
           T2 [20..40]: get x 1, put x 2, get x 2
           T3 [20..40]: get x 1
           T4 [20..40]: get x 2""",
    ],
)
def test_sound_histories_are_valid(text: str) -> None:
    """What some order explains, in real time too, is no anomaly."""
    result = judged(parsed(text))
    assert result.judgement is Judgement.VALID, result
    assert not result.findings


def test_an_unknown_transaction_that_was_seen_was_committed_as_a_whole() -> None:
    """Its other writes may be missed no longer than the one that was seen."""
    text = """T1 info [0..5]: append x 1, append y 1
              T2 [10..15]: list x 1, list y"""
    assert only(judged(parsed(text))).demand == SNAPSHOT


def test_a_cycle_is_told_in_plain_sentences() -> None:
    """Evidence names transactions, keys and values, and the order of the transactions."""
    row = only(judged(parsed(CASES["G_SINGLE"][1]))).evidence[0]
    assert row["cycle"] == "T2 -> T1 -> T2"
    assert row["edges"] == "rw wr"
    assert row["explanation"] == (
        "T2 read x up to nothing and did not see 1, which T1 wrote, so T2 came before T1. "
        "T2 read 1 of y, which T1 wrote, so T1 came before T2. "
        "No serial order explains all of this."
    )


def test_values_that_are_not_unique_prove_nothing() -> None:
    """The writer of a read is not known: a reason, and no finding about that key."""
    result = judged(parsed("T1: append x 1 \n T2: append x 1 \n T3: list x 1 1"))
    assert not result.findings
    assert [reason.code for reason in result.reasons] == ["VALUES_NOT_UNIQUE"]


def test_a_history_with_gaps_convicts_of_no_phantom() -> None:
    """The writing may only be unrecorded."""
    result = judged(parsed("T1: list x 7"), complete=False)
    assert not result.findings
    assert [reason.code for reason in result.reasons] == ["WRITING_UNRECORDED"]


def test_without_transactions_nothing_is_proven() -> None:
    """Unknown, with a reason."""
    reasons = judged(parsed("T1 fail: append x 1")).reasons
    assert [reason.code for reason in reasons] == ["NO_TRANSACTIONS"]


def test_every_code_is_explained(root: Path) -> None:
    """docs/verdicts.md has each code that a finding of this checker can have."""
    page = (root / "docs" / "verdicts.md").read_text()
    codes = {code for code, *_ in transactions.REMARKS.values()}
    codes |= {
        f"{code}{layer}"
        for code in cycle_findings.CYCLES
        for layer in cycle_findings.LAYERS.values()
    }
    codes -= {"LOST_APPEND_PROCESS", "LOST_APPEND_REALTIME"}
    assert {code for code in codes if f"`{code}`" not in page} == set()


# ------------------------------------------------------------------------------- rows and files


def many(count: int, seed: int = 3) -> list[Transaction]:
    """Small histories, one after the other, of lists and of registers."""
    dice = Random(seed)
    drawings = (drawn(dice, registers=number % 2 == 1)[1] for number in range(count))
    return [t for number, history in enumerate(drawings) for t in placed(history, number)]


def read_rows(history: list[Transaction]) -> Rows:
    batch = table(history).combine_chunks().to_batches()[0]
    return {name: _column(batch, name) for name in COLUMNS}


def test_rows_say_what_the_transactions_did() -> None:
    """The rows of many transactions read back as what they were made from."""
    history = many(200)
    expected, found = told(history), transaction_chunk(read_rows(history))
    for name in ("transactions", "appends", "lists", "puts", "gets"):
        pairs = zip(getattr(expected, name).columns(), getattr(found, name).columns(), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs), name
    assert np.array_equal(expected.length, found.length)
    assert np.array_equal(expected.elements, found.elements)


@pytest.mark.parametrize("seed", [3, 5, 10, 12])
def test_rows_in_pieces_say_the_same(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However rows are cut into files and whichever writer wrote them, the result has the same
    bytes: of equally long lists that contradict each other the same one is chosen, and of several
    witnesses the same one is named."""
    history = many(150, seed)
    answers = set()
    for number, (writers, chunk) in enumerate(((1, 1 << 20), (3, 1 << 20), (2, 1), (1, 50))):
        monkeypatch.setattr(rows_module, "CHUNK_ROWS", chunk)
        run = write_run(tmp_path / str(number), history, writers)
        answers.add(as_bytes(transactions.check(History.open(run), Trial(), None)))
    assert len(answers) == 1
    assert "G_SINGLE" in answers.pop()


def as_bytes(result: Result) -> str:
    rows = [(f.code, f.count, f.demand, f.message, f.evidence) for f in result.findings]
    return json.dumps([rows, dict(result.stats)], sort_keys=True)


@pytest.mark.spark
@pytest.mark.usefixtures("one_task_or_many")
def test_spark_and_the_kernels_agree(tmp_path: Path, spark: "SparkSession") -> None:
    """The same answer from one process and from Spark's workers."""
    run = write_run(tmp_path / "run", many(100), writers=3)
    here = transactions.check(History.open(run), Trial(), None)
    there = transactions.check(History.open(run), Trial(), spark)
    assert here.findings
    assert as_bytes(there) == as_bytes(here)


# ----------------------------------------------------------------------- of other tools


def test_a_sound_history_of_ten_thousand_is_valid(histories_folder: Path) -> None:
    """No false alarm in a generated history of list-append transactions."""
    result = judged(from_edn(histories_folder / "jepsen" / "append_10k_ok.edn.gz"))
    assert result.judgement is Judgement.VALID
    assert result.stats["committed"] > 9_000


def test_what_was_injected_is_found_and_nothing_else(histories_folder: Path) -> None:
    """As many root causes of each kind as were injected, with their keys."""
    history = from_edn(histories_folder / "jepsen" / "append_10k_bad.edn.gz")
    truth = json.loads((histories_folder / "jepsen" / "append_10k_bad.edn.truth.json").read_text())
    counts: dict[str, int] = {}
    for finding in judged(history).findings:
        counts[finding.code] = counts.get(finding.code, 0) + finding.count
    outdated = sum(n for code, n in counts.items() if code.startswith(("G_SINGLE", "G2_ITEM")))
    assert counts["G1A"] == len(truth["aborted"])
    assert counts["LOST_APPEND"] == len(truth["lost"])
    assert outdated == len(truth["stale"])
    assert sum(counts.values()) == sum(len(truth[name]) for name in ("aborted", "lost", "stale"))
