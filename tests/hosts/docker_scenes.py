"""Scenes on Docker hosts in which another person or a fault changes the containers.

    python docker_scenes.py NAME RUN [BED]

They run inside the Docker lab, like `scenes.py`, with the same stage, and print their observations
as JSON. Containers are changed through the SDK, as the `docker` command would do it.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import docker as sdk
from scenes import SLEEPER, Seen, Stage, _refused, until

from clusters.hosts._agent.driver import SECRET
from clusters.hosts.docker import hosts as docker
from clusters.hosts.docker import labels as _docker_marks
from harness.contracts import LinkRule, Node
from harness.errors import BedFailed
from harness.trial import Trial

SHOUT = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(int(sys.argv[3])):
    s.sendto(b"seatrial probe " + sys.argv[2].encode(), (sys.argv[1], 61007))
"""
NODES = [Node(name, "broker") for name in "abc"]
Scene = Callable[[Stage, Path], Awaitable[Seen]]


def container(run: Path, node: str) -> Any:
    """Return a node's container."""
    return sdk.from_env().containers.get(_docker_marks.name(run, node))


async def restarted(stage: Stage, run: Path) -> Seen:
    """b is cut off from a, and its container is restarted by hand."""
    for here, there in ("ab", "ba"):
        await stage.agent[here].links([LinkRule(stage.address[there])])
    b = container(run, "b")
    await asyncio.to_thread(b.restart, timeout=0)
    token = os.urandom(8).hex()
    shout = ["python3", "-c", SHOUT, stage.address["a"], f"{SECRET} {token}", "50"]
    shouted = await asyncio.to_thread(b.exec_run, shout)
    await stage.agent["a"].probe(stage.address["b"], token, 50)
    await stage.agent["c"].probe(stage.address["b"], token, 50)
    return {
        "shouted": shouted.exit_code,
        "dropped by a": dict(await stage.agent["a"].dropped()),
        "arrived at a": await stage.agent["a"].probed(token),
        "rules of b": b.exec_run(["iptables-save", "-c"]).output.decode(),
        "agent of b": await _refused(stage.agent["b"].state("x")),
        "addresses": stage.address,
    }


async def removed(stage: Stage, run: Path) -> Seen:
    """b's container is removed by hand while the driver waits for one of its processes."""
    await stage.agent["b"].start("sleeper", SLEEPER)
    await stage.agent["b"].put("/seatrial/b/log", b"last words")
    waiting = asyncio.ensure_future(_refused(stage.agent["b"].exited("sleeper")))
    await asyncio.to_thread(container(run, "b").remove, force=True)
    return {
        "open call": await waiting,
        "next call": await _refused(stage.agent["b"].state("sleeper")),
        "others": await stage.arriving("a", "c"),
    }


async def inside(stage: Stage, run: Path) -> Seen:
    """Properties of a node, from inside and as the engine reports them."""
    agent = stage.agent["a"]

    async def says(*argv: str) -> str:
        return (await agent.run(list(argv))).out

    fill = f"head -c 100000000 /dev/zero > {stage.hosts.folder('a')}/ballast"
    config = container(run, "a").attrs["HostConfig"]
    network = sdk.from_env().networks.get(_docker_marks.name(run, "network"))
    return {
        "capabilities": await says("sh", "-c", "grep CapEff /proc/self/status"),
        "process 1": await says("cat", "/proc/1/comm"),
        "ipv6 off": await says("cat", "/proc/sys/net/ipv6/conf/all/disable_ipv6"),
        "internal": network.attrs["Internal"],
        "filling": (await agent.run(["sh", "-c", fill])).err,
        "address": stage.address["a"],
        "holder": container(run, "a-holder").attrs["HostConfig"],
        "config": config,
    }


async def held(stage: Stage, run: Path) -> Seen:
    """a is cut off and has a process; then the scene waits until this driver is killed."""
    await stage.agent["a"].start("sleeper", SLEEPER)
    await stage.agent["a"].links([LinkRule(stage.address["b"])])
    print(json.dumps({"pid": os.getpid()}), flush=True)
    await asyncio.Event().wait()
    return {}


async def nothing(stage: Stage, run: Path) -> Seen:
    return {"address": stage.address["a"]}


async def written(stage: Stage, run: Path) -> Seen:
    """Files of nodes: many bytes, and on a node that is stopped by hand."""
    for node in "abc":
        await stage.agent[node].put(f"{stage.hosts.folder(node)}/logs/log", node.encode() * 3)
    large = f"{stage.hosts.folder('a')}/large"
    await stage.agent["a"].run(["truncate", "-s", "65M", large])
    await asyncio.to_thread(container(run, "b").kill)
    return {}


async def interrupted(run: Path, bed: Any) -> Seen:
    """The driver is interrupted while nodes are being started."""
    hosts = docker.hosts(Trial(bed=bed), run)
    raising = asyncio.ensure_future(hosts.start_nodes(NODES).__aenter__())
    api, own = sdk.from_env().api, {"label": f"{_docker_marks.RUN}={run}"}

    async def begun() -> bool:
        return bool(await asyncio.to_thread(api.containers, all=True, filters=own))

    seen: Seen = {"begun": await until(begun)}
    raising.cancel()
    await asyncio.wait([raising])
    left = len(api.containers(all=True, filters=own))
    return seen | {"left": left, "cancelled": raising.cancelled()}


async def slow(stage: Stage, run: Path) -> Seen:
    """The engine stops answering."""
    docker.DOWNLOAD_WITHIN_S = docker.LEAVE_WITHIN_S = _docker_marks.REMOVE_WITHIN_S = 0.5
    print(json.dumps({"pid": os.getpid()}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    return {}


SCENES: dict[str, Scene] = {
    scene.__name__: scene for scene in (restarted, removed, inside, held, nothing, written, slow)
}


async def play(name: str, run: Path, bed: Any) -> Seen:
    hosts = docker.hosts(Trial(hosts="docker", bed=bed), run)
    async with hosts.start_nodes(NODES) as (nodes, agents):
        return await SCENES[name](Stage(nodes, agents, hosts), run)


def main(name: str, run: Path, bed: Any) -> None:
    began_s = time.monotonic()
    playing = interrupted(run, bed) if name == "interrupted" else play(name, run, bed)
    try:
        seen = asyncio.run(playing)
    except BedFailed as e:
        seen = {"failed": str(e)}
    print(json.dumps(seen | {"took_s": time.monotonic() - began_s}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3] if len(sys.argv) > 3 else "{}"))
