"""What an ssh channel carries: standard input and output joined to the socket of an agent daemon.

    python3 -S -s -E relay.py FOLDER

It ends when either side does, and the agent goes on. Where there is no agent any more, it says so
in a line of the agent's protocol: `{"gone": "why"}`.
"""

import json
import os
import select
import socket
import sys

PORTION_BYTES = 256 * 1024


def main() -> None:
    os.chdir(sys.argv[1])  # the paths of sockets are short, so it is named from here
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
    """Why there is no agent."""
    try:
        with open("agent.end") as file:
            return f"left: {file.read()}"
    except OSError:
        return "ended, and did not say why"


if __name__ == "__main__":
    try:
        main()
    except OSError:
        sys.exit(1)  # the connection broke, here or there
