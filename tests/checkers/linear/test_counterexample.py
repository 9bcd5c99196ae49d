"""Counterexamples are contradictions: no order explains their few operations, whatever the others
did. A search over the model of a register, which is independent of the explanation, confirms it."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from checkers._linear import models
from checkers._linear.batch import ILLEGAL, NEVER
from checkers._linear.counterexample import find_counterexample
from checkers._linear.encoding import encode
from checkers._linear.judge import SearchBudget, judge
from harness.operation import F

ALL = SearchBudget(exhaustive=True)


def contradicts(operations, found) -> bool:
    """All that the counterexample claims, by trying every order.

    What was called after the failing return did not happen yet, and what had not returned by then
    may have happened. All but the core may happen at any time or never; and where it does not
    matter what was held before, what had returned before the core's first call is left out.
    """
    core = {o.op for o in found.core}
    end, begin = found.failing.ret, min(o.call for o in operations if o.op in core)
    left = []
    for o in operations:
        if o.call > end or (found.from_any_state and o.ret < begin):
            continue
        if o.op in core and o.ret <= end:
            left.append(o)
        elif o.f is not F.GET and not o.refused:
            call = o.call if o.op in core else -2
            left.append(replace(o, call=call, ret=NEVER, done=False))
    values = {o.value for o in left} | {o.arg for o in left if o.f is F.CAS} | {-7}
    starts = values - {None} | {models.NOTHING} if found.from_any_state else {models.NOTHING}
    registers = [replace(models.REGISTER, start=start) for start in starts]
    return {models.search_model(register, left) for register in registers} == {ILLEGAL}


@pytest.mark.parametrize(
    ("kind", "seed", "windows"), [("registers", 31, 0), ("written_once", 33, 0), ("long", 35, 60)]
)
def test_every_counterexample_is_a_contradiction(kind, seed, windows, request, table) -> None:
    """In histories with wrong reads, losses and unknown outcomes; in long ones of few values the
    contradiction mostly holds from any state, and a few operations are enough."""
    games = request.getfixturevalue(kind)(seed, 2_000)
    batch = encode(table([row for game in games for row in game.rows]), pipelined=True).batch
    judged = judge(batch, budget=ALL)
    counts: Counter[str] = Counter()
    for k in np.flatnonzero(judged.verdicts == ILLEGAL)[:400].tolist():
        witness, passed = judged.witnesses.get(k, ()), int(judged.passed[k])
        found = find_counterexample(batch, k, witness=witness, passed=passed)
        assert found is not None
        assert contradicts(models.operations_of(batch, k), found), found
        counts["whatever" if found.from_any_state else "from the start"] += 1
        counts["operations"] += len(found.core)
    print(kind, dict(counts))
    explained = counts["whatever"] + counts["from the start"]
    assert explained > 200
    assert counts["whatever"] >= windows
    assert counts["operations"] <= 4 * explained


def test_what_was_held_is_said(table) -> None:
    """The states in which everything before can have left the register, and why none will do."""
    rows = [
        (0, 1, 0, 0, F.PUT, 0, 1, None, None),
        (1, 1, 0, 1, F.PUT, 0, 1, None, None),
        (2, 2, 1, 0, F.PUT, 0, 2, None, None),
        (3, 3, 2, 0, F.GET, 0, None, None, None),
        (4, 3, 2, 1, F.GET, 0, 3, None, None),
    ]
    found = find_counterexample(encode(table(rows)).batch, 0)
    assert found is not None
    assert [dead.state for dead in found.frontier] == ["1", "2"]
    assert found.frontier[0].reasons == (
        "read 3: not from here",
        "write 2 (outcome unknown): leads to 2",
    )
