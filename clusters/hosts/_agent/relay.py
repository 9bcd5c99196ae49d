"""Connects standard input and output to the socket of an agent daemon; an ssh channel runs it.

    python3 -S -s -E relay.py FOLDER

It ends when either side does, and the agent runs on. If there is no agent any more, it prints the
reason as a line of the agent's protocol: `{"gone": "why"}`.
"""

import json
import os
import select
import socket
import sys

PORTION_BYTES = 256 * 1024


def main() -> None:
    os.chdir(sys.argv[1])  # paths of sockets are limited to 107 bytes
    agent = socket.socket(socket.AF_UNIX)
    try:
        agent.connect("agent.sock")
    except OSError:
        _write(1, json.dumps({"gone": f"its agent {_end()}"}).encode() + b"\n")
        return
    _join(agent)


def _join(agent: socket.socket) -> None:
    while True:
        ready, _, _ = select.select([0, agent.fileno()], [], [])
        if agent.fileno() in ready:
            data = agent.recv(PORTION_BYTES)
            if not data:
                return
            _write(1, data)
        if 0 in ready:
            data = os.read(0, PORTION_BYTES)
            if not data:
                return
            agent.sendall(data)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _end() -> str:
    """Return why there is no agent."""
    try:
        with open("agent.end") as file:
            return f"left: {file.read()}"
    except OSError:
        return "ended without a reason"


if __name__ == "__main__":
    try:
        main()
    except OSError:
        sys.exit(1)  # a connection broke, on either side
