"""Whose container is this? Labels say it, so that what a run made is found again and removed.

Everything a run makes on an engine carries the run's folder and the machine of its driver.

Removing goes by these labels, never by what somebody remembers having made: a call that was given
up may still have made its container. It is over when the engine lists nothing more.
"""

import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from typing import Any

from docker import DockerClient
from docker.errors import APIError, NotFound

from clusters.hosts._agent.machine_id import driver
from clusters.hosts._agent.threads import started
from harness.history.runs import is_over

KIND, RUN, DRIVER, NODE = "seatrial", "seatrial.run", "seatrial.driver", "seatrial.node"
REMOVE_WITHIN_S = 60.0
AGAIN_AFTER_S = 0.2
STEM_LENGTH = 60

Labels = Mapping[str, str]


def labels(run: Path, kind: str, node: str = "") -> dict[str, str]:
    """What something that a run makes is labelled with. `kind`: node, holder, network, folder."""
    return {KIND: kind, RUN: str(run), DRIVER: driver()} | ({NODE: node} if node else {})


def name(run: Path, what: str) -> str:
    """A name on the engine that no other run gives."""
    stem = re.sub(r"[^a-zA-Z0-9_.-]", "-", run.name)[:STEM_LENGTH]
    digest = hashlib.sha256(f"{driver()}:{run}".encode()).hexdigest()[:6]
    return f"seatrial-{stem}-{digest}-{what}"


def abandoned(client: DockerClient, own: Path) -> set[Path]:
    """Runs of this machine that left something on the engine and are over."""
    kept = client.api.containers(all=True, filters=_of_driver(), size=False)
    kept += client.api.networks(filters=_of_driver())
    runs = {Path(one["Labels"][RUN]) for one in kept if RUN in one["Labels"]}
    return {run for run in runs - {own} if is_over(run)}


def will_go(found: Labels) -> bool:
    """Labels of what a run of this machine left: the next one removes it before it begins."""
    return found.get(DRIVER) == driver() and RUN in found and bool(is_over(Path(found[RUN])))


def removed(client: DockerClient, run: Path, within_s: float = REMOVE_WITHIN_S) -> list[str]:
    """Remove all that the run made, in words. TimeoutError when something stays."""
    deadline = time.monotonic() + within_s
    counts: dict[str, set[str]] = {}
    while left := _left(client, run):
        for what, identity, _ in left:
            counts.setdefault(what, set()).add(identity)
        _remove(left, deadline)
        if time.monotonic() >= deadline:
            raise TimeoutError(", ".join(f"{what} {identity}" for what, identity, _ in left))
    return [_words(what, len(identities)) for what, identities in counts.items()]


Left = tuple[str, str, Callable[[], None]]


def _left(client: DockerClient, run: Path) -> Sequence[Left]:
    """What there is of the run, and how it goes: containers before what they use."""
    api, filters = client.api, {"label": [f"{RUN}={run}", f"{DRIVER}={driver()}"]}
    containers: Sequence[Left] = [
        ("container", one["Id"], partial(api.remove_container, one["Id"], force=True, v=True))
        for one in api.containers(all=True, filters=filters)
    ]
    if containers:
        return containers
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


def _remove(left: Sequence[Left], deadline: float) -> None:
    futures = [started(remove) for _, _, remove in left]
    done, _ = wait(futures, timeout=max(deadline - time.monotonic(), 0.0))
    errors = [e for future in done if (e := future.exception()) and not isinstance(e, NotFound)]
    for error in errors:
        if not isinstance(error, APIError):  # the engine itself is gone
            raise error
    if errors:  # in use still, or being removed by somebody else: asked again
        time.sleep(AGAIN_AFTER_S)


def _of_driver() -> dict[str, Any]:
    return {"label": [f"{DRIVER}={driver()}"]}


def _words(what: str, count: int) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"
