"""The checker and a naive search agree on tens of thousands of small histories: the violated level,
the number of causes of each kind, and the content of each witness."""

from collections import Counter
from collections.abc import Iterator, Mapping
from random import Random

import pytest
from isolation_causes import Named, causes
from isolation_dice import KEYS_OF_ONE, drawn, drawn_spoilt, placed
from isolation_found import Remarked
from isolation_oracle import (
    SERIALIZABLE,
    SESSION,
    SNAPSHOT,
    STRICT,
    serializable,
    snapshot_isolated,
    weakest,
)
from table_sizes import at_least, share
from transacting import Transaction, gathered_here, told

from checkers import transactions as checker
from checkers._cycles import anomalies
from checkers._cycles.arrays import Ints
from checkers._cycles.cycle_findings import CycleText, cycle_finding
from checkers._cycles.direct_anomalies import DirectAnomaly, roots
from checkers._cycles.edges import EdgeKind, OrderLayer
from checkers._cycles.graph import graph
from checkers._cycles.paths import Hop
from harness.trial import ISOLATION

HISTORIES, BATCH = share(20_000), share(4_000)
REGISTERS = share(20_000)
SPOILT, ALONE = share(4_000), share(400)
EACH = at_least(200)  # at least, of every class
SNAPSHOTS, FEW = share(6_000), 5  # histories, and transactions of one

ANYWHERE = {"INTERNAL", "PHANTOM_VALUE", "G1A", "G1B", "LOST_UPDATE"}
OF_LISTS = {"DUPLICATE_ELEMENT", "INCOMPATIBLE_ORDER", "LOST_APPEND"}
CYCLES = {
    f"{kind}{layer}"
    for kind in ("G0", "G1C", "G_SINGLE", "G_NONADJACENT", "G2_ITEM")
    for layer in ("", "_PROCESS", "_REALTIME")
}

Answer = Counter[tuple[str, str]]  # by codes and demands


def judged(histories: list[list[Transaction]]) -> list[Answer]:
    """Return the causes that the checker finds in each history, all in one table. They must equal
    those of the definitions, each with a cycle of real dependencies, or the same direct anomaly."""
    kinds, said_of = peeled(histories, OrderLayer.REALTIME)
    answers = [Answer() for _ in histories]
    expected = [causes(history) for history in histories]
    assert len({(kind.code, kind.layer, kind.step) for kind in kinds}) == len(kinds)
    for kind in kinds:
        finding = cycle_finding(kind, CycleText({}, {}))
        assert kind.count == len(kind.examples)
        for shown in kind.examples:
            number = shown.cycle[0].src // 10
            answers[number][finding.code, finding.demand] += 1
            fitting(kind.code, shown.cycle)
            for hops, most in ((shown.cycle, kind.layer), (shown.by_time, OrderLayer.REALTIME)):
                layers = [layer_of(hop, number, expected[number].layers) for hop in hops]
                assert max(layers, default=0) <= most, (hops, histories[number])
                assert [hop.dst for hop in hops] == [hop.src for hop in (*hops[1:], *hops[:1])]
    remarks: list[set[Remarked]] = [set() for _ in histories]
    for remark, (code, demand, *_) in checker.REMARKS.items():
        for row in roots(said_of, remark)[1]:
            number = row["key"] // KEYS_OF_ONE
            answers[number][code, demand] += 1
            remarks[number].add(home(remark, row, number))
    repeated = {row["key"] for row in roots(said_of, DirectAnomaly.NOT_UNIQUE)[1]}
    assert repeated == {n * KEYS_OF_ONE + k for n, e in enumerate(expected) for k in e.repeated}
    for history, answer, said, truth in zip(histories, answers, remarks, expected, strict=True):
        assert answer == truth.counts, history
        assert said == truth.roots, history
    return answers


