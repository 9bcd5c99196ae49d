"""A node that sends beacons, to observe faults: `python beacon.py ADDRESS PEER...`.

Fifty times a second it sends a kilobyte with the time to every peer, and it counts what it receives
from each. On a connection to TCP port 7000 it reports its counts, the lowest delay of the last few
packets of each peer, the time of its clock and its limits: an independent witness of every link and
of itself.
"""

import json
import mmap
import os
import select
import socket
import sys
import time

PORT = 7000
EVERY_S = 0.02
FEW = 5
BUFFER_BYTES = 4 << 20  # packets wait in it while the machine is busy


def main(address: str, peers: list[str]) -> None:
    talk = socket.create_server((address, PORT))
    shout = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    shout.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    shout.bind((address, PORT))
    heard = dict.fromkeys(peers, 0)
    late_s: dict[str, list[float]] = {peer: [] for peer in peers}
    rounds, due = 0, time.monotonic()
    while True:
        ready, _, _ = select.select([talk, shout], [], [], max(0.0, due - time.monotonic()))
        while select.select([shout], [], [], 0)[0]:  # all of it, so that the counts are exact
            data, (source, _) = shout.recvfrom(2048)
            heard[source] = heard.get(source, 0) + 1
            late_s[source] = [*late_s[source][-FEW + 1 :], time.monotonic() - float(data)]
        if talk in ready:
            answer(talk.accept()[0], {"rounds": rounds, "heard": heard, "late": _least(late_s)})
        if time.monotonic() >= due:
            for peer in peers:
                shout.sendto(str(time.monotonic()).encode().ljust(1000), (peer, PORT))
            rounds, due = rounds + 1, time.monotonic() + EVERY_S


def _least(late_s: dict[str, list[float]]) -> dict[str, float]:
    return {source: min(late) for source, late in late_s.items() if late}


def answer(connection: socket.socket, counts: dict[str, object]) -> None:
    with connection:
        connection.recv(16)
        own = {"wall": time.time(), "files": openable(), "memory": allocatable()}
        body = json.dumps(counts | own).encode()
        connection.sendall(len(body).to_bytes(4, "big") + body)


def openable() -> int:
    """How many more files this process may open, of ten."""
    opened: list[int] = []
    try:
        while len(opened) < 10:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    for fd in opened:
        os.close(fd)
    return len(opened)


def allocatable() -> bool:
    """Whether it may take 64 MB more."""
    try:
        mmap.mmap(-1, 64 << 20).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
