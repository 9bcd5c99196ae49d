"""A stored run of 40 seconds, written through the real journal and judged by the real checkers."""

import json
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from checkers import availability, coverage, recovery
from checkers._run.run_facts import facts
from harness.history.journal import TableJournal
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.history.schema import FAULTS
from harness.judge.verdict import Finding, Judgement, Result, Verdict, worst_judgement
from harness.operation import NONE, F, Type
from harness.trial import Trial

S = 1_000_000_000
RATE = 100
PLAN = """[[fault]]
kind = "kill"
at_s = 6.0
for_s = 6.0
target = "master"

[[fault]]
kind = "partition"
at_s = 18.0
for_s = 6.0
target = "master"
params = { shape = "isolate" }

[[fault]]
kind = "loss"
at_s = 20.0
for_s = 5.0
target = "one broker"
params = { probability = 0.3 }
"""

Written = Callable[..., RunDir]


TRIAL = Trial(name="demo", profile="allack-min2", duration_s=38.0)
Sailed = tuple[RunDir, tuple[Result, ...]]


@pytest.fixture(scope="session")
def sailed(tmp_path_factory: pytest.TempPathFactory) -> Sailed:
    """A run, judged by the three run checkers: made once, and copied for each test."""
    run = RunDir(tmp_path_factory.mktemp("sailed") / "20261121-101500-demo")
    run.journal.mkdir(parents=True)
    run.trial_file.write_text(TRIAL.to_toml())
    run.plan_file.write_text(PLAN)
    _small(run)
    _operations(run)
    known = facts(History.open(run), TRIAL, None)
    return run, tuple(checker.judge(known) for checker in (coverage, recovery, availability))


@pytest.fixture
def written(tmp_path: Path, sailed: Sailed) -> Written:
    """`written(findings=..., name=...)`: a run's folder with its verdict."""

    def write(findings: tuple[Finding, ...] = (), **changes: Any) -> RunDir:
        original, results = sailed
        run = RunDir(tmp_path / original.path.name)
        shutil.copytree(original.path, run.path)
        run.trial_file.write_text(TRIAL.with_(changes).to_toml())
        judge(run, results, findings)
        return run

    return write


@pytest.fixture
def lost() -> Finding:
    """Return a finding of three acknowledged messages that were never read."""
    return Finding(
        code="LOST_ACKED",
        count=3,
        message="3 acknowledged messages are gone: no reader found them in any queue.",
        demand="no-loss",
        evidence=tuple(
            {"value": n, "queue": "orders-1", "offset": 700 + n, "acked_at_s": 7.9 + n / 10}
            for n in range(3)
        ),
        faults=(0,),
    )


def judge(run: RunDir, known: tuple[Result, ...], findings: tuple[Finding, ...]) -> None:
    """Write the verdict that the three run checkers and one message checker would."""
    results = (Result("loss", findings=findings), Result("duplicates"), *known)
    verdict = Verdict(
        verdict=worst_judgement(results),
        sentence={
            Judgement.VALID: "Nothing acknowledged was lost, and the cluster came back by itself.",
            Judgement.INVALID: "3 acknowledged messages were lost.",
            Judgement.UNKNOWN: "The run proves nothing.",
        }[worst_judgement(results)],
        reasons=tuple(reason for result in results for reason in result.reasons),
        checkers=results,
    )
    run.verdict_file.write_text(verdict.to_json())


def _small(run: RunDir) -> None:
    brokers = {f"broker-{n}": "broker" for n in (1, 2, 3)}
    roles = brokers | {"controller-1": "controller", "client-1": "client"}
    run.write_names({"keys": ["orders-0", "orders-1"], "nodes": list(roles), "roles": roles})
    run.update_state(
        started="2026-11-21T10:15:00Z",
        ended=True,
        versions={"python": "3.11.7", "seatrial": "0.1.0"},
        machine={"cores": 2, "memory": 25276502016},
    )
    notes = TableJournal(run.journal, "notes", "runner")
    for t, text in ((0.9, "raised"), (1, "load"), (36, "healed"), (39, "drain"), (41, "ended")):
        notes.append((int(t * S), None, None, text))
    notes.close()
    _faults(run)
    _events(run)