def peeled(
    histories: list[list[Transaction]], layer: OrderLayer
) -> tuple[list[anomalies.Causes], list[Ints]]:
    """What the checker finds in one table: cycles, and remarks."""
    together = [t for n, history in enumerate(histories) for t in placed(history, n)]
    found = gathered_here([told(together)], layer)
    whole, nodes = graph(found.transactions, found.edges, found.ending, layer)
    return anomalies.Peeling(whole, nodes, found.ending).run(layer), found.remarks


def home(remark: DirectAnomaly, row: Mapping[str, int], number: int) -> Remarked:
    """A remark on the number-th history of a table, in the history's own numbers."""
    other = row["other"] - 10 * number if row["other"] >= 0 else -1
    op, key = row["op"] - 10 * number, row["key"] - KEYS_OF_ONE * number
    return remark.name, op, key, row["value"], other


def by_code(answer: Answer) -> Counter[str]:
    counts = Counter[str]()
    for (code, _), number in answer.items():
        counts[code] += number
    return counts


def layer_of(hop: Hop, number: int, layers: Mapping[Named, int]) -> int:
    """The least layer on which there is this dependency in the number-th history of a table."""
    src, dst = hop.src - 10 * number, hop.dst - 10 * number
    key = hop.key - KEYS_OF_ONE * number if hop.key >= 0 else -1
    return layers[src, dst, hop.kind.name.lower(), key, hop.a, hop.b]


def fitting(code: str, hops: list[Hop]) -> None:
    """The cycle is of the kind that it is called."""
    kinds = [hop.kind for hop in hops]
    anti = [kind is EdgeKind.RW for kind in kinds]
    adjacent = any(a and b for a, b in zip(anti, [*anti[1:], anti[0]], strict=True))
    assert {
        "G0": EdgeKind.WW in kinds and EdgeKind.WR not in kinds and not any(anti),
        "G1C": EdgeKind.WR in kinds and not any(anti),
        "G_SINGLE": sum(anti) == 1,
        "G_NONADJACENT": sum(anti) > 1 and not adjacent,
        "G2_ITEM": adjacent,
        "LOST_APPEND": EdgeKind.WR in kinds or EdgeKind.WW in kinds or any(anti),
    }[code], hops


def lowest(answer: Answer) -> str:
    return min((demand for _, demand in answer), key=ISOLATION.index, default="")


def batches(count: int, registers: bool) -> Iterator[tuple[list[list[Transaction]], Counter[str]]]:
    dice = Random(20 + registers)
    for _ in range(0, count, BATCH):
        pairs = [drawn(dice, registers) for _ in range(min(BATCH, count))]
        yield [history for _, history in pairs], Counter(name for name, _ in pairs)


@pytest.fixture
def shows_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anomalies, "MAX_EXAMPLES", 10 * BATCH)


def truth(history: list[Transaction]) -> str:
    """The weakest level that a history of lists offends."""
    if serializable(history, STRICT):
        return ""
    level = weakest(history)
    assert bool(level) is not serializable(history), history
    if level:
        return level
    return STRICT if serializable(history, SESSION) else SESSION


@pytest.mark.usefixtures("shows_all")
def test_lists_offend_what_all_orders_and_the_definitions_say() -> None:
    """The weakest level that is offended is exactly that of the naive search, for every history."""
    codes: Counter[str] = Counter()
    levels: Counter[str] = Counter()
    spoilt: Counter[str] = Counter()
    for histories, names in batches(HISTORIES, registers=False):
        spoilt += names
        for history, answer in zip(histories, judged(histories), strict=True):
            expected = truth(history)
            assert lowest(answer) == expected, (answer, history)
            codes += by_code(answer)
            levels[expected] += 1
    print(f"\nspoilt {dict(spoilt)}\nlevels {dict(levels)}\ncodes {dict(codes)}")
    assert rare(codes, ANYWHERE | CYCLES | OF_LISTS) == {}
    assert {level: levels[level] for level in ISOLATION if levels[level] < EACH} == {}
    assert levels[""] >= EACH


