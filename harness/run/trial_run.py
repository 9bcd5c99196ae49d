"""What the story of a trial is told with: `harness.run.story.run` says what happens, this says how.

A voyage knows the run's folder, the plug-ins the trial names, the clock of record, and how long
each part of the story may take. Every wait has a deadline: some parts *must* succeed (the cluster
must come up), others *may* fall short, which is noted and left to the checkers (a final phase that
could not read everything). An early end, asked for by Ctrl-C, shortens what is left instead of
skipping it: faults are healed, open operations end, the rest is read as far as a few seconds reach.
A node that the bed loses for good, or whose disk is full, brings about the same early end.
"""

import asyncio
import random
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from harness import registry
from harness.contracts import CLIENT, Agent, Bed, Gating, Hosts, Node, System, Timed, Workload
from harness.contracts.cluster_view import Overseen
from harness.errors import EXIT_BED_FAILED, EXIT_VALID, BedFailed, NodeGone, SeatrialError
from harness.history.notes import DISK_FULL, FULL, GAVE_UP, GONE, NODE_GONE
from harness.history.rundir import RunDir
from harness.history.runs import drop_ballast
from harness.plans import planned_kinds
from harness.run import clocks
from harness.run.broker_sets import sets_named
from harness.run.client_pool import Crews
from harness.run.monitors import disks, exits, noticed, standings
from harness.run.parent_pipe import Lifeline
from harness.run.recorder import JournalRecorder
from harness.run.replica_comparison import Calm, comparing
from harness.run.tasks import meanwhile, together
from harness.zones import distances, placed

START_WITHIN_S = 90.0
PLAN_GRACE_S = 60.0  # for observations that take long
HEAL_WITHIN_S = 20.0  # after an early end
RECOVER_HURRY_S = 3.0  # the same
LOOK_EVERY_S = 0.1
CLOCKS_WITHIN_S = 10.0
GATED = frozenset({"disk", "unsynced"})  # needs of faults that a gate meets
COLLECTED = "collected"  # the phase after which there is nothing more to record


class Stopped(Exception):
    """An early end was asked for before there was anything to record."""


