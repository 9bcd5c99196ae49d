"""What a slave does with its log in each of the six cases, by the nodes' event logs.

Real stores and real links in a simulated world; the transcripts are golden files.
"""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from golden import compare
from ha_lab import HaLab, Side, eventually, play

from clusters.flotilla.broker.role import describe
from clusters.flotilla.replication.divergence import LogShape
from clusters.flotilla.replication.epochs import EpochTable, append_epoch
from clusters.flotilla.rules import RULES
from clusters.flotilla.steering.controller_link import ReplicaInfo
from clusters.flotilla.store import record

Reigns = tuple[tuple[int, int], ...]
FIELDS = ("case", "action", "point", "before", "confirm", "slave", "master", "start", "why")
KINDS = ("log-case", "cutting", "truncate", "epoch", "halted")

# the master holds 1000..3000, the end of epoch 2 and epoch 3
MASTER: Reigns = ((2, 2000), (3, 3000))
CASES: tuple[tuple[str, int, Reigns], ...] = (
    ("1-1  a slave that was away for longer than the master keeps", 0, ((1, 800),)),
    ("1-1  a blank slave", 0, ()),
    ("1-2  plain lag, with more history than the master keeps", 0, ((1, 900), (2, 1500))),
    ("2-2  plain lag", 1000, ((2, 2000), (3, 2500))),
    ("1-3  an old master's unconfirmed tail", 0, ((1, 900), (2, 2000), (3, 3500))),
    ("2-3  a fork: epoch 2 went on here, epoch 3 began there", 1000, ((2, 3500),)),
    ("3-3  the master lost data and was elected all the same", 3500, ((3, 4000),)),
)
CITED = """\
The six relative positions of a slave's log and its master's
source: RIP-44 and the article on RocketMQ's new high availability. A case is named by
where the slave's first and last byte lie: 1 below the master's log, 2 inside, 3 above it.
"""


def drawn(shape: LogShape) -> str:
    epochs = ", ".join(f"{epoch}: {start}" for epoch, start in shape.epochs.entries)
    return f"{shape.min_offset}..{shape.max_offset} {{{epochs}}}"


def said(side: Side, since: int = 0) -> list[str]:
    rows = [row for row in side.events()[since:] if row["kind"] in KINDS]
    return ["    " + " ".join([row["kind"], *_fields(row)]) for row in rows]


def _fields(row: dict[str, object]) -> list[str]:
    shown = ("epoch", "start") if row["kind"] == "epoch" else FIELDS
    return [f"{key}={json.dumps(row[key])}" for key in shown if key in row]


def same(slave: Side, master: Side) -> bool:
    """From where both logs begin: the same epochs, and the same bytes to the end."""
    ours, theirs = slave.shape(), master.shape()
    low = max(ours.min_offset, theirs.min_offset)
    bytes_alike = (
        slave.bytes()[low - ours.min_offset :] == master.bytes()[low - theirs.min_offset :]
    )
    return bytes_alike and ours.epochs.clip(low) == theirs.epochs.clip(low)


async def told(lab: HaLab, title: str, begin: int, reigns: Reigns) -> list[str]:
    """Return the transcript of one case."""
    master, slave = await lab.side(), await lab.side()
    await master.fill(*MASTER, begin=1000)
    await slave.fill(*reigns, begin=begin)
    await master.reign(4)
    before, since = slave.shape(), len(slave.events())
    await slave.follow(master, 4)
    await eventually(lambda: slave.slave.halted or same(slave, master))
    equal = slave.slave.state if slave.slave.halted else "the master's bytes"
    lines = ["", title, f"  master {drawn(master.shape())}", f"  slave  {drawn(before)}"]
    lines += [*said(slave, since), f"  then   {drawn(slave.shape())}, {equal}"]
    await slave.close()
    await master.close()
    return lines


def test_the_six_cases(rewrite: bool) -> None:
    """Every case ends with the master's bytes, or halted and waiting for an operator."""
    lines = [CITED.rstrip()]

    async def scenario(lab: HaLab) -> None:
        for title, begin, reigns in CASES:
            lines.extend(await told(lab, title, begin, reigns))

    play(scenario)
    compare("log-cases", "\n".join(lines) + "\n", rewrite)


def test_the_epoch_example(rewrite: bool) -> None:
    """The article's example: epoch 8 began at different offsets, so the logs diverge within epoch
    7."""
    lines = [
        "Where two logs part",
        "source: the article's example; both logs end at 2500",
        "",
    ]

    async def scenario(lab: HaLab) -> None:
        master, slave = await lab.side(), await lab.side()
        await master.fill((6, 1200), (7, 2500), begin=200)
        await master.reign(8)
        await slave.fill((6, 1200), (7, 2250), (8, 2500), begin=200)
        lines.extend([f"  master {drawn(master.shape())}", f"  slave  {drawn(slave.shape())}"])
        since = len(slave.events())
        await slave.follow(master, 8)
        await eventually(lambda: slave.shape() == master.shape())
        assert slave.bytes() == master.bytes()
        lines.extend([*said(slave, since), f"  then   {drawn(slave.shape())}, the same bytes"])

    play(scenario)
    compare("epoch-example", "\n".join(lines) + "\n", rewrite)


