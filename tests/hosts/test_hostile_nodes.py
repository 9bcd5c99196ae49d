"""Data from a hostile node, or from a stranger on its network: no exception, no growth, one
sentence.
"""

import asyncio
import io
import json
import random
import resource
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusters.hosts._agent import download as _homecoming
from clusters.hosts._agent import driver as _pipe
from clusters.hosts._agent import network as _agent_network
from clusters.hosts._agent.driver import PipeAgent
from harness.contracts import ClockOffset, Node
from harness.errors import BedFailed, NodeGone
from harness.history.row_stream import pack_integers
from harness.history.schema import OPS
from harness.run.client_pool import ClientProcessHandle, RowReceiver

SECRET = b"0123456789abcdef"
TIMES = 20_000
SEEDS = (
    b'{"n":1,"id":1,"is":{}}\n',
    b'{"id":1,"error":"x","kind":"failed"}\n',
    b'{"line":"crew","text":"x"}\n',
    b'{"gone":"x"}\n',
    b'{"hears":true}\n',
)
SAID = (
    b'{"is": "ready"}',
    b'{"is": "failed", "why": "x"}',
    b'{"stats": {"ok": 1, "p99_ms": 2.0, "answered_ns": [1]}, "first": 7}',
    b'{"rows": "ops", "from": 0, "count": 1, "columns": "eNpj"}',
    b'{"rows": "notes", "from": 0, "count": 1, "columns": [[81], [2], [7], ["no"]]}',
)
PIECES = (
    *(b"[", b"{", b'"', b"1e999", b"null", b"\n", b"-1", b"9" * 30, b"[[[[", b"{}", b"\xff"),
    *(b'{"id":[1]}\n', b'{"line":[]}\n'),
)


def mutated(dice: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.randint(0, 4)):
        at = dice.randrange(len(changed))
        match dice.randrange(3):
            case 0:
                changed[at] = dice.randrange(256)
            case 1:
                changed[at:at] = dice.choice(PIECES)
            case _:
                del changed[at : at + 3]
        changed = changed or bytearray(b"\n")
    return bytes(changed)


def test_datagrams_of_strangers_count_nothing_and_keep_nothing() -> None:
    """Without the secret of the run none counts; with it, whatever they contain, few are kept."""
    dice, probes = random.Random(3), _agent_network.Probes()
    probes.datagram_received(probes.MARK + b" t", ("192.0.2.1", 1))
    assert not probes.counts, "an agent that no driver has greeted yet"
    probes.secret = SECRET
    for number in range(TIMES):
        for secret in (b"", b"x" * len(SECRET), SECRET):
            lead = dice.choice([probes.MARK, probes.FLIGHT]) + secret + b" "
            text = f"{number} {number} {number} ".encode()
            tail = dice.choice([text, b"t 1 2 ", b"t 1", dice.randbytes(dice.randrange(60))])
            probes.datagram_received(lead + tail, ("192.0.2.1", 1))
        probes.datagram_received(dice.randbytes(50), ("192.0.2.1", 1))
    assert len(probes.counts) <= _agent_network.MAX_TOKENS
    assert len(probes.flights) <= _agent_network.MAX_TOKENS
    assert max(map(len, probes.flights.values())) <= _agent_network.MAX_FLIGHTS


def test_a_strangers_datagram_is_not_counted() -> None:
    """Neither in the place of one of the run, nor beside it."""
    probes = _agent_network.Probes()
    probes.secret = SECRET
    for secret in (b"", b"x" * 16, SECRET[:-1], SECRET + b"0"):
        probes.datagram_received(probes.MARK + secret + b" t", ("192.0.2.1", 1))
        probes.datagram_received(probes.FLIGHT + secret + b" t 1 2 ", ("192.0.2.1", 1))
    assert not probes.counts
    assert not probes.flights
    probes.datagram_received(probes.MARK + SECRET + b" t", ("192.0.2.1", 1))
    probes.datagram_received(probes.FLIGHT + SECRET + b" t 1 2 ", ("192.0.2.1", 1))
    assert probes.counts == {"t": 1}
    assert [flight[:2] for flight in probes.flights["t"]] == [(1, 2)]


def test_malformed_lines_of_an_agent_end_in_a_sentence() -> None:
    """The stream raises no exception; each open call gets the reason."""

    async def scene() -> set[str]:
        dice, ends = random.Random(4), set()
        for _ in range(TIMES):
            agent = PipeAgent("a", lambda line: None)
            agent.feed(b'{"hears":true}\n')
            asking = asyncio.ensure_future(agent.state("x"))
            await asyncio.sleep(0)
            agent.feed(mutated(dice, dice.choice(SEEDS)))
            agent.lost("the end")
            try:
                await asking
            except BedFailed as e:
                ends.add(str(e))
        return ends

    ends = asyncio.run(scene())
    assert "a is gone: it sent a line that no agent sends" in ends
    assert "a gave an invalid answer to 'state'" in ends


ABSURD = (None, [], "x", {}, {"frame": 7}, {"code": []}, {"packets": [1]}, {"flights": [[1]]})


