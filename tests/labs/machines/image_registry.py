"""A registry of images for one engine: enough of the Docker registry's protocol to be pulled from.

It serves one image of one layer over HTTP on this machine, which engines allow without encryption.
Started in a lab's network with the file of a layer and a port (`lab.inside([sys.executable,
image_registry.__file__, LAYER, PORT])`), it prints `ready` when it listens. With `silent` after
the port, it accepts and never answers: a registry behind a broken network.
"""

import gzip
import hashlib
import http.server
import json
import platform
import socket
import sys
import threading
from pathlib import Path

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def contents(tar: bytes) -> dict[str, tuple[str, bytes]]:
    """What is served: a kind and bytes for the last part of each path."""
    layer = gzip.compress(tar, compresslevel=1, mtime=0)
    machine = platform.machine()
    config = json.dumps(
        {
            "architecture": ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": {"Cmd": ["sleep", "infinity"]},
            "rootfs": {"type": "layers", "diff_ids": [digest(tar)]},
        }
    ).encode()
    parts = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "size": len(config), "digest": digest(config)},
        "layers": [{"mediaType": LAYER, "size": len(layer), "digest": digest(layer)}],
    }
    manifest = json.dumps(parts).encode()
    served = {digest(d): (kind, d) for kind, d in ((CONFIG, config), (LAYER, layer))}
    return {**served, digest(manifest): (MANIFEST, manifest), "1": (MANIFEST, manifest)}


def serve(served: dict[str, tuple[str, bytes]], port: int) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rsplit("/", 1)[-1]
            kind, data = served.get(name, ("application/json", b"{}"))
            self.send_response(200 if name in served or self.path == "/v2/" else 404)
            self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
            self.send_header("Content-Type", kind)
            self.send_header("Docker-Content-Digest", digest(data))
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print("ready", flush=True)
    server.serve_forever()


def stay_silent(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        print("ready", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    if sys.argv[3:] == ["silent"]:
        stay_silent(int(sys.argv[2]))
    serve(contents(Path(sys.argv[1]).read_bytes()), int(sys.argv[2]))