class Voyage:
    """One run under way, in the runner."""

    def __init__(self, run: RunDir, hosts: Hosts, lifeline: Lifeline) -> None:
        self.run, self.hosts, self.trial = run, hosts, run.trial()
        self.system: System = registry.load("system", self.trial.system)(self.trial)
        self.workload: Workload = registry.load("workload", self.trial.workload)(self.trial)
        self._time_s = asyncio.get_running_loop().time  # the hosts' world may have its own
        self.epoch_ns = round(self._time_s() * 1e9)
        self.stop = lifeline.stop
        self.say = lifeline.say
        self._overseen = isinstance(hosts, Overseen)
        self._compares = self.trial.compare_replicas and not self._overseen
        self.record = JournalRecorder(run.journal, self.now_ns, self.say, patient=self._overseen)
        self._phase = ""
        self._acknowledged: Callable[[], int] = lambda: 0
        self._answered_ns: Callable[[], int] = lambda: -1
        self._crews: Crews | None = None
        self._redundant = False  # seen after the plan
        self._limits: dict[asyncio.Timeout, float] = {}
        self._lost: dict[str, dict[str, str]] = {GONE: {}, FULL: {}}  # how -> node -> why

    def now_ns(self) -> int:
        return round(self._time_s() * 1e9) - self.epoch_ns

    def mark(self, phase: str, **state: Any) -> None:
        """A phase of the story: in the history, in run.json, and for who watches."""
        self._phase = phase
        self.record.note(phase)
        self.run.update_state(phase=phase, **state)
        self.say({"phase": phase})

    # ------------------------------------------------------------------------ parts of the story

    @asynccontextmanager
    async def raised(self) -> AsyncIterator[Bed]:
        """All nodes up, with agents and addresses; at the end, all gone. What could not be taken
        down is told; of a run that has all its history, nothing else depends on it."""
        try:
            nodes = placed(self.system.nodes(), self.trial.zones)
            async with self.hosts.raised(nodes) as (nodes, agents):
                yield self._bed(nodes, await self._gated(nodes, agents))
        except BedFailed as e:
            if self._phase != COLLECTED:
                raise
            self.record.note(f"LEFT_BEHIND {e}")
            self.run.update_state(left=str(e))

    async def _gated(
        self, nodes: Sequence[Node], agents: Mapping[str, Agent]
    ) -> Mapping[str, Agent]:
        """The agents; if the plan spoils disks, such as can. What no sync has covered is kept in
        mind only if the plan will take it away, since that has its price."""
        kinds = planned_kinds(self.run.plan_text())
        needs = {need for kind in kinds for need in registry.fault(kind).needs}
        if not needs & GATED or not isinstance(self.hosts, Gating):
            return agents
        cluster = [node for node in nodes if node.role != CLIENT]
        unsynced = self.system.data if "unsynced" in needs else ""
        return await self.hosts.gated(cluster, agents, unsynced)

    def _bed(self, nodes: Sequence[Node], agents: Mapping[str, Agent]) -> Bed:
        if not self._overseen:  # a world that is ours alone loses nobody
            agents = noticed(agents, partial(self.lose, GONE))
        bed = Bed(
            nodes=nodes,
            agents=agents,
            hosts=self.hosts,
            system=self.system,
            record=self.record,
            now_ns=self.now_ns,
            acknowledged=lambda: self._acknowledged(),
            sleep=asyncio.sleep,
            clients=self._clients,
            distances=distances(nodes, self.trial.zone_latency),
        )
        self.record.name([node.name for node in nodes], self.workload.keys)
        self.run.write_names(_names(bed, self.workload))
        self.run.update_state(**clocks.told(nodes, self.hosts))
        return bed

    async def started(self, bed: Bed) -> None:
        """The system is installed, runs, and serves with full redundancy."""
        await self._refuse_lacking(bed)
        if bed.distances:
            async with self.must(START_WITHIN_S, "setting zones apart"):
                seen = await registry.nemesis().delay_zones(bed)
            self.mark("apart", zone_latency=dict(seen))
        async with self.must(START_WITHIN_S, "starting the cluster"):
            await self.system.install(bed)
            await self.system.start(bed)
            evidence = await self.system.healthy(bed, START_WITHIN_S)
        self.mark("raised", healthy=dict(evidence))

    async def _refuse_lacking(self, bed: Bed) -> None:
        """BedFailed when these very nodes can not do what the plan asks for."""
        nemesis = registry.nemesis()
        plan = nemesis.load(self.run.plan_text(), str(self.run.plan_file)).faults
        if why := await nemesis.lacking(plan, bed):
            raise BedFailed(why)

    @asynccontextmanager
    async def manned(self, bed: Bed, within_s: float) -> AsyncIterator[Crews]:
        """Clients aboard, ready to operate."""
        crews = self._crews = Crews(bed, self.run)
        async with crews.aboard():
            async with self.must(within_s, "opening the clients"):
                await crews.open()
            self._acknowledged, self._answered_ns = crews.acknowledged, crews.answered_ns
            yield crews

    def watched(self, bed: Bed, crews: Crews) -> AbstractAsyncContextManager[None]:
        """Meanwhile: what fails on our side breaks the trial off, what happens is told."""
        return meanwhile(
            _broken(crews.failed),
            crews.tell(self.say),
            standings(bed, self.say),
            *exits(bed, partial(self.lose, FULL)),
            *disks(bed, partial(self.lose, FULL)),
        )

    async def loaded_and_broken(self, bed: Bed) -> None:
        """The load's full time, and the whole plan."""
        nemesis = registry.nemesis()
        plan = nemesis.load(self.run.plan_text(), str(self.run.plan_file)).faults
        within_s = max(self.trial.duration_s, nemesis.longest_s(plan)) + PLAN_GRACE_S
        calm = Calm(bed.record)
        looks = (comparing(bed, calm),) if self._compares else ()
        async with self.may(within_s, HEAL_WITHIN_S, "the plan"), meanwhile(*looks):
            listened = replace(bed, record=calm)
            await together(self._duration(), self._nemesis(plan, listened))

    async def recovered(self, bed: Bed) -> None:
        """Full redundancy again, which is an event, and after it, of each broker set, a send from
        its invocation to its acknowledgement."""
        async with self.may(self.trial.recover_within_s, RECOVER_HURRY_S, "the recovery"):
            await self._until_redundant(bed)
            since_ns = self.now_ns()
            while self._answered_ns() <= since_ns:
                await bed.sleep(LOOK_EVERY_S)

    async def caught_up(self, bed: Bed) -> None:
        """Wait again for full redundancy, if replicas could not reach it under load."""
        if self._redundant or self.stop.is_set():
            return
        within_s = self.trial.recover_within_s
        async with self.may(within_s, RECOVER_HURRY_S, "the recovery without load"):
            await self._until_redundant(bed, without_load=True)

    async def _until_redundant(self, bed: Bed, **told: bool) -> None:
        """Wait for it; record whether it came, and how long it took."""
        began_ns = self.now_ns()
        try:
            while not (await self.system.standing(bed)).redundant:
                await bed.sleep(LOOK_EVERY_S)
            self._redundant = True
        finally:
            took_s = round((self.now_ns() - began_ns) / 1e9, 3)
            fields = {"redundant": self._redundant, "took_s": took_s, **told}
            self.record.event(self.now_ns(), "", "recovery", fields)

    async def collected(self, bed: Bed) -> None:
        """How the clocks kept, and what the system has to tell, is in the history."""
        if isinstance(self.hosts, Timed) and "clocks" in self.run.state():
            await self._compared(self.hosts)
        await self.system.collect(bed)

    async def _compared(self, hosts: Timed) -> None:
        """With run.json, once the last operation is recorded."""
        async with self.may(CLOCKS_WITHIN_S, CLOCKS_WITHIN_S, "comparing the clocks again"):
            now = await hosts.clocks_again()
            self.run.update_state(clocks=clocks.compared(self.run.state()["clocks"], now))

    def lose(self, how: str, node: str, why: str) -> None:
        """The bed failed a node of the cluster, or a client's: what has a deadline ends early.

        A cluster that is kept for people to look at has none, and stays.
        """
        if node in self._lost[how]:
            return
        self._lost[how][node] = why
        word = {GONE: NODE_GONE, FULL: DISK_FULL}[how]
        self.record.note(f"{word} {node}: {why}")
        self.record.event(self.now_ns(), node, how, {"why": why})
        self.say({"lost": f"{node} is {how}: {why}"})
        try:
            self.run.update_state(**{how: self._lost[how]})
        except OSError as e:
            raise BedFailed(f"{node} is {how} ({why}), and nothing can be written here: {e}") from e
        if self._limits:
            self.stop.set()

    # ---------------------------------------------------------------------------------- deadlines

    @asynccontextmanager
    async def must(self, within_s: float, what: str) -> AsyncIterator[None]:
        """A part without which there is no trial."""
        try:
            async with self._limited(within_s, 0.0):
                yield
        except TimeoutError:
            if lost := self._losses():
                raise BedFailed(f"{what} failed: {lost[0]}") from None
            if self.stop.is_set():
                raise Stopped from None
            raise BedFailed(
                f"{what} took longer than {within_s:g} s; the logs are in {self.run.path}/nodes"
            ) from None

    @asynccontextmanager
    async def may(self, within_s: float, hurried_s: float, what: str) -> AsyncIterator[None]:
        """A part that may fall short; then it is noted. `hurried_s`: after an early end."""
        try:
            async with self._limited(within_s, hurried_s):
                yield
        except TimeoutError:
            limit_s = hurried_s if self.stop.is_set() else within_s
            self.record.note(f"{GAVE_UP} {what} after {limit_s:g} s")
        except NodeGone as e:
            self.record.note(f"{GAVE_UP} {what}: {e}")

    @asynccontextmanager
    async def _limited(self, within_s: float, hurried_s: float) -> AsyncIterator[None]:
        limit_s = min(within_s, hurried_s) if self.stop.is_set() else within_s
        async with asyncio.timeout(limit_s) as limit:
            self._limits[limit] = hurried_s
            try:
                yield
            finally:
                del self._limits[limit]

    async def hurry(self) -> None:
        """When an early end is asked for: mark it, and shorten the waits that are going on."""
        await self.stop.wait()
        self.mark("interrupted", interrupted=not self._losses())
        now = asyncio.get_running_loop().time()
        for limit, hurried_s in self._limits.items():
            if not limit.expired():
                limit.reschedule(min(now + hurried_s, limit.when() or now + hurried_s))

    # ------------------------------------------------------------------------------------ private

    def _clients(self) -> Crews:
        """Who is aboard. BedFailed: nobody."""
        if self._crews is None:
            raise BedFailed("no clients are aboard")
        return self._crews

    def _losses(self) -> list[str]:
        """In words."""
        return [
            f"{node} is {how}: {why}"
            for how, nodes in self._lost.items()
            for node, why in nodes.items()
        ]

    async def _duration(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.trial.duration_s):
                await self.stop.wait()

    async def _nemesis(self, plan: Any, bed: Bed) -> None:
        if plan:
            dice = random.Random(f"{self.trial.seed}/nemesis")  # must be replayable
            carry_out = registry.nemesis().carry_out
            began_ns = self.run.state()["load_began_ns"]  # what the plan's times are measured from
            await carry_out(plan, bed, self.run.ledger, self.stop, dice, began_ns)


