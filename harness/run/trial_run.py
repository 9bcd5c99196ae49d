"""A trial under way in the runner: the steps of `harness.run.story.run`.

The story says what happens in which order; `TrialRun` has the run's folder, the plug-ins that the
trial names, the clock of record, and one method for each step. A node that the test bed loses for
good, or one whose disk is full, ends the run early, as Ctrl-C does.

**Time limits.** A *required* step must succeed, or there is no trial (the cluster must come up). An
*optional* one may fall short, which is recorded and left to the checkers (a final phase that could
not read everything). An early end shortens the steps instead of skipping them: faults are healed,
open operations complete, and the rest is read as far as a few seconds allow.
"""

import asyncio
import json
import random
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

from harness import registry
from harness.contracts import (
    CLIENT,
    Agent,
    ClockComparingHosts,
    Hosts,
    InterceptingHosts,
    Node,
    OwnDiskHosts,
    Recorder,
    System,
    TestBed,
    Workload,
)
from harness.contracts.cluster_view import Omniscient
from harness.contracts.membership import VersionedSystem
from harness.errors import EXIT_BED_FAILED, EXIT_VALID, BedFailed, NodeGone, SeatrialError
from harness.history.journal import TableJournal
from harness.history.notes import FULL, GAVE_UP, GONE
from harness.history.rundir import RunDir
from harness.history.runs import drop_ballast
from harness.history.schema import FAULTS
from harness.run import clocks
from harness.run.broker_sets import broker_sets_entry
from harness.run.client_pool import ClientPool
from harness.run.disk_needs import OWN_DISK, disk_needs, sync_own_disks, why_no_own_disks
from harness.run.monitors import (
    NodeLosses,
    report_cluster_state,
    watch_agents,
    watch_disks,
    watch_exits,
)
from harness.run.parent_pipe import ParentPipe
from harness.run.replica_comparison import QuietPeriodRecorder, compare_in_quiet_periods
from harness.run.tasks import in_background, run_all
from harness.text.own_words import IN_STATE
from harness.zones import assign_zones, distances

START_WITHIN_S = 300.0  # drivers have limits of their own
PLAN_GRACE_S = 60.0  # for observations that take long
HEAL_WITHIN_S = 20.0  # after an early end
RECOVER_HURRY_S = 3.0  # the same
POLL_EVERY_S = 0.1
CLOCKS_WITHIN_S = 10.0
COLLECTED = "collected"  # the phase after which there is nothing more to record
WORLD_WRITER = "observed"  # of the journal of a simulated world's own events


