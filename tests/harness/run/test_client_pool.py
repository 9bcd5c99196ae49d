"""A client process as the runner sees it: what its incarnations counted, at every moment."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.contracts import CLIENT, ClockOffset, Node
from harness.errors import BedFailed
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.run import client_pool
from harness.run.client_pool import ClientPool, ClientProcessHandle
from harness.trial import Trial

WORDS = {"load": "loading", "crash": "crashing"}


def run_of(path: Path, **trial: Any) -> RunDir:
    run = RunDir(path)
    run.trial_file.write_text(Trial(**trial).to_toml())
    return run


class Agent:
    """Starts a process that answers each order with its word, and dies when it is told to."""

    async def start(
        self, name: str, command: list[str], *, on_line: Callable[[str], None], **how: Any
    ) -> None:
        self.said, self._dead, self._code = on_line, asyncio.Event(), -9
        self.started()

    def started(self) -> None:
        self.said('{"is": "ready"}')

    async def state(self, name: str) -> Any:
        return SimpleNamespace(pid=7, state="running")

    async def tell(self, name: str, line: str) -> None:
        what = json.loads(line)["do"]
        self.said(json.dumps({"is": WORDS[what], "first": 4}))
        if what == "crash":
            self._dead.set()

    async def exited(self, name: str) -> int:
        dead = self._dead
        await dead.wait()
        return self._code

    def die(self, code: int) -> None:
        self._code = code
        self._dead.set()

    def acknowledge(self, count: int) -> None:
        self.said(json.dumps({"stats": {"ok": count}}))


def told(
    story: Callable[[ClientProcessHandle, Agent], Awaitable[list[float]]], run: Path
) -> list[float]:
    async def all_of_it() -> list[float]:
        agent = Agent()
        hosts = SimpleNamespace(shares_files=True, clock=lambda name: ClockOffset())
        bed: Any = SimpleNamespace(agents={"client-1": agent}, hosts=hosts)
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        handle = ClientProcessHandle(bed, Node("client-1", CLIENT, ""), run_of(run), failed)
        await handle.start()
        await handle.load(0)
        return await story(handle, agent)

    return asyncio.run(all_of_it())


def test_what_a_life_counted_is_counted_once(tmp_path: Path) -> None:
    """Before the crash, between the crash and the new life, and after: `after 150 acks` of a plan
    must not come true because somebody died."""

    async def story(handle: ClientProcessHandle, agent: Agent) -> list[float]:
        counted = []
        agent.acknowledge(100)
        counted.append(handle.total_counts()["ok"])
        await handle.crash()
        counted.append(handle.total_counts()["ok"])
        await handle.restart()
        counted.append(handle.total_counts()["ok"])
        agent.acknowledge(10)
        return [*counted, handle.total_counts()["ok"]]

    assert told(story, tmp_path) == [100, 100, 100, 110]


def test_a_new_life_that_dies_without_a_word_is_noticed(tmp_path: Path) -> None:
    """Nobody waits for it until the plan's time is over."""

    async def story(handle: ClientProcessHandle, agent: Agent) -> list[float]:
        await handle.crash()
        agent.started = lambda: agent.die(1)  # type: ignore[method-assign]
        async with asyncio.timeout(20):
            with pytest.raises(BedFailed, match="exited by itself"):
                await handle.restart()
        return []

    told(story, tmp_path)


class Leaving(Agent):
    """Told to quit, it ends with this code; None: it is busy, and has to be killed. A deaf one
    ended a moment before."""

    def __init__(self, code: int | None, word: str = "", *, deaf: bool = False) -> None:
        self._ends, self._word, self._deaf = code, word, deaf

    async def tell(self, name: str, line: str) -> None:
        if self._word:
            self.said(self._word)
        if self._ends is not None:
            self.die(self._ends)
        if self._deaf:
            raise BedFailed(f"{name} accepts no input: it has ended")

    async def signal(self, name: str, number: int) -> None:
        self.die(-number)


