"""Features of runs: what two runs share whatever their nodes are called, and what only one did."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.campaign.features import RunFeatures, features_of, log_word, packed, unpacked
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.history.schema import TABLES
from harness.operation import F, Type

S = 1_000_000_000
Line = tuple[float, str, str, Mapping[str, Any]]

FAILOVER: Sequence[Line] = (
    (0.0, "broker-1", "start", {}),
    (0.0, "broker-2", "start", {}),
    (0.0, "controller-1", "start", {}),
    (0.1, "broker-1", "role", {"brokerName": "a", "brokerId": 1, "role": "master", "epoch": 1}),
    (0.2, "broker-2", "role", {"brokerName": "a", "brokerId": 2, "role": "slave", "epoch": 1}),
    (0.3, "controller-1", "set", {"brokerName": "a", "set": [1, 2]}),
    (2.0, "broker-1", "exit", {"code": -9}),
    (2.2, "controller-1", "set", {"brokerName": "a", "set": [2]}),
    (2.3, "broker-2", "role", {"brokerName": "a", "brokerId": 2, "role": "master", "epoch": 2}),
    (3.0, "broker-1", "start", {}),
    (3.2, "broker-1", "truncate", {"cut": 12, "why": "behind"}),
)
KILL = {"id": 0, "kind": "kill", "targets": {"master": ["broker-1"]}, "applied": 2 * S}
SWAPPED = {"broker-1": "broker-2", "broker-2": "broker-1"}


def recorded(
    folder: Path,
    lines: Sequence[Line] = FAILOVER,
    faults: Sequence[Mapping[str, Any]] = (KILL,),
    acked_s: Sequence[float] = (),
) -> History:
    """A run with these events, faults, and acknowledged sends; its load began after a second."""
    run = RunDir(folder)
    run.history.mkdir(parents=True)
    events = [
        {"t": int(t * S), "node": node, "kind": kind, "fields": json.dumps(fields)}
        for t, node, kind, fields in lines
    ]
    sends = [
        {"t": int(t * S), "process": 0, "op": n, "type": kind, "f": F.SEND}
        for n, t in enumerate(acked_s)
        for kind in (Type.INVOKE, Type.OK)
    ]
    rows = [{**fault, "targets": json.dumps(fault["targets"])} for fault in faults]
    for name, table in (("events", events), ("faults", rows), ("ops", sends)):
        schema = TABLES[name]
        absent: dict[str, Any] = dict.fromkeys(schema.names)
        written = pa.Table.from_pylist([absent | row for row in table], schema)
        pq.write_table(written, run.history / f"{name}-runner-000.parquet")
    run.write_names({"keys": [], "nodes": []})
    run.update_state(ended=True, load_began_ns=S)
    return History.open(run)


def seen(folder: Path, *more: Any, **looks: int) -> RunFeatures:
    return features_of(recorded(folder, *more), looks)


def renamed(lines: Sequence[Line]) -> list[Line]:
    numbers = {1: 2, 2: 1}
    swapped = []
    for t, node, kind, fields in lines:
        fields = dict(fields)
        if "brokerId" in fields:
            fields["brokerId"] = numbers[fields["brokerId"]]
        if "set" in fields:
            fields["set"] = sorted(numbers[n] for n in fields["set"])
        swapped.append((t, SWAPPED.get(node, node), kind, fields))
    return swapped


def test_other_names_are_nothing_new(tmp_path: Path) -> None:
    """The same failover of the other broker has the same features."""
    here = seen(tmp_path / "1")
    fault = {**KILL, "targets": {"master": ["broker-2"]}}
    assert seen(tmp_path / "2", renamed(FAILOVER), (fault,)).features == here.features
    assert len(here.features) > 20


def test_other_times_are_nothing_new(tmp_path: Path) -> None:
    """Only the order counts, and which faults are in force."""
    later = [(t * 1.5, *rest) for t, *rest in FAILOVER]
    fault = {**KILL, "applied": 3 * S}
    assert seen(tmp_path / "1").features == seen(tmp_path / "2", later, (fault,)).features


@pytest.mark.parametrize(
    ("lines", "faults"),
    [
        (FAILOVER[:-1], (KILL,)),
        (FAILOVER, ()),
        (FAILOVER, ({**KILL, "kind": "power"},)),
        (FAILOVER, ({**KILL, "targets": {"slave": ["broker-2"]}},)),
        ((*FAILOVER[:7], (2.4, *FAILOVER[7][1:]), *FAILOVER[8:]), (KILL,)),
        ((*FAILOVER[:-1], (3.2, "broker-1", "truncate", {"cut": 0, "why": "behind"})), (KILL,)),
        ((*FAILOVER[:-1], (3.2, "broker-1", "truncate", {"cut": 12, "why": "asked"})), (KILL,)),
        ((*FAILOVER[:-2], (1.0, "broker-2", "role", {"role": "slave", "epoch": 0})), (KILL,)),
    ],
    ids=["event", "no-fault", "kind", "target", "order", "zero", "word", "behind"],
)
def test_what_happened_otherwise_is_new(tmp_path: Path, lines: Any, faults: Any) -> None:
    assert seen(tmp_path / "1").features != seen(tmp_path / "2", lines, faults).features


def test_whom_a_fault_hit_is_a_feature(tmp_path: Path) -> None:
    """Also where the nodes are in the same condition when it begins."""
    first, second = (
        seen(
            tmp_path / node,
            FAILOVER,
            ({**KILL, "kind": "pause", "applied": S // 20, "targets": {"broker": [node]}},),
        ).features
        for node in ("broker-1", "broker-2")
    )
    assert first != second


def test_counts_are_in_buckets(tmp_path: Path) -> None:
    """Ten checks of an invariant are as new as twelve, and fewer than thirty are not thirty."""
    ten, twelve, thirty = (seen(tmp_path / str(n), ONE_MASTER=n).features for n in (10, 12, 30))
    assert ten == twelve
    assert len(ten ^ thirty) == 2
    assert len(ten - seen(tmp_path / "none").features) == 1


def test_outcomes_of_operations_are_features(tmp_path: Path) -> None:
    """In each state of the cluster."""
    none, first, both = (
        seen(tmp_path / name, FAILOVER, (KILL,), acked_s).features
        for name, acked_s in (("none", ()), ("first", (1.5,)), ("both", (1.5, 2.5)))
    )
    assert none < first < both


def test_a_write_is_weakest_with_the_fewest_replicas(tmp_path: Path) -> None:
    """In seconds of the load, in order; of each state of the cluster the first write."""
    history = recorded(tmp_path, FAILOVER, (KILL,), (1.5, 1.6, 2.5, 2.9))
    assert features_of(history, {}).weak_s == (0.5, 1.5)


def test_only_the_weakest_moments_are_kept(tmp_path: Path) -> None:
    """Of many states; those with two replicas give way to those with one."""
    flapping = [
        (3 + n, "controller-1", "set", {"brokerName": "a", "set": [1, 2] if n % 2 else [2]})
        for n in range(30)
    ]
    acked_s = [3.5 + n for n in range(30)]
    history = recorded(tmp_path, (*FAILOVER, *flapping), (KILL,), acked_s)
    weak_s = features_of(history, {}).weak_s
    assert len(weak_s) == 8
    assert all((t + 1 - 3.5) % 2 == 0 for t in weak_s)


def test_a_run_without_anything_has_no_features(tmp_path: Path) -> None:
    assert seen(tmp_path, (), ()) == RunFeatures()


def test_kinds_of_log_lines_are_features(tmp_path: Path) -> None:
    """Whatever is particular to a line; a link among what nodes left is not followed."""
    history = recorded(tmp_path)
    for name, text in (("server-1", "lost leader 7\n"), ("server-2", "lost leader 12\n")):
        (tmp_path / "nodes" / name).mkdir(parents=True)
        (tmp_path / "nodes" / name / "server.log").write_text(text)
    (tmp_path / "nodes" / "server-2" / "more.log").symlink_to(tmp_path / "secret")
    (tmp_path / "secret").write_text("the password is\n")
    plain, logged = (features_of(history, logs=logs).features for logs in (False, True))
    assert len(logged - plain) == 1


def test_a_log_line_is_known_by_its_words() -> None:
    line = '{"level":"info","ts":"2026-01-01T00:00:00","msg":"elected leader 8e9e at term 4"}'
    assert log_word(line) == "elected leader at term"
    assert log_word("12:00:01 WARN [main] slot 7 'x y' lost /var/lib/a") == "WARN [main] slot lost"


@given(st.frozensets(st.integers(0, 2**32 - 1), max_size=50))
def test_packed_features_are_read_again(features: frozenset[int]) -> None:
    assert unpacked(packed(features)) == features


@pytest.mark.parametrize("text", ["AAA=", "AA==", "not base64!"])
def test_broken_features_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpacked(text)
