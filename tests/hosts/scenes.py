"""Scenes on hosts of any kind, each run in a process of its own.

    python scenes.py NAME[,NAME...] FOLDER [KIND [BED]]     BED: the options of the hosts, as JSON

Namespaces can be entered only by a process with one thread, which a test runner is not, and other
kinds of hosts run inside a lab. A scene does things to nodes, one after another, and prints its
observations as JSON; the tests check them.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness import registry
from harness.contracts import Agent, Hosts, LinkRule, Node
from harness.errors import BedFailed
from harness.trial import Trial
from nemesis._process.remote_program import run_program

Seen = dict[str, Any]
PATIENCE_S = 60.0
SLEEPER = ("sh", "-c", "sleep 1000 & wait")
SERVER = """
import socket, sys
s = socket.create_server((sys.argv[1], 7000)); print("ready", flush=True)
while True:
    c, _ = s.accept(); n = int.from_bytes(c.recv(4), "big"); b = c.recv(n)
    c.sendall(n.to_bytes(4, "big") + b.upper())
"""
WITNESS = """
import json, os, sys, time
while sys.stdin.readline():
    opened = []
    try:
        while len(opened) < 10:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    for fd in opened:
        os.close(fd)
    print(json.dumps([time.time(), len(opened)]), flush=True)
"""
GROUP = """
import json, os, sys
states = {}
for entry in filter(str.isdigit, os.listdir("/proc")):
    try:
        fields = open(f"/proc/{entry}/stat").read().rpartition(")")[2].split()
    except OSError:
        continue
    if fields[2] == sys.argv[1] and fields[0] not in "ZX":
        states[entry] = fields[0]
print(json.dumps(states))
"""


class Stage:
    """Three raised nodes, `a`, `b` and `c`."""

    def __init__(self, nodes: Sequence[Node], agents: Mapping[str, Agent], hosts: Hosts) -> None:
        self.address = {node.name: node.address for node in nodes}
        self.agent = agents
        self.hosts = hosts

    async def arriving(self, source: str, target: str, count: int = 200) -> int:
        """Return how many probes of `count` arrive, without waiting longer than necessary."""
        token = os.urandom(8).hex()
        await self.agent[source].probe(self.address[target], token, count)
        arrived, quiet = 0, 0
        while arrived < count and quiet < 5:
            await asyncio.sleep(0.02)
            now = await self.agent[target].probed(token)
            arrived, quiet = now, 0 if now > arrived else quiet + 1
        return arrived

    async def group(self, node: str, pgid: int) -> Mapping[str, str]:
        """Return the state letters of a process group's members, by pid, without zombies."""
        python = self.hosts.python(node).executable
        done = await self.agent[node].run([python, "-I", "-S", "-c", GROUP, str(pgid)])
        states: dict[str, str] = json.loads(done.out)
        return states


