"""Faults of disks in simulated worlds: each is seen at work by a prober or by reading files again,
is healed, and the cluster is whole afterwards. What the prober met is compared with what is wanted.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clusters.hosts._faults.disk_faults import merge
from harness import registry
from harness.campaign.simulation import SeedOutcome, simulate
from harness.contracts import DiskFault, DiskProbe, FaultContext, Observation, PlannedFault
from harness.errors import BadRequest, BedFailed, Unsupported
from harness.history.faults_and_events import FaultInterval
from harness.history.reader import History
from harness.history.seal import seal
from harness.judge.claims import destroyed_majorities
from harness.run.disk_needs import disk_needs, sync_own_disks
from harness.run.launch import make_plan
from harness.trial import Trial
from nemesis._network.link_rules import LinkRules
from nemesis._plan import plan as _plan
from nemesis._process.disk_fault import (
    DiskInjection,
    describe_probe,
    is_hidden,
    matches_fault,
    probe_timeout_s,
)

SOUND = DiskFault("")
KINDS = ("disk-full", "read-only", "fsync", "unsynced", "wipe", "corrupt")
STORY = (  # kind, target, parameters
    ("disk-full", "one slave", {}),
    ("read-only", "one slave", {}),
    ("fsync", "master", {"how": "slow", "delay_s": 0.2}),
    ("fsync", "one slave", {"how": "fail"}),
    ("fsync", "one slave", {"how": "hang"}),
    ("unsynced", "one slave", {}),
    ("wipe", "one slave", {}),
    ("corrupt", "one slave", {"how": "flip", "files": "commitlog/*"}),
    ("corrupt", "one slave", {"how": "truncate", "bytes": 300.0, "files": "commitlog/*"}),
)
EVERY_S = 3.0


def played(
    folder: Path, story: Sequence[tuple[str, str, Mapping[str, Any]]], **trial: Any
) -> SeedOutcome:
    """One simulated run with these faults, one after the other."""
    faults = [
        f'[[fault]]\nkind = "{kind}"\nat_s = {1 + number * EVERY_S}\nfor_s = 1.0\n'
        f'target = "{target}"\n[fault.params]\n'
        + "".join(f"{name} = {json.dumps(value)}\n" for name, value in params.items())
        for number, (kind, target, params) in enumerate(story)
    ]
    base = Trial(
        hosts="simulated",
        short_faults=True,
        seed=5,
        duration_s=1 + EVERY_S * len(story),
        load={"rate": 20.0},
    )
    return simulate(base.with_(trial), "\n".join(faults), folder / "run")


def beyond_claims(faults: Sequence[FaultInterval], groups: Mapping[str, str]) -> set[str]:
    """Kinds of the faults that destroyed a majority together."""
    numbered = [replace(fault, id=number) for number, fault in enumerate(faults)]
    ids = destroyed_majorities(numbered, groups)
    return {fault.kind for fault in numbered if fault.id in ids}


def rows(outcome: SeedOutcome) -> list[dict[str, Any]]:
    """The last row of each fault."""
    seal(outcome.run)
    table = History.open(outcome.run).read("faults").to_pylist()
    return list({row["id"]: row for row in table}.values())


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> SeedOutcome:
    return played(tmp_path_factory.mktemp("disks"), STORY)


def observed(outcome: SeedOutcome, number: int) -> dict[str, Any]:
    observation: dict[str, Any] = json.loads(rows(outcome)[number]["observation"])
    return observation


def test_each_is_seen_at_work_and_seen_healed(outcome: SeedOutcome) -> None:
    """In the world: by a prober's errors and times, by bytes that differ, by processes that end."""
    for row, (kind, _, params) in zip(rows(outcome), STORY, strict=True):
        assert row["kind"] == kind
        assert row["state"] == "installed", (kind, params, row["observation"])
        assert row["healed"] is not None, (kind, params, row["observation"])


@pytest.mark.parametrize(
    ("target", "profile", "rate", "state"),
    [
        ("one slave", "sync-flush", 0.001, "partial"),  # it synced all that it was given
        ("one slave", "", 20.0, "installed"),
        ("one slave, one controller", "", 20.0, "installed"),  # the controller had nothing to lose
    ],
)
def test_what_had_nothing_at_stake_lost_nothing(
    tmp_path: Path, target: str, profile: str, rate: float, state: str
) -> None:
    """Only a victim with changes that no sync had covered makes it more than a kill."""
    story = [("unsynced", target, {})]
    (row,) = rows(played(tmp_path, story, profile=profile, load={"rate": rate}))
    seen = json.loads(row["observation"])["effect"]["files"].values()
    at_stake = [told["files"] + told["names"] for told in seen]
    assert row["state"] == state, at_stake
    assert any(at_stake) == (state == "installed")
    assert 0 in at_stake or len(at_stake) == 1