class TrialRun:
    """One run under way, in the runner."""

    def __init__(self, run: RunDir, hosts: Hosts, parent: ParentPipe) -> None:
        self.run, self.hosts, self.trial = run, hosts, run.trial()
        self.system: System = registry.load("system", self.trial.system)(self.trial)
        self.workload: Workload = registry.load("workload", self.trial.workload)(self.trial)
        self._time_s = asyncio.get_running_loop().time  # simulated hosts have a clock of their own
        self.epoch_ns = round(self._time_s() * 1e9)
        self.stop, self.send_status = parent.stop, parent.send
        self.in_world = isinstance(hosts, Omniscient)
        self.record = JournalRecorder(
            run.journal, self.now_ns, self.send_status, patient=self.in_world
        )
        self._losses = NodeLosses(run, self.record, self.now_ns, self.send_status)
        self.deadlines = Deadlines(self.stop, self.record, self._losses, run.path / "nodes")
        self._phase = ""
        self._clients: ClientPool | None = None
        self._redundant = False  # observed after the plan

    def now_ns(self) -> int:
        return round(self._time_s() * 1e9) - self.epoch_ns

    def mark(self, phase: str, **state: Any) -> None:
        """Record a phase of the story in the history and in run.json, and report it."""
        self._phase = phase
        self.record.note(phase)
        self.run.update_state(phase=phase, **state)
        self.send_status({"phase": phase})

    async def end_early(self) -> None:
        """Wait until an early end is requested; record it, and shorten the steps in progress."""
        await self.stop.wait()
        self.mark("interrupted", interrupted=not self._losses.sentences())
        self.deadlines.shorten()

    # ------------------------------------------------------------------------- nodes and cluster

    @asynccontextmanager
    async def nodes_started(self) -> AsyncIterator[TestBed]:
        """All nodes up, with agents and addresses; at the end, all removed. What could not be
        removed is recorded, and fails a run only if its history is incomplete."""
        try:
            nodes = assign_zones(self.system.nodes(), self.trial.zones)
            async with (
                self.hosts.start_nodes(nodes) as (nodes, agents),
                self._with_disk_faults(nodes, agents) as agents,
            ):
                yield self._bed(nodes, agents)
        except BedFailed as e:
            if self._phase != COLLECTED:
                raise
            self.record.note(f"LEFT_BEHIND {e}")
            self.run.update_state(left=str(e))

    @asynccontextmanager
    async def _with_disk_faults(
        self, nodes: Sequence[Node], agents: Mapping[str, Agent]
    ) -> AsyncIterator[Mapping[str, Agent]]:
        """Yield the agents, able to make disks faulty if the plan needs that. System calls are
        intercepted, and unsynced data is tracked, only if the plan needs it, because both are
        slow."""
        cannot: frozenset[str] = getattr(self.system, "cannot", frozenset())
        needs = disk_needs(self.run.plan_text(), self.hosts.can - cannot)
        cluster = [node for node in nodes if node.role != CLIENT]
        async with AsyncExitStack() as stack:
            if OWN_DISK in needs:
                hosts = self.hosts
                if OWN_DISK not in hosts.can or not isinstance(hosts, OwnDiskHosts):
                    raise BedFailed(why_no_own_disks(hosts, self.trial.hosts))
                disks = hosts.own_disks(cluster, agents, self.system.data)
                agents = await stack.enter_async_context(disks)
            if needs - {OWN_DISK} and isinstance(self.hosts, InterceptingHosts):
                unsynced = self.system.data if "unsynced" in needs else ""
                agents = await self.hosts.intercept_syscalls(cluster, agents, unsynced)
            yield agents

    def _bed(self, nodes: Sequence[Node], agents: Mapping[str, Agent]) -> TestBed:
        if not self.in_world:  # a simulated world loses no nodes
            agents = watch_agents(agents, partial(self._lose, GONE))
        bed = TestBed(
            nodes=nodes,
            agents=agents,
            hosts=self.hosts,
            system=self.system,
            record=self.record,
            now_ns=self.now_ns,
            acknowledged=lambda: self._clients.acknowledged() if self._clients else 0,
            sleep=asyncio.sleep,
            clients=self._running_clients,
            distances=distances(nodes, self.trial.zone_latency),
        )
        self.record.set_names([node.name for node in nodes], self.workload.keys)
        self.run.write_names(_names(bed, self.workload))
        self.run.update_state(**clocks.clocks_json(nodes, self.hosts))
        return bed

    def _lose(self, how: str, node: str, why: str) -> None:
        if self._losses.add(how, node, why):
            self.deadlines.end_early()

    async def start_cluster(self, bed: TestBed) -> None:
        """Install and start the system; wait until it serves with full redundancy."""
        nemesis = registry.nemesis()
        if why := await nemesis.unsupported_reason(self._plan, bed):
            raise BedFailed(why)
        if bed.distances:
            async with self.deadlines.required("setting zones apart", within_s=START_WITHIN_S):
                measured = await nemesis.delay_zones(bed)
            self.mark("apart", zone_latency=dict(measured))
        async with self.deadlines.required("starting the cluster", within_s=START_WITHIN_S):
            await self.system.install(bed)
            for version in nemesis.planned_versions(self._plan):
                await cast(VersionedSystem, self.system).install_version(bed, version)
            await sync_own_disks(bed)
            await self.system.start(bed)
            evidence = await self.system.healthy(bed, START_WITHIN_S)
        self.mark("raised", healthy=dict(evidence))

    # --------------------------------------------------------------------------- load and faults

    @asynccontextmanager
    async def open_clients(self, bed: TestBed, *, within_s: float) -> AsyncIterator[ClientPool]:
        """Client processes, ready to operate; at the end, all have exited."""
        clients = self._clients = ClientPool(bed, self.run)
        async with clients.managed():
            async with self.deadlines.required("opening the clients", within_s=within_s):
                await clients.open()
            yield clients

    def _running_clients(self) -> ClientPool:
        if self._clients is None:
            raise BedFailed("no clients are running")
        return self._clients

    def monitored(self, bed: TestBed, clients: ClientPool) -> AbstractAsyncContextManager[None]:
        """Report what happens during the block; a failure of the test bed ends the block."""
        return in_background(
            _raise_when_failed(clients.failed),
            clients.report_counts(self.send_status),
            report_cluster_state(bed, self.send_status, self.run.state().get(IN_STATE, {})),
            *watch_exits(bed, partial(self._lose, FULL)),
            *watch_disks(bed, partial(self._lose, FULL)),
        )

    @cached_property
    def _plan(self) -> Any:
        return registry.nemesis().load(self.run.plan_text(), str(self.run.plan_file)).faults

    async def run_load_and_plan(self, bed: TestBed) -> None:
        """Wait for the load's full duration, and carry out the whole plan."""
        plan = self._plan
        longest_s = max(self.trial.duration_s, registry.nemesis().longest_s(plan))
        quiet = QuietPeriodRecorder(bed.record)
        compares = self.trial.compare_replicas and not self.in_world
        comparing = (compare_in_quiet_periods(bed, quiet),) if compares else ()
        limit = self.deadlines.optional(
            "the plan", within_s=longest_s + PLAN_GRACE_S, hurried_s=HEAL_WITHIN_S
        )
        async with limit, in_background(*comparing):
            await run_all(self._duration(), self._carry_out(plan, replace(bed, record=quiet)))

    async def _duration(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.trial.duration_s):
                await self.stop.wait()

    async def _carry_out(self, plan: Any, bed: TestBed) -> None:
        if plan:
            rng = random.Random(f"{self.trial.seed}/nemesis")  # must be replayable
            began_ns = self.run.state()["load_began_ns"]  # the origin of the plan's times
            carry_out = registry.nemesis().carry_out
            await carry_out(plan, bed, self.run.ledger, self.stop, rng, began_ns)

    # ---------------------------------------------------------------------- recovery and the end

    async def wait_recovered(self, bed: TestBed) -> None:
        """Wait for full redundancy, which is recorded as an event, and after that for one send to
        each broker set that is invoked and acknowledged."""
        async with self.deadlines.optional(
            "the recovery", within_s=self.trial.recover_within_s, hurried_s=RECOVER_HURRY_S
        ):
            await self._wait_redundant(bed)
            since_ns = self.now_ns()
            while self._running_clients().answered_ns() <= since_ns:
                await bed.sleep(POLL_EVERY_S)

    async def wait_caught_up(self, bed: TestBed) -> None:
        """Wait again for full redundancy, if replicas could not reach it under load."""
        if self._redundant or self.stop.is_set():
            return
        async with self.deadlines.optional(
            "the recovery without load",
            within_s=self.trial.recover_within_s,
            hurried_s=RECOVER_HURRY_S,
        ):
            await self._wait_redundant(bed, without_load=True)

    async def _wait_redundant(self, bed: TestBed, **fields: bool) -> None:
        """Wait for full redundancy; record whether it was reached, and how long that took."""
        began_ns = self.now_ns()
        try:
            while not (await self.system.cluster_state(bed)).redundant:
                await bed.sleep(POLL_EVERY_S)
            self._redundant = True
        finally:
            took_s = round((self.now_ns() - began_ns) / 1e9, 3)
            event = {"redundant": self._redundant, "took_s": took_s, **fields}
            self.record.event(self.now_ns(), "", "recovery", event)

    async def collect(self, bed: TestBed) -> None:
        """Compare the clocks again, once the last operation is recorded, and have the system write
        its logs and replicas to the history."""
        if isinstance(self.hosts, ClockComparingHosts) and "clocks" in self.run.state():
            async with self.deadlines.optional(
                "comparing the clocks again", within_s=CLOCKS_WITHIN_S, hurried_s=CLOCKS_WITHIN_S
            ):
                now = await self.hosts.compare_clocks()
                first = self.run.state()["clocks"]
                self.run.update_state(clocks=clocks.with_final_comparison(first, now))
        await self.system.collect(bed)


