"""A sketch of a run in a few words, for checkers that judge a whole run without Spark."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from checkers._run.run_facts import Outline, RunFacts
from checkers._run.timeline import cells
from checkers._run.timeline_query import Timeline
from checkers._spark import spark_stages as _units
from harness.history.faults_and_events import ClusterEvent, FaultInterval, TimeWindow
from harness.history.schema import OPS, TABLES
from harness.judge.verdict import Reason
from harness.operation import DELIVERIES, F, Type
from harness.run.broker_sets import BrokerSetData
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

S = 1_000_000_000
ROLES = {f"broker-{i}": "broker" for i in (1, 2, 3)} | {"controller-1": "controller"}


@dataclass
class Sketch:
    """Seconds in, `RunFacts` out. A load from 1 s to 31 s, drained and healed by 33 s."""

    trial: Trial = field(default_factory=Trial)
    load: TimeWindow | None = field(default_factory=lambda: TimeWindow(1 * S, 31 * S))
    phases: dict[str, float] = field(
        default_factory=lambda: {"raised": 0.5, "load": 1, "healed": 25, "drain": 31, "ended": 33}
    )
    faults: list[FaultInterval] = field(default_factory=list)
    planned: list[str] = field(default_factory=list)
    events: list[ClusterEvent] = field(default_factory=list)
    interrupted: bool = False
    fails_over: bool = True
    complete: bool = True  # else anything may be missing
    gaps: tuple[str, ...] = ()  # tables of which something is
    cut_short: tuple[Reason, ...] = ()
    sets: tuple[str, ...] = ("",)
    dealt: dict[str, BrokerSetData] = field(default_factory=dict)
    set_of_key: tuple[int, ...] = ()  # else each set has the key of its number
    roles: dict[str, str] = field(default_factory=lambda: dict(ROLES))
    rows: list[dict[str, Any]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def op(
        self,
        f: F,
        at: float,
        took: float = 0.002,
        kind: Type | None = Type.OK,
        brings: int = 1,
        key: int = 0,
    ) -> None:
        """An operation; kind None: it never completed. A read brings so many messages."""
        number = next(self.numbers)
        row = {"op": number, "f": f, "process": 0, "key": key, "value": None, "pos": None}
        self.rows.append({**row, "t": int(at * S), "type": Type.INVOKE})
        done = int((at + took) * S)
        if kind is Type.OK and f in (*DELIVERIES, F.READ):
            for pos in range(brings):
                self.rows.append({**row, "t": done, "type": Type.OK, "value": number, "pos": pos})
        if kind is not None:
            self.rows.append({**row, "t": done, "type": kind})

    def ops(self, begin: float, end: float, every: float = 0.05, **how: Any) -> None:
        """Sends and polls, evenly."""
        for i in range(round((end - begin) / every)):
            self.op(F.SEND, begin + i * every, **how)
            self.op(F.POLL, begin + i * every + every / 2, **how)

    def fault(self, kind: str, applied: float, heal: float | None, **how: Any) -> FaultInterval:
        """An installed fault, begun 20 ms before it applied and seen healed 50 ms after."""
        at = {"begin": applied - 0.02, "applied": applied, "observed": applied + 0.03}
        if heal is not None:
            at |= {"heal": heal, "healed": heal + 0.05}
        at |= how.pop("at", {})
        times = {name: None if t is None else int(t * S) for name, t in at.items()}
        how = {"state": "installed", "targets": {"slave": ("broker-2",)}} | how
        fault = FaultInterval(id=len(self.faults), kind=kind, **times, **how)
        self.faults.append(fault)
        self.planned.append(kind)
        return fault

    def event(self, at: float, node: str, kind: str, **fields: Any) -> None:
        self.events.append(ClusterEvent(int(at * S), node, kind, fields))

    def deal(self, full: int = 3, **nodes: int) -> None:
        """The broker sets, as names.json tells them: so many brokers each, and a key each."""
        self.sets, first = tuple(nodes), 1
        for number, (name, size) in enumerate(nodes.items()):
            brokers = tuple(f"broker-{n}" for n in range(first, first + size))
            self.dealt[name] = BrokerSetData(brokers, full, (f"orders-{number}",))
            self.roles |= dict.fromkeys(brokers, "broker")
            first += size

    def facts(self) -> RunFacts:
        phases = {name: int(t * S) for name, t in self.phases.items()}
        told = Outline(
            trial=self.trial,
            phases=phases,
            load=self.load,
            end=max(phases.values()) + 1,
            faults=tuple(self.faults),
            planned=tuple(self.planned),
            events=tuple(sorted(self.events, key=lambda e: e.t)),
            roles=self.roles,
            interrupted=self.interrupted,
            fails_over=self.fails_over,
            gaps=frozenset(self.gaps if self.complete else TABLES),
            cut_short=self.cut_short,
            sets=self.sets,
            dealt=self.dealt,
            set_of_key=self.set_of_key
            or (tuple(range(len(self.sets))) if len(self.sets) > 1 else ()),
        )
        batches = pa.Table.from_pylist(self._ops(), schema=OPS).to_batches()
        return RunFacts(told, Timeline(cells(batches, told.query()), told.query()))

    def _ops(self) -> list[dict[str, Any]]:
        absent = dict.fromkeys(OPS.names)
        ordered = sorted(self.rows, key=lambda row: row["t"])
        return [absent | {k: v if v is None else int(v) for k, v in r.items()} for r in ordered]


@pytest.fixture
def sketch() -> Sketch:
    """An empty run; add what happened."""
    return Sketch()


@pytest.fixture
def sound(sketch: Sketch) -> Sketch:
    """A run that proves something: load, one noticed kill of the master, recovery, a final read."""
    sketch.ops(1, 10)
    sketch.ops(10.8, 31)
    sketch.ops(10, 10.8, kind=None)
    sketch.op(F.READ, 31.5)
    sketch.fault("kill", 10, 16, targets={"master": ("broker-1",)}, selector="master")
    sketch.event(0.6, "controller-1", "election", brokerName="a", epoch=1, masterId=1, set=[1])
    sketch.event(0.7, "controller-1", "set", brokerName="a", set=[1, 2, 3], setEpoch=3)
    sketch.event(10.01, "controller-1", "expired", brokerName="a", brokerId=1)
    sketch.event(10.1, "controller-1", "election", brokerName="a", epoch=2, masterId=2, set=[2])
    sketch.event(10.2, "controller-1", "set", brokerName="a", set=[2, 3], setEpoch=5)
    sketch.event(17, "controller-1", "set", brokerName="a", set=[1, 2, 3], setEpoch=6)
    sketch.event(10.0, "broker-1", "exit", code=-9)
    return sketch


@pytest.fixture(scope="module")
def spark() -> Iterator["SparkSession"]:
    from harness.spark.session import session

    with session() as spark:
        yield spark


@pytest.fixture(params=[16 << 20, 0], ids=["one task", "many tasks"])
def one_task_or_many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small history is judged in one task, and as if it were large."""
    monkeypatch.setattr(_units, "ONE_TASK_BYTES", request.param)
    monkeypatch.setattr(_units, "MERGED_BYTES", 4 << 10)
