"""Network scenes for two parties, played on real sockets or in the simulated world.

A scene tells parties what to do and waits for what they say; it does not say what is right, the two
worlds must merely agree. Run as a program it plays all scenes in namespaces of its own and prints
the transcripts as JSON: `python network_scenes.py FOLDER`.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from network_stages import (
    ADDRESSES,
    NODES,
    RETRIES,
    SYN_RETRIES,
    Condition,
    RealStage,
    Said,
    SimStage,
    Stage,
)

from clusters.hosts._world.network import SimNetwork
from clusters.hosts._world.process import SimHost, SimProcess
from clusters.hosts._world.tcp import Kernel
from clusters.hosts._world.world import World
from clusters.hosts.local import hosts as local
from harness.contracts import Agent, Node
from harness.trial import Trial

MANY = 40_000_000  # more than two kernels take
PORT = 7000


async def meet(stage: Stage, keep: str = "") -> None:
    """b listens, a is connected to it; nodes in `keep` stay open when the other has ended."""
    for node in NODES:
        await stage.start(node)
    for node in keep:
        await stage.tell(node, "keep")
        await stage.says(node, "keeping")
    await stage.tell("b", f"listen {ADDRESSES['b']} {PORT}")
    await stage.says("b", "listening")
    await dial(stage, "c")
    await stage.says("b", "s1 made")


async def dial(stage: Stage, name: str, port: int = PORT) -> None:
    await stage.tell("a", f"dial {name} {ADDRESSES['b']} {port}")
    await stage.says("a", f"{name} made")


async def send(stage: Stage, node: str, talk: str, text: str) -> None:
    """A line, and it arrives."""
    other, its = ("b", "s1") if node == "a" else ("a", "c")
    await stage.tell(node, f"write {talk} {text}")
    await stage.says(other, f"{its} got {text}")


async def talk_and_close(stage: Stage) -> None:
    await meet(stage)
    await send(stage, "a", "c", "hello")
    await send(stage, "b", "s1", "ahoy")
    await stage.tell("a", "close c")
    await stage.says("a", "c lost nothing")
    await stage.says("b", "s1 lost nothing")


async def closed_with_bytes_under_way(stage: Stage) -> None:
    await meet(stage)
    await stage.tell("a", "pour c 3000000")
    await stage.tell("a", "write c last")
    await stage.tell("a", "close c")
    await stage.says("a", "c lost nothing")
    await stage.says("b", "s1 lost nothing")
    await stage.tell("b", "count s1")
    await stage.says("b", "s1 has 3000000")


async def aborted(stage: Stage) -> None:
    await meet(stage)
    await stage.tell("a", "abort c")
    await stage.says("a", "c lost nothing")
    await stage.says("b", "s1 lost nothing")


async def half_closed(stage: Stage) -> None:
    await meet(stage, keep="b")
    await stage.tell("a", "end c")
    await stage.says("b", "s1 ended")
    await send(stage, "b", "s1", "still")
    await stage.tell("b", "close s1")
    await stage.says("b", "s1 lost nothing")
    await stage.says("a", "c lost nothing")


async def nobody_listens(stage: Stage) -> None:
    await meet(stage)
    await stage.tell("a", f"dial d {ADDRESSES['b']} {PORT + 1}")
    await stage.says("a", "d not made ConnectionRefusedError ECONNREFUSED")


async def port_taken(stage: Stage) -> None:
    await meet(stage)
    await stage.tell("b", f"listen {ADDRESSES['b']} {PORT}")
    await stage.says("b", "not listening EADDRINUSE")
    await stage.tell("b", f"listen {ADDRESSES['a']} {PORT}")
    await stage.says("b", "not listening EADDRNOTAVAIL")


async def dialled_across_a_cut(stage: Stage) -> None:
    await meet(stage)
    await stage.cut("a", "b")
    await stage.tell("a", f"dial d {ADDRESSES['b']} {PORT}")
    await stage.says("a", "d not made TimeoutError ETIMEDOUT")


async def answer_cut_off(stage: Stage) -> None:
    await meet(stage)
    await stage.cut("b", "a")
    await stage.tell("a", f"dial d {ADDRESSES['b']} {PORT + 1}")
    await stage.says("a", "d not made TimeoutError ETIMEDOUT")


async def dialled_until_healed(stage: Stage) -> None:
    await meet(stage)
    await stage.cut("a", "b")
    await stage.tell("a", f"dial d {ADDRESSES['b']} {PORT}")
    await stage.until("b", Condition.DROPPING)
    await stage.heal()
    await stage.says("a", "d made")
    await stage.says("b", "s2 made")


async def cut_and_healed(stage: Stage) -> None:
    await meet(stage)
    await stage.cut("a", "b")
    for text in ("one", "two", "three"):
        await stage.tell("a", f"write c {text}")
    await send(stage, "b", "s1", "back")
    await stage.until("b", Condition.DROPPING)
    await stage.heal()
    await stage.says("b", "s1 got three")
    await send(stage, "b", "s1", "again")


async def cut_for_good(stage: Stage) -> None:
    """a gives up; b knows nothing, until it writes to a connection that nobody has open."""
    await meet(stage)
    await stage.cut("a", "b")
    await stage.tell("a", "write c lost")
    await stage.says("a", "c lost ETIMEDOUT")
    await stage.heal()
    await stage.tell("b", "write s1 anybody")
    await stage.says("b", "s1 lost ECONNRESET")


async def only_the_way_back_is_cut(stage: Stage) -> None:
    """Bytes arrive, and their sender gives up all the same."""
    await meet(stage)
    await stage.cut("b", "a")
    await send(stage, "a", "c", "heard")
    await stage.says("a", "c lost ETIMEDOUT")


async def idle_across_a_cut(stage: Stage) -> None:
    """Nobody notices a cut that nobody wrote across."""
    await meet(stage)
    await stage.cut("a", "b")
    await stage.cut("b", "a")
    await stage.tell("a", f"dial d {ADDRESSES['b']} {PORT}")
    await stage.says("a", "d not made TimeoutError ETIMEDOUT")
    await stage.heal()
    await send(stage, "a", "c", "hello")


async def killed(stage: Stage) -> None:
    """A kernel closes for the dead, and what comes after is reset."""
    await meet(stage, keep="a")
    await stage.signal("b", signal.SIGKILL)
    await stage.says("a", "c ended")
    await stage.tell("a", "write c first")
    await stage.until("a", Condition.FORGETFUL)
    await stage.tell("a", "write c second")
    await stage.says("a", "c lost EPIPE")


async def killed_behind_a_cut(stage: Stage) -> None:
    """The end is sent again until it is heard."""
    await meet(stage)
    await stage.cut("b", "a")
    await stage.signal("b", signal.SIGKILL)
    await stage.until("a", Condition.DROPPING)
    await stage.heal()
    await stage.says("a", "c lost nothing")


async def killed_with_bytes_unread(stage: Stage) -> None:
    await meet(stage)
    await stage.signal("b", signal.SIGSTOP)
    await stage.tell("a", "write c unread")
    await stage.until("b", Condition.UNREAD)
    await stage.signal("b", signal.SIGKILL)
    await stage.says("a", "c lost ECONNRESET")


async def killed_before_it_accepted(stage: Stage) -> None:
    await meet(stage)
    await stage.signal("b", signal.SIGSTOP)
    await dial(stage, "d")
    await stage.until("b", Condition.UNACCEPTED)
    await stage.signal("b", signal.SIGKILL)
    await stage.says("a", "d lost ECONNRESET")
    await stage.says("a", "c lost nothing")


async def killed_and_started_again(stage: Stage) -> None:
    await meet(stage)
    await stage.signal("b", signal.SIGKILL)
    await stage.says("a", "c lost nothing")
    await stage.start("b")
    await stage.tell("b", f"listen {ADDRESSES['b']} {PORT}")
    await stage.says("b", "listening", 2)
    await dial(stage, "d")
    await stage.says("b", "s1 made", 2)


async def last_words(stage: Stage) -> None:
    """What a kernel took from a process that died afterwards still arrives."""
    await meet(stage)
    await stage.signal("a", signal.SIGSTOP)
    await stage.tell("b", "pour s1 50000")
    await stage.tell("b", "write s1 farewell")
    await stage.until("a", Condition.UNREAD, 50_009)
    await stage.signal("b", signal.SIGKILL)
    await stage.signal("a", signal.SIGCONT)
    await stage.says("a", "c got farewell")
    await stage.says("a", "c lost nothing")


async def closed_with_bytes_unread(stage: Stage) -> None:
    await meet(stage)
    await stage.tell("b", "hold s1")
    await stage.says("b", "s1 holds")
    await stage.tell("a", "write c unread")
    await stage.until("b", Condition.UNREAD)
    await stage.tell("b", "close s1")
    await stage.says("b", "s1 lost nothing")
    await stage.says("a", "c lost ECONNRESET")


async def paused(stage: Stage) -> None:
    """A paused process's kernel accepts for it, until it is full; then all of it is read."""
    await meet(stage)
    await stage.signal("b", signal.SIGSTOP)
    await dial(stage, "d")
    await stage.tell("a", f"pour c {MANY}")
    await stage.says("a", "c held")
    await stage.tell("a", "write c last")
    await stage.signal("b", signal.SIGCONT)
    await stage.says("a", "c resumed")
    await stage.says("b", "s1 got last")
    await stage.says("b", "s2 made")
    await stage.tell("b", "count s1")
    await stage.says("b", f"s1 has {MANY}")


