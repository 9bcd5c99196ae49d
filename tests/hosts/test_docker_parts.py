"""Parts of Docker hosts without an engine: options, frames of an exec, copied files."""

import asyncio
import gc
import io
import os
import re
import socket
import ssl
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from clusters.hosts._agent import download as _homecoming
from clusters.hosts.docker import exec_stream as _docker_stream
from clusters.hosts.docker import hosts as docker
from clusters.hosts.docker import labels as _docker_marks
from clusters.hosts.docker.options import DockerOptions, options
from harness.errors import BadRequest
from harness.history.runs import is_over, start_run
from harness.trial import Trial


def test_options_become_values() -> None:
    """Sizes in bytes, a network as such; without options there are no limits."""
    bed = {"subnet": "10.7.0.0/24", "base": "debian:12", "memory": "1g", "cpus": 1.5, "disk": "64m"}
    asked = DockerOptions(IPv4Network("10.7.0.0/24"), "debian:12", 1 << 30, 1.5, 64 << 20)
    assert options(bed) == asked
    assert options({"memory": 1 << 30}) == DockerOptions(memory=1 << 30)
    assert options({}) == DockerOptions()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            "colour",
            "red",
            "not an option of docker hosts; there are: base, cpus, disk, memory",
        ),
        ("subnet", "somewhere", "must be an IPv4 network such as 198.18.7.0/24"),
        ("subnet", "198.18.7.1/24", "has host bits set"),
        ("subnet", "10.0.0.0/30", "too small"),
        ("subnet", "127.0.7.0/24", "is loopback"),
        ("subnet", "224.0.0.0/16", "is multicast"),
        ("subnet", 7, "must be an IPv4 network"),
        ("base", "", "must be the name of an image"),
        ("base", "a b", "must be the name of an image"),
        ("memory", "lots", "must be a size such as 512m or 2g"),
        ("memory", True, "must be a size"),
        ("memory", "1m", "must be at least 64m"),
        ("disk", "0", "must be at least 1m"),
        ("cpus", 0, "must be a number of processors"),
        ("cpus", "two", "must be a number of processors"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(key: str, value: Any, said: str) -> None:
    """Before anything is started, also by `doctor`."""
    for ask in (docker.problems, lambda bed: docker.hosts(Trial(bed=bed), Path())):
        with pytest.raises(BadRequest, match=f"^bed.{key} ") as refused:
            ask({key: value})
        assert said in str(refused.value)


def test_a_disk_in_memory_must_fit_into_it() -> None:
    """Else the kernel would kill the node for writing to its disk."""
    with pytest.raises(BadRequest, match="disk must be smaller than"):
        options({"memory": "128m", "disk": "128m"})


@pytest.mark.parametrize("late", [False, True])
def test_a_node_that_cannot_be_made_does_not_break_the_leaving_off(late: bool) -> None:
    """The caller reports its error; the loop, where an unexpected error ends a run at once, never
    gets it."""
    unexpected: list[dict[str, Any]] = []

    async def leave() -> bool:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unexpected.append(context))
        made: Future[None] = Future()
        if not late:
            made.set_exception(OSError("no such image"))
        done = await docker.all_done([made], within_s=0.0 if late else 5.0)
        if late:
            made.set_exception(OSError("no such image"))
            await asyncio.sleep(0)  # the loop's turn to hear of it
            await asyncio.sleep(0)
        return done

    assert asyncio.run(leave()) is not late
    gc.collect()
    assert not unexpected


def test_names_on_an_engine_belong_to_one_run() -> None:
    """Runs may have the same name in two folders, and letters that no engine accepts."""
    names = {_docker_marks.name(Path(folder) / "Größe 7", "a") for folder in ("/x", "/y")}
    assert len(names) == 2
    assert all(re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+", name) for name in names)


def test_whose_run_is_over(tmp_path: Path) -> None:
    """One whose folder is gone or whose lock is free; never one in a folder that we cannot read."""
    assert is_over(tmp_path / "gone")
    assert is_over(Path("/etc/passwd/no/folder"))
    assert is_over(tmp_path)
    with start_run(Trial(), "", tmp_path) as run:
        assert not is_over(run.path)
    assert is_over(run.path)
    assert not is_over(tmp_path / ("x" * 300))  # the kernel refuses to look


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_a_run_that_we_may_not_look_at_is_not_ours_to_end(tmp_path: Path) -> None:
    """`Path.is_dir()` would return False, as of Python 3.14."""
    code = "import os, sys; from pathlib import Path; from harness.history.runs import is_over\n"
    code += "os.setresuid(65534, 65534, 65534); print(is_over(Path(sys.argv[1])))"
    tmp_path.chmod(0o700)
    argv = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.stdout == "None\n", done.stderr


Frames = list[tuple[int, bytes]]
Pair = tuple[ssl.SSLSocket, ssl.SSLSocket]


@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(min_size=1, max_size=40)), max_size=20),
    st.integers(1, 30),
    st.integers(1, 30),
)
def test_frames_of_an_exec_become_one_stream(frames: Frames, portion: int, size: int) -> None:
    """However the bytes are split, output is complete and in order, and errors are kept apart."""
    stream = _docker_stream.ExecStream(Cut(frames, portion))
    assert b"".join(iter(lambda: stream.recv(size), b"")) == joined(frames, 1)
    assert stream.errors == joined(frames, 2)[-_docker_stream.MAX_ERROR_BYTES :]


