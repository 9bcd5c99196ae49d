"""The story of a trial: its steps in order, from an empty machine to a recorded history.

`harness.run.trial_run` carries out each step.
"""

from typing import TYPE_CHECKING

from harness.history.notes import FINAL_PHASE, OPEN_OPERATIONS

if TYPE_CHECKING:  # it starts threads, and the runner must not have any before it enters the hosts
    from harness.run.trial_run import TrialRun

OPEN_WITHIN_S = 30.0
STOP_WITHIN_S = 30.0  # a send may be open for all its retries
DRAIN_WITHIN_S = 120.0
DRAIN_IN_WORLD_S = 1800.0  # whose clock is not ours; readers without progress end by themselves
COLLECT_WITHIN_S = 120.0
HURRY_S = 10.0  # for each step that is left, after an early end


async def run(trial_run: "TrialRun") -> None:
    """Carry out a trial: from an empty machine to a recorded history, and an empty machine."""
    optional = trial_run.deadlines.optional
    async with trial_run.nodes_started() as bed:
        await trial_run.start_cluster(bed)
        async with (
            trial_run.open_clients(bed, within_s=OPEN_WITHIN_S) as clients,
            trial_run.monitored(bed, clients),
        ):
            trial_run.mark("load", load_began_ns=trial_run.now_ns())
            async with optional("beginning the load", within_s=OPEN_WITHIN_S, hurried_s=HURRY_S):
                await clients.load(trial_run.epoch_ns)
            await trial_run.run_load_and_plan(bed)
            trial_run.mark("healed")
            await trial_run.wait_recovered(bed)
            async with optional(OPEN_OPERATIONS, within_s=STOP_WITHIN_S, hurried_s=HURRY_S):
                await clients.stop()
            load_ended_ns = trial_run.now_ns()
            await trial_run.wait_caught_up(bed)
            trial_run.mark("drain", load_ended_ns=load_ended_ns)
            drain_s = DRAIN_IN_WORLD_S if trial_run.in_world else DRAIN_WITHIN_S
            async with optional(FINAL_PHASE, within_s=drain_s, hurried_s=HURRY_S):
                await clients.drain()
        collecting = "collecting logs and replicas"
        async with optional(collecting, within_s=COLLECT_WITHIN_S, hurried_s=HURRY_S):
            await trial_run.collect(bed)
        trial_run.mark("collected", collected_ns=trial_run.now_ns())
    trial_run.mark("ended")