@pytest.mark.parametrize(
    ("agent", "complete"),
    [
        (Leaving(0), True),
        (Leaving(None), False),
        (Leaving(255, '{"is": "failed", "why": "no space"}'), False),
        (Leaving(1), False),
        (Leaving(-9, deaf=True), False),
    ],
    ids=["by itself", "killed", "failed", "without a word", "before it was told to"],
)
def test_a_client_process_that_did_not_close_its_journal_leaves_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: Leaving, complete: bool
) -> None:
    """Rows that were not written may be missing, so nobody is convicted by what is not there."""
    monkeypatch.setattr(client_pool, "QUIT_WITHIN_S", 0.5)
    run = run_of(tmp_path)
    hosts = SimpleNamespace(shares_files=True, clock=lambda name: ClockOffset())
    nodes = [Node("client-1", CLIENT, "")]
    bed: Any = SimpleNamespace(agents={"client-1": agent}, hosts=hosts, of_role=lambda role: nodes)

    async def story() -> None:
        aboard = ClientPool(bed, run)
        async with aboard.managed():
            await aboard.open()
            aboard.failed.cancel()  # as when nobody waits for a failure any more

    asyncio.run(story())
    run.update_state(ended=True)
    run.write_names({"roles": {}})
    assert History.open(run).complete == complete
    assert bool(run.state().get("reasons")) != complete


class Far(Agent):
    """A node that does not see our files. `done`: what was asked of it, in order."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.done: list[tuple[Any, ...]] = []

    async def put(self, path: str, data: bytes) -> None:
        self.files[path] = data

    async def run(self, argv: list[str]) -> None:
        self.done.append(tuple(argv))

    async def tell(self, name: str, line: str) -> None:
        self.done.append((json.loads(line)["do"],))
        if "quit" in line:
            self.die(0)
        else:
            await super().tell(name, line)

    async def exited(self, name: str) -> int:
        code = await super().exited(name)
        self.done.append(("exited",))
        return code

    async def signal(self, name: str, number: int) -> None:
        self.done.append(("signal", name, number))


def use(agent: Far, run: RunDir, *, shares_files: bool = False, crash: bool = False) -> None:
    async def story() -> None:
        hosts = SimpleNamespace(
            shares_files=shares_files,
            clock=lambda name: ClockOffset(),
            folder=lambda name: "/far",
            python=lambda name: SimpleNamespace(executable="python3", packages="/far/packages"),
        )
        bed: Any = SimpleNamespace(agents={"client-1": agent}, hosts=hosts)
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        handle = ClientProcessHandle(bed, Node("client-1", CLIENT, ""), run, failed)
        await handle.start()
        await (handle.crash() if crash else handle.quit())

    run.write_names({"roles": {}})
    asyncio.run(story())


def test_a_client_program_is_put_on_nodes_that_do_not_see_it(tmp_path: Path) -> None:
    """The file alone, executable; the node's trial names it there. A word that is looked up on the
    PATH stays."""
    mine = tmp_path / "mine"
    mine.write_bytes(b"program")
    agent = Far()
    use(agent, run_of(tmp_path, client=(str(mine), "--flag")))
    assert agent.files["/far/client/mine"] == b"program"
    assert agent.done[0] == ("chmod", "755", "/far/client/mine")
    there = Trial.from_toml(agent.files["/far/trial.toml"].decode())
    assert there.client == ("/far/client/mine", "--flag")

    use(agent := Far(), run_of(tmp_path, client=("mine",)))
    assert set(agent.files) == {"/far/trial.toml", "/far/names.json"}


@pytest.mark.parametrize("crash", [True, False], ids=["crash", "end"])
def test_what_is_left_of_a_client_program_is_killed(tmp_path: Path, crash: bool) -> None:
    """By the process group, once the client process has ended. Others leave nothing."""
    use(agent := Far(), run_of(tmp_path, client=("mine",)), shares_files=True, crash=crash)
    assert agent.done[0] == ("crash" if crash else "quit",)
    assert ("signal", "clients", 9) in agent.done[agent.done.index(("exited",)) :]
    use(agent := Far(), run_of(tmp_path), shares_files=True, crash=crash)
    assert ("signal", "clients", 9) not in agent.done
