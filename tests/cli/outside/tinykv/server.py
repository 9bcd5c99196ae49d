"""A key-value server of whole numbers: one process, one append-only file.

python server.py ADDRESS PORT FILE [stale]. A request is a line of JSON, a response has a length
prefix. `stale`: a get now and then returns an old value.
"""

import json
import struct
import sys
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Lock


class Store:
    def __init__(self, path, stale):
        self.lock, self.values, self.old, self.stale, self.gets = Lock(), {}, {}, stale, 0
        for line in path.read_text().splitlines() if path.exists() else ():
            key, value = json.loads(line)
            self.values[key] = value
        self.path = path

    def answer(self, do, key="", value=None, expected=None):
        with self.lock:
            now = self.values.get(key)
            if do == "get":
                self.gets += 1
                late = self.stale and self.gets % 50 == 0
                return {"value": self.old.get(key) if late else now}
            if do == "put" or (do == "cas" and now == expected):
                try:
                    with self.path.open("a") as file:
                        file.write(json.dumps([key, value]) + "\n")
                except OSError as e:
                    return {"error": str(e)}
                self.old[key], self.values[key] = now, value
                return {"done": True}
            return {"done": do != "cas"}


class Handler(StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            answer = json.dumps(self.server.store.answer(**json.loads(line))).encode()
            self.wfile.write(struct.pack(">I", len(answer)) + answer)


class Server(ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True


if __name__ == "__main__":
    address, port, file, *words = sys.argv[1:]
    server = Server((address, int(port)), Handler)
    server.store = Store(Path(file), "stale" in words)
    server.serve_forever()
