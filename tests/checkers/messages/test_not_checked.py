"""What the trial demands and no checker decided makes the run unknown, and is named."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from harness.history.reader import History
from harness.judge import judge
from harness.judge.verdict import Judgement, Result, Verdict
from harness.trial import DEMANDS, Trial

# a message that is lost, and one that is duplicated by nobody
LOSING = "send 1 ok@0\nsend 2 ok@1\nread 2@1\npoll 2@1\nstored 2@1\ndrained"
WHOLE = "send 1 ok@0\nsend 2 ok@1\nread 1@0 2@1\npoll 1@0 2@1\nstored 1@0 2@1\ndrained"
ASKED = ("loss", "phantom", "duplicates", "order", "offsets", "replicas")
HELD = tuple(d for d in DEMANDS if d not in ("recovers", "keeps-metadata"))


def judged(history: History, checkers: Sequence[str], contract: Sequence[str] = HELD) -> Verdict:
    trial = Trial(checkers=tuple(checkers), contract=tuple(contract))
    history.run.trial_file.write_text(trial.to_toml())
    return judge.judge_small(history)


def missing(verdict: Verdict) -> list[str]:
    return [r.message.split(" ", 1)[0] for r in verdict.reasons if r.code == judge.NOT_CHECKED]


@pytest.mark.parametrize(
    ("checkers", "names"),
    [
        (("duplicates", "offsets"), ["at-least-once", "integrity", "no-loss", "order-per-queue"]),
        (("loss", "phantom"), ["order-per-queue"]),
        (("loss", "order"), ["integrity"]),
        (("loss", "linearizable", "phantom"), []),
        (ASKED, []),
    ],
)
def test_a_demand_that_no_checker_decides_is_named(
    written: Callable[..., History], checkers: Sequence[str], names: list[str]
) -> None:
    """With what to do about it; where somebody decides each of them, there is no such reason."""
    verdict = judged(written(WHOLE), checkers)
    assert missing(verdict) == names
    assert verdict.verdict is (Judgement.UNKNOWN if names else Judgement.VALID)
    for reason in verdict.reasons:
        assert "was not checked: add " in reason.message


def test_leaving_the_checker_out_hides_no_loss(written: Callable[..., History]) -> None:
    """The history lost a message: unknown without the checker of losses, invalid with it."""
    blind = judged(written(LOSING), ("duplicates", "offsets"))
    assert blind.verdict is Judgement.UNKNOWN
    assert "no-loss" in missing(blind)
    assert judged(written(LOSING), ASKED).verdict is Judgement.INVALID


def test_a_valid_run_names_the_checkers_that_were_left_out(written: Callable[..., History]) -> None:
    """Others decide their demands, but they alone can find a store time that changed, say."""
    changed = WHOLE.replace("poll 1@0", "poll 1@0/1/900").replace("read 1@0", "read 1@0/1/901")
    some = judged(written(changed), ("loss", "linearizable", "phantom", "duplicates"))
    assert some.verdict is Judgement.VALID
    assert "checkers were left out: order, offsets, replicas, " in some.sentence
    assert judged(written(changed), ASKED).verdict is Judgement.INVALID
    assert (
        "left out"
        not in judged(
            written(WHOLE), (*ASKED, "linearizable", "masters", "invariants", "recovery")
        ).sentence
    )


def test_what_the_trial_waives_need_not_be_checked(written: Callable[..., History]) -> None:
    """But integrity cannot be waived."""
    verdict = judged(written(WHOLE), ("duplicates", "offsets"), contract=())
    assert missing(verdict) == ["integrity"]
    assert "contract" not in verdict.reasons[0].message


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("send 1 info\nread 1@0\npoll 1@0\nstored 1@0\ndrained", "no-loss"),
        ("send 1 ok@0\nread 1@0\npoll 1@0\nstored 1@0\ndrained", "order-per-queue"),
    ],
)
def test_a_checker_that_saw_nothing_decides_nothing(
    written: Callable[..., History], text: str, name: str
) -> None:
    """No acknowledged message, no pair in any queue: unknown, with the checker's name."""
    verdict = judged(written(text), ASKED)
    assert verdict.verdict is Judgement.UNKNOWN
    assert name in missing(verdict)
    (reason,) = [r for r in verdict.reasons if r.message.startswith(f"{name} ")]
    assert "holds nothing that" in reason.message


def test_what_is_missing_in_a_run_that_was_cut_short_is_not_listed(
    written: Callable[..., History],
) -> None:
    """The run itself says why."""
    verdict = judged(written(WHOLE, interrupted=True), ("duplicates",))
    assert missing(verdict) == []
    assert verdict.verdict is Judgement.UNKNOWN


def test_a_checker_that_gives_a_reason_has_said_why(written: Callable[..., History]) -> None:
    """No second reason for the same; and a checker that counts nothing has decided."""
    history, trial = written(WHOLE), Trial(contract=("no-loss",), checkers=("loss", "phantom"))
    own = Result("loss", decided={"no-loss": 0})
    other = Result("phantom")
    found = list(judge.unchecked_demands([own, other], history, trial))
    assert [reason.message.split(" ")[0] for reason in found] == ["no-loss"]
    why = judge.Reason("NO_FINAL_READ", "nobody read")
    assert not list(judge.unchecked_demands([replace(own, reasons=(why,)), other], history, trial))
    uncounted: Any = replace(own, decided={})
    assert not list(judge.unchecked_demands([uncounted, other], history, trial))


def test_a_system_of_one_copy_need_not_compare_copies(written: Callable[..., History]) -> None:
    """Where each replica group has one node, no demand rests on comparing what they hold."""
    history = written(WHOLE)
    trial = Trial(workload="set", checkers=("objects", "recovery"), contract=())
    for nodes, named in ((1, False), (2, True)):
        roles = {f"broker-{n}": "broker" for n in range(nodes)}
        several = replace(history, names={**history.names, "roles": roles})
        reasons = judge.unchecked_demands([Result("objects")], several, trial)
        assert any("replicas" in reason.message for reason in reasons) is named
