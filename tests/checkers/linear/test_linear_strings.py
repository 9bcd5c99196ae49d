"""Strings that grow by appending, against the model: every order that a step function allows."""

import random
from collections import Counter
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from register_dice import columns

from checkers._linear import models
from checkers._linear.batch import ILLEGAL, LEGAL, UNKNOWN, OperationBatch
from checkers._linear.encoding import encode
from checkers._linear.judge import STRING, SearchBudget, judge
from checkers._linear.search import NO_ROOM
from checkers._linear.search_state import SearchState, allocate, extent
from checkers._linear.strings import search, texts_of
from harness.operation import F, Type

KEYS = 4_000
UNTOUCHED = -7
TOKENS = (("a", "b", "c"), ("a",), ("a", "ab", "b"))
KINDS = ((F.GET, F.APPEND), (F.GET, F.APPEND, F.PUT), (F.GET, F.APPEND, F.APPEND, F.PUT))


class Strings(list[str]):
    """Strings by number, as a history's dictionary keeps them."""

    def __init__(self) -> None:
        super().__init__([""])
        self.numbers = {"": 0}

    def number(self, text: str | None) -> int | None:
        if text is not None and text not in self.numbers:
            self.numbers[text] = len(self)
            self.append(text)
        return None if text is None else self.numbers[text]


def play(key, dice, clock, strings):
    """Return the rows of one key; a get may return a wrong string."""
    rows, pending, state, made = [], {}, "", 0
    most, clients, lost = dice.randrange(2, 9), dice.choice((2, 3, 4)), dice.choice((0.0, 0.3))
    lies, tokens, kinds = dice.choice((0.0, 0.3)), dice.choice(TOKENS), dice.choice(KINDS)
    while made < most or pending:
        client = 8 * key + dice.randrange(clients)
        if client not in pending:
            if made < most:
                made, f = made + 1, dice.choice(kinds)
                text = None if f is F.GET else dice.choice(tokens)
                pending[client] = [100 * key + made, f, text, False]
                row = (100 * key + made, Type.INVOKE, f, key, strings.number(text))
                rows.append((next(clock), client, *row, None, None))
            continue
        op = pending[client]
        if not op[3] and dice.random() < 0.6:
            op[3] = True
            if op[1] is F.GET:
                op[2] = state
            else:
                state = op[2] if op[1] is F.PUT else state + op[2]
        elif dice.random() < lost:
            del pending[client]
        elif op[3]:
            if op[1] is F.GET and dice.random() < lies:
                op[2] = dice.choice((op[2][:-1], op[2] + dice.choice(tokens), op[2][::-1]))
            row = (op[0], Type.OK, op[1], key, strings.number(op[2]))
            rows.append((next(clock), client, *row, None, None))
            del pending[client]
    return rows


def played(seed: int) -> tuple[OperationBatch, Strings, np.ndarray]:
    """Return keys, and the model's verdict on each."""
    dice, clock, strings = random.Random(seed), count(), Strings()
    rows = [row for key in range(KEYS) for row in play(key, dice, clock, strings)]
    batch, truth = encode(columns(rows)).batch, []
    for k in range(KEYS):
        operations = [
            replace(o, value="" if o.value is None else strings[o.value])
            for o in models.operations_of(batch, k)
        ]
        truth.append(models.search_model(models.STRING, operations))
    return batch, strings, np.array(truth)


@pytest.mark.parametrize(("seed", "most"), [(1, 11_639), (2, 12_446)])
def test_a_search_agrees_with_the_model(seed: int, most: int) -> None:
    """Puts, gets and appends with wrong answers and lost ones: the verdict is that of all orders,
    and no reduction is lost: a search takes no more steps than before."""
    batch, strings, truth = played(seed)
    judged = judge(batch, STRING, SearchBudget(exhaustive=True), strings)
    assert (judged.verdicts == truth).all(), np.flatnonzero(judged.verdicts != truth)
    print(Counter(truth.tolist()), judged.stats)
    assert Counter(truth.tolist())[ILLEGAL] > 200
    assert Counter(truth.tolist())[LEGAL] > 200
    assert KEYS <= judged.stats["steps"] <= most


@pytest.mark.parametrize("choices", [2, 3, 4, 6, 8])
def test_without_room_it_says_so(choices: int) -> None:
    """And never writes beyond its room."""
    batch, strings, truth = played(3)
    out, state = searched(batch, strings, choices=choices)
    full = out[:, 0] == NO_ROOM
    assert (out[:, 0] == np.where(full, NO_ROOM, truth)).all()
    assert full.any()
    assert (state.choices[choices:] == UNTOUCHED).all()


def test_without_failures_or_time_left_a_key_is_unknown() -> None:
    """Verdicts until then are right; no search begins after the deadline."""
    batch, strings, truth = played(3)
    for failures in (0, 1):
        verdicts = searched(batch, strings, failures=failures)[0][:, 0]
        spent = verdicts == UNKNOWN
        assert (verdicts == np.where(spent, UNKNOWN, truth)).all()
        assert spent.sum() == KEYS if failures == 0 else 20 < spent.sum() < KEYS // 2
    out, _ = searched(batch, strings, stop=1)
    assert (out[:, 0] == UNKNOWN).all()
    assert (out[:, 1:] == -1).all()


def searched(
    batch: OperationBatch,
    strings: Strings,
    failures: int = 2_000,
    choices: int = 4_096,
    stop: int = 0,
) -> tuple[np.ndarray, SearchState]:
    """Of each key: verdict, steps, returns passed, hits. And what was worked with."""
    which = np.arange(KEYS)
    n, values, ranks = extent(batch, which)
    state = allocate(n, values, ranks, failures, choices + 8, seed=7)
    state.choices[:] = UNTOUCHED
    within = state._replace(choices=state.choices[:choices])
    out = np.full((KEYS, 4), -1, np.int64)
    texts = texts_of(batch, strings, 7)
    search(within, batch, which, texts, failures, np.full(1, stop, np.int8), out)
    return out, state