Story = Callable[[TrialRun], Awaitable[None]]
OpenPipe = Callable[[], Awaitable[ParentPipe]]


async def run_story(run: RunDir, hosts: Hosts, story: Story, open_pipe: OpenPipe) -> int:
    """Carry out the story in this run's folder; return the exit code of the process. `open_pipe`
    connects to the process that started this one."""
    parent = await open_pipe()
    try:
        trial_run = TrialRun(run, hosts, parent)
        run.update_state(epoch_ns=trial_run.epoch_ns)
        try:
            failures = _raise_when_failed(_callback_failures())
            async with in_background(trial_run.end_early(), failures):
                await story(trial_run)
        except StoppedEarly:
            trial_run.record.close()
            return EXIT_VALID
        except Exception as e:
            drop_ballast(run)  # everything has been removed: make room for the last note
            with suppress(SeatrialError):
                trial_run.record.note(f"failed: {e}")
                trial_run.record.close()
            raise
        trial_run.record.close()
        run.update_state(ended=True)
        return EXIT_VALID
    except Exception as e:
        return _report_failure(run, parent, e)


def _report_failure(run: RunDir, parent: ParentPipe, error: Exception) -> int:
    """Report a failure in one sentence, with the traceback in harness.log."""
    traceback.print_exception(error, file=sys.stderr)
    match error:
        case SeatrialError():
            sentence = str(error)
        case OSError():
            sentence = f"this machine refused: {error}"
        case _:
            sentence = f"{registry.blame(error)}; see {run.log}"
    with suppress(OSError):
        run.update_state(error=sentence)
    parent.send({"failed": sentence})
    return EXIT_BED_FAILED


