"""A node that writes through mapped memory: `python mapper.py ADDRESS FOLDER`.

At its start it writes two files of one page each through mapped memory, once both are made and
synced; one of them is flushed (msync), the other is not. Asked on TCP port 7001, it says what both
hold. At a later start they are only read.
"""

import json
import mmap
import os
import socket
import sys

PORT = 7001
PAGE = 4096
TEXTS = {"flushed": b"msync was called", "unflushed": b"nothing was called"}


def main(address: str, folder: str) -> None:
    if not os.path.exists(f"{folder}/written"):
        write(folder)
    with socket.create_server((address, PORT)) as talk:
        while True:
            connection = talk.accept()[0]
            with connection:
                connection.recv(16)
                body = json.dumps(read(folder)).encode()
                connection.sendall(len(body).to_bytes(4, "big") + body)


def write(folder: str) -> None:
    for name in (*TEXTS, "written"):
        with open(f"{folder}/{name}", "wb") as file:
            file.write(bytes(PAGE))
            file.flush()
            os.fsync(file.fileno())
    where = os.open(folder, os.O_RDONLY)
    os.fsync(where)
    os.close(where)
    for name, text in TEXTS.items():
        with open(f"{folder}/{name}", "r+b") as file:
            memory = mmap.mmap(file.fileno(), PAGE)
        memory[: len(text)] = text
        if name == "flushed":
            memory.flush()
        memory.close()


def read(folder: str) -> dict[str, bool]:
    """Whether each file holds what was written to it."""
    found = {}
    for name, text in TEXTS.items():
        with open(f"{folder}/{name}", "rb") as file:
            found[name] = file.read(len(text)) == text
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