@pytest.mark.usefixtures("shows_all")
def test_snapshot_isolation_is_what_all_beginnings_and_commits_say() -> None:
    """A history is convicted at this level exactly when no snapshots and no order of commits, of
    which the first wins, explain it."""
    dice = Random(60)
    histories: list[list[Transaction]] = []
    while len(histories) < SNAPSHOTS:
        history = drawn(dice, registers=False)[1]
        if len(history) <= FEW:
            histories.append(history)
    counts = Counter[bool]()
    for history, answer in zip(histories, judged(histories), strict=True):
        demand = lowest(answer)
        convicted = bool(demand) and ISOLATION.index(demand) <= ISOLATION.index(SNAPSHOT)
        assert convicted is not snapshot_isolated(history), (answer, history)
        counts[convicted] += 1
    assert min(counts.values()) >= SNAPSHOTS // 10


def rare(codes: Counter[str], expected: set[str]) -> dict[str, int]:
    return {code: codes[code] for code in expected if codes[code] < EACH}


@pytest.mark.usefixtures("shows_all")
def test_registers_are_convicted_only_of_what_no_order_explains() -> None:
    """Each level reported as violated is violated, and nearly all violated levels are reported."""
    told_of, missed = Counter[str](), Counter[str]()
    codes: Counter[str] = Counter()
    for histories, _ in batches(REGISTERS, registers=True):
        for history, answer in zip(histories, judged(histories), strict=True):
            codes += by_code(answer)
            demand = lowest(answer)
            all_kept = serializable(history, STRICT)
            for level in (SERIALIZABLE, SESSION, STRICT):
                convicted = bool(demand) and ISOLATION.index(demand) <= ISOLATION.index(level)
                possible = all_kept or serializable(history, level)
                assert not (convicted and possible), (level, answer, history)
                told_of[level] += convicted
                missed[level] += not convicted and not possible
    print(f"\ntold {dict(told_of)} missed {dict(missed)}\ncodes {dict(codes)}")
    for level in (SERIALIZABLE, SESSION, STRICT):
        assert missed[level] <= told_of[level] // 10
    assert rare(codes, ANYWHERE | CYCLES) == {}


@pytest.mark.usefixtures("shows_all")
@pytest.mark.parametrize("registers", [False, True])
def test_what_is_spoilt_closely_has_the_causes_of_the_definitions(registers: bool) -> None:
    """Eight transactions, clocks that tick seldom, orders that contradict each other, values that
    were written twice; together, and a few of them alone."""
    dice = Random(70 + registers)
    histories = [drawn_spoilt(dice, registers) for _ in range(SPOILT)]
    codes = Counter[str]()
    for answer in judged(histories):
        codes += by_code(answer)
    print(dict(codes))
    alone = Counter[str]()
    for history in histories[:ALONE]:
        alone += by_code(judged([history])[0])
    assert set(codes) >= ANYWHERE
    assert len(alone) >= 9


@pytest.mark.usefixtures("shows_all")
@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("layer", [OrderLayer.DATA, OrderLayer.PROCESS])
def test_a_weaker_contract_hears_less(layer: OrderLayer, registers: bool) -> None:
    """Where the order of processes or of time is not promised, it is not looked at, and what is
    found without it is the same."""
    dice = Random(80 + registers)
    histories = [drawn(dice, registers)[1] for _ in range(BATCH)]
    answers = judged(histories)
    kinds, said_of = peeled(histories, layer)
    told_of, expected = Counter[str](), Counter[str]()
    for kind in kinds:
        finding = cycle_finding(kind, CycleText({}, {}))
        told_of[finding.demand] += finding.count
    for remark, (_, demand, *_) in checker.REMARKS.items():
        told_of[demand] += roots(said_of, remark)[0]
    for (_, demand), count in (item for answer in answers for item in answer.items()):
        expected[demand] += count
    levels = ISOLATION[: ISOLATION.index(SERIALIZABLE) + 1 + int(layer)]
    assert told_of == Counter({level: expected[level] for level in levels})