async def paused_past_a_timer(stage: Stage) -> None:
    """The timer that is overdue comes first, or what arrived meanwhile: either is seen."""
    await meet(stage)
    await stage.tell("b", "remind s1 0.2")
    await stage.says("b", "s1 waits")
    await stage.signal("b", signal.SIGSTOP)
    await stage.tell("a", "write c hello")
    await stage.until("b", Condition.UNREAD)
    await stage.tell("a", "remind c 0.4")
    await stage.says("a", "c reminded")
    await stage.signal("b", signal.SIGCONT)
    await stage.says("b", "s1 reminded")
    await stage.says("b", "s1 got hello")


async def held(stage: Stage) -> None:
    """The same with a reader that does not want to read."""
    await meet(stage)
    await stage.tell("b", "hold s1")
    await stage.says("b", "s1 holds")
    await stage.tell("a", f"pour c {MANY}")
    await stage.says("a", "c held")
    await stage.tell("b", "release s1")
    await stage.says("a", "c resumed")
    await stage.tell("a", "close c")
    await stage.says("a", "c lost nothing")
    await stage.says("b", "s1 lost nothing")
    await stage.tell("b", "count s1")
    await stage.says("b", f"s1 has {MANY}")


async def killed_while_writing_waits(stage: Stage) -> None:
    await meet(stage)
    await stage.signal("b", signal.SIGSTOP)
    await stage.tell("a", f"pour c {MANY}")
    await stage.says("a", "c held")
    await stage.until("b", Condition.UNREAD)
    await stage.signal("b", signal.SIGKILL)
    await stage.says("a", "c lost ECONNRESET")


