"""Hosts that are not to be had on this machine: what would run there is left out, and told.

A suite of local, simulated and Docker trials says what it can where no Docker engine answers. Its
runs on Docker are rows like all others, with the reason, and count as undecided; nothing that was
left out looks like something that held. Where nothing at all can run, the suite is refused.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.cli.doctor import refuse_unready
from harness.errors import BedFailed
from harness.suite.course import Turn


def absent(turns: Sequence[Turn], runs: Path, known: bool = False) -> Mapping[str, str]:
    """Why a run can not be made here, by the key of its turn. BedFailed when none can, unless
    others are `known` already."""
    failed: dict[str, BedFailed | None] = {}  # each kind of hosts, with its options, is asked once
    why = {}
    for turn in turns:
        trial = turn.cell.asked.trial
        hosts = json.dumps([trial.hosts, dict(trial.bed)], sort_keys=True, default=str)
        if hosts not in failed:
            failed[hosts] = _failed(trial.hosts, trial.bed, runs)
        if error := failed[hosts]:
            why[turn.key] = f"no {trial.hosts} hosts here: {' '.join(str(error).split())}"
    if turns and len(why) == len(turns) and not known:
        raise next(error for error in failed.values() if error)
    return why


def _failed(hosts: str, bed: Mapping[str, object], runs: Path) -> BedFailed | None:
    try:
        refuse_unready(hosts, bed, runs)
    except BedFailed as e:
        return e
    return None