def test_a_disk_that_keeps_nothing_loses_all_that_was_at_stake(tmp_path: Path) -> None:
    """On every victim, and the observation shows it."""
    story = [("unsynced", "all broker", {"keeps": "nothing"})]
    (row,) = rows(played(tmp_path, story, profile="unsafe-default", load={"rate": 200.0}))
    changes = json.loads(row["observation"])["effect"]["files"].values()
    assert len(changes) == 3
    assert any(change["size_bytes"] for change in changes)
    for change in changes:
        assert (change["lost_bytes"], change["lost_names"]) == (
            change["size_bytes"],
            change["names"],
        )


def test_the_time_of_a_sync_before_is_recorded(outcome: SeedOutcome) -> None:
    """That is what a slow one is compared with."""
    (before_s,) = observed(outcome, 2)["effect"]["sync_s_before"].values()
    assert 0 < before_s < 0.2


def test_the_measurement_is_recorded(outcome: SeedOutcome) -> None:
    """In a few words, with the figure."""
    told = [observed(outcome, number)["measured"] for number in range(len(STORY))]
    assert told[0] == "a write fails with ENOSPC"
    assert told[1] == "a write fails with EROFS"
    assert int(told[2].removeprefix("a sync took ").removesuffix(" ms")) >= 200
    assert told[3] == "a sync fails with EIO"
    assert told[4] == "a sync has not ended after 0.5 s"
    assert "that no sync had covered are gone" in told[5]
    assert told[6].endswith("bytes of data are gone")
    assert told[7].startswith("16 bytes changed")
    assert told[8].startswith("300 bytes changed")


@pytest.mark.parametrize("holder", ["pause", "kill"])
def test_healing_is_not_judged_on_a_node_that_another_fault_holds(
    tmp_path: Path, holder: str
) -> None:
    """Nobody can say whether it came back before the other fault has let go of it."""
    plan = (
        '[[fault]]\nkind = "fsync"\nat_s = 1.0\nfor_s = 1.0\ntarget = "broker-1"\n'
        f'[[fault]]\nkind = "{holder}"\nat_s = 1.5\nfor_s = 2.0\ntarget = "broker-1"\n'
    )
    trial = Trial(hosts="simulated", short_faults=True, duration_s=6.0, load={"rate": 20.0})
    disk, other = rows(simulate(trial, plan, tmp_path / "run"))
    assert disk["heal"] < other["heal"] <= other["healed"] <= disk["healed"]


def test_a_node_that_exited_on_its_disk_is_not_a_target(tmp_path: Path) -> None:
    """Faults in the meantime are never in force, and do not prevent its restart."""
    trial = Trial(hosts="simulated", short_faults=True, duration_s=9.0, load={"rate": 20.0})
    others = (("kill", 2.0), ("pause", 2.2), ("clock", 2.4))
    plan = '[[fault]]\nkind = "fsync"\nat_s = 1.0\nfor_s = 2.0\ntarget = "broker-1"\n'
    plan += 'params = { how = "fail" }\n' + "".join(
        f'[[fault]]\nkind = "{kind}"\nat_s = {at_s}\nfor_s = 6.0\ntarget = "broker-1"\n'
        for kind, at_s in others
    )
    played = simulate(trial.with_({"profile": "sync-flush"}), plan, tmp_path / "run")
    disk, *later = rows(played)
    assert disk["state"] == "installed"
    assert json.loads(disk["observation"])["healing"]["started_again"] == ["broker-1"]
    assert disk["healed"] < disk["heal"] + 2e9
    assert [row["state"] for row in later] == ["failed"] * 3
    why = [json.loads(row["observation"])["error"] for row in later]
    assert why == ["broker-1 did not run, so there was nothing to hit"] * 3
    assert "NOT HEALED" not in played.run.log.read_text()