async def both_close(stage: Stage) -> None:
    await meet(stage)
    await stage.cut("a", "b")
    await stage.cut("b", "a")
    await stage.tell("a", "close c")
    await stage.tell("b", "close s1")
    await stage.says("a", "c lost nothing")
    await stage.says("b", "s1 lost nothing")


EITHER = {paused_past_a_timer.__name__}  # scenes that have two ends, on real sockets too
Scene = Callable[[Stage], Awaitable[None]]
SCENES: Mapping[str, Scene] = {
    scene.__name__: scene
    for scene in (
        talk_and_close, closed_with_bytes_under_way, aborted, half_closed, nobody_listens,
        port_taken, dialled_across_a_cut, answer_cut_off, dialled_until_healed, cut_and_healed,
        cut_for_good, only_the_way_back_is_cut, idle_across_a_cut, killed, killed_behind_a_cut,
        killed_with_bytes_unread, killed_before_it_accepted, killed_and_started_again, last_words,
        closed_with_bytes_unread, paused, paused_past_a_timer, held, killed_while_writing_waits,
        both_close,
    )
}  # fmt: skip


def simulated(name: str, seed: int) -> Said:
    """A scene's transcript in the simulated world."""
    world = World(seed)
    network = SimNetwork(world, kernel=Kernel(syn_retries=SYN_RETRIES, retries=RETRIES))
    stage: list[SimStage] = []

    async def direct(_process: SimProcess) -> None:
        stage.append(SimStage(world, network))
        await SCENES[name](stage[0])
        world.stop()

    director = SimHost(world, network, "director", "198.18.0.1").start("director", direct)
    world.run()
    world.close()
    assert not director.error_lines, "\n".join(director.error_lines)
    return stage[0].said


async def real(agents: Mapping[str, Agent]) -> dict[str, Said]:
    """All scenes' transcripts on real sockets."""
    seen: dict[str, Said] = {}
    for name, scene in SCENES.items():
        stage = RealStage(agents)
        await stage.prepare()
        try:
            await scene(stage)
        except AssertionError as e:
            raise AssertionError(f"{name}: {e}") from e
        seen[name] = await stage.over()
    return seen


def main(folder: Path) -> None:
    hosts = local.hosts(Trial(), folder)
    hosts.enter()

    async def play() -> dict[str, Said]:
        async with hosts.start_nodes([Node(name, "broker") for name in NODES]) as (nodes, agents):
            assert {node.name: node.address for node in nodes} == ADDRESSES
            return await real(agents)

    print(json.dumps(asyncio.run(play())))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
