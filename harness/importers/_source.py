"""Reads a history file, plain or gzipped, as pieces of whole lines.

Compression is recognized by the file's first bytes, not by its name. UTF-16 with a byte order
mark, as PowerShell writes it, is converted to UTF-8. A truncated or damaged gzip file gives the
data before the damage, and a slip.

A thread or process that reads pieces may be in a compiler, for tens of seconds, where no exception
reaches it. Its result is not needed when the import is stopped, so the command ends without it:
`harness.cli.main` does not wait for threads, and processes are killed.
"""

import signal
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, getincrementaldecoder
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from harness.errors import BadRequest
from harness.importers._recording import Slip, Slips
from harness.run.interrupts import STOP_SIGNALS, stop_signals_blocked, stop_signals_deferred

PIECE_BYTES = 2 << 20  # columns of a piece this size stay in the cache of a processor
MAX_OPERATION_BYTES = 8 << 20  # a longer operation of several lines may be cut at any line
MAX_UNPACKED_MB = ContextVar("MAX_UNPACKED_MB", default=512)  # of an unpacked file, or of one line
_CHUNK = 1 << 14  # compressed bytes unpacked at once
_GZIP = b"\x1f\x8b"
_STEP = 64
_AUTOMATIC = 47  # zlib's wbits for: gzip or zlib, depending on the header


