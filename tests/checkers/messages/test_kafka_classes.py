"""One small imported history for each class of anomaly, and for what excuses it.
The histories are written in the short form that `imported` reads.
"""

from collections.abc import Callable
from typing import Any

import pytest

from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.importers import _run_folder as _folder
from harness.judge.judge import judge_small
from harness.judge.verdict import Judgement, Verdict

Import = Callable[..., RunDir]
SENT = "".join(f"0 send ok [[:send 7 [{at} {at + 1}]]]\n" for at in range(6))
READ = "1 poll ok [[:poll {7 [[0 1] [1 2] [2 3] [3 4] [4 5] [5 6]]}]]\n"
SOUND = f"0 assign ok [7]\n1 assign ok [7]\n2 assign ok [7]\n{SENT}{READ}"


def judged(run: RunDir) -> Verdict:
    return judge_small(History.open(run))


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


def test_a_loss_is_placed_in_what_its_producer_sent(imported: Import) -> None:
    """Before the first that anybody saw, between, and behind the last."""
    kept = READ.replace("[0 1] [1 2] [2 3] [3 4] [4 5] [5 6]", "[1 2] [3 4] [6 9]")
    verdict = judged(imported(f"{SENT}3 send ok [[:send 7 [6 9]]]\n{kept}"))
    assert codes(verdict) == {"LOST_ACKED": 4}
    assert verdict.stats("loss")["lost_where"] == {"prefix": 1, "middle": 1, "tail": 2}


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


@pytest.mark.parametrize("seen", [True, False])
def test_a_send_of_unknown_outcome_that_was_seen_held_its_offset(
    imported: Import, seen: bool
) -> None:
    """Somebody read it, so it is committed, and of two messages at the offset that it named one is
    wrong; if nobody read it, nothing is known of it."""
    text = SOUND + "0 send info [[:send 7 [1 9]]]\n"
    text += "5 poll ok [[:poll {7 [[8 9]]}]]\n" if seen else ""
    found = codes(judged(imported(text)))
    assert found.get("OFFSET_CONFLICT", 0) == seen
    if seen:
        evidence = row(judged(imported(text)), "OFFSET_CONFLICT")
        assert evidence["offset"] == 1
        assert 9 in (evidence["original"], evidence["other_original"])


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


@pytest.mark.parametrize("rows", [8, _folder.ROWS_OF_A_FILE])
def test_what_stands_at_two_places_bounds_neither(
    imported: Import, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A send of unknown outcome that was seen twice is no witness of the log's order, in however
    many files its readers are: only one of its places is known to the sweep."""
    monkeypatch.setattr(_folder, "ROWS_OF_A_FILE", rows)
    text = (
        "0 send ok [[:send 7 [8 9]]]\n3 send info [[:send 7 7]]\n"
        "1 poll ok [[:poll {7 [[8 9] [9 7]]}]]\n2 poll ok [[:poll {7 [[6 7]]}]]"
    )
    run = imported(SOUND + text)
    assert (len(History.open(run).files["ops"]) > 1) is (rows == 8)
    found = codes(judged(run))
    assert found["DUPLICATED_BY_RETRY"] == 1
    assert not found.keys() & {"REORDERED", "NOT_LINEARIZABLE"}
