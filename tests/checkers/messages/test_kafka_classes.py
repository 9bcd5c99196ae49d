"""One small imported history for each class of anomaly, and for what excuses it.

A line is one operation, `process f outcome value`; offsets stand in its completion only.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkers import _units
from harness.history import History
from harness.importers import _folder, jepsen_kafka
from harness.judge import concluded, judge_here
from harness.registry import load
from harness.rundir import RunDir
from harness.verdict import Judgement, Verdict

Import = Callable[..., RunDir]
SENT = "".join(f"0 send ok [[:send 7 [{at} {at + 1}]]]\n" for at in range(6))
READ = "1 poll ok [[:poll {7 [[0 1] [1 2] [2 3] [3 4] [4 5] [5 6]]}]]\n"
SOUND = f"0 assign ok [7]\n1 assign ok [7]\n2 assign ok [7]\n{SENT}{READ}"


@pytest.fixture
def imported(tmp_path: Path) -> Import:
    def make(text: str, **more: Any) -> RunDir:
        number = len(list(tmp_path.iterdir()))
        path = tmp_path / f"history-{number}.edn"
        path.write_text("".join(_lines(text)))
        run = _folder.write(jepsen_kafka.read(path), path, "jepsen-kafka", tmp_path / f"{number}")
        run.trial_file.write_text(replace(run.trial(), **more).to_toml())
        return run

    return make


def _lines(text: str) -> list[str]:
    lines = []
    for line in text.splitlines():
        process, f, outcome, value = line.split(" ", 3)
        value, _, extra = value.partition(" | ")
        asked = re.sub(r":poll {.*?}", ":poll", re.sub(r"\[\d+ (\d+)\]\]", r"\1]", value))
        for kind, said in (("invoke", asked), (outcome, value)):
            more = f", {extra}" if extra and kind != "invoke" else ""
            lines.append(
                f"{{:index {len(lines)}, :type :{kind}, :process {process}, :f :{f}, "
                f":value {said}, :time {len(lines)}000{more}}}\n"
            )
    return lines


def judged(run: RunDir) -> Verdict:
    return judge_here(History.open(run))


def codes(verdict: Verdict) -> dict[str, int]:
    return {f.code: f.count for result in verdict.checkers for f in result.findings}


def row(verdict: Verdict, code: str) -> Any:
    found = (f for result in verdict.checkers for f in result.findings if f.code == code)
    return next(found).evidence[0]


def test_a_sound_history(imported: Import) -> None:
    verdict = judged(imported(SOUND))
    assert verdict.verdict is Judgement.VALID
    assert not codes(verdict)


def test_offsets_of_which_nobody_knows_are_no_messages(imported: Import) -> None:
    """A broker's own marks take offsets, and no consumer can be given them."""
    text = SOUND + "0 send ok [[:send 7 [9 7]]]\n1 poll ok [[:poll {7 [[9 7]]}]]"
    assert not codes(judged(imported(text)))


def test_a_step_over_what_is_lost_is_an_echo(imported: Import) -> None:
    """One finding, with the number of steps over it."""
    text = SOUND.replace(" [2 3]", "") + "2 poll ok [[:poll {7 [[0 1] [1 2] [3 4]]}]]"
    verdict = judged(imported(text.replace("[[:send 7]]", "[[:send 7 [2 3]]]")))
    assert codes(verdict) == {"LOST_ACKED": 1}
    assert row(verdict, "LOST_ACKED")["stepped_over"] == 2
    assert verdict.stats("order")["steps_over_what_is_lost"] == 2


def test_unseen_is_not_lost(imported: Import) -> None:
    """Nobody read that far: nothing is proven."""
    verdict = judged(imported(SOUND + "0 send ok [[:send 7 [6 7]]]"))
    assert verdict.verdict is Judgement.UNKNOWN
    assert codes(verdict) == {"UNSEEN_ACKED": 1}
    assert verdict.stats("loss")["unseen"] == 1


TWO = SOUND + "0 send ok [[:send 7 [3 9]]]\n"


def test_one_of_two_at_an_offset_is_not_lost_too(imported: Import) -> None:
    """The message that nobody was given stands first."""
    verdict = judged(imported(TWO))
    assert codes(verdict) == {"OFFSET_CONFLICT": 1}
    found = row(verdict, "OFFSET_CONFLICT")
    assert (found["offset"], found["original"], found["other_original"]) == (3, 9, 4)


@pytest.mark.parametrize(
    "contract", [{"contract": ("no-loss",)}, {"checkers": ("loss",)}], ids=["contract", "checkers"]
)
def test_where_offsets_do_not_count_it_is_lost(imported: Import, contract: Any) -> None:
    """A contract that demands no order must not make a loss permitted."""
    verdict = judged(imported(TWO, **contract))
    assert verdict.verdict is Judgement.INVALID
    assert codes(verdict)["LOST_ACKED"] == 1


def test_a_slip_in_an_offset_makes_nothing_lost(imported: Import) -> None:
    """One answer named an offset far ahead; what stands between is unseen, and not lost."""
    text = SOUND + "0 send ok [[:send 7 [6 7]]]\n2 poll ok [[:poll {7 [[0 1] [90 2]]}]]"
    found = codes(judged(imported(text)))
    assert "LOST_ACKED" not in found
    assert (found["UNSEEN_ACKED"], found["DUPLICATED"]) == (1, 1)


