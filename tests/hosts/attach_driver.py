"""A driver of attached hosts: `python attach_driver.py SCENE RUN INVENTORY LEASE_S`.

It attaches to `server-1` to `server-3`. The scene `faults` hits them, heals, and prints its
observations as JSON; `held` hits them, prints its pid, and waits until it is killed.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scenes import Stage

from clusters.hosts import attached
from clusters.hosts.ssh import hosts as ssh
from harness.contracts import Agent, LinkRule, Node, ProcessState
from harness.trial import Trial

NAME = "toy"  # whatever a system calls its process
SERVERS = [f"server-{n + 1}" for n in range(3)]
NODES = [*(Node(name, "server") for name in SERVERS), Node("client-1", "client")]


async def faults(stage: Stage) -> dict[str, Any]:
    """Kill server-1, pause server-2, and cut server-3 off from server-1; kill server-3 as well, and
    start it while it is cut off."""
    seen: dict[str, Any] = {}
    one, two, three = (stage.agent[name] for name in SERVERS)
    before = await one.state(NAME)
    exited = asyncio.ensure_future(one.exited(NAME))
    await one.signal(NAME, signal.SIGKILL)
    seen["code"] = await exited
    seen["killed"] = (await one.state(NAME)).state
    await stage.hosts.start_process("server-1")  # type: ignore[attr-defined]
    after = await one.state(NAME)
    seen["started"], seen["new pid"] = after.state, after.pid != before.pid
    await two.signal(NAME, signal.SIGSTOP)
    now = await stopped(two)
    seen["paused"], seen["threads"] = now.state, "".join(sorted(set(now.threads)))
    await two.signal(NAME, signal.SIGCONT)
    seen["resumed"] = (await two.state(NAME)).state
    seen["open"] = await stage.arriving("server-1", "server-3", 20)
    await three.links([LinkRule(stage.address["server-1"])])
    seen["cut"] = await stage.arriving("server-1", "server-3", 20)
    await three.signal(NAME, signal.SIGKILL)
    await three.exited(NAME)
    seen["network"] = not await three.lacks("network")
    await stage.hosts.start_process("server-3")  # type: ignore[attr-defined]
    await three.state(NAME)
    seen["cut after its start"] = await stage.arriving("server-1", "server-3", 20)
    seen["client"] = await stage.arriving("client-1", "server-3", 20)
    await three.links([])
    seen["healed"] = await stage.arriving("server-1", "server-3", 20)
    return seen


async def stopped(agent: Agent) -> ProcessState:
    """Return the state of a process once the signal has reached all its threads."""
    now = await agent.state(NAME)
    for _ in range(50):
        if set(now.threads) == {"T"}:
            break
        await asyncio.sleep(0.1)
        now = await agent.state(NAME)
    return now


async def held(stage: Stage) -> dict[str, Any]:
    """Hit all three, and wait."""
    one, two, three = (stage.agent[name] for name in SERVERS)
    await one.signal(NAME, signal.SIGKILL)
    await one.exited(NAME)
    await two.signal(NAME, signal.SIGSTOP)
    await three.links([LinkRule(stage.address["server-1"])])
    print(json.dumps({"pid": os.getpid()}), flush=True)
    await asyncio.Event().wait()
    return {}


async def drive(scene: str, run: Path, inventory: str) -> Mapping[str, Any]:
    trial = Trial(hosts="attached", bed={"inventory": inventory})
    hosts = attached.hosts(trial, run)
    async with hosts.start_nodes(NODES) as (nodes, agents):
        typed: Mapping[str, Agent] = agents
        return await {"faults": faults, "held": held}[scene](Stage(nodes, typed, hosts))


def main(scene: str, run: str, inventory: str, lease_s: str) -> None:
    ssh.LEASE_S = float(lease_s)
    print(json.dumps(asyncio.run(drive(scene, Path(run), inventory))))


if __name__ == "__main__":
    main(*sys.argv[1:])
