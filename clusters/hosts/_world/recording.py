"""Records the messages between hosts in a window of time, without changing the run.

Recording is a subclass of the sockets, which is used only when a world records: other worlds pay
nothing for it. It plans no event, draws no random number and adds nothing to the transcript, so the
digest is the same with it.

A message is a frame of the system's protocol. It is sent when the sender's kernel takes its first
byte, and received when the other process has read its last one: a paused process receives nothing.
It does not matter in how many pieces it travels, nor whether it shares one with others. Bytes for
which the system has no frames are one message for each write.
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from clusters.hosts._world.network import LOOPBACK, SimNetwork
from clusters.hosts._world.tcp import Socket
from clusters.hosts._world.world import SECOND
from harness.contracts.cluster_view import Frame, FrameReader
from harness.history.messages import (
    MAX_NAME,
    MessageRecording,
    RecordedMessage,
    RecordingWindow,
    choose_messages,
)

GRACE_NS = SECOND  # for messages of the window to arrive after its end
MAX_HELD = 200_000  # messages in memory; the oldest are forgotten


class Writes:
    """The reader of a system without frames: each write is one."""

    def read(self, data: bytes) -> Frame | None:
        return Frame(len(data), f"{len(data):,} bytes")


class SentStream:
    """One direction of a connection: its frames that the receiver has not read yet."""

    __slots__ = ("_head", "_left", "_read_bytes", "_reader", "_written", "waiting")

    def __init__(self, reader: FrameReader) -> None:
        self._reader = reader
        self._head = b""  # the beginning of a frame of unknown size
        self._left = 0  # bytes of the last frame that are not written yet
        self._written = self._read_bytes = 0
        self.waiting: deque[tuple[int, int, Frame]] = deque()  # end in the stream, time, frame

    def write(self, data: bytes, now_ns: int) -> None:
        self._written += len(data)
        data = self._head + data
        while data:
            if not self._left:
                frame = self._reader.read(data)
                if frame is None:
                    break
                self._left = max(1, frame.size_bytes)
                self.waiting.append((self._written - len(data) + self._left, now_ns, frame))
            data, self._left = data[self._left :], max(0, self._left - len(data))
        self._head = data

    def read(self, size: int) -> Iterator[tuple[int, Frame]]:
        """Take what the receiver has read, and yield the frames that ended in it."""
        self._read_bytes += size
        while self.waiting and self.waiting[0][0] <= self._read_bytes:
            _, sent_ns, frame = self.waiting.popleft()
            yield sent_ns, frame


class MessageRecorder:
    """The messages of one world in a window. `names`: of hosts, by address."""

    def __init__(
        self,
        network: SimNetwork,
        window: RecordingWindow,
        reader: Callable[[], FrameReader] = Writes,
    ) -> None:
        self.names: dict[str, str] = {}
        self._world, self._window, self._reader = network.world, window, reader
        self._messages: deque[RecordedMessage] = deque(maxlen=MAX_HELD)
        self._streams: dict[Socket, SentStream] | None = {}  # None: the window is over
        network.make_socket = partial(RecordedSocket, self)

    def sent(self, socket: Socket, data: bytes) -> None:
        """Take what a process has written."""
        streams = self._open_streams()
        if streams is None or socket.remote[0] in (LOOPBACK, socket.stack.address):
            return
        if socket not in streams:
            streams[socket] = SentStream(self._reader())
        streams[socket].write(data, self._world.now_ns)

    def received(self, sender: Socket, size: int) -> None:
        """Take that a process has read bytes which this socket sent."""
        streams = self._open_streams()
        if streams is None or sender not in streams:
            return
        now_ns = self._world.now_ns
        for sent_ns, frame in streams[sender].read(size):
            if now_ns >= self._window.begin and sent_ns <= self._window.end:
                self._add(sender, sent_ns, now_ns, frame)

    def recording(self) -> MessageRecording:
        """Return the messages, when the world has ended."""
        self._finish()
        return choose_messages(self._window, self._messages)

    def _open_streams(self) -> dict[Socket, SentStream] | None:
        if self._world.now_ns > self._window.end + GRACE_NS:
            self._finish()
        return self._streams

    def _finish(self) -> None:
        """Add what was not received, once."""
        streams, self._streams = self._streams or {}, None
        for socket, stream in streams.items():
            for _, sent_ns, frame in stream.waiting:
                if self._window.begin <= sent_ns <= self._window.end:
                    self._add(socket, sent_ns, None, frame)

    def _add(self, sender: Socket, sent_ns: int, at_ns: int | None, frame: Frame) -> None:
        ends = (sender.stack.address, sender.remote[0])
        source, target = (self.names.get(end, end) for end in ends)
        peer = sender.peer
        self._messages.append(
            RecordedMessage(
                sent=sent_ns,
                received=at_ns,
                lost=at_ns is None and (peer is None or peer.closed or peer.gone),
                source=source,
                target=target,
                kind=frame.kind[:MAX_NAME],
                size_bytes=frame.size_bytes,
                routine=frame.routine,
            )
        )


class RecordedSocket(Socket):
    """A socket that reports what is written and read."""

    __slots__ = ("_recorder",)

    def __init__(self, recorder: MessageRecorder, *ends: Any) -> None:
        super().__init__(*ends)
        self._recorder = recorder

    def send(self, data: bytes) -> int:
        was_closed = self.closed
        taken = super().send(data)
        if taken and not was_closed:
            self._recorder.sent(self, data[:taken])
        return taken

    def receive(self, limit: int) -> bytes | None:
        data = super().receive(limit)
        if data and self.peer is not None:
            self._recorder.received(self.peer, len(data))
        return data