Story = Callable[[Voyage], Awaitable[None]]
Hold = Callable[[], Awaitable[Lifeline]]


async def voyage(run: RunDir, hosts: Hosts, story: Story, hold: Hold) -> int:
    """Carry out the story in this run's folder; the exit code of the process. `hold` takes up the
    line to whoever asked for it."""
    lifeline = await hold()
    try:
        return await _voyage(Voyage(run, hosts, lifeline), story)
    except Exception as e:
        return _failed(run, lifeline, e)


async def _voyage(voyage: Voyage, story: Story) -> int:
    voyage.run.update_state(epoch_ns=voyage.epoch_ns)
    try:
        async with meanwhile(voyage.hurry(), _broken(_unhandled())):
            await story(voyage)
    except Stopped:
        voyage.record.close()
        return EXIT_VALID
    except Exception as e:
        drop_ballast(voyage.run)  # everything has been taken down: room for these last words
        with suppress(SeatrialError):
            voyage.record.note(f"failed: {e}")
            voyage.record.close()
        raise
    voyage.record.close()
    voyage.run.update_state(ended=True)
    return EXIT_VALID


def _failed(run: RunDir, lifeline: Lifeline, error: Exception) -> int:
    """One sentence for people; the trace for harness.log."""
    traceback.print_exception(error, file=sys.stderr)
    match error:
        case SeatrialError():
            sentence = str(error)
        case OSError():
            sentence = f"this machine refused: {error}"
        case _:
            sentence = f"{registry.blamed(error)}; see {run.log}"
    with suppress(OSError):
        run.update_state(error=sentence)
    lifeline.say({"failed": sentence})
    return EXIT_BED_FAILED


def _unhandled() -> "asyncio.Future[None]":
    """Breaks when a callback fails: a journal that can not be written, or a fault of ours."""
    loop = asyncio.get_running_loop()
    broken: asyncio.Future[None] = loop.create_future()

    def failed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None:
            loop.default_exception_handler(context)
        elif not broken.done():
            broken.set_exception(error)

    loop.set_exception_handler(failed)
    return broken


async def _broken(failure: "asyncio.Future[None]") -> None:
    await failure


def _names(bed: Bed, workload: Workload) -> dict[str, Any]:
    clients = [node.name for node in bed.of_role(CLIENT)]
    return {
        "keys": list(workload.keys),
        "nodes": [node.name for node in bed.nodes],
        "roles": {node.name: node.role for node in bed.nodes},
        **sets_named(bed.system, bed.nodes, workload.keys),
        "addresses": {node.name: node.address for node in bed.nodes},
        "processes": {
            str(p): f"{workload.who(p)} on {clients[p % len(clients)]}"
            for p in range(workload.processes)
        },
    }
