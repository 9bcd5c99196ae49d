"""How many copies a send waits for, as transcripts: RIP-34's examples, in a simulated cluster."""

from typing import Any

from golden import compare
from quorum_stage import Stage
from simulated_fleet import Fleet, Sailor

COPIES = {"allAckInSyncStateSet": False, "minInSyncReplicas": 1, "slaveTimeout": 3000}
NUMBERS = ("no", "one", "two", "three")


class Story:
    """The events, one line each."""

    def __init__(self, *head: str) -> None:
        self.lines = [*head, ""]

    def tell(self, what: str, outcome: str = "") -> None:
        self.lines.append(f"  {what:<42}{outcome}".rstrip())

    async def send(self, stage: Stage, when: str) -> None:
        """One send, and the replicas that hold it when it is answered."""
        sent = await stage.send()
        held = await stage.holders(sent.physical_offset + 1) if sent.physical_offset >= 0 else []
        copies = f"held by {len(held)}" if held else "not appended"
        self.tell(when, f"{sent.status.name}, {copies}")

    def sail(self, replicas: int, scene: Any, **settings: Any) -> None:
        async def scenario(sailor: Sailor) -> None:
            await scene(await Stage.of(sailor))

        Fleet(1, "allack-min2", COPIES | settings, nodes={"broker": replicas}).sail(scenario)

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def test_copies_of_replicas(rewrite: bool) -> None:
    """2 of 2, 2 of 3, 3 of 4 (RIP-34): the slaves vanish one by one, and are still members."""
    story = Story(
        "How many copies of how many replicas",
        "source: RIP-34: of two copies, if inSyncReplicas is 2, the message must be in",
        "both; of three, if it is 2, in the master and any slave; of four, if it is 3, in the",
        "master and any two slaves. In controller mode members of the SyncStateSet count, and",
        "nothing is refused before the set is smaller than minInSyncReplicas.",
    )
    for replicas, wanted in ((2, 2), (3, 2), (4, 3)):
        story.tell(f"{replicas} replicas, inSyncReplicas {wanted}")

        async def scene(stage: Stage) -> None:
            await story.send(stage, "    all slaves follow")
            for gone in range(1, len(stage.slaves) + 1):
                with stage.cut_off(*stage.slaves[:gone]):
                    slaves = "slave vanishes" if gone == 1 else "slaves vanish"
                    await story.send(stage, f"    {NUMBERS[gone]} {slaves}")
                await stage.abreast()

        story.sail(replicas, scene, inSyncReplicas=wanted)
        story.lines.append("")
    compare("copies", story.text.rstrip() + "\n", rewrite)


def test_automatic_degradation(rewrite: bool) -> None:
    """Two replicas, in-sync 2, minimum 1 (RIP-34): the slave dies, and sends succeed."""
    story = Story(
        "Two replicas that degrade by themselves",
        "source: RIP-34: if totalReplicas=2, inSyncReplicas=2, minInSyncReplicas=1, and",
        "enableAutoInSyncReplicas=true are set, under normal circumstances, the two replicas will",
        "be in synchronous replication. When the slave goes offline or hangs, adaptive downgrade",
        "will be performed, and the producer only needs to send to the master to succeed.",
    )
    auto = {"inSyncReplicas": 2, "haMaxGapNotInSync": 4096}

    async def scene(stage: Stage) -> None:
        [slave] = stage.slaves
        await story.send(stage, "the slave follows")
        await stage.sailor.kill(slave)
        await story.send(stage, "the slave dies")
        await stage.until_members(stage.master)
        await story.send(stage, "the set is {master}")
        await stage.sailor.start(slave)
        await stage.abreast()
        await story.send(stage, "the slave is back")
        with stage.cut_off(slave):
            await story.send(stage, "the slave hangs")
            await stage.wave(120)
            await story.send(stage, "it is 4 KiB behind")
            assert len(await stage.members()) == 2
            story.tell("it is still a member", "and may be elected")
        await stage.abreast()
        await story.send(stage, "the slave is back")

    story.tell("enableAutoInSyncReplicas = true")
    story.sail(2, scene, **auto, enableAutoInSyncReplicas=True)
    story.tell("")

    async def without(stage: Stage) -> None:
        [slave] = stage.slaves
        await story.send(stage, "the slave follows")
        await stage.sailor.kill(slave)
        await story.send(stage, "the slave dies")
        await stage.until_members(stage.master)
        await story.send(stage, "the set is {master}")

    story.tell("enableAutoInSyncReplicas = false")
    story.sail(2, without, **auto)
    compare("degradation", story.text, rewrite)
