"""Which faults count: their effect was seen, and an operation was open while they were in force."""

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkers import coverage
from harness.operation import F, Type

Sketch = Any  # tests/checkers/conftest.py
S = 1_000_000_000
FROM, TO = 10, 16
OPERATION = st.tuples(
    st.integers(0, 30),  # invoked at
    st.integers(1, 12),  # took
    st.sampled_from([Type.OK, Type.FAIL, Type.INFO, None]),
    st.sampled_from([F.SEND, F.POLL]),
    st.integers(0, 2),  # messages that a poll brings
)
FAULT = st.tuples(
    st.integers(0, 30),
    st.one_of(st.none(), st.integers(0, 8)),  # lasts
    st.sampled_from(["kill", "pause", "power"]),
    st.sampled_from(["installed", "installed", "partial", "failed"]),
)


def effective(sketch: Any) -> dict[str, int]:
    found: dict[str, int] = coverage.judge(sketch.facts()).stats["effective"]
    return found


def naive(operations: list[Any], faults: list[Any], end: float) -> dict[str, int]:
    """Every pair of a fault and an operation."""
    counted: Counter[str] = Counter()
    for begin, lasts, kind, state in faults:
        until = end if lasts is None else begin + lasts
        meets = any(
            at < until
            and (f is F.SEND if outcome is None else at + took >= begin)
            and not (f is F.POLL and brings == 0 and outcome is Type.OK)
            for at, took, outcome, f, brings in operations
        )
        counted[kind] += state == "installed" and meets
    return {kind: count for kind, count in sorted(counted.items()) if count}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(operations=st.lists(OPERATION, max_size=8), faults=st.lists(FAULT, max_size=5))
def test_as_somebody_would_count_who_looks_at_every_pair(
    sketch: Any, operations: list[Any], faults: list[Any]
) -> None:
    """Operations invoked before a fault's end that were not completed before its begin, polls that
    nothing came of left out."""
    sketch = type(sketch)()
    for at, took, outcome, f, brings in operations:
        sketch.op(f, at, took, outcome, brings)
    for begin, lasts, kind, state in faults:
        sketch.fault(kind, begin, None if lasts is None else begin + lasts, state=state)
    end = sketch.facts().outline.end / S
    assert effective(sketch) == naive(operations, faults, end)


def test_one_operation_that_outlasts_the_fault(sketch: Sketch) -> None:
    """Neither invoked nor completed while it was in force, yet open all the time."""
    sketch.fault("pause", FROM, TO)
    sketch.op(F.SEND, FROM - 1, TO - FROM + 2)
    assert effective(sketch) == {"pause": 1}


def test_nobody_was_there(sketch: Sketch) -> None:
    """Ended just before, or begun just after: nobody could have noticed."""
    sketch.fault("pause", FROM, TO)
    sketch.op(F.SEND, FROM - 1, 0.9)
    sketch.op(F.SEND, TO, 0.1)
    assert effective(sketch) == {}


def test_a_consumer_that_waits_is_no_traffic(sketch: Sketch) -> None:
    """One poll after the other at the end of a queue, and one that never ended: nobody was served,
    so nobody could have noticed. One that failed has, and one that brought a message was served."""
    sketch.fault("pause", FROM, TO)
    for second in range(FROM - 2, TO + 2):
        sketch.op(F.POLL, second, 0.5, brings=0)
    sketch.op(F.POLL, FROM + 1, kind=None)
    assert effective(sketch) == {}
    failed, served = (type(sketch)(faults=sketch.faults, rows=[*sketch.rows]) for _ in range(2))
    for other in (failed, served):
        other.numbers = sketch.numbers
    failed.op(F.POLL, FROM + 2, 0.5, Type.FAIL)
    served.op(F.POLL, FROM + 2, 0.5, brings=1)
    assert effective(failed) == effective(served) == {"pause": 1}


def test_an_effect_that_nobody_saw(sound: Sketch) -> None:
    """Load alone does not make a fault count."""
    sound.fault("pause", 20, 22, state="partial")
    assert effective(sound) == {"kill": 1}