def test_a_stream_is_closed_by_half_and_then_whole() -> None:
    """The program's input ends first; closing the stream wakes a reader of its output."""
    ours, theirs = socket.socketpair()
    with theirs:
        stream = _docker_stream.ExecStream(ours)
        stream.sendall(b"last line\n")
        stream.shutdown()
        assert (theirs.recv(100), theirs.recv(100)) == (b"last line\n", b"")
        theirs.sendall(_docker_stream.HEADER.pack(1, 3) + b"bye")
        assert stream.recv(100) == b"bye"
        stream.close()
        assert theirs.recv(100) == b""


def test_over_tls_two_threads_may_read_and_write(tls: Pair) -> None:
    """Megabytes in both directions at once arrive complete, and the end is seen."""
    ours, theirs = tls
    stream, sent = _docker_stream.ExecStream(ours), os.urandom(3_000_000)

    def program() -> bytes:
        """Writes all of its output before it reads any of its input."""
        for at in range(0, len(sent), 50_000):
            part = sent[at : at + 50_000]
            theirs.sendall(_docker_stream.HEADER.pack(1, len(part)) + part)
        with theirs, theirs.makefile("rb") as incoming:
            return incoming.read(len(sent))

    with ThreadPoolExecutor() as threads:
        out = threads.submit(lambda: b"".join(iter(lambda: stream.recv(65536), b"")))
        took = threads.submit(program)
        stream.sendall(sent)
        assert (took.result(), out.result()) == (sent, sent)


def test_files_come_home_below_their_folder_and_nowhere_else(tmp_path: Path) -> None:
    """Whatever the names in the stream; links and devices are ignored."""
    names = ["a/log", "a/deep/down/log", "./a/dot", "a/../../out", "/a/rooted", "a"]
    packed = tar([(name, b"x") for name in names], links=["a/link"])
    assert _homecoming.unpack(io.BytesIO(packed), tmp_path / "home") == []
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"home/log", "home/deep/down/log", "home/dot", "home/a/rooted"}


def test_zeros_take_no_room_and_large_files_stay_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preallocated log keeps its length, and what follows a large file is not lost."""
    monkeypatch.setattr(_homecoming, "MAX_FILE_BYTES", 5 << 20)
    log = b"begin" + bytes(4 << 20) + b"end"
    packed = tar([("a/log", log), ("a/huge", bytes(6 << 20)), ("a/zeros", bytes(3 << 20))])
    portions = (packed[at : at + 1000] for at in range(0, len(packed), 1000))
    left_out = _homecoming.unpack(_homecoming.IterableReader(portions), tmp_path)
    assert left_out == [f"{tmp_path}/huge (6 MB)"]
    assert (tmp_path / "log").read_bytes() == log
    assert (tmp_path / "zeros").stat().st_size == 3 << 20
    assert (tmp_path / "zeros").stat().st_blocks == 0


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[Pair]:
    """Two ends of a TLS connection: a client's, and that of an engine with a key of its own."""
    (tmp_path / "pem").write_bytes(certificate("engine"))
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "pem")
    trusting = ssl.create_default_context(cafile=str(tmp_path / "pem"))
    one, other = socket.socketpair()
    with ThreadPoolExecutor() as threads:
        accepted = threads.submit(serving.wrap_socket, other, server_side=True)
        ours = trusting.wrap_socket(one, server_hostname="engine")
        theirs = accepted.result()
    yield ours, theirs
    ours.close()
    theirs.close()


def certificate(name: str) -> bytes:
    """A key and its own signature on it, as PEM."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signed = (
        x509.CertificateBuilder(named, named, key.public_key(), 1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return private + signed.public_bytes(serialization.Encoding.PEM)


class Cut:
    """A channel whose bytes arrive in portions, with the interface of an SSH channel."""

    def __init__(self, frames: Frames, portion: int) -> None:
        packed = (_docker_stream.HEADER.pack(kind, len(data)) + data for kind, data in frames)
        self._bytes: Iterator[int] = iter(b"".join(packed))
        self._read_frame = portion

    def recv(self, size: int) -> bytes:
        wanted = range(min(size, self._read_frame))
        return bytes(byte for _, byte in zip(wanted, self._bytes, strict=False))

    def settimeout(self, timeout: float | None) -> None: ...


def joined(frames: Frames, kind: int) -> bytes:
    return b"".join(data for one, data in frames if one == kind)


def tar(files: list[tuple[str, bytes]], links: list[str] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as packed:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            packed.addfile(member, io.BytesIO(data))
        for name in links or []:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            packed.addfile(member)
    return out.getvalue()