def test_the_confirm_offset_example(rewrite: bool) -> None:
    """Bytes above the confirm offset may have been acknowledged, so they are kept
    (apache/rocketmq#5209)."""
    lines = [
        "A slave is promoted that does not know what its master acknowledged",
        "source: the article's example: the confirm offset is 40, the data goes on to",
        "100, the master dies before it tells. Offsets here are ten times as large.",
        "",
    ]

    async def scenario(lab: HaLab) -> None:
        slave = await lab.side()
        await slave.fill((1, 1000))
        store = slave.replica.store
        store.confirm(400)
        held = slave.bytes()
        lines.append(f"  slave  {drawn(slave.shape())}, confirm {store.confirm_offset}")
        since = len(slave.events())
        await slave.reign(2)
        own = store.log.written
        store.confirm(RULES.confirm_offset(store.confirm_offset, own, {}, (), True))
        lines.extend(said(slave, since))
        lines.append(f"  master {drawn(slave.shape())}, confirm {store.confirm_offset}")
        assert slave.bytes() == held

    play(scenario)
    compare("confirm-example", "\n".join(lines) + "\n", rewrite)


def test_a_halted_slave_waits_for_a_person_and_for_the_next_master() -> None:
    """Case 3-3: nothing is cut and no handshake is repeated; another master is followed."""

    async def scenario(lab: HaLab) -> None:
        wiped, sound, slave = await lab.side(), await lab.side(), await lab.side()
        await wiped.fill((1, 500))
        await wiped.reign(4)
        await sound.fill((1, 3000), (3, 4000))
        await slave.fill((3, 4000), begin=3500)
        held = slave.bytes()
        await slave.follow(wiped, 4)
        await eventually(lambda: slave.slave.state == "halted")
        asked = len(wiped.events("handshake"))
        await eventually(lambda: not wiped.ha.links)
        assert slave.bytes() == held
        assert "needs an operator" in slave.events("halted")[-1]["why"]
        assert "behind the master's end" in told_by(slave)["needsOperator"]
        await sound.reign(5)
        await slave.follow(sound, 5)
        await eventually(lambda: slave.slave.state == "transfer")
        assert (slave.slave.halted, len(wiped.events("handshake"))) == ("", asked)

    play(scenario)


def told_by(side: Side) -> dict[str, Any]:
    """Return how a broker with this slave describes itself."""
    link = SimpleNamespace(id=side.number, info=ReplicaInfo(), halted="")
    role: Any = SimpleNamespace(
        acting=None,
        config=side.config,
        replica=side.replica,
        link=link,
        leadership=None,
        ha=side.ha,
        slave=side.slave,
    )
    return describe(role, 0.0)


@pytest.mark.parametrize("own_epoch", [3, 9])
def test_a_log_that_was_emptied_forgets_its_epochs(own_epoch: int) -> None:
    """Otherwise the master's older epochs would always be refused (case 1-1)."""

    async def scenario(lab: HaLab) -> None:
        master, slave = await lab.side(), await lab.side()
        await master.fill(*MASTER, begin=1000)
        await master.reign(own_epoch + 1)
        await slave.fill((own_epoch, 800))
        await slave.follow(master, own_epoch + 1)
        await eventually(lambda: slave.shape() == master.shape())
        assert slave.bytes() == master.bytes()
        await slave.close()
        await slave.open()
        assert slave.shape() == master.shape()

    play(scenario)


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("wiped", [False, True])
def test_a_fork_that_was_cut_does_not_come_back(wiped: bool, power: bool) -> None:
    """Killed or without power at any moment around the cut, a slave opens with a front of its old
    log or of its master's, and epochs to match (apache/rocketmq#10666), also if the table was
    emptied. Once the cut is reported it is the master's."""

    async def scenario(lab: HaLab) -> None:
        master = await lab.side()
        if not wiped:
            await master.fill((1, 300), (3, 600))
        await master.reign(4)
        wanted, seen = master.bytes(), set[str]()
        for step in range(50):
            slave = await lab.side()
            await slave.fill((1, 500), (2, 1000))
            await slave.replica.store.flush()
            fork = slave.bytes()
            await slave.follow(master, 4)
            await asyncio.sleep(step * 0.00025)
            seen.add(state := slave.slave.state)
            slave.die()
            if power:
                lab.disk.power_cut()
            await slave.open()
            held = slave.bytes()
            whose = wanted.startswith(held) or (state != "transfer" and fork.startswith(held))
            assert whose, (step, state)
            assert slave.shape().epochs == epochs_of(held, slave), (step, state)
            await slave.follow(master, 4)
            await eventually(lambda slave=slave: slave.shape() == master.shape())
            assert slave.bytes() == wanted
            await slave.close()
        assert seen >= {"dialling", "cutting", "transfer"}

    play(scenario)


def epochs_of(held: bytes, slave: Side) -> EpochTable:
    """Return the epochs by the records; a last one without records is known to the file only."""
    table = EpochTable()
    for e in record.entries(held, 0):
        table = append_epoch(table, e.epoch, e.offset)
    last = slave.shape().epochs
    return (
        append_epoch(table, last.last_epoch, len(held)) if last.last_start == len(held) else table
    )