def test_two_that_end_together_start_a_node_once(world: Any) -> None:
    """It ended on a disk that both had spoilt, and both find it so; starting it takes its time."""
    agent = world.agents["broker-1"]
    start, begun = world.bed.system.start_node, []

    async def disk(_owner: str, _fault: DiskFault | None) -> None: ...

    async def wanted() -> None: ...

    async def seen(_below: str, _patience_s: float) -> DiskProbe:
        return DiskProbe("", "", 0.001)

    async def slowly(bed: Any, node: str) -> None:
        begun.append(node)
        await asyncio.sleep(0.05)
        if agent.process == "running":
            raise BedFailed(f"{node}: it is running already")
        await start(bed, node)

    async def story(world: Any) -> list[Observation]:
        agent.disk, agent.disk_fault, agent.probe_disk = disk, wanted, seen
        world.bed.system.data, world.bed.system.start_node = "store", slowly
        world.bed.hosts.folder = lambda _node: "/x"
        fabric = LinkRules(world.bed.nodes, world.agents)
        held: set[str] = set()
        scene = FaultContext(world.bed, fabric, lambda *_: (), lambda n: n.role, held, Random(1))
        victims = [world.bed.node("broker-1")]
        two = [
            DiskInjection(scene, "fsync", victims, DiskFault("", sync_fails=True)),
            DiskInjection(scene, "disk-full", victims, DiskFault("", full=True)),
        ]
        for trouble in two:
            await trouble.__aenter__()
        agent.end(70)
        for trouble in two:
            await trouble.__aexit__()
        return await asyncio.gather(*(trouble.observe_healed() for trouble in two))

    assert [seen.state for seen in world.run(story)] == ["installed", "installed"]
    assert (agent.process, begun) == ("running", ["broker-1"])


def test_a_process_that_ends_at_its_next_write_is_started_again(world: Any) -> None:
    """As a replica of Redis 7.0 does after a sync that failed, though the disk is well by then."""
    agent, started = world.agents["broker-1"], []

    async def disk(_owner: str, _fault: DiskFault | None) -> None: ...

    async def wanted() -> None: ...

    async def seen(_below: str, _timeout_s: float) -> DiskProbe:
        return DiskProbe("", "", 0.001)

    async def write() -> None:
        await world.bed.sleep(2.0)
        agent.end(1)
        world.acknowledged += 1

    async def start(_bed: Any, node: str) -> None:
        started.append(node)
        agent.process = "running"

    async def story(world: Any) -> Observation:
        agent.disk, agent.disk_fault, agent.probe_disk = disk, wanted, seen
        world.bed.system.data, world.bed.system.start_node = "store", start
        world.bed.hosts.folder = lambda _node: "/x"
        world.acknowledged = 7
        fabric = LinkRules(world.bed.nodes, world.agents)
        scene = FaultContext(world.bed, fabric, lambda *_: (), lambda n: n.role, set(), Random(1))
        fault = DiskInjection(
            scene, "fsync", [world.bed.node("broker-1")], DiskFault("", sync_fails=True)
        )
        async with fault:
            pass
        observed, _ = await asyncio.gather(fault.observe_healed(), write())
        return observed

    observation = world.run(story)
    assert (observation.state, started) == ("installed", ["broker-1"])
    assert observation.evidence["started_again"] == ["broker-1"]


def test_only_disks_that_were_damaged_count_as_destroyed(tmp_path: Path) -> None:
    """Of a wipe and a corruption that found a victim's process ended by itself, and of one whose
    pattern met no file."""
    trial = Trial(hosts="simulated", short_faults=True, duration_s=12.0, load={"rate": 20.0})
    plan = '[[fault]]\nkind = "fsync"\nat_s = 1.0\nfor_s = 6.0\ntarget = "broker-1"\n'
    plan += 'params = { how = "fail" }\n' + "".join(
        f'[[fault]]\nkind = "{kind}"\nat_s = {at_s}\nfor_s = 1.0\ntarget = "{target}"\n{more}'
        for kind, at_s, target, more in (
            ("corrupt", 2.0, "broker-1", ""),
            ("wipe", 3.0, "broker-1, broker-2", ""),
            ("corrupt", 9.0, "broker-3", 'params = { files = "none/*" }\n'),
            ("corrupt", 10.0, "broker-3", 'params = { files = "commitlog/*" }\n'),
        )
    )
    played = simulate(trial.with_({"profile": "sync-flush"}), plan, tmp_path / "run")
    seal(played.run)
    _, never, wipe, missed, met = History.open(played.run).faults
    assert (never.state, never.names, never.destroyed_on) == ("failed", (), ())
    assert (wipe.state, wipe.names, wipe.destroyed_on) == ("partial", ("broker-2",), ("broker-2",))
    assert (missed.state, missed.names, missed.destroyed_on) == ("failed", ("broker-3",), ())
    assert (met.state, met.destroyed_on) == ("installed", ("broker-3",))


