"""One cell of `recovery.py`: a fault of the master, again and again, and how long senders waited.

A cell is a trial. Its faults come one after the other, each for as long as recovery may take at
most, and each when the cluster has had time to be whole again. Their moments are drawn by lot over
as long as the slowest timer that matters, so that no fault falls into step with it. Sends come at
their own rhythm and never wait for each other: so many may be open that no silence stops them.

Two times are taken of each fault, by the checker `availability`: from its application to the first
acknowledgement of a send that was invoked after it; and, as recovery is usually published, from the
first failure that clients saw to the next success (0: no send failed).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Self

from _figures import quantile

from clusters.systems.flotilla.profiles import settings
from harness import registry
from harness.campaign.simulation import simulate
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.run import launch
from harness.trial import Trial

KILL, PAUSE, PARTITION = "kill", "pause", "partition"
WITH_LEADER = "+leader"  # the leading controller is hit by the same fault
FAULTS = tuple(f"{kind}{who}" for who in ("", WITH_LEADER) for kind in (KILL, PAUSE, PARTITION))
FLAVOURS = ("dledger", "jraft")
OURS, ROCKETMQ = "fast-failover", "rocketmq"
ASKS, WAITS = "asks", "waits"  # when a send failed: the client asks for a route, or waits to poll
LOCAL, SIMULATED = "local", "simulated"

# RocketMQ's own times where Flotilla's profiles have quicker ones, over `unsafe-default`
DEFAULTS: Mapping[str, Any] = {
    "registerNameServerPeriod": 30000,
    "syncBrokerMetadataPeriod": 5000,
    "liteHeartBeat": False,
    "notifyMinBrokerIdChanged": False,
    "pollNameServerInterval": 30000,
}
JRAFT: Mapping[str, Any] = {"raftHeartbeatInterval": 100, "raftElectionTimeout": 1000}

FIRST_S = 4.0
SLACK_S = 1.5  # a fault lasts that much longer than recovery should take
WHOLE_AGAIN_S = {OURS: 4.0}  # after healing
ELSE_WHOLE_S = 8.0
SENDS = {LOCAL: 200.0, SIMULATED: 25.0}  # a second


class Times(NamedTuple):
    """Of one fault, in seconds."""

    to_ack_s: float
    failure_to_success_s: float


@dataclass(frozen=True)
class Measured:
    """What became of a cell's faults. `late`: recovered only when the fault was over; `maimed`: of
    these the cluster was not seen whole again before the next one."""

    times: tuple[Times, ...]
    late: int = 0
    maimed: int = 0

    def fields(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        return cls(tuple(Times(*row) for row in fields["times"]), fields["late"], fields["maimed"])

    def quantile(self, which: int, q: float) -> float:
        """The time that this share of the faults did not exceed."""
        return quantile([times[which] for times in self.times], q)


@dataclass(frozen=True)
class Cell:
    """`interval_s`: of the clients' routes; 0: the profile's own."""

    fault: str
    flavour: str = FLAVOURS[0]
    profile: str = OURS
    client: str = ASKS
    interval_s: float = 0.0
    hosts: str = LOCAL

    @property
    def key(self) -> str:
        return "/".join(
            (self.hosts, self.profile, self.flavour, self.fault, self.client, f"{self.route_s:g}")
        )

    @property
    def route_s(self) -> float:
        return float(self._values["pollNameServerInterval"]) / 1000

    @property
    def kind(self) -> str:
        return self.fault.removesuffix(WITH_LEADER)

    def settings(self) -> dict[str, Any]:
        """What is laid over the profile."""
        values: dict[str, Any] = {"timeScale": 1.0, "controllerType": self.flavour}
        if self.profile == ROCKETMQ:
            values |= {**DEFAULTS, **(JRAFT if self.flavour == "jraft" else {})}
        if self.interval_s:
            values["pollNameServerInterval"] = round(1000 * self.interval_s)
        if self.client == WAITS:  # Flotilla's asks when a send fails, but no sooner than this
            route_ms = values.get("pollNameServerInterval") or self._own["pollNameServerInterval"]
            values["retryBackoffMillis"] = route_ms
        return values

    def trial(self, plan_s: float) -> Trial:
        return Trial(
            name="recovery",
            hosts=self.hosts,
            profile=self._profile,
            settings=self.settings(),
            duration_s=plan_s,
            load={"rate": SENDS[self.hosts], "groups": 0, "concurrency": 5000, "body_bytes": 16},
            checkers=("availability",),
            short_faults=True,  # a kill is seen at once, long before a silence would be
        )

    # how long things may take

    @property
    def lasts_s(self) -> float:
        """The fault: a silent master is declared dead, a new leader found, the route learned."""
        values = self._values
        silence_s = self._spread_s("controllerHeartBeatTimeoutMills") + self._scan_s
        leader_s = 2 * self._spread_s("raftElectionTimeout")
        found_s = 0.0 if self.kind == KILL else silence_s
        if self.fault.endswith(WITH_LEADER):
            behind = self.flavour == "jraft"  # its new leader hears everybody anew
            found_s = found_s + leader_s if behind else max(found_s, leader_s)
        learned_s = self.route_s
        if self.client == ASKS:
            learned_s = min(learned_s, float(values["sendMsgTimeout"]) / 1000)
        return found_s + learned_s + SLACK_S

    def moments(self, times: int) -> Sequence[float]:
        """When each fault begins, and, last, when the load may end."""
        lot = Random(self.key)
        spread_s = max(self._scan_s, self.route_s if self.client == WAITS else 0.0)
        whole_s = WHOLE_AGAIN_S.get(self.profile, ELSE_WHOLE_S)
        at_s = [FIRST_S]
        for _ in range(times):
            at_s.append(at_s[-1] + self.lasts_s + whole_s + lot.uniform(0, spread_s))
        return [round(s, 3) for s in at_s]

    def plan(self, times: int) -> str:
        """The faults as TOML. A machine that is cut off is cut off from its clients, too."""
        leader = ", controller-leader" if self.fault.endswith(WITH_LEADER) else ""
        lines = [f'kind = "{self.kind}"', f'target = "master{leader}"', f"for_s = {self.lasts_s}"]
        if self.kind == PARTITION:
            lines.append('params = { shape = "isolate", clients = true }')
        faults = (["[[fault]]", f"at_s = {s}", *lines, ""] for s in self.moments(times)[:-1])
        return "\n".join(line for fault in faults for line in fault)

    # inside

    @property
    def _profile(self) -> str:
        return "unsafe-default" if self.profile == ROCKETMQ else self.profile

    @cached_property
    def _own(self) -> Mapping[str, Any]:
        return settings(Trial(profile=self._profile)).values

    @cached_property
    def _values(self) -> Mapping[str, Any]:
        return {**self._own, **self.settings()}

    @property
    def _scan_s(self) -> float:
        return self._spread_s("scanNotActiveBrokerInterval")

    def _spread_s(self, key: str) -> float:
        return float(self._values[key]) / 1000


class Incomplete(Exception):
    """A run that did not carry out what it was to measure."""


def measure(
    cell: Cell, times: int, folder: Path, on_status: Callable[[Mapping[str, Any]], None]
) -> Measured:
    """Carry out the cell's trial in an empty folder. Incomplete when it could not be."""
    trial, plan = cell.trial(cell.moments(times)[-1]), cell.plan(times)
    if cell.hosts == SIMULATED:
        run = simulate(trial, launch.make_plan(trial, plan), folder / "simulated").run
    else:
        run = launch.run(trial, plan, on_status, folder)
    return measured(run, times)


def measured(run: RunDir, times: int) -> Measured:
    """From what a run with so many faults recorded. Never acknowledged again: infinitely long.
    Incomplete when the run failed, or had another number of faults in force."""
    history = History.open(run)
    error = history.state.get("error")
    if error or not history.ended:
        raise Incomplete(f"the run failed: {error or 'it did not end'}")
    check = registry.load("checker", "availability")
    faults = check(history, run.trial(), None).stats["faults"]
    if len(faults) != times:
        raise Incomplete(f"{len(faults)} of {times} faults were in force")
    return Measured(
        tuple(Times(_seconds(f["to_ack_s"]), _published_s(f)) for f in faults),
        late=sum(f["only_after_healing"] for f in faults),
        maimed=sum(f["to_full_set_s"] is None for f in faults),
    )


def _published_s(fault: Mapping[str, Any]) -> float:
    return _seconds(fault["failure_to_success_s"]) if fault["failed"] else 0.0


def _seconds(told: float | None) -> float:
    return math.inf if told is None else told