def _callback_failures() -> "asyncio.Future[None]":
    """Return a future that fails when a callback of the event loop does: a journal that cannot be
    written, or a defect of Seatrial."""
    loop = asyncio.get_running_loop()
    failure: asyncio.Future[None] = loop.create_future()

    def failed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None:
            loop.default_exception_handler(context)
        elif not failure.done():
            failure.set_exception(error)

    loop.set_exception_handler(failed)
    return failure


async def _raise_when_failed(failure: "asyncio.Future[None]") -> None:
    await failure


def _names(bed: TestBed, workload: Workload) -> dict[str, Any]:
    clients = [node.name for node in bed.of_role(CLIENT)]
    return {
        "keys": list(workload.keys),
        "nodes": [node.name for node in bed.nodes],
        "roles": {node.name: node.role for node in bed.nodes},
        **broker_sets_entry(bed.system, bed.nodes, workload.keys),
        "addresses": {node.name: node.address for node in bed.nodes},
        "processes": {
            str(p): f"{workload.process_name(p)} on {clients[p % len(clients)]}"
            for p in range(workload.processes)
        },
    }


def keep_world_events(run: RunDir, hosts: Hosts) -> None:
    """Write the events of an observable world to the run's history; if that fails, record an error
    in the run's state.

    This is no step of the story, which may stop in the middle of a trial: the world was watched
    until then, and damage done to it stays.
    """
    if not isinstance(hosts, Omniscient):
        return
    rows = sorted(hosts.world_events(), key=lambda event: event[0])
    try:
        if rows:
            run.journal.mkdir(parents=True, exist_ok=True)
            journal = TableJournal(run.journal, "events", WORLD_WRITER, patient=True)
            for t, node, kind, fields in rows:
                journal.append((t, node, kind, json.dumps(fields, sort_keys=True)))
            journal.close()
    except (SeatrialError, OSError) as e:
        with suppress(OSError):
            run.update_state(error=f"the events of the world could not be stored: {e}")


# ---------------------------------------------------------------------------- time limits of steps


class StoppedEarly(Exception):
    """An early end was requested before there was anything to record."""