def test_one_that_was_started_on_a_bad_disk_is_started_again(tmp_path: Path) -> None:
    """A kill that ends earlier starts the node on a disk that fails it."""
    plan = (
        '[[fault]]\nkind = "kill"\nat_s = 1.0\nfor_s = 1.5\ntarget = "broker-1"\n'
        '[[fault]]\nkind = "fsync"\nat_s = 2.0\nfor_s = 2.0\ntarget = "broker-1"\n'
        'params = { how = "fail" }\n'
    )
    trial = Trial(hosts="simulated", short_faults=True, duration_s=6.0, load={"rate": 20.0})
    kill, disk = rows(simulate(trial.with_({"profile": "sync-flush"}), plan, tmp_path / "run"))
    assert kill["healed"] < disk["heal"] < disk["healed"]
    assert json.loads(disk["observation"])["healing"]["started_again"] == ["broker-1"]


def test_no_acknowledged_message_is_lost_by_a_minority(outcome: SeedOutcome) -> None:
    """One replica at a time, whatever becomes of its disk: the contract claims to survive that."""
    assert not outcome.failure, outcome.why
    assert outcome.verdict
    assert "survive" not in outcome.verdict.sentence


def test_a_loss_of_nothing_does_not_count(tmp_path: Path) -> None:
    """A node without data on its disk was only killed, and the observation says so."""
    outcome = played(tmp_path, [("unsynced", "nameserver", {})] * 2)
    assert [row["state"] for row in rows(outcome)] == ["installed", "partial"]
    told = [observed(outcome, number)["measured"] for number in (0, 1)]
    assert told[0].endswith(" of 1 changes of names that no sync had covered are gone")
    assert told[1] == "all that was written had been synced, so nothing was at stake"


def test_damage_to_most_disks_is_no_promise_broken() -> None:
    """A majority of a role at once, which no claim covers."""
    roles = {"broker-1": "broker", "broker-2": "broker", "broker-3": "broker", "c-1": "controller"}

    def wiped(*names: str, kind: str = "wipe", begin: int = 0) -> FaultInterval:
        return FaultInterval(0, kind, targets={"x": names}, begin=begin, healed=begin + 10)

    def beyond(*faults: FaultInterval) -> set[str]:
        return beyond_claims(faults, roles)

    assert beyond(wiped("broker-1", "broker-2")) == {"wipe"}
    assert beyond(wiped("broker-1", "broker-2", kind="corrupt")) == {"corrupt"}
    assert beyond(wiped("c-1")) == {"wipe"}, "the only one of its role is a majority"
    together = wiped("broker-1"), wiped("broker-2", kind="corrupt", begin=5)
    assert beyond(*together) == {"wipe", "corrupt"}
    assert not beyond(wiped("broker-1"), wiped("broker-2", begin=11)), "one after the other"
    assert not beyond(wiped("broker-1"))
    assert not beyond(wiped("broker-1", "broker-2", kind="kill"))


@pytest.mark.parametrize(("until", "lost"), [(100, False), (None, False), (55, True)])
def test_only_disks_that_were_gone_together_are_a_majority(until: int | None, lost: bool) -> None:
    """Of five, one is gone for long and two one after the other: never more than two at a time.
    A third one that begins while another two are gone is one too many."""

    def wiped(number: int, begin: int, healed: int | None) -> FaultInterval:
        targets = {"x": (f"broker-{number}",)}
        return FaultInterval(number, "wipe", targets=targets, begin=begin, healed=healed)

    groups = {f"broker-{number}": "set-1" for number in range(1, 6)}
    faults = [wiped(1, 0, until), wiped(2, 10, 20), wiped(3, 50, 60)]
    if lost:
        faults.append(wiped(4, 52, 53))
    assert beyond_claims(faults, groups) == ({"wipe"} if lost else set())
    assert beyond_claims(faults[::-1], groups) == ({"wipe"} if lost else set())