def _faults(run: RunDir) -> None:
    rows = TableJournal(run.journal, "faults", "runner")
    for number, (kind, params, selector, targets, begin, heal) in enumerate(
        (
            ("kill", {}, "master", {"master": ["broker-1"]}, 7, 13),
            ("partition", {"shape": "isolate"}, "master", {"master": ["broker-2"]}, 19, 25),
            ("loss", {"probability": 0.3}, "one broker", {"slave": ["broker-3"]}, 21, 26),
        )
    ):
        row: dict[str, Any] = dict.fromkeys(FAULTS.names) | {
            "id": number,
            "kind": kind,
            "params": json.dumps(params),
            "selector": selector,
            "targets": json.dumps(targets),
            "planned": (begin - 1) * S,
            "planned_for": (heal - begin) * S,
            "begin": int((begin + 0.01) * S),
            "applied": int((begin + 0.03) * S),
            "observed": int((begin + 0.08) * S),
            "heal": heal * S,
            "healed": int((heal + 0.2) * S),
            "state": "installed",
            "observation": json.dumps({"probes": 40, "arrived": 0}),
        }
        rows.append(tuple(row.values()))
    rows.close()


def _events(run: RunDir) -> None:
    table = TableJournal(run.journal, "events", "runner")
    master: Mapping[str, Any] = {"role": "master"}
    slave: Mapping[str, Any] = {"role": "slave"}
    told: list[tuple[float, str, str, Mapping[str, Any]]] = [
        (0.4, "broker-1", "role", {**master, "epoch": 1}),
        (0.45, "broker-2", "role", {**slave, "epoch": 1}),
        (0.45, "broker-3", "role", {**slave, "epoch": 1}),
        (0.3, "controller-1", "raft", {"state": "leader", "term": 2}),
        (0.4, "controller-1", "election", {"brokerName": "a", "epoch": 1, "set": [1]}),
        (0.6, "controller-1", "set", {"brokerName": "a", "set": [1, 2, 3], "setEpoch": 3}),
        (7.04, "broker-1", "exit", {"code": -9}),
        (7.3, "controller-1", "expired", {"brokerName": "a", "brokerId": 1}),
        (7.5, "controller-1", "election", {"brokerName": "a", "epoch": 2, "set": [2]}),
        (7.55, "broker-2", "role", {**master, "epoch": 2}),
        (7.9, "controller-1", "set", {"brokerName": "a", "set": [2, 3], "setEpoch": 5}),
        (13.1, "broker-1", "start", {"pid": 4711}),
        (13.3, "broker-1", "role", {**slave, "epoch": 2}),
        (13.9, "controller-1", "set", {"brokerName": "a", "set": [1, 2, 3], "setEpoch": 6}),
        (20.3, "controller-1", "expired", {"brokerName": "a", "brokerId": 2}),
        (20.4, "controller-1", "election", {"brokerName": "a", "epoch": 3, "set": [3]}),
        (20.5, "broker-3", "role", {**master, "epoch": 3}),
        (21.0, "controller-1", "set", {"brokerName": "a", "set": [1, 3], "setEpoch": 8}),
        (25.2, "broker-2", "role", {**slave, "epoch": 3}),
        (25.9, "controller-1", "set", {"brokerName": "a", "set": [1, 2, 3], "setEpoch": 9}),
        (36.1, "", "recovery", {"redundant": True, "took_s": 0.1, "within_s": 30.0}),
    ]
    for t, node, kind, fields in sorted(told, key=lambda e: e[:3]):
        table.append((int(t * S), node, kind, json.dumps(fields)))
    table.close()


def _operations(run: RunDir) -> None:
    """Sends evenly, waiting out two failovers; consumers follow; a final read."""
    dice = random.Random(1)  # the same run every time
    rows: list[tuple[int, ...]] = []
    numbers = iter(range(1 << 30))

    def op(f: F, at: float, took: float, kind: Type, value: int) -> None:
        number, pad = next(numbers), (NONE,) * 4
        key, done = value % 2, int((at + took) * S)
        rows.append((int(at * S), 0, number, 0, f, key, value, NONE, NONE, NONE, *pad))
        if f in (F.POLL, F.READ):
            rows.append((done, 0, number, 1, f, key, value, NONE, value, 0, *pad))
            value = NONE
        rows.append((done, 0, number, kind, f, key, value, NONE, NONE, NONE, *pad))

    for n in range(38 * RATE):
        at, took = 1 + n / RATE, 0.001 + dice.expovariate(1 / 0.0015)
        kind = Type.OK
        for begin, end in ((7.03, 7.62), (19.03, 20.6)):
            if begin <= at < end:
                took, kind = end - at + dice.expovariate(20), dice.choice([1, 1, 1, 2, 3])
        if 21 < at < 26:
            took += dice.expovariate(1 / 0.02)
        op(F.SEND, at, took, kind, n)
        if kind == Type.OK:
            op(F.POLL, at + took, 0.004, Type.OK, n)
            op(F.READ, 39.1 + n / 20000, 0.004, Type.OK, n)
    table = TableJournal(run.journal, "ops", "client-1")
    for row in sorted(rows):
        table.append(row)
    table.close()