@pytest.mark.parametrize(
    "verb",
    [
        lambda agent: agent.monotonic_ns(),
        lambda agent: agent.run(["true"]),
        lambda agent: agent.get("/x"),
        lambda agent: agent.state("x"),
        lambda agent: agent.exited("x"),
        lambda agent: agent.dropped(),
        lambda agent: agent.probed("x"),
        lambda agent: agent.timed_arrivals("x"),
        lambda agent: agent.lacks("pace"),
        lambda agent: agent.ask(1, b"", 1.0),
    ],
    ids=["clock", "run", "get", "state", "exited", "dropped", "probed", "flown", "lacks", "ask"],
)
def test_an_answer_of_another_form_is_a_sentence(verb: Callable[[PipeAgent], Any]) -> None:
    async def scene() -> None:
        for absurd in ABSURD:
            agent = PipeAgent("a", lambda line: None)
            agent.feed(b'{"hears":true}\n')
            asking = asyncio.ensure_future(verb(agent))
            await asyncio.sleep(0)
            agent.feed(json.dumps({"id": 1, "is": absurd}).encode() + b"\n")
            with pytest.raises(BedFailed, match=r"invalid answer|no agent sends"):
                await asking

    asyncio.run(scene())


def test_a_line_without_an_end_is_not_kept() -> None:
    """The node counts as gone before its line fills the memory."""

    async def scene() -> PipeAgent:
        agent = PipeAgent("a", lambda line: None)
        for _ in range(2 * _pipe.MAX_LINE_BYTES >> 20):
            agent.feed(b"x" * (1 << 20))
        with pytest.raises(NodeGone, match="it sent more than 64 MB in one line"):
            await agent.state("x")
        return agent

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    agent = asyncio.run(scene())
    assert len(agent._rest) <= _pipe.MAX_LINE_BYTES
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 19  # KiB


def handle_of(tmp_path: Path, failed: "asyncio.Future[None]") -> ClientProcessHandle:
    hosts = SimpleNamespace(clock=lambda node: ClockOffset(), shares_files=False)
    bed: Any = SimpleNamespace(agents={"a": None}, hosts=hosts)
    run: Any = SimpleNamespace(journal=tmp_path)
    handle = ClientProcessHandle(bed, Node("a", "client"), run, failed)
    handle._receiver = RowReceiver(tmp_path, "a", 0)
    return handle


def test_what_a_hostile_client_says_ends_the_trial_or_nothing(tmp_path: Path) -> None:
    """It causes no exception, whatever it sends; its counts can be added up."""

    async def scene() -> set[str]:
        dice, ends = random.Random(5), set()
        for number in range(TIMES // 10):
            failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            handle = handle_of(tmp_path / str(number), failed)
            handle._on_line(mutated(dice, dice.choice(SAID)).decode(errors="replace"))
            assert sum(handle.total_counts()[name] for name in ("ok", "fail", "info")) is not None
            handle._close_receiver()
            if failed.done():
                ends.add(str(failed.exception())[:60])
        return ends

    assert any("malformed output" in end for end in asyncio.run(scene()))


def test_rows_that_are_none_are_refused(tmp_path: Path) -> None:
    """A zip bomb, too few columns, another table: nothing of them is written."""

    async def scene() -> None:
        good = pack_integers([(1,) * len(OPS.names)])
        bomb = pack_integers([(0,) * len(OPS.names)] * 2_000_000)
        for portion in (
            {"rows": "ops", "from": 0, "count": 1, "columns": bomb},
            {"rows": "ops", "from": 0, "count": 2, "columns": good},
            {"rows": "ops", "from": 0, "count": -1, "columns": good},
            {"rows": "faults", "from": 0, "count": 1, "columns": good},
            {"rows": "notes", "from": 0, "count": 1, "columns": [[1]]},
            {"rows": "notes", "from": 0, "count": 10**12, "columns": [[1], [2], [3], ["x"]]},
            {"rows": ["ops"], "from": 0, "count": 1, "columns": good},
        ):
            failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            handle = handle_of(tmp_path / str(id(portion)), failed)
            handle._on_line(json.dumps(portion))
            assert failed.done(), portion["rows"]
            with pytest.raises(BedFailed, match="malformed output"):
                await failed

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    asyncio.run(scene())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 19  # KiB


def tar_of(*members: tuple[str, int]) -> io.BytesIO:
    """A tar of files with these names and sizes; of one that is larger than it can be, the head."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, size in members:
            member = tarfile.TarInfo(f"node/{name}")
            member.size = size
            tar.addfile(member, io.BytesIO(bytes(size)) if size < 1 << 20 else None)
    stream.seek(0)
    return stream


def test_files_of_a_hostile_node_stay_below_its_folder_and_have_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that lead out are omitted; what exceeds the limit is reported and not written."""
    into = tmp_path / "nodes" / "a"
    members = [("../../out", 1), ("/../out", 1), ("x\0y", 1), ("good", 5), ("bomb", 1 << 40)]
    left_out = _homecoming.unpack(tar_of(*members), into)
    assert left_out == [f"{into}/bomb and all after it: more than a node may write"]
    monkeypatch.setattr(_homecoming, "MAX_FILES", 10)
    left_out = _homecoming.unpack(tar_of(*((f"many-{n}", 1) for n in range(20))), into)
    assert left_out == [f"{into}/many-10 and all after it: more than a node may write"]
    written = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    names = ["good", *(f"many-{n}" for n in range(10)), "x"]
    assert written == ["nodes", "nodes/a", *(f"nodes/a/{name}" for name in names)]
