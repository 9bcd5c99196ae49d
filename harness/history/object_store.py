"""Files in object storage: fetched by whoever opens them, on the machine where he opens them.

A run may lie in a bucket (`s3a:`) or in Hadoop's file system (`hdfs:`). A `Stored` path is one of
its large files: it knows name and size before anything is fetched, travels to executors like any
path, and is a whole file of the machine as soon as somebody opens it. So whatever reads a history
reads it from storage too. Each machine fetches a file once, and has it under its name when it is
complete. A copy belongs to one version of the object: what was changed is another file.

Arrow does the talking: it takes credentials where AWS's own tools take them (the environment, the
files in `~/.aws`, the machine's role). None of them travel to executors, who have their own.
"""

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path, PosixPath
from typing import Any

from harness.errors import BadRequest, BedFailed, SeatrialError, Unfetched, Unsupported
from harness.user_folders import private

S3, HDFS = "s3", "hdfs"
CONNECT_WITHIN_S = 3.0
ANSWER_WITHIN_S = 10.0  # one request of S3
TRIES = 3
FOOTER_BYTES = 64 << 10  # of a sealed file: most lists of contents are in it
SCRATCH = "SPARK_LOCAL_DIRS"  # an executor's own folder, which Spark removes when it ends
REFUSED = ("ACCESS_DENIED", "INVALID_ACCESS", "INVALID_CLIENT", "SIGNATURE", "TOKEN", "status 403")
ELSEWHERE = ("status 301", "PermanentRedirect", "HTTP status 400")
SILENT = ("NETWORK_CONNECTION", "REQUEST_TIMEOUT", "curlCode")


@dataclass(frozen=True)
class Store:
    """Where objects lie: a bucket of S3, or a name node. It travels to executors."""

    kind: str
    where: str
    endpoint: str = ""
    region: str = ""

    @property
    def files(self) -> Any:
        """Arrow's file system. One of this process: it is not handed on."""
        return _files(self)

    def at(self, key: str) -> str:
        """What Arrow calls an object."""
        return f"{self.where}/{key}" if self.kind == S3 else f"/{key}"

    @property
    def name(self) -> str:
        """What people call it."""
        at = f" at {self.endpoint}" if self.endpoint else ""
        return f"the bucket {self.where}{at}" if self.kind == S3 else f"hdfs://{self.where}"


@cache
def _files(store: Store) -> Any:
    from pyarrow import fs

    if store.kind == HDFS:
        host, _, port = store.where.partition(":")
        return _hadoop(fs, host or "default", int(port or 0))
    return fs.S3FileSystem(
        region=store.region or None,
        endpoint_override=store.endpoint or None,
        connect_timeout=CONNECT_WITHIN_S,
        request_timeout=ANSWER_WITHIN_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=TRIES),
    )


def _hadoop(fs: Any, host: str, port: int) -> Any:
    """Unsupported when its library, or the Java that it is made of, is not here."""
    try:
        return fs.HadoopFileSystem(host, port)
    except OSError as e:
        if "load lib" not in str(e) and "libhdfs" not in str(e):
            raise
        raise Unsupported(
            f"hdfs: addresses need Hadoop's libhdfs, which is not here ({_line(e)}); set "
            "HADOOP_HOME, JAVA_HOME and CLASSPATH (`hadoop classpath --glob`), or copy the run to "
            "a folder"
        ) from e


@contextmanager
def told(store: Store, doing: str) -> Iterator[None]:
    """What Arrow says of storage, as one of our errors. `doing`: what could not be done."""
    try:
        yield
    except (OSError, ValueError) as e:  # ValueError: what Arrow takes for an invalid request
        raise _in_words(store, doing, e) from e


def _in_words(store: Store, doing: str, error: Exception) -> SeatrialError:
    text = str(error)
    if "NO_SUCH_BUCKET" in text:
        return BadRequest(f"{doing}: there is no bucket {store.where}; see its name and region")
    if any(word in text for word in REFUSED):
        return BadRequest(
            f"{doing}: {store.name} refuses us ({_line(error)}); set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, to an account that may"
        )
    if any(word in text for word in SILENT):
        return BedFailed(
            f"{doing}: {store.name} does not answer ({_line(error)}); see the network and "
            "AWS_ENDPOINT_URL"
        )
    if any(word in text for word in ELSEWHERE):
        return BadRequest(
            f"{doing}: {store.name} is not in this region ({_line(error)}); set AWS_REGION"
        )
    return BedFailed(f"{doing}: {_line(error)}; see that storage, and try again")


def _line(error: Exception) -> str:
    """What went wrong, without the request's whole story."""
    lines = str(error).splitlines() or [type(error).__name__]
    said = lines[0].rpartition("AWS Error ")[2].partition("; Details:")[0]
    return said.rstrip(". ")


