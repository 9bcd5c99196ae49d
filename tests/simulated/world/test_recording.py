"""Messages are recorded in a window, whole, and without a trace in the run itself."""

import asyncio
import struct
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import CALM, SmallWorld, met
from table_sizes import examples

from clusters.hosts._world.network import Wire
from clusters.hosts._world.recording import GRACE_NS, MessageRecorder
from clusters.hosts._world.world import SECOND
from harness.contracts.cluster_view import Frame
from harness.history.messages import MessageRecording, RecordingWindow

ROUGH = Wire(latency_ns=2_000_000, jitter_ns=5_000_000, split=0.3, join=0.3)
WINDOW = RecordingWindow(0, 6 * SECOND, 5 * SECOND)
LENGTH = struct.Struct(">I")


class Prefixed:
    """Frames of a length of four bytes and as many bytes."""

    def read(self, data: bytes) -> Frame | None:
        if len(data) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(data)
        return Frame(LENGTH.size + length, f"of {length}")


def framed(size: int) -> bytes:
    return LENGTH.pack(size) + bytes(size)


def recorder(sea: SmallWorld, window: RecordingWindow = WINDOW) -> MessageRecorder:
    made = MessageRecorder(sea.network, window, Prefixed)
    made.names |= {host.address: name for name, host in sea.hosts.items()}
    return made


def written(
    sea: SmallWorld, pieces: list[bytes], every_s: float = 0.01, last_s: float = 1.0
) -> Callable[[], object]:
    """A client of `b` that writes these pieces, and ends later."""

    async def client() -> None:
        ear = await met(sea.address("b"))
        for piece in pieces:
            ear.transport.write(piece)
            await asyncio.sleep(every_s)
        await asyncio.sleep(last_s)

    return client


def recorded(
    pieces: list[bytes],
    wire: Wire = CALM,
    prepare: Callable[[SmallWorld], object] = lambda sea: None,
    window: RecordingWindow = WINDOW,
    every_s: float = 0.01,
    last_s: float = 1.0,
) -> MessageRecording:
    sea = SmallWorld(1, wire)
    messages = recorder(sea, window)
    sea.server()
    prepare(sea)
    sea.play(written(sea, pieces, every_s, last_s))  # type: ignore[arg-type]
    return messages.recording()


@settings(max_examples=examples(30))
@given(
    sizes=st.lists(st.integers(0, 3_000), min_size=1, max_size=20),
    cuts=st.lists(st.integers(0, 10_000), max_size=6),
    seed=st.integers(0, 100),
)
def test_a_frame_is_one_message_however_it_travels(
    sizes: list[int], cuts: list[int], seed: int
) -> None:
    """Whether it shares a write with others, is written in parts, or arrives in pieces; and the
    world's digest is the one without a recording."""
    data = b"".join(map(framed, sizes))
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[a:b] for a, b in pairwise(edges)]
    digests = []
    for record in (True, False):
        sea = SmallWorld(seed, ROUGH)
        messages = recorder(sea) if record else None
        sea.server()
        sea.play(written(sea, pieces))  # type: ignore[arg-type]
        digests.append(sea.world.digest())
        if messages:
            got = messages.recording().messages
            assert sorted(m.size_bytes for m in got) == sorted(4 + size for size in sizes)
            assert {(m.source, m.target) for m in got} == {("a", "b")}
            assert all(m.received is not None and m.received > m.sent for m in got)
        SmallWorld.close_all()
    assert digests[0] == digests[1]


def test_times_are_those_of_the_first_byte_and_the_last_read() -> None:
    """On a calm link: a millisecond, whatever the size."""
    (one,) = recorded([framed(100)]).messages
    assert one.received is not None
    assert one.received - one.sent == 1_000_000
    assert (one.kind, one.size_bytes, one.lost) == ("of 100", 104, False)


def test_a_paused_process_receives_when_it_goes_on() -> None:
    """Its kernel has the bytes before that."""

    def pause(sea: SmallWorld) -> None:
        sea.at(0.005, sea.hosts["b"].processes["server"].pause)
        sea.at(0.5, sea.hosts["b"].processes["server"].resume)

    (one,) = recorded([framed(5)], prepare=pause).messages
    assert one.received == SECOND // 2


def test_what_a_dead_process_did_not_read_is_lost() -> None:
    """It is killed while the message is on its way."""

    def kill(sea: SmallWorld) -> None:
        sea.at(0.0125, sea.hosts["b"].processes["server"].kill)

    (one,) = recorded([framed(5)], prepare=kill).messages
    assert one.received is None
    assert one.lost


def test_what_a_cut_link_holds_back_is_not_lost() -> None:
    """It may arrive later, after the window."""
    held = recorded(
        [framed(5)],
        prepare=lambda sea: sea.at(0.0115, lambda: sea.cut("a", "b")),
        window=RecordingWindow(0, SECOND, 0),
        last_s=4.0,
    )
    (one,) = held.messages
    assert one.received is None
    assert not one.lost


@pytest.mark.parametrize(("begin_s", "end_s", "seen"), [(0, 6, 5), (2, 4, 2), (5.5, 6, 0)])
def test_only_the_window_is_kept(begin_s: float, end_s: float, seen: int) -> None:
    """Of a message each second, those that are sent or received in it."""
    window = RecordingWindow(round(begin_s * SECOND), round(end_s * SECOND), round(end_s * SECOND))
    got = recorded([framed(5)] * 5, window=window, every_s=1.0, last_s=3 + GRACE_NS / SECOND)
    assert len(got.messages) == seen


def test_a_connection_of_a_host_to_itself_is_no_message() -> None:
    """There is no line to draw it to."""
    sea = SmallWorld()
    messages = recorder(sea)
    sea.server("a")

    async def client() -> None:
        ear = await met(sea.address("a"))
        ear.transport.write(framed(5))
        await asyncio.sleep(0.1)

    sea.play(client)
    assert not messages.recording().messages


def test_without_frames_each_write_is_a_message() -> None:
    """Named by its size."""
    sea = SmallWorld()
    messages = MessageRecorder(sea.network, WINDOW)
    sea.server()
    sea.play(written(sea, [b"x" * 1234]))  # type: ignore[arg-type]
    (one,) = messages.recording().messages
    assert one.kind == "1,234 bytes"
    assert one.source == sea.address("a")
