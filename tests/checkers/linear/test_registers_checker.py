"""The checker of registers and strings: from rows in files to verdicts, witnesses and reasons."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import histories
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ops_run import ops_run

from checkers import linearizable, objects, registers
from checkers._linear import registers as kernel
from harness import registry
from harness.history.journal import TableJournal
from harness.history.reader import History
from harness.history.schema import OPS
from harness.importers import _run_folder as _folder
from harness.importers._recording import KINDS
from harness.judge.judge import judge_small
from harness.judge.verdict import Judgement, Result
from harness.operation import F, Type
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = Sequence[int | None]
NAMES = ("t", "process", "op", "type", "f", "key", "value", "arg", "pos")
GET, PUT, CAS, APPEND = F.GET, F.PUT, F.CAS, F.APPEND


def history(
    folder: Path,
    rows: Sequence[Row],
    values: Sequence[str] | None = None,
    gaps: bool = False,
    writers: int = 1,
) -> History:
    """Rows as files of a run."""
    named = {} if values is None else {"values": list(values)}
    dicts = [dict(zip(NAMES, row, strict=True)) for row in rows]
    return ops_run(folder / "run", dicts, writers, gaps, **named)


def told(*operations: tuple[Any, ...], key: int = 0) -> list[Row]:
    """One after the other: (kind, value), and arg of a compare-and-set; a third or fourth element
    is the outcome."""
    rows: list[Row] = []
    for op, (f, value, *rest) in enumerate(operations):
        arg = rest.pop(0) if f is CAS else None
        outcome = rest.pop(0) if rest else Type.OK
        number, t = 1_000 * key + op, 10 * op
        asked = None if f is GET else value
        rows.append((t, number, number, Type.INVOKE, f, key, asked, arg, None))
        if outcome is not Type.INFO:
            pos = 0 if outcome is Type.FAIL else None
            rows.append((t + 5, number, number, outcome, f, key, value, arg, pos))
    return rows


def judged(folder: Path, rows: Sequence[Row], **options: Any) -> Result:
    return registers.check(history(folder, rows, **options), Trial(), None)


def codes(result: Result) -> list[str]:
    return [reason.code for reason in result.reasons]


def test_a_contradiction_is_told_in_words(tmp_path: Path) -> None:
    """Two operations, with the names of the key, the values, the processes and the times."""
    rows = told((PUT, 0), (PUT, 1), (GET, 1), (GET, 0))
    result = judged(tmp_path, rows, values=["old", "new"])
    [finding] = result.findings
    assert (finding.code, finding.count, finding.demand) == ("NOT_LINEARIZABLE", 1, "linearizable")
    [row] = finding.evidence
    assert (row["key"], row["kind"], row["op"], row["held"]) == ("k0", "register", 3, '"new"')
    *others, last = row["explanation"].split("; ")
    assert last == 'read "old" (process 3, op 3, from 0.000000 s to 0.000000 s)'
    assert others
    assert row["ops"].split()[-1] == "3"


def test_times_in_words_count_from_the_load(tmp_path: Path) -> None:
    sec = 1_000_000_000
    rows = [(t * sec, *rest) for t, *rest in told((PUT, 1), (GET, 8))]
    run = history(tmp_path, rows).run
    run.update_state(load_began_ns=4 * sec)
    [finding] = registers.check(History.open(run), Trial(), None).findings
    told_last = finding.evidence[0]["explanation"]
    assert "from 6.000000 s to 11.000000 s" in told_last
    assert finding.first_moment_s == 15.0  # since the run's start


def test_a_refused_compare_and_set_observes(tmp_path: Path) -> None:
    """It observes that the value was not there; another failure observes nothing."""
    sound = told((PUT, 1), (CAS, 2, 3, Type.FAIL), (GET, 1))
    assert judged(tmp_path / "sound", sound).judgement is Judgement.VALID
    wrong = told((PUT, 1), (CAS, 1, 3, Type.FAIL), (GET, 1))
    assert judged(tmp_path / "wrong", wrong).judgement is Judgement.INVALID
    failed = [(*row[:8], None) for row in wrong]
    assert judged(tmp_path / "failed", failed).judgement is Judgement.VALID


def test_strings_grow(tmp_path: Path) -> None:
    """A key to which something is appended is a string: its values are put together."""
    texts = ["a", "b", "ab", "ba"]
    sound, swapped = ([(APPEND, 0), (APPEND, 1), (GET, seen)] for seen in (2, 3))
    assert judged(tmp_path / "ab", told(*sound), values=texts).judgement is Judgement.VALID
    result = judged(tmp_path / "ba", told(*swapped), values=texts)
    [row] = result.findings[0].evidence
    assert (row["kind"], row["held"]) == ("string", '"ab"')
    assert 'read "ba"' in row["explanation"]
    numbers = told((APPEND, 4), (APPEND, 2), (GET, 42))
    assert judged(tmp_path / "numbers", numbers).judgement is Judgement.VALID


def test_keys_are_judged_each_on_its_own(tmp_path: Path) -> None:
    """A sound key beside two illegal ones of different kinds: both count, and it does not."""
    rows = [
        *told((PUT, 1), (GET, 1), key=0),
        *told((PUT, 1), (GET, 2), key=70),
        *told((APPEND, 1), (GET, 2), key=134),
        *told((APPEND, 1), (F.LIST, None), key=3),
    ]
    result = judged(tmp_path, rows)
    [finding] = result.findings
    assert finding.count == 2
    assert [(row["key"], row["kind"]) for row in finding.evidence] == [
        ("k70", "register"),
        ("k134", "string"),
    ]
    assert result.stats["keys"] == 3


def test_a_history_that_tells_nothing_is_unknown(tmp_path: Path) -> None:
    """Nothing at all, writes alone, reads that never ended, or objects of other checkers."""
    histories: dict[str, list[Row]] = {
        "empty": [],
        "one write": told((PUT, 1)),
        "no answers": told((PUT, 1), (GET, None, Type.INFO)),
        "a list": told((APPEND, 1), (F.LIST, None)),
        "a queue": told((F.ENQUEUE, 1), (F.DEQUEUE, 1)),
    }
    for name, rows in histories.items():
        result = judged(tmp_path / name, rows)
        assert (result.judgement, codes(result)) == (Judgement.UNKNOWN, ["NO_REGISTERS"]), name
    one_read = judged(tmp_path / "one read", told((GET, None)))
    assert one_read.judgement is Judgement.VALID


def test_nobody_calls_valid_what_was_not_judged(tmp_path: Path) -> None:
    """For a history of registers, neither the checker of logs nor that of objects returns valid."""
    here = history(tmp_path, told((PUT, 1), (GET, 2)))
    for checker in (linearizable, objects):
        assert checker.check(here, Trial(), None).judgement is Judgement.UNKNOWN
    assert KINDS["registers"].checkers == ("registers",)


def test_gaps_in_the_record_convict_nobody(tmp_path: Path) -> None:
    """A write that was not recorded explains whatever was read."""
    rows = told((PUT, 1), (GET, 2))
    result = judged(tmp_path, rows, gaps=True)
    assert (result.judgement, codes(result)) == (Judgement.UNKNOWN, ["OPERATIONS_UNRECORDED"])


def test_a_row_that_breaks_a_rule_is_named(tmp_path: Path) -> None:
    """With its file, its number there, and the rule; what is illegal all the same convicts."""
    lonely: Row = (20, 7, 77, Type.OK, GET, 0, 1, None, None)
    result = judged(tmp_path / "sound", [*told((PUT, 1), (GET, 1)), lonely])
    assert (result.judgement, codes(result)) == (Judgement.UNKNOWN, ["HISTORY_MALFORMED"])
    assert result.reasons[0].message == (
        "1 row breaks a rule, the first is ops-w0-000.parquet row 4 (operation 77, process 7): "
        "it completes an operation that was never invoked"
    )
    result = judged(tmp_path / "illegal", [*told((PUT, 1), (GET, 2)), lonely])
    assert (result.judgement, codes(result)) == (Judgement.INVALID, ["HISTORY_MALFORMED"])


def test_one_after_the_other_on_a_clock_that_is_off(tmp_path: Path) -> None:
    """Calls are stamped early and returns late, by the error: then one process's operations overlap
    though they did not. On a clock that is right that breaks a rule."""
    rows = [
        (0, 1, 1, Type.INVOKE, PUT, 0, 1, None, None),
        (30, 1, 2, Type.INVOKE, GET, 0, None, None, None),
        (40, 1, 1, Type.OK, PUT, 0, 1, None, None),
        (70, 1, 2, Type.OK, GET, 0, 1, None, None),
    ]
    here = history(tmp_path, rows)
    assert codes(registers.check(here, Trial(), None)) == ["HISTORY_MALFORMED"]
    here.run.update_state(clocks={"w0": {"offset_ns": 7, "error_ns": 5}})
    result = registers.check(History.open(here.run), Trial(), None)
    assert (result.judgement, codes(result)) == (Judgement.VALID, [])


def test_registers_that_no_reader_read_at_the_end_prove_nothing(tmp_path: Path) -> None:
    """In a run of ours: what was acknowledged and is seen by the load alone may be gone by the end.
    A client that comes again has another number."""
    rows = [
        *told((PUT, 1), (GET, 1)),
        *told((PUT, 1), (CAS, 1, 2), (GET, 2), key=64),
        *told((GET, None), key=7),
    ]
    dicts = [dict(zip(NAMES, row, strict=True)) for row in rows]
    for row in dicts:
        row["process"] = {0: 0, 1: 1, 64_002: 4, 7_000: 2}.get(row["op"], 3)
    roles = {"0": "client 0", "1": "reader 0 on client-1", "2": "watcher 0"}
    read = ops_run(tmp_path / "read", dicts, processes=roles)
    assert registers.check(read, Trial(), None).judgement is Judgement.VALID
    for row in dicts:
        row["process"] = {64_002: 5, 7_000: 7}.get(row["op"], row["process"])
    blind = ops_run(tmp_path / "blind", dicts, processes=roles)
    result = registers.check(blind, Trial(), None)
    assert (result.judgement, codes(result)) == (Judgement.UNKNOWN, ["OBJECTS_NOT_READ"])
    assert result.reasons[0].message.startswith("1 key, k64 among them, was written and not read")
    blind.run.update_state(imported={"file": "history.edn"})
    elsewhere = registers.check(History.open(blind.run), Trial(), None)
    assert elsewhere.judgement is Judgement.VALID


def test_a_final_phase_that_was_given_up_proves_nothing(tmp_path: Path) -> None:
    here = history(tmp_path, told((PUT, 1), (GET, 1)))
    notes = TableJournal(here.run.journal, "notes", "runner")
    notes.append((9, None, None, "gave up on the final phase after 120 s"))
    notes.close()
    assert codes(registers.check(History.open(here.run), Trial(), None)) == ["NO_FINAL_READ"]


def test_rows_of_transactions_are_others_business(tmp_path: Path) -> None:
    """Their whole has no key, which is no flaw, and their parts are not judged here."""
    here = history(tmp_path, told((PUT, 1), (GET, 1)))
    path = here.files["ops"][0]
    table = pq.read_table(path)
    table = table.set_column(table.column_names.index("mop"), "mop", pa.nulls(4, pa.int32()))
    part = {"t": 50, "process": 9, "op": 9, "type": 0, "f": PUT, "key": 0, "value": 5, "mop": 0}
    whole = part | {"mop": None, "key": None, "value": None}
    more = pa.Table.from_pylist([dict.fromkeys(OPS.names) | r for r in (part, whole)], OPS)
    pq.write_table(pa.concat_tables([table, more]), path)
    result = registers.check(here, Trial(), None)
    assert (result.judgement, result.stats["operations"]) == (Judgement.VALID, 2)


# ------------------------------------------------------------------------- what is not decided


@pytest.fixture
def crowd() -> list[Row]:
    """Sixty operations open at once, of six values, with answers that are dice."""
    dice, rows = np.random.default_rng(5), []
    for op in range(400):
        f = (GET, PUT, CAS)[dice.integers(3)]
        value, arg = int(dice.integers(6)), int(dice.integers(6)) if f is CAS else None
        asked = None if f is GET else value
        rows.append((op, op, op, Type.INVOKE, f, 0, asked, arg, None))
        rows.append((op + int(dice.integers(40, 90)), op, op, Type.OK, f, 0, value, arg, None))
    for at, value in ((1_000, 0), (1_010, 1)):
        rows.append((at, at, at, Type.INVOKE, GET, 0, None, None, None))
        rows.append((at + 5, at, at, Type.OK, GET, 0, value, None, None))
    return sorted(rows, key=lambda row: row[:3])


def test_a_search_that_runs_out_says_how_far_it_came(
    tmp_path: Path, crowd: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown with a reason: how far, and what to do; another key that is illegal convicts."""
    monkeypatch.setattr(kernel, "FAILURES", 50)
    result = judged(tmp_path / "alone", crowd)
    assert (result.judgement, codes(result)) == (Judgement.UNKNOWN, ["REGISTERS_NOT_DECIDED"])
    message = result.reasons[0].message
    assert message.startswith("1 key not decided, k0 (402 operations): some order explains the")
    assert "write each value once" in message
    both = judged(tmp_path / "both", [*crowd, *told((PUT, 1), (GET, 2), key=64)])
    assert both.judgement is Judgement.INVALID
    assert codes(both) == ["REGISTERS_NOT_DECIDED"]


