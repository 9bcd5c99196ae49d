"""A node that keeps a diary: `python diary.py ADDRESS FOLDER` is what faults of disks are shown on.

Asked on TCP port 7000, it adds a line to its diary and syncs it, and tells which errors it met, how
long the sync took, and how many lines there are: an independent witness of its own disk. A line
that is not as it was written is met with refusal at the start; half a line at the end is cut off.
"""

import errno
import json
import os
import socket
import sys
import threading
import time
from zlib import crc32

PORT = 7000
PATIENCE_S = 8.0
DAMAGED = 3
FIRST_LINES = 200


def main(address: str, folder: str) -> int:
    path = f"{folder}/diary"
    os.makedirs(folder, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    text = os.pread(fd, os.fstat(fd).st_size, 0)
    whole = text[: text.rfind(b"\n") + 1]
    if any(line != written(number) for number, line in enumerate(whole.splitlines(True))):
        return DAMAGED
    os.ftruncate(fd, len(whole))
    if not whole:
        os.write(fd, b"".join(written(number) for number in range(FIRST_LINES)))
    with socket.create_server((address, PORT)) as talk:
        while True:
            answer(talk.accept()[0], fd)


def written(number: int) -> bytes:
    text = f"{number:08d} nothing happened"
    return f"{text} {crc32(text.encode()):08x}\n".encode()


def answer(connection: socket.socket, fd: int) -> None:
    with connection:
        connection.recv(16)
        size = len(written(0))
        told = {"write": met(lambda: os.write(fd, written(os.fstat(fd).st_size // size)))}
        syncing = threading.Thread(target=sync, args=(fd, told), daemon=True)
        syncing.start()
        syncing.join(PATIENCE_S)
        lines = os.fstat(fd).st_size // size
        body = json.dumps({"sync": "", "sync_s": -1, "lines": lines, **told}).encode()
        connection.sendall(len(body).to_bytes(4, "big") + body)


def sync(fd: int, told: dict[str, object]) -> None:
    began_s = time.monotonic()
    told["sync"] = met(lambda: os.fdatasync(fd))
    told["sync_s"] = time.monotonic() - began_s


def met(deed: object) -> str:
    """The error that a deed ends with; empty: none."""
    assert callable(deed)
    try:
        deed()
    except OSError as e:
        return errno.errorcode[e.errno or 0]
    return ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
