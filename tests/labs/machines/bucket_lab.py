"""Object storage of the tests' own: an S3 server on loopback that speaks HTTP, with a bucket in it.

The server notes who asked for what, so that a test can say who fetched a file. It is moto's, in a
thread of this process; whatever asks it, asks by a socket.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs

BUCKET = "host_lab"
DENIED = b"<Error><Code>AccessDenied</Code><Message>not for you</Message></Error>"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "sailor", "AWS_SECRET_ACCESS_KEY": "secret"}
ANSWER_WITHIN_S = 120.0  # by itself 3 s; at its first question moto loads its parts for S3


@dataclass
class Storage:
    """A bucket, and what was asked of it."""

    endpoint: str
    files: Any
    asked: list[tuple[str, str]] = field(default_factory=list)  # a method, and a path
    refused: set[str] = field(default_factory=set)  # methods that are not permitted

    def keep(self, folder: Path, name: str, without: str = "") -> str:
        """A folder becomes a run in the bucket; its address."""
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(folder)
            if path.is_file() and inside.parts[0] != without:
                self.write(f"{name}/{inside}", path.read_bytes())
        return f"s3a://{BUCKET}/{name}"

    def write(self, name: str, data: bytes) -> None:
        with self.files.open_output_stream(f"{BUCKET}/{name}") as file:
            file.write(data)

    def read(self, name: str) -> bytes:
        with self.files.open_input_file(f"{BUCKET}/{name}") as file:
            return bytes(file.read())

    def names(self, below: str) -> list[str]:
        infos = self.files.get_file_info(fs.FileSelector(f"{BUCKET}/{below}", recursive=True))
        start = len(f"{BUCKET}/{below}/")
        return sorted(info.path[start:] for info in infos if info.is_file)


class _Noting:
    """A WSGI application, what it is asked, and what it is kept from."""

    def __init__(self, application: Any, kept: Storage) -> None:
        self._application, self._kept = application, kept

    def __call__(self, environment: dict[str, Any], respond: Any) -> Any:
        method = environment["REQUEST_METHOD"]
        self._kept.asked.append((method, environment["PATH_INFO"]))
        if method in self._kept.refused:
            respond("403 Forbidden", [("Content-Type", "application/xml")])
            return [DENIED]
        return self._application(environment, respond)


@contextmanager
def storage() -> Iterator[Storage]:
    """A server with a bucket, to which the environment leads."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        with pytest.MonkeyPatch.context() as patch:
            for name, text in {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}.items():
                patch.setenv(name, text)
            files = fs.S3FileSystem(
                endpoint_override=endpoint,
                region="us-east-1",
                allow_bucket_creation=True,
                request_timeout=ANSWER_WITHIN_S,
            )
            files.create_dir(BUCKET)
            kept = Storage(endpoint, files)
            inside = server._server
            assert inside is not None
            inside.app = _Noting(inside.app, kept)
            yield kept
    finally:
        server.stop()