def test_a_search_ends_in_time(
    tmp_path: Path, crowd: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task whose time is over gives each bucket one second more, and then up."""
    monkeypatch.setattr(kernel, "SECONDS", 0.0)
    result = judged(tmp_path, crowd)
    assert codes(result) in ([], ["REGISTERS_NOT_DECIDED"])


def test_strings_that_are_too_long_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory has a bound; keys within it are judged, in as many turns as they need."""
    monkeypatch.setattr(kernel, "LETTERS", 40)
    short = [told((APPEND, 1), (GET, 1 if key else 2), key=64 * key) for key in range(20)]
    longest = told((APPEND, int("1" * 18)), (APPEND, 2), (GET, int("1" * 18 + "2")), key=64 * 20)
    result = judged(tmp_path, [row for rows in (*short, longest) for row in rows])
    assert [row["key"] for row in result.findings[0].evidence] == ["k0"]
    assert codes(result) == ["REGISTERS_NOT_DECIDED"]
    assert "k1280 (3 operations): its strings are too long" in result.reasons[0].message


def test_strings_know_no_compare_and_set(tmp_path: Path) -> None:
    result = judged(tmp_path, told((APPEND, 1), (CAS, 1, 2), (GET, 2)))
    assert codes(result) == ["REGISTERS_NOT_DECIDED"]
    assert "compare-and-set" in result.reasons[0].message


@pytest.mark.parametrize("seed", range(4))
def test_garbage_is_no_verdict(tmp_path: Path, seed: int) -> None:
    """Any numbers in any column: a reason, and never a crash, nor anything called valid."""
    dice = np.random.default_rng(seed)
    count = 3_000
    columns = []
    for field in OPS:
        low, high = (np.iinfo(field.type.to_pandas_dtype()).min, 4)
        narrow = dice.integers(-1, high, count)
        wide = dice.integers(low, -(low + 1), count)
        mostly = wide if seed % 2 else np.where(dice.random(count) < 0.05, wide, narrow)
        mask = dice.random(count) < 0.1 if field.nullable else None
        columns.append(pa.array(mostly, field.type, mask=mask))
    here = history(tmp_path, [])
    table = pa.Table.from_arrays(columns, schema=OPS)
    f = table.column_names.index("f")
    kinds = pa.array(dice.choice([GET, PUT, CAS, APPEND, 99], count), pa.int8())
    pq.write_table(table.set_column(f, OPS.field("f"), kinds), here.files["ops"][0])
    result = registers.check(here, Trial(), None)
    assert "HISTORY_MALFORMED" in codes(result)
    assert result.judgement is not Judgement.VALID


def test_many_of_unknown_outcome_on_one_key(tmp_path: Path) -> None:
    """Fifty thousand writes of unknown outcome explain what they can, and no more."""
    count = 50_000
    here = history(tmp_path, [])
    rows = {
        "t": np.concatenate([np.arange(count), count + np.arange(6)]),
        "op": np.concatenate([np.arange(count), count + np.repeat(np.arange(3), 2)]),
        "type": np.concatenate([np.zeros(count), [0, 1, 0, 1, 0, 1]]),
        "f": np.concatenate([np.full(count, PUT), np.full(6, GET)]),
        "key": np.zeros(count + 6),
    }
    rows["process"] = rows["op"]
    for name, expected, seen in (
        ("sound", Judgement.VALID, (1, 2, 1)),
        ("never written", Judgement.INVALID, (1, 2, 9)),
    ):
        value = np.concatenate([np.arange(count) % 5, np.repeat(seen, 2)])
        arrays = [
            pa.array((rows | {"value": value})[f.name].astype(np.int64), f.type)
            if f.name in (*rows, "value")
            else pa.nulls(count + 6, f.type)
            for f in OPS
        ]
        pq.write_table(pa.Table.from_arrays(arrays, schema=OPS), here.files["ops"][0])
        result = registers.check(here, Trial(), None)
        assert result.judgement is expected, name
    [row] = result.findings[0].evidence
    assert row["ops"] == str(count + 2)


# ---------------------------------------------------------------------------- the whole way


ETCD = """\
INFO  jepsen.util - 0\t:invoke\t:write\t4
INFO  jepsen.util - 0\t:ok\t:write\t4
INFO  jepsen.util - 1\t:invoke\t:cas\t[4 2]
INFO  jepsen.util - 2\t:invoke\t:read\tnil
INFO  jepsen.util - 2\t:ok\t:read\t2
INFO  jepsen.util - 1\t:info\t:cas\t:timed-out
INFO  jepsen.util - 2\t:invoke\t:read\tnil
INFO  jepsen.util - 2\t:ok\t:read\t{seen}
"""
EDN = """\
{:process 0, :type :invoke, :f :write, :value ["x" :red]}
{:process 0, :type :ok, :f :write, :value ["x" :red]}
{:process 1, :type :invoke, :f :read, :value ["x" nil]}
{:process 1, :type :ok, :f :read, :value ["x" :SEEN]}
"""


@pytest.mark.parametrize(
    ("format_", "text", "sound", "wrong", "words"),
    [
        ("porcupine", ETCD, "2", "4", "read 4"),
        ("jepsen-register", EDN, "red", "blue", 'read ":blue"'),
    ],
)
def test_an_imported_history_is_judged(
    tmp_path: Path, format_: str, text: str, sound: str, wrong: str, words: str
) -> None:
    """From the file to the verdict: what is sound is valid, what is not is invalid, and the line
    of the file is named."""
    for name, seen in (("sound", sound), ("wrong", wrong)):
        path = tmp_path / f"{name}.log"
        path.write_text(text.replace("{seen}", seen).replace("SEEN", seen))
        recording = registry.load("importer", format_)(path)
        run = _folder.write(recording, path, format_, tmp_path / name)
        verdict = judge_small(History.open(run))
        assert verdict.verdict == ("valid" if name == "sound" else "invalid")
        assert [result.checker for result in verdict.checkers] == ["registers"]
    assert verdict.first_finding is not None
    [row] = verdict.first_finding.evidence
    assert words in row["explanation"]
    assert row["line"] == len(text.splitlines()) - 1


def drawn(seed: int) -> list[Row]:
    """Sixty keys of registers and strings with answers that are sometimes dice."""
    dice, rows = Random(seed), list[Row]()
    for key in range(60):
        kinds = (GET, PUT, CAS) if key % 2 else (GET, PUT, APPEND)
        for op in range(12):
            f = dice.choice(kinds)
            value = dice.randrange(3)
            arg = dice.randrange(3) if f is CAS else None
            t, number = 100 * op + dice.randrange(100), 100 * key + op
            asked = None if f is GET else value
            rows.append((t, number, number, Type.INVOKE, f, key, asked, arg, None))
            if dice.random() < 0.9:
                end = t + dice.randrange(1, 400)
                rows.append((end, number, number, Type.OK, f, key, value, arg, None))
    return sorted(rows, key=lambda row: (row[0], row[3]))


@pytest.mark.spark
@pytest.mark.usefixtures("one_task_or_many")
def test_registers_on_spark(tmp_path: Path, spark: "SparkSession") -> None:
    """Spark and the kernels alone give the same result for registers and strings from three
    writers."""
    here = history(tmp_path, drawn(3), values=["a", "b", "ab"], writers=3)
    alone = registers.check(here, Trial(), None)
    [finding] = alone.findings
    assert 20 < finding.count < 60
    assert {row["kind"] for row in finding.evidence} == {"register", "string"}
    assert registers.check(History.open(here.run), Trial(), spark) == alone


@pytest.mark.spark
def test_published_registers_as_keys_of_one_table(
    recorded: Path, tmp_path: Path, spark: "SparkSession"
) -> None:
    """Fifty etcd histories in one run, on Spark: exactly those published as illegal are, with
    counterexamples of six operations at most on average."""
    told = [line.split("\t") for line in (recorded / "expected.tsv").read_text().splitlines()]
    told = [line for line in told if line[0].endswith(".log")]
    runs = [histories.imported(recorded / n, "porcupine", tmp_path / n) for n, _, _ in told]
    here = History.open(histories.together(runs, tmp_path / "together"))
    result = registers.check(here, Trial(), spark)
    illegal = [name for name, _, words in told if words == "not linearizable"]
    [finding] = result.findings
    assert finding.count == len(illegal) > 30
    assert [row["key"] for row in finding.evidence] == illegal[: len(finding.evidence)]
    assert len(finding.evidence) == 20
    assert sum(len(row["ops"].split()) for row in finding.evidence) <= 6 * 20
    assert not result.reasons