def pieces(path: Path, slips: Slips, size: int = PIECE_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield the number of each piece's first line, from 1, and its bytes: whole lines. The first
    line of a piece begins with a map or a tag, so that operations of several lines are in one
    piece.

    Raises BadRequest if a line is longer than `MAX_UNPACKED_MB`.
    """
    line, rest = 1, list[bytes]()
    for block in blocks(path, slips, size):
        if rest and rest[-1].endswith(b"\n"):
            block = rest.pop() + block
        end = max(block.rfind(b"\n{"), block.rfind(b"\n#")) + 1
        waiting = sum(map(len, rest)) + len(block)
        if not end and waiting > MAX_OPERATION_BYTES:
            end = block.rfind(b"\n") + 1
        if end:
            piece = b"".join((*rest, block[:end]))
            yield line, piece
            line += piece.count(b"\n")
            rest, waiting = [], len(block) - end
        rest.append(block[end:])
        if waiting > max_bytes():
            raise too_large()
    if last := b"".join(rest):
        yield line, last


def whole(path: Path, slips: Slips) -> bytes:
    """Return a whole file, unpacked. Raises BadRequest if it exceeds `MAX_UNPACKED_MB`."""
    found, left = list[bytes](), max_bytes()
    for block in blocks(path, slips):
        left -= len(block)
        if left < 0:
            raise too_large()
        found.append(block)
    return b"".join(found)


def blocks(path: Path, slips: Slips, size: int = PIECE_BYTES) -> Iterator[bytes]:
    """Yield the unpacked bytes of a file. Raises BadRequest if it is unreadable or empty."""
    refuse_pipe(path)
    try:
        with path.open("rb") as file:
            head = file.read(2)
            file.seek(0)
            raw = iter(lambda: file.read(size), b"")
            found = False
            for block in _utf8(_unpacked(raw, slips) if head == _GZIP else raw):
                found = found or bool(block.strip())
                yield block
    except OSError as e:
        raise BadRequest(f"{path} cannot be read: {e.strerror}") from e
    if not found:
        why = f"cannot be unpacked: {slips.first[0]}" if slips else "is empty"
        raise BadRequest(f"{path} {why}: there is no history in it")


def refuse_pipe(path: Path) -> None:
    """Raise BadRequest if the path is a pipe or a device: those may never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise BadRequest(f"{path} cannot be read: it is not a regular file; write it to one")


def _utf8(raw: Iterator[bytes]) -> Iterator[bytes]:
    """Remove a byte order mark, and convert UTF-16 to UTF-8."""
    first = next((block for block in raw if block), b"")
    if first.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        decoder = getincrementaldecoder("utf-16")(errors="replace")
        yield from (decoder.decode(block).encode() for block in chain((first,), raw))
        yield decoder.decode(b"", final=True).encode()
        return
    yield first.removeprefix(BOM_UTF8)
    yield from raw


def _unpacked(raw: Iterator[bytes], slips: Slips) -> Iterator[bytes]:
    """Yield the unpacked data. Raises BadRequest if it exceeds `MAX_UNPACKED_MB`."""
    stream = zlib.decompressobj(_AUTOMATIC)
    left = max_bytes()
    for packed in raw:
        at = 0
        while at < len(packed) or stream.unconsumed_tail:
            if stream.eof:
                stream = zlib.decompressobj(_AUTOMATIC)  # a file may hold several members
            some = stream.unconsumed_tail or packed[at : at + _CHUNK]
            at += 0 if stream.unconsumed_tail else len(some)
            before = stream.copy()
            try:
                piece = stream.decompress(some, PIECE_BYTES)
            except zlib.error as e:
                yield from _until_damage(before, some)
                slips.add(Slip("BROKEN_GZIP", 0, f"the gzip data is damaged ({e})", gap=True))
                return
            at -= len(stream.unused_data)
            left -= len(piece)
            if left < 0:
                raise too_large()
            yield piece
    if not stream.eof:
        slips.add(Slip("BROKEN_GZIP", 0, "the gzip data breaks off before its end", gap=True))


def max_bytes() -> int:
    """Return how large a file may be when it is unpacked."""
    return MAX_UNPACKED_MB.get() << 20


def too_large() -> BadRequest:
    limit_mb = MAX_UNPACKED_MB.get()
    return BadRequest(
        f"the file, or a line of it, has more than {limit_mb:,} MB when it is unpacked; if that is"
        " what you expect, raise the limit with --max-unpacked-mb"
    )


def _until_damage(stream: "zlib._Decompress", packed: bytes) -> Iterator[bytes]:
    """Yield the data before the damage, unpacked in small steps."""
    with suppress(zlib.error):
        for at in range(0, len(packed), _STEP):
            yield stream.decompress(packed[at : at + _STEP])


def text_of(path: Path, slips: Slips) -> str:
    """Return a file as text; bytes that are not UTF-8 are replaced, and give a slip."""
    data = whole(path, slips)
    text, sound = decoded(data)
    if not sound:
        line = next(n for n, raw in enumerate(data.split(b"\n"), start=1) if not decoded(raw)[1])
        slips.add(Slip("NOT_EDN", line, "not UTF-8", gap=True))
    return text


def decoded(raw: bytes) -> tuple[str, bool]:
    """Return bytes as text, and whether all of them are UTF-8."""
    try:
        return raw.decode(), True
    except UnicodeDecodeError:
        return raw.decode(errors="replace"), False


# -------------------------------------------------------------------- pools that read pieces


class AbandonedThreads(ThreadPoolExecutor):
    """Threads that are not waited for at the end."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=cancel_futures)


class QuietProcesses(ProcessPoolExecutor):
    """Processes that ignore a Ctrl-C, which is sent to the whole group, and end when the
    pool is shut down, even if they compute."""

    def submit(self, *what: Any, **more: Any) -> Future[Any]:
        with stop_signals_blocked():
            return super().submit(*what, **more)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with stop_signals_deferred():
            results: Any = self._result_queue
            results._writer.close()  # else the rest of half a result is waited for
            for process in list((self._processes or {}).values()):
                process.kill()
            super().shutdown(wait, cancel_futures=cancel_futures)


def quiet_processes(count: int, begin: Callable[[], None] | None) -> QuietProcesses:
    """Return so many processes; `begin` is called in each before its first work."""
    spawn = get_context("spawn")
    return QuietProcesses(count, spawn, initializer=_start_quietly, initargs=(begin,))


def _start_quietly(begin: Callable[[], None] | None) -> None:
    """Begin a process; its parent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    if begin is not None:
        begin()
