"""The phases of a trial: its story, from an empty machine to a recorded history.

What each of them does, and how long it may take, `harness.run.trial_run` knows.
"""

from typing import TYPE_CHECKING

from harness.history.notes import FINAL_PHASE, OPEN_OPERATIONS

if TYPE_CHECKING:
    from harness.run.trial_run import (
        Voyage,  # which starts threads, and the runner must not have any yet
    )

BOARD_WITHIN_S = 30.0
STOP_WITHIN_S = 30.0  # a send may be open for all its retries
DRAIN_WITHIN_S = 120.0
COLLECT_WITHIN_S = 120.0
HURRY_S = 10.0  # for each part that is left, after an early end


async def run(voyage: "Voyage") -> None:
    """The story of a trial: from an empty machine to a recorded history, and an empty machine."""
    async with voyage.raised() as bed:
        await voyage.started(bed)
        async with voyage.manned(bed, BOARD_WITHIN_S) as crews, voyage.watched(bed, crews):
            voyage.mark("load", load_began_ns=voyage.now_ns())
            async with voyage.may(BOARD_WITHIN_S, HURRY_S, "beginning the load"):
                await crews.load(voyage.epoch_ns)
            await voyage.loaded_and_broken(bed)
            voyage.mark("healed")
            await voyage.recovered(bed)
            async with voyage.may(STOP_WITHIN_S, HURRY_S, OPEN_OPERATIONS):
                await crews.stop()
            load_ended_ns = voyage.now_ns()
            await voyage.caught_up(bed)
            voyage.mark("drain", load_ended_ns=load_ended_ns)
            async with voyage.may(DRAIN_WITHIN_S, HURRY_S, FINAL_PHASE):
                await crews.drain()
        async with voyage.may(COLLECT_WITHIN_S, HURRY_S, "collecting logs and replicas"):
            await voyage.collected(bed)
        voyage.mark("collected", collected_ns=voyage.now_ns())
    voyage.mark("ended")