def test_disks_of_brokers_that_left_count_too() -> None:
    """Those that were seen emptied: not a disk that was kept, nor what a controller knew."""
    roles = {f"broker-{number}": "broker" for number in (1, 2, 3)}

    def fault(kind: str, *names: str, copies: Sequence[str] = ()) -> FaultInterval:
        seen = {"effect": {"lost_copies": list(copies)}}
        targets = {"x": tuple(names)}
        return FaultInterval(0, kind, targets=targets, begin=0, healed=10, observation=seen)

    def beyond(*faults: FaultInterval) -> set[str]:
        return beyond_claims(faults, roles)

    left = fault("membership", "broker-1", copies=["broker-1"])
    assert beyond(left, fault("wipe", "broker-2", copies=["broker-2"])) == {"membership", "wipe"}
    assert not beyond(left)
    emptied = fault("wipe", "broker-2", copies=["broker-2"])
    assert not beyond(fault("membership", "broker-1"), emptied), "a kept disk"
    assert not beyond(left, fault("wipe", "broker-2")), "it did not get that far"


# ------------------------------------------------------------------------------------ pure parts


@pytest.mark.parametrize(
    ("seen", "wanted", "good"),
    [
        (DiskProbe("ENOSPC", "", 0.01), DiskFault("", full=True), True),
        (DiskProbe("", "", 0.01), DiskFault("", full=True), False),
        (DiskProbe("EROFS", "", 0.01), DiskFault("", full=True, read_only=True), True),
        (DiskProbe("", "EIO", 0.01), DiskFault("", sync_fails=True), True),
        (DiskProbe("", "", 0.01), DiskFault("", sync_fails=True), False),
        (DiskProbe("", "", 0.31), DiskFault("", sync_s=0.3), True),
        (DiskProbe("", "", 0.29), DiskFault("", sync_s=0.3), False),
        (DiskProbe("", "", inf), DiskFault("", sync_s=inf), True),
        (DiskProbe("", "", 0.4), DiskFault("", sync_s=inf), False),
        (DiskProbe("", "", 0.01), SOUND, True),
        (DiskProbe("", "", 0.5), SOUND, False),
        (DiskProbe("ENOSPC", "", 0.01), SOUND, False),
        (DiskProbe("", "EIO", 0.01), SOUND, False),
        (DiskProbe("", "", inf), SOUND, False),
    ],
)
def test_what_was_met_is_compared_with_what_is_wanted(
    seen: DiskProbe, wanted: DiskFault, good: bool
) -> None:
    """Of a fault that makes syncs take 0.5 s; a sound disk needs less than that."""
    assert matches_fault(seen, wanted, DiskFault("", sync_s=0.5)) is good


@pytest.mark.parametrize(
    ("own", "others", "hidden"),
    [
        (DiskFault("", full=True), DiskFault("", read_only=True), True),
        (DiskFault("", read_only=True), DiskFault("", full=True), False),
        (DiskFault("", full=True), DiskFault("", full=True), False),
        (DiskFault("", full=True), DiskFault("", sync_s=inf), False),
        (DiskFault("", sync_s=0.3), DiskFault("", sync_s=1.0), True),
        (DiskFault("", sync_s=0.3), DiskFault("", sync_s=inf), True),
        (DiskFault("", sync_s=0.3), DiskFault("", sync_fails=True), False),
        (DiskFault("", sync_s=1.0), DiskFault("", sync_s=0.3), False),
        (DiskFault("", sync_fails=True), DiskFault("", sync_s=inf), True),
        (DiskFault("", sync_fails=True), DiskFault("", sync_s=0.3), False),
    ],
)
def test_a_fault_under_a_worse_one_is_hidden(
    own: DiskFault, others: DiskFault, hidden: bool
) -> None:
    """The prober meets the other one's effect, with this one or without it."""
    wanted = merge([own, others])
    assert wanted
    assert is_hidden(wanted, own) is hidden


def test_a_full_disk_below_a_read_only_one_was_not_seen(tmp_path: Path) -> None:
    """All writes fail because of the other; and of syncs that fail late both faults are seen."""
    plan = "".join(
        f'[[fault]]\nkind = "{kind}"\nat_s = {at_s}\nfor_s = 2.0\ntarget = "nameserver"\n{more}'
        for kind, at_s, more in (
            ("read-only", 1.0, ""),
            ("disk-full", 2.0, ""),
            ("fsync", 6.0, 'params = { how = "fail" }\n'),
            ("fsync", 6.5, 'params = { how = "slow", delay_s = 0.2 }\n'),
        )
    )
    trial = Trial(hosts="simulated", short_faults=True, duration_s=10.0, load={"rate": 20.0})
    played = simulate(trial, plan, tmp_path / "run")
    assert [row["state"] for row in rows(played)] == ["installed", "failed"] + ["installed"] * 2
    assert all(row["healed"] for row in rows(played))