async def until(condition: Callable[[], Awaitable[bool]]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if await condition():
            return True
        await asyncio.sleep(0.02)
    return False


async def cut(stage: Stage) -> Seen:
    """b no longer receives from a; all other links work."""
    seen: Seen = {"before": await stage.arriving("a", "b")}
    await stage.agent["b"].links([LinkRule(stage.address["a"])])
    seen["a to b"] = await stage.arriving("a", "b")
    seen["dropped by b"] = dict(await stage.agent["b"].dropped())
    seen["b to a"] = await stage.arriving("b", "a")
    seen["c to b"] = await stage.arriving("c", "b")
    await stage.agent["b"].links(())
    seen["healed"] = await stage.arriving("a", "b")
    seen["dropped when healed"] = dict(await stage.agent["b"].dropped())
    seen["a"], seen["probes"] = stage.address["a"], 200
    return seen


async def loss(stage: Stage) -> Seen:
    """b loses 30 % of what a sends, in portions that fit into its socket's buffer even on a busy
    machine."""
    a, b, token = stage.agent["a"], stage.agent["b"], os.urandom(8).hex()
    await b.links([LinkRule(stage.address["a"], 0.3)])
    arrived = dropped = sent = 0

    async def accounted() -> bool:
        nonlocal arrived, dropped
        arrived = await b.probed(token)
        dropped = (await b.dropped())[stage.address["a"]]
        return arrived + dropped >= sent

    while sent < 2000 and await until(accounted):
        await a.probe(stage.address["b"], token, 200)
        sent += 200
    await until(accounted)
    await b.links(())
    return {"arrived": arrived, "dropped": dropped, "sent": sent}


async def late(stage: Stage) -> Seen:
    """b's link from a is delayed, the one from c is narrow, and a's own links are unchanged; then
    all are healed."""
    b = stage.agent["b"]
    seen: Seen = {"lacks": await b.lacks("pace"), "before": await prompt(stage, "a", "b")}
    late = LinkRule(stage.address["a"], 0.0, delay_s=0.3)
    narrow = LinkRule(stage.address["c"], 0.0, bytes_per_s=50_000)
    await b.links([late, narrow])
    seen["a to b"] = await flown(stage, "a", "b")
    seen["c to b"] = await flown(stage, "c", "b", size_bytes=972)
    seen["b to a"] = await prompt(stage, "b", "a")
    await b.links([LinkRule(stage.address["a"], 0.0, delay_s=0.3, reorder=0.5)])
    seen["overtaking"] = await flown(stage, "a", "b")
    await b.links([LinkRule(stage.address["a"], 0.0, delay_s=60.0)])
    token = os.urandom(8).hex()
    await stage.agent["a"].send_timed(stage.address["b"], token, 20, 64)
    await b.links(())

    async def let_go() -> bool:
        return len(await b.timed_arrivals(token)) == 20

    seen["let go"] = await until(let_go)
    seen["healed"] = await prompt(stage, "a", "b")
    return seen


async def prompt(stage: Stage, source: str, sink: str) -> list[list[float]]:
    """Return the result of `flown` on a link without delay; repeat it if the machine was busy."""
    for _ in range(5):
        seen = await flown(stage, source, sink)
        if min(late_s for _, late_s in seen) < 0.15:
            break
    return seen


async def flown(stage: Stage, source: str, sink: str, size_bytes: int = 64) -> list[list[float]]:
    """Return the numbers of twenty datagrams and the seconds that each took, less the clocks'
    offset, in the order of their arrival."""
    token = os.urandom(8).hex()
    clocks = [stage.hosts.clock(node) for node in (source, sink)]
    apart_ns = clocks[1].offset_ns - clocks[0].offset_ns
    await stage.agent[source].send_timed(stage.address[sink], token, 20, size_bytes)
    landed: list[Any] = []

    async def all_landed() -> bool:
        landed[:] = await stage.agent[sink].timed_arrivals(token)
        return len(landed) == 20

    await until(all_landed)
    return [[f.number, (f.arrived_ns - f.sent_ns - apart_ns) / 1e9] for f in landed]


async def pause(stage: Stage) -> Seen:
    """A stopped process is stopped with its whole group, and resumes."""
    agent = stage.agent["a"]
    pid = await agent.start("sleeper", SLEEPER)

    async def forked() -> bool:
        return len(await stage.group("a", pid)) == 2

    seen: Seen = {"forked": await until(forked), "running": (await agent.state("sleeper")).state}
    await agent.signal("sleeper", signal.SIGSTOP)

    async def stopped() -> bool:
        return set((await stage.group("a", pid)).values()) == {"T"}

    seen["all stopped"] = await until(stopped)
    seen["stopped"] = (await agent.state("sleeper")).state
    await agent.signal("sleeper", signal.SIGCONT)

    async def runs() -> bool:
        return (await agent.state("sleeper")).state == "running"

    seen["runs again"] = await until(runs)
    await agent.signal("sleeper", signal.SIGKILL)
    seen["code"] = await agent.exited("sleeper")

    async def gone() -> bool:
        return not await stage.group("a", pid)

    seen["all gone"] = await until(gone)
    seen["exited"] = (await agent.state("sleeper")).state
    return seen


async def processes(stage: Stage) -> Seen:
    """Processes start, print, and end; invalid requests are refused."""
    agent = stage.agent["a"]
    folder = stage.hosts.folder("a")
    heard: list[str] = []
    script = 'echo hello; read word; echo "$word!"; printf last; echo trouble >&2; exit 7'
    await agent.start(
        "talker", ["sh", "-c", script], log=f"{folder}/talker.log", on_line=heard.append
    )
    seen: Seen = {"twice": await _refused(agent.start("talker", ["true"]))}
    await agent.tell("talker", "ahoy")
    seen["code"] = await agent.exited("talker")
    seen["heard"] = heard
    seen["log"] = (await agent.get(f"{folder}/talker.log")).decode()
    seen["absent"] = (await agent.state("nobody")).state
    seen["unknown"] = await _refused(agent.signal("nobody", 9))
    seen["no program"] = await _refused(agent.start("x", ["/no/such/program"]))
    await agent.start("talker", ["sh", "-c", "echo $WORD; pwd"], env={"WORD": "x"}, cwd="/tmp",
                      log=f"{folder}/again.log")  # fmt: skip
    seen["again"] = await agent.exited("talker")
    seen["again log"] = (await agent.get(f"{folder}/again.log")).decode()
    return seen


async def commands(stage: Stage) -> Seen:
    """Single commands and files."""
    agent = stage.agent["a"]
    big = os.urandom(700_000)
    path = f"{stage.hosts.folder('a')}/deep/down/big"
    await agent.put(path, big)
    cat = await agent.run(["sh", "-c", "cat; echo oops >&2; exit 3"], stdin=b"x" * 300_000)
    return {
        "same": await agent.get(path) == big,
        "empty": await _put_empty(agent, path),
        "cat": [cat.code, len(cat.out), cat.err],
        "missing": (await agent.run(["no-such-program"])).code,
        "late": await _refused(agent.run(["sleep", "100"], timeout_s=0.1)),
        "no file": await _refused(agent.get("/no/such/file")),
    }


async def asking(stage: Stage) -> Seen:
    """`ask` reaches the node's own process even when the node is cut off; silence is an error."""
    agent, address = stage.agent["a"], stage.address["a"]
    ready = asyncio.Event()
    argv = [stage.hosts.python("a").executable, "-c", SERVER, address]
    await agent.start("server", argv, on_line=lambda line: ready.set())
    await ready.wait()
    frame = (5).to_bytes(4, "big") + b"hello"
    await agent.links([LinkRule(stage.address["b"]), LinkRule(stage.address["c"])])
    seen: Seen = {"answer": (await agent.ask(7000, frame, 20.0)).decode()}
    seen["refused"] = await _no_answer(agent.ask(7001, frame, 2.0))
    await agent.signal("server", signal.SIGSTOP)
    seen["paused"] = await _no_answer(agent.ask(7000, frame, 0.1))
    await agent.signal("server", signal.SIGCONT)
    seen["again"] = (await agent.ask(7000, frame, 20.0)).decode()
    return seen


async def strained(stage: Stage) -> Seen:
    """A running process gets a wrong clock, then too few files, and reports both."""
    agent, heard = stage.agent["a"], list[str]()
    pid = await agent.start(
        "witness", [stage.hosts.python("a").executable, "-c", WITNESS], on_line=heard.append
    )
    bed: Any = SimpleNamespace(hosts=stage.hosts, agents=stage.agent)

    async def told() -> Any:
        """By how much its clock is ahead of its machine's, and how many files it may open."""
        count = len(heard)
        await agent.tell("witness", "?")
        await until(lambda: _more(heard, count))
        true_s = float((await agent.run(["date", "+%s"])).out)
        wall_s, files = json.loads(heard[-1])
        return [round(wall_s - true_s), files]

    seen: Seen = {"before": await told()}
    await run_program(bed, "a", "wall_clock", "set", pid, 10**13, 1.0)
    limited = (await run_program(bed, "a", "rlimits", "take", pid, "descriptors", 3))[str(pid)]
    seen["strained"] = await told()
    await run_program(bed, "a", "wall_clock", "clear", pid)
    await run_program(bed, "a", "rlimits", "give", pid, "descriptors", limited["was"])
    seen["after"] = await told()
    seen["alive"] = (await agent.state("witness")).pid == pid
    await agent.signal("witness", signal.SIGKILL)
    return seen


async def _more(heard: list[str], count: int) -> bool:
    return len(heard) > count


async def lost(stage: Stage) -> Seen:
    """When an agent dies, every call fails, open ones included, and none hangs."""
    agent: Any = stage.agent["a"]
    await agent.start("sleeper", SLEEPER)
    open_call = asyncio.ensure_future(agent.exited("sleeper"))
    await asyncio.sleep(0)
    await _refused(agent.run(["sh", "-c", f"kill -9 {(await agent.hello())['pid']}"]))
    return {
        "open": await _refused(open_call),
        "next": await _refused(agent.state("sleeper")),
        "others": (await stage.agent["b"].state("x")).state,
    }


async def apart(stage: Stage) -> Seen:
    """The properties of a node's namespaces."""
    agent = stage.agent["a"]
    ipv6 = (await agent.run(["cat", "/proc/sys/net/ipv6/conf/all/disable_ipv6"])).out.strip()
    chain = (await agent.run(["iptables", "-S", "INPUT"])).out
    return {"pid": os.getpid(), "uid": os.getuid(), "ipv6 off": ipv6, "chain": chain}


async def nothing(stage: Stage) -> Seen:
    return {}


async def _put_empty(agent: Agent, path: str) -> int:
    await agent.put(path, b"")
    return len(await agent.get(path))


async def _refused(call: Awaitable[Any]) -> str:
    try:
        return f"not refused: {await call}"
    except BedFailed as e:
        return str(e)


async def _no_answer(call: Awaitable[Any]) -> str:
    try:
        return f"answered: {await call}"
    except ConnectionError as e:
        return str(e)


SCENES = (cut, loss, late, pause, processes, commands, asking, strained, lost, apart, nothing)


def main(names: str, folder: Path, kind: str = "local", bed: str = "{}") -> None:
    scenes = {scene.__name__: scene for scene in SCENES}
    trial = Trial(hosts=kind, bed=json.loads(bed))
    hosts: Hosts = registry.load("hosts", kind)(trial, folder)
    hosts.enter()

    async def play() -> Mapping[str, Seen]:
        async with hosts.start_nodes([Node(name, "broker") for name in "abc"]) as (nodes, agents):
            stage = Stage(nodes, agents, hosts)
            return {name: await scenes[name](stage) for name in names.split(",")}

    print(json.dumps(asyncio.run(play())))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
