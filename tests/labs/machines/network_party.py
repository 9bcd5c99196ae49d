"""One party of a network scene: does with connections what standard input says, and tells what a
protocol sees. The same code is a real process and a simulated one.

    listen PORT             serve connections; they are named s1, s2, ...
    dial NAME HOST PORT     connect
    write NAME TEXT         a line
    pour NAME BYTES         many bytes, without a line's end
    end|close|abort|hold|release NAME    write_eof, close, abort, pause_reading, resume_reading
    keep                    from now on, connections stay open when the peer has ended
    count NAME              how many poured bytes arrived
    remind NAME SECONDS     say so when they are over

What it says starts with the name: made, got TEXT, ended, lost ERRNO, held, resumed.
"""

import asyncio
import errno
import sys
from typing import Any, cast

WATERMARK = 64 * 1024


class Talk(asyncio.Protocol):
    """One connection."""

    def __init__(self, party: "Party", name: str) -> None:
        self.party, self.name = party, name
        self.poured = 0
        self.keep = party.keep
        self._line = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(WATERMARK)
        self.say("made")

    def data_received(self, data: bytes) -> None:
        *lines, self._line = (self._line + data.replace(b"\0", b"")).split(b"\n")
        self.poured += data.count(b"\0")
        for line in lines:
            self.say(f"got {line.decode()}")

    def eof_received(self) -> bool:
        self.say("ended")
        return self.keep

    def connection_lost(self, exc: Exception | None) -> None:
        self.say(f"lost {why(exc)}")

    def pause_writing(self) -> None:
        self.say("held")

    def resume_writing(self) -> None:
        self.say("resumed")

    def say(self, what: str) -> None:
        print(self.name, what, flush=True)


class Party(asyncio.Protocol):
    """Standard input."""

    def __init__(self) -> None:
        self.keep = False
        self.over = asyncio.get_running_loop().create_future()
        self._talks: dict[str, Talk] = {}
        self._accepted = 0
        self._inbox = b""
        self._tasks: list[asyncio.Task[None]] = []

    def data_received(self, data: bytes) -> None:
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        for line in lines:
            verb, *words = line.decode().split(" ")
            self._tasks.append(asyncio.create_task(getattr(self, f"do_{verb}")(*words)))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)

    async def do_listen(self, host: str, port: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_server(self._accept, host, int(port), reuse_address=True)
            print("listening", flush=True)
        except OSError as e:
            print("not listening", why(e), flush=True)

    async def do_dial(self, name: str, host: str, port: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self._talk(name), host, int(port))
        except OSError as e:
            print(name, "not made", type(e).__name__, why(e), flush=True)

    async def do_keep(self) -> None:
        self.keep = True
        print("keeping", flush=True)

    async def do_write(self, name: str, text: str) -> None:
        self._talks[name].transport.write(text.encode() + b"\n")

    async def do_pour(self, name: str, size: str) -> None:
        self._talks[name].transport.write(bytes(int(size)))

    async def do_count(self, name: str) -> None:
        print(name, "has", self._talks[name].poured, flush=True)

    async def do_remind(self, name: str, delay_s: str) -> None:
        asyncio.get_running_loop().call_later(float(delay_s), self._talks[name].say, "reminded")
        print(name, "waits", flush=True)

    async def do_end(self, name: str) -> None:
        self._talks[name].transport.write_eof()

    async def do_close(self, name: str) -> None:
        self._talks[name].transport.close()

    async def do_abort(self, name: str) -> None:
        self._talks[name].transport.abort()

    async def do_hold(self, name: str) -> None:
        self._talks[name].transport.pause_reading()
        print(name, "holds", flush=True)

    async def do_release(self, name: str) -> None:
        self._talks[name].transport.resume_reading()

    def _accept(self) -> Talk:
        self._accepted += 1
        return self._talk(f"s{self._accepted}")

    def _talk(self, name: str) -> Talk:
        self._talks[name] = Talk(self, name)
        return self._talks[name]


def why(error: BaseException | None) -> str:
    """The errno's name."""
    if isinstance(error, OSError) and error.errno:
        return errno.errorcode[error.errno]
    return repr(error) if error else "nothing"


async def attend(_process: Any = None) -> int:
    """Until standard input ends."""
    loop = asyncio.get_running_loop()
    party = Party()
    await loop.connect_read_pipe(lambda: party, sys.stdin.buffer)
    print("here", flush=True)
    await party.over
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(attend()))
