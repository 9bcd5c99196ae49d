"""A node that shouts: `python beacon.py ADDRESS PEER...` is what faults are shown on.

Fifty times a second it sends a datagram to every peer, and it counts what it hears from each. Asked
on TCP port 7000, it tells its counts: an independent witness of every link and of itself.
"""

import json
import select
import socket
import sys
import time

PORT = 7000
EVERY_S = 0.02


def main(address: str, peers: list[str]) -> None:
    talk = socket.create_server((address, PORT))
    shout = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    shout.bind((address, PORT))
    heard = dict.fromkeys(peers, 0)
    rounds, due = 0, time.monotonic()
    while True:
        ready, _, _ = select.select([talk, shout], [], [], max(0.0, due - time.monotonic()))
        while select.select([shout], [], [], 0)[0]:  # all of it, so that what is told is exact
            _, (source, _) = shout.recvfrom(64)
            heard[source] = heard.get(source, 0) + 1
        if talk in ready:
            answer(talk.accept()[0], {"rounds": rounds, "heard": heard})
        if time.monotonic() >= due:
            for peer in peers:
                shout.sendto(b"here", (peer, PORT))
            rounds, due = rounds + 1, time.monotonic() + EVERY_S


def answer(connection: socket.socket, what: object) -> None:
    with connection:
        connection.recv(16)
        body = json.dumps(what).encode()
        connection.sendall(len(body).to_bytes(4, "big") + body)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