@pytest.mark.parametrize(
    ("took_s", "wanted_s", "good"),
    [
        (0.62, 0.2, True),
        (0.41, 0.2, False),  # it takes as long by itself
        (0.41, 0.0, True),  # and so it does when it is healed
        (0.62, 0.0, False),
    ],
)
def test_a_slow_sync_is_slower_than_before(took_s: float, wanted_s: float, good: bool) -> None:
    """Of a disk that takes 0.4 s by itself, and a fault that adds 0.2 s."""
    slow = DiskFault("", sync_s=0.2)
    wanted = DiskFault("", sync_s=wanted_s)
    assert matches_fault(DiskProbe("", "", took_s), wanted, slow, 0.4) is good


def test_the_prober_is_patient_enough_to_see() -> None:
    """Longer than a slow sync takes; for one that hangs, no longer than it has to."""
    assert probe_timeout_s(DiskFault("", sync_s=10.0)) > 20
    assert probe_timeout_s(DiskFault("", sync_s=inf)) < 1
    assert describe_probe(DiskProbe("EROFS", "", 0.01)) == "a write fails with EROFS"
    assert describe_probe(DiskProbe("", "", 0.2)) == "a sync took 200 ms"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_drawn_is_allowed(kind: str) -> None:
    """Drawn targets and parameters pass the fault's own check, and targets can be restricted."""
    plugin = registry.fault(kind)
    for seed in range(20):
        target, params = plugin.draw(Random(seed), ())
        assert target
        for name, value in params.items():
            assert not plugin.params[name].among or value in plugin.params[name].among
        assert plugin.draw(Random(seed), ("broker-2",))[0] == "broker-2"


def test_drawn_wipes_hit_a_minority() -> None:
    """What takes synced data away is drawn for brokers, and never for more than a minority."""
    for kind in ("wipe", "corrupt"):
        targets = registry.module("fault", kind).TARGETS
        assert not [t for t in targets if "majority" in t or "all" in t or "controller" in t]
    assert Observation("installed").measured == ""


@pytest.mark.parametrize(
    ("by", "keeps", "disk", "calls"),
    [
        ("auto", "nothing", True, False),
        ("auto", "part", False, True),
        ("calls", "nothing", False, True),
        ("disk", "nothing", True, False),
    ],
)
def test_unsynced_needs_the_disk_or_the_interposer_and_never_both(
    by: str, keeps: str, disk: bool, calls: bool
) -> None:
    """The interposer costs time, so it is not under processes that do not need it."""
    fault = PlannedFault("unsynced", 1.0, 9.0, "one broker", {"by": by, "keeps": keeps})
    both = frozenset({"own-disk", "unsynced"})
    needs = registry.fault("unsynced").needs_for(fault, both)
    assert ("own-disk" in needs, "unsynced" in needs) == (disk, calls)
    if by == "auto":
        assert "own-disk" not in registry.fault("unsynced").needs_for(fault, both - {"own-disk"})
    assert disk_needs(_plan.dump((fault,)), both) == needs & both


def test_what_was_installed_is_synced_on_disks_that_can_be_cut_only() -> None:
    """A simulated disk or the interposer has no need of it, and would forget what it recorded."""
    synced = []

    class Plain:
        def __init__(self, name: str) -> None:
            self.name = name

        async def keep_unsynced(self) -> None:
            synced.append(self.name)

    class WithDisk(Plain):
        async def cut_disk(self, process: str) -> None: ...

    agents = {"broker-1": WithDisk("broker-1"), "broker-2": Plain("broker-2")}
    asyncio.run(sync_own_disks(cast(Any, SimpleNamespace(agents=agents))))
    assert synced == ["broker-1"]


def test_a_disk_that_keeps_a_part_is_refused() -> None:
    fault = PlannedFault("unsynced", 1.0, 9.0, "one broker", {"by": "disk", "keeps": "part"})
    with pytest.raises(BadRequest, match='say keeps = "nothing", too'):
        registry.fault("unsynced").check(fault)


def test_simulated_hosts_have_no_disk_of_the_kernel() -> None:
    """Refused before a node is raised, in one sentence that says what to do."""
    fault = PlannedFault("unsynced", 1.0, 9.0, "one broker", {"by": "disk", "keeps": "nothing"})
    trial = Trial(hosts="simulated", short_faults=True)
    with pytest.raises(Unsupported, match="choose local hosts, as root; or leave `by` out"):
        make_plan(trial, _plan.dump((fault,)))