def test_a_poll_leaves_nothing_out(imported: Import) -> None:
    verdict = judged(imported(SOUND + "2 poll ok [[:poll {7 [[0 1] [2 3]]}]]"))
    assert codes(verdict) == {"POLL_SKIPPED": 1}
    assert row(verdict, "POLL_SKIPPED")["skipped"] == 1


LEAP = "2 poll ok [[:poll {7 [[0 1]]}]]\n2 poll ok [[:poll {7 [[3 4]]}]]\n"
BACK = "2 poll ok [[:poll {7 [[0 1] [1 2]]}]]\n2 poll ok [[:poll {7 [[1 2]]}]]\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (LEAP, "CONSUMER_SKIPPED"),
        (BACK, "CONSUMER_WENT_BACK"),
        (LEAP.replace("\n", "\n2 assign ok [7]\n", 1), "CONSUMER_SKIPPED"),
        (LEAP.replace("\n", "\n2 assign ok [8]\n2 assign ok [7]\n", 1), ""),
        (LEAP.replace("\n", "\n2 crash info nil\n", 1), ""),
        (LEAP.replace("\n", "\n2 subscribe ok [7]\n", 1), "CONSUMER_MOVED"),
        (LEAP.replace("]\n2", "] | :rebalance-log [{:keys [7]}]\n2", 1), "CONSUMER_MOVED"),
        (LEAP.replace("]\n2", "] | :rebalance-log [{:keys [8]}]\n2", 1), "CONSUMER_SKIPPED"),
        (BACK.replace("2 poll ok", "2 poll info", 1), ""),
    ],
    ids=[
        *("over", "back", "kept", "given up", "crashed", "subscribed", "rebalanced"),
        *("another rebalanced", "not ok"),
    ],
)
def test_the_next_answer_goes_on(imported: Import, text: str, code: str) -> None:
    """Unless the consumer gave up the queue, or may have lost it to another."""
    verdict = judged(imported(SOUND + text))
    assert codes(verdict) == ({code: 1} if code else {})
    lenient = code in ("", "CONSUMER_MOVED")
    assert verdict.verdict is (Judgement.VALID if lenient else Judgement.INVALID)


def test_a_rebalance_inside_an_answer(imported: Import) -> None:
    text = SOUND + "2 poll ok [[:poll {7 [[3 4] [2 3]]}]] | :rebalance-log [{:keys [7]}]"
    assert not codes(judged(imported(text)))


def test_a_transaction_keeps_its_order(imported: Import) -> None:
    """NONMONOTONIC_SEND: the second message of a transaction stands before the first."""
    text = "0 txn ok [[:send 7 [7 8]] [:send 7 [6 9]]]\n1 poll ok [[:poll {7 [[6 9] [7 8]]}]]"
    assert codes(judged(imported(SOUND + text))) == {"NONMONOTONIC_SEND": 1}


def test_a_producer_keeps_its_order(imported: Import) -> None:
    """REORDERED says how many were of one process."""
    text = SOUND.replace("[:send 7 [4 5]]", "[:send 7 [8 5]]").replace("[4 5] [5 6]", "[5 6] [8 5]")
    verdict = judged(imported(text))
    assert codes(verdict)["REORDERED"] == 1
    assert "(within one process once)" in verdict.sentence


def test_nobody_is_given_what_is_not_committed(imported: Import) -> None:
    text = "0 txn ok [[:send 7 [6 7]] [:poll {7 [[6 7]]}]]\n1 poll ok [[:poll {7 [[6 7]]}]]"
    assert codes(judged(imported(SOUND + text))) == {"PRECOMMITTED_READ": 1}


@pytest.mark.parametrize("seen", [True, False])
def test_a_transaction_is_there_or_not(imported: Import, seen: bool) -> None:
    """TXN_TORN: of unknown outcome, one part seen and the other gone; without the one, aborted."""
    shown = "[7 8] [8 9]" if seen else "[8 9]"
    text = (
        "0 txn info [[:send 7 [6 7]] [:send 7 [7 8]]]\n3 send ok [[:send 7 [8 9]]]\n"
        f"1 poll ok [[:poll {{7 [{shown}]}}]]"
    )
    assert codes(judged(imported(SOUND + text))) == ({"TXN_TORN": 1} if seen else {})


@pytest.mark.spark
def test_spark_and_the_kernels_agree_on_steps(
    imported: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several files, a task each: the steps meet the blocks of their queue."""
    from harness.spark import session

    monkeypatch.setattr(_units, "ONE_TASK_BYTES", 0)
    monkeypatch.setattr(_folder, "ROWS_OF_A_FILE", 10)
    lost = "0 send ok [[:send 8 [0 1]]]\n3 send ok [[:send 8 [1 2]]]\n"
    lost += "1 poll ok [[:poll {8 [[1 2]]}]]\n"
    own = "3 txn ok [[:send 8 [2 3]] [:poll {8 [[2 3]]}]]\n"
    run = imported(TWO + LEAP + BACK + lost + own)
    history, trial = History.open(run), run.trial()
    assert len(history.files("ops")) > 2
    with session() as spark:
        spread = [load("checker", name)(history, trial, spark) for name in trial.checkers]
    verdict = concluded(spread, history, trial)
    assert verdict == judged(run)
    expected = {"LOST_ACKED", "OFFSET_CONFLICT", "CONSUMER_SKIPPED", "CONSUMER_WENT_BACK"}
    assert set(codes(verdict)) == expected | {"PRECOMMITTED_READ"}
