"""Labels that mark what a run makes on an engine, so that it can be found and removed.

Everything that a run makes carries the run's folder and the machine of its driver. Removal goes by
these labels, never by what the driver remembers: a call that timed out may still have made its
container. It is complete when the engine lists nothing more.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from typing import Any

from docker import DockerClient
from docker.errors import APIError, NotFound

from clusters.hosts._agent.machine_id import driver_id
from clusters.hosts._agent.threads import start_thread
from harness.history.runs import is_over
from harness.text.plurals import quantity

KIND, RUN, DRIVER, NODE = "seatrial", "seatrial.run", "seatrial.driver", "seatrial.node"
TARGETS = "seatrial.attached"  # ids of the containers that faults of an attached run may hit
REMOVE_WITHIN_S = 60.0
AGAIN_AFTER_S = 0.2
STEM_LENGTH = 60

Labels = Mapping[str, str]


def labels(run: Path, kind: str, node: str = "") -> dict[str, str]:
    """Return the labels of something that a run makes. `kind`: node, holder, network, folder."""
    return {KIND: kind, RUN: str(run), DRIVER: driver_id()} | ({NODE: node} if node else {})


def name(run: Path, what: str) -> str:
    """Return a name on the engine that is unique to this run."""
    stem = re.sub(r"[^a-zA-Z0-9_.-]", "-", run.name)[:STEM_LENGTH]
    digest = hashlib.sha256(f"{driver_id()}:{run}".encode()).hexdigest()[:6]
    return f"seatrial-{stem}-{digest}-{what}"


def abandoned_runs(client: DockerClient, own: Path) -> set[Path]:
    """Return finished runs of this machine that left something on the engine."""
    kept = client.api.containers(all=True, filters=_of_driver(), size=False)
    kept += client.api.networks(filters=_of_driver())
    runs = {Path(one["Labels"][RUN]) for one in kept if RUN in one["Labels"]}
    return {run for run in runs - {own} if is_over(run)}


def is_abandoned(labels: Labels) -> bool:
    """Return whether these labels are of a finished run of this machine, which the next run
    removes."""
    return labels.get(DRIVER) == driver_id() and RUN in labels and bool(is_over(Path(labels[RUN])))


def remove(client: DockerClient, run: Path, within_s: float = REMOVE_WITHIN_S) -> list[str]:
    """Remove all that the run made; return a list of it. Raises TimeoutError if something stays."""
    deadline = time.monotonic() + within_s
    counts: dict[str, set[str]] = {}
    while left := _leftovers(client, run):
        for what, identity, _ in left:
            counts.setdefault(what, set()).add(identity)
        _remove(left, deadline)
        if time.monotonic() >= deadline:
            raise TimeoutError(", ".join(f"{what} {identity}" for what, identity, _ in left))
    return [quantity(len(identities), what) for what, identities in counts.items()]


def containers(client: DockerClient, run: Path) -> Sequence[dict[str, Any]]:
    """Return the containers of a run of this machine."""
    filters = {"label": [f"{RUN}={run}", f"{DRIVER}={driver_id()}"]}
    found: Sequence[dict[str, Any]] = client.api.containers(all=True, filters=filters)
    return found


def start_stopped(client: DockerClient, run: Path) -> list[str]:
    """Start the containers that ran when a run attached to them and do not now; return a list of
    them. For a run that did not end by itself: a fault may have killed them."""
    started = []
    for ours in containers(client, run):
        for node, identity in json.loads(ours["Labels"].get(TARGETS, "{}")).items():
            try:
                now = client.api.inspect_container(identity)
                if not now["State"]["Running"]:
                    client.api.start(identity)
                    started.append(f"{node} ({now['Name'].lstrip('/')})")
            except NotFound:
                continue
    return started


Leftover = tuple[str, str, Callable[[], None]]


def _leftovers(client: DockerClient, run: Path) -> Sequence[Leftover]:
    """Return what there is of the run and how to remove it: containers before what they use."""
    api, filters = client.api, {"label": [f"{RUN}={run}", f"{DRIVER}={driver_id()}"]}
    ours: Sequence[Leftover] = [
        ("container", one["Id"], partial(api.remove_container, one["Id"], force=True, v=True))
        for one in containers(client, run)
    ]
    if ours:
        return ours
    return [
        *(
            ("network", one["Id"], partial(api.remove_network, one["Id"]))
            for one in api.networks(filters=filters)
        ),
        *(
            ("volume", one["Name"], partial(api.remove_volume, one["Name"], force=True))
            for one in api.volumes(filters=filters)["Volumes"] or ()
        ),
    ]


def _remove(left: Sequence[Leftover], deadline: float) -> None:
    futures = [start_thread(remove) for _, _, remove in left]
    done, _ = wait(futures, timeout=max(deadline - time.monotonic(), 0.0))
    errors = [e for future in done if (e := future.exception()) and not isinstance(e, NotFound)]
    for error in errors:
        if not isinstance(error, APIError):  # the engine is gone
            raise error
    if errors:  # still in use, or already being removed: try again
        time.sleep(AGAIN_AFTER_S)


def _of_driver() -> dict[str, Any]:
    return {"label": [f"{DRIVER}={driver_id()}"]}