class Deadlines:
    """The limits of the steps in progress. `stop` requests an early end."""

    def __init__(
        self, stop: asyncio.Event, record: Recorder, losses: NodeLosses, logs: Path
    ) -> None:
        self._stop, self._record, self._losses, self._logs = stop, record, losses, logs
        self._limits: dict[asyncio.Timeout, float] = {}  # to the limit after an early end

    @asynccontextmanager
    async def required(self, what: str, *, within_s: float) -> AsyncIterator[None]:
        """Limit a step without which there is no trial."""
        try:
            async with self._limited(within_s, 0.0):
                yield
        except TimeoutError:
            if lost := self._losses.sentences():
                raise BedFailed(f"{what} failed: {lost[0]}") from None
            if self._stop.is_set():
                raise StoppedEarly from None
            raise BedFailed(
                f"{what} took longer than {within_s:g} s; the logs are in {self._logs}"
            ) from None

    @asynccontextmanager
    async def optional(
        self, what: str, *, within_s: float, hurried_s: float
    ) -> AsyncIterator[None]:
        """Limit a step that may fall short, which is then noted. `hurried_s`: its limit after an
        early end was requested."""
        try:
            async with self._limited(within_s, hurried_s):
                yield
        except TimeoutError:
            limit_s = hurried_s if self._stop.is_set() else within_s
            self._record.note(f"{GAVE_UP} {what} after {limit_s:g} s")
        except NodeGone as e:
            self._record.note(f"{GAVE_UP} {what}: {e}")

    @asynccontextmanager
    async def _limited(self, within_s: float, hurried_s: float) -> AsyncIterator[None]:
        limit_s = min(within_s, hurried_s) if self._stop.is_set() else within_s
        async with asyncio.timeout(limit_s) as limit:
            self._limits[limit] = hurried_s
            try:
                yield
            finally:
                del self._limits[limit]

    def shorten(self) -> None:
        """Shorten the steps in progress, after an early end was requested."""
        now = asyncio.get_running_loop().time()
        for limit, hurried_s in self._limits.items():
            if not limit.expired():
                limit.reschedule(min(now + hurried_s, limit.when() or now + hurried_s))

    def end_early(self) -> None:
        """Request an early end, unless no step has a limit: a cluster that is kept for inspection
        stays."""
        if self._limits:
            self._stop.set()


# ---------------------------------------------------------------- the runner's part of the history


WRITER = "runner"
STAGES = ("healed", "heal", "observed", "applied", "begin")  # the last one reached counts
_FAULT_COLUMNS = tuple(FAULTS.names)
_JSON_COLUMNS = frozenset({"params", "targets", "observation"})


class JournalRecorder:
    """`harness.contracts.Recorder` over the journal of one run."""

    def __init__(
        self,
        folder: Path,
        now_ns: Callable[[], int],
        tell: Callable[[Mapping[str, Any]], None],
        *,
        patient: bool = False,
    ) -> None:
        self._now_ns = now_ns
        self._tell = tell
        self._tables = {
            table: TableJournal(folder, table, WRITER, patient=patient)
            for table in ("faults", "events", "notes", "replicas")
        }
        self._node_index: Mapping[str, int] = {}
        self._key_index: Mapping[str, int] = {}

    def set_names(self, nodes: Sequence[str], keys: Sequence[str]) -> None:
        """Set the run's node and key names, by whose index replicas are recorded."""
        self._node_index = {name: at for at, name in enumerate(nodes)}
        self._key_index = {name: at for at, name in enumerate(keys)}

    def note(self, text: str) -> None:
        self._tables["notes"].append((self._now_ns(), None, None, text))

    def alarm(self, text: str) -> None:
        """Record a note; also show it to the user, and write it to the log."""
        print(text, file=sys.stderr, flush=True)
        self._tell({"alarm": text})
        self.note(text)

    def fault(self, row: Mapping[str, Any]) -> None:
        values = tuple(_column_value(column, row.get(column)) for column in _FAULT_COLUMNS)
        self._tables["faults"].append(values)
        self._tables["faults"].flush()  # no fault may exist without a record of it
        stage = next((name for name in STAGES if row.get(name) is not None), "planned")
        if stage != "planned":
            fields = {name: row.get(name) for name in ("id", "kind", "state")}
            fields["targets"] = _decoded(row.get("targets"))
            self._tell({"fault": {**fields, "stage": stage}})

    def event(self, t: int, node: str, kind: str, fields: Mapping[str, Any]) -> None:
        self._tables["events"].append((t, node, kind, json.dumps(fields, sort_keys=True)))

    def replicas(self, node: str, rows: Sequence[tuple[str, int, int, int, int]]) -> None:
        """Record messages of a replica, without those of keys that are not the workload's (a
        system's own topics)."""
        at = self._node_index[node]
        append = self._tables["replicas"].append
        for key, offset, value, epoch, crc in rows:
            index = self._key_index.get(key)
            if index is not None:
                append((at, index, offset, value, epoch, crc))

    def close(self) -> None:
        for journal in self._tables.values():
            journal.close()


def _column_value(column: str, value: Any) -> Any:
    """Return structures as JSON text; text that is JSON already stays."""
    if column in _JSON_COLUMNS and value is not None and not isinstance(value, str):
        return json.dumps(value, sort_keys=True)
    return value


def _decoded(value: Any) -> Any:
    """Return the value of JSON text."""
    return json.loads(value) if isinstance(value, str) and value.startswith("{") else value