def version_of(store: Store, key: str) -> str:
    """It differs as soon as the object does."""
    with store.files.open_input_file(store.at(key)) as file:
        tag = (file.metadata() or {}).get("ETag", b"")
    if tag:
        return str(tag.decode(errors="replace"))
    info = store.files.get_file_info(store.at(key))
    return f"{info.mtime_ns}-{info.size}"


# -------------------------------------------------------------------------------- one large file


@dataclass(frozen=True)
class Held:
    """One version of an object."""

    store: Store
    key: str
    size: int
    mtime_ns: int
    version: str

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def label(self) -> str:
        """The same for nothing else."""
        words = "\0".join(map(str, (self.store, self.key, self.size, self.version)))
        return blake2b(words.encode(), digest_size=12).hexdigest()


class Stored(PosixPath):
    """Where an object's copy is, or will be as soon as somebody opens it."""

    held: Held | None = None  # nothing, of a path that was made from such a path

    @classmethod
    def of(cls, held: Held, path: Path) -> "Stored":
        stored = cls(path)
        stored.held = held
        return stored

    def __fspath__(self) -> str:
        if self.held is not None:
            _fetch(self.held, str(self))
        return str(self)

    def __reduce__(self) -> Any:
        return super().__reduce__() if self.held is None else (_arrived, (self.held,))

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """As it will be; nothing is fetched for it."""
        if self.held is None or self.fetched:
            return os.stat(str(self), follow_symlinks=follow_symlinks)
        size, at_s, us = self.held.size, self.held.mtime_ns // 10**9, os.getuid()
        return os.stat_result((stat.S_IFREG | 0o400, 0, 0, 1, us, -1, size, at_s, at_s, at_s))

    def unlink(self, missing_ok: bool = False) -> None:
        """The copy, if there is one."""
        Path(str(self)).unlink(missing_ok=missing_ok)

    @property
    def fetched(self) -> bool:
        return os.path.exists(str(self))

    def afar(self) -> Any:
        """The object as a file of which parts are read, and nothing is kept."""
        assert self.held is not None
        with told(self.held.store, f"{self.held.name} cannot be read"):
            return self.held.store.files.open_input_file(self.held.store.at(self.held.key))

    def footer(self) -> bytes:
        """Its end, in which a sealed file has the list of its contents."""
        assert self.held is not None
        with self.afar() as file, told(self.held.store, f"{self.held.name} cannot be read"):
            size = file.size()
            end = file.read_at(min(size, FOOTER_BYTES), max(0, size - FOOTER_BYTES))
            wanted = int.from_bytes(end[-8:-4], "little") + 8 if end[-4:] == b"PAR1" else 0
            if len(end) < wanted <= size:
                end = file.read_at(wanted, size - wanted)
        return bytes(end)


def _arrived(held: Held) -> Stored:
    """The path on the machine to which it came."""
    return Stored.of(held, _scratch() / held.label / held.name)


def _scratch() -> Path:
    """Where copies are kept: in the executor's own folder, which goes with it."""
    if folders := os.environ.get(SCRATCH):
        return Path(folders.split(",")[0], "seatrial")
    return private(Path(tempfile.gettempdir(), f"seatrial-stored-{os.getuid()}"))


def _fetch(held: Held, path: str) -> None:
    """Once, whoever asks. Unfetched when it can not be had: nobody may take it for a torn file."""
    if os.path.exists(path):
        return
    folder, name = os.path.split(path)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open(os.path.join(folder, f".{name}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(path):
                _download(held, path, os.path.join(folder, f".{name}.tmp"))
    except SeatrialError as e:
        raise Unfetched(str(e)) from e
    except OSError as e:
        raise Unfetched(f"{path} cannot be kept: {e.strerror or e}; free space there") from e


def _download(held: Held, path: str, temporary: str) -> None:
    try:
        with told(held.store, f"{held.name} cannot be fetched"):
            copied(held.store, held.key, temporary)
            now = version_of(held.store, held.key)
        if now != held.version:
            raise BedFailed(f"{held.key} was changed while the run was read; try again")
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def copied(store: Store, key: str, path: str) -> None:
    """An object becomes a file here."""
    from pyarrow import fs

    fs.copy_files(
        store.at(key),
        path,
        source_filesystem=store.files,
        destination_filesystem=fs.LocalFileSystem(),
        use_threads=False,
    )


def put(path: str, store: Store, key: str) -> None:
    """A file becomes an object: all of it, or nothing."""
    from pyarrow import fs

    fs.copy_files(
        path,
        store.at(key),
        source_filesystem=fs.LocalFileSystem(),
        destination_filesystem=store.files,
        use_threads=False,
    )
