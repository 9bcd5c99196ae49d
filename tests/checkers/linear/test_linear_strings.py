"""Strings that grow by appending, against the model: every order that a step function allows."""

import random
from collections import Counter
from dataclasses import replace
from itertools import count

import pytest

from checkers._linear import models
from checkers._linear.batch import ILLEGAL, LEGAL
from checkers._linear.encoding import encode
from checkers._linear.judge import STRING, Budget, judge
from harness.operation import F, Type

KEYS = 4_000
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
    """Rows of one key; a get may tell a string that is not there."""
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


@pytest.mark.parametrize("seed", [1, 2])
def test_a_search_agrees_with_the_model(seed, table) -> None:
    """Puts, gets and appends with lies and lost answers: the verdict is that of all orders."""
    dice, clock, strings = random.Random(seed), count(), Strings()
    rows = [row for key in range(KEYS) for row in play(key, dice, clock, strings)]
    batch = encode(table(rows)).batch
    verdicts = judge(batch, STRING, Budget(exhaustive=True), strings).verdicts
    counts = Counter()
    for k, verdict in enumerate(verdicts):
        operations = [
            replace(o, value="" if o.value is None else strings[o.value])
            for o in models.operations_of(batch, k)
        ]
        assert verdict == models.judge(models.STRING, operations), operations
        counts[int(verdict)] += 1
    print(counts)
    assert counts[ILLEGAL] > 200
    assert counts[LEGAL] > 200
