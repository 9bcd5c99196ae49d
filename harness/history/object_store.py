"""Files in object storage, fetched lazily on the machine that reads them.

A run may be in a bucket (`s3a:`) or in Hadoop's file system (`hdfs:`). A `StoredPath` is one of its
large files: it knows name and size before anything is fetched, travels to executors like any path,
and is a complete local file as soon as it is opened. So everything that reads a history can read it
from storage. Each machine fetches a file once, and it has its name when it is complete. A copy
belongs to one version of the object: a changed object is another file.

Arrow makes the requests: it takes credentials where AWS's own tools take them (the environment, the
files in `~/.aws`, the machine's role). None of them travel to executors, which have their own.
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

from harness.errors import BadRequest, BedFailed, FetchFailed, SeatrialError, Unsupported
from harness.user_folders import private_folder

S3, HDFS = "s3", "hdfs"
CONNECT_WITHIN_S = 3.0
ANSWER_WITHIN_S = 10.0  # one request of S3
TRIES = 3
FOOTER_BYTES = 64 << 10  # of a sealed file: large enough for most lists of contents
SCRATCH = "SPARK_LOCAL_DIRS"  # an executor's own folder, which Spark removes at its end
DENIED_WORDS = (
    "ACCESS_DENIED",
    "INVALID_ACCESS",
    "INVALID_CLIENT",
    "SIGNATURE",
    "TOKEN",
    "status 403",
)
REGION_WORDS = ("status 301", "PermanentRedirect", "HTTP status 400")
SILENT_WORDS = ("NETWORK_CONNECTION", "REQUEST_TIMEOUT", "curlCode")


@dataclass(frozen=True)
class ObjectStore:
    """Where objects are: a bucket of S3, or a name node. It travels to executors."""

    kind: str
    where: str
    endpoint: str = ""
    region: str = ""

    @property
    def files(self) -> Any:
        """Arrow's file system, of this process only: it is not pickled."""
        return _files(self)

    def at(self, key: str) -> str:
        """Return Arrow's name of an object."""
        return f"{self.where}/{key}" if self.kind == S3 else f"/{key}"

    @property
    def name(self) -> str:
        """The name of the store in messages."""
        at = f" at {self.endpoint}" if self.endpoint else ""
        return f"the bucket {self.where}{at}" if self.kind == S3 else f"hdfs://{self.where}"


@cache
def _files(store: ObjectStore) -> Any:
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
    """Connect to Hadoop. Raises Unsupported if its library, or Java, is missing."""
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
def storage_errors(store: ObjectStore, doing: str) -> Iterator[None]:
    """Turn Arrow's errors about storage into ours. `doing`: what could not be done."""
    try:
        yield
    except (OSError, ValueError) as e:  # ValueError: an invalid request
        raise _as_our_error(store, doing, e) from e


def _as_our_error(store: ObjectStore, doing: str, error: Exception) -> SeatrialError:
    text = str(error)
    if "NO_SUCH_BUCKET" in text:
        return BadRequest(f"{doing}: there is no bucket {store.where}; check its name and region")
    if any(word in text for word in DENIED_WORDS):
        return BadRequest(
            f"{doing}: {store.name} refuses access ({_line(error)}); set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, to an account that may"
        )
    if any(word in text for word in SILENT_WORDS):
        return BedFailed(
            f"{doing}: {store.name} does not answer ({_line(error)}); check the network and "
            "AWS_ENDPOINT_URL"
        )
    if any(word in text for word in REGION_WORDS):
        return BadRequest(
            f"{doing}: {store.name} is not in this region ({_line(error)}); set AWS_REGION"
        )
    return BedFailed(f"{doing}: {_line(error)}; check the storage, and try again")


def _line(error: Exception) -> str:
    """Return the cause of the error, without the whole request."""
    lines = str(error).splitlines() or [type(error).__name__]
    cause = lines[0].rpartition("AWS Error ")[2].partition("; Details:")[0]
    return cause.rstrip(". ")


def version_of(store: ObjectStore, key: str) -> str:
    """Return a text that changes as soon as the object does."""
    with store.files.open_input_file(store.at(key)) as file:
        tag = (file.metadata() or {}).get("ETag", b"")
    if tag:
        return str(tag.decode(errors="replace"))
    info = store.files.get_file_info(store.at(key))
    return f"{info.mtime_ns}-{info.size}"


# -------------------------------------------------------------------------------- one large file


@dataclass(frozen=True)
class ObjectVersion:
    """One version of an object."""

    store: ObjectStore
    key: str
    size: int
    mtime_ns: int
    version: str

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def label(self) -> str:
        """A unique name of this version."""
        words = "\0".join(map(str, (self.store, self.key, self.size, self.version)))
        return blake2b(words.encode(), digest_size=12).hexdigest()


class StoredPath(PosixPath):
    """Where an object's copy is, or will be as soon as it is opened."""

    version: ObjectVersion | None = None  # None for paths derived from such a path

    @classmethod
    def of(cls, held: ObjectVersion, path: Path) -> "StoredPath":
        stored = cls(path)
        stored.version = held
        return stored

    def __fspath__(self) -> str:
        if self.version is not None:
            _fetch(self.version, str(self))
        return str(self)

    def __reduce__(self) -> Any:
        return super().__reduce__() if self.version is None else (_path_here, (self.version,))

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the attributes that the copy will have; nothing is fetched."""
        if self.version is None or self.fetched:
            return os.stat(str(self), follow_symlinks=follow_symlinks)
        size, at_s, us = self.version.size, self.version.mtime_ns // 10**9, os.getuid()
        return os.stat_result((stat.S_IFREG | 0o400, 0, 0, 1, us, -1, size, at_s, at_s, at_s))

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the copy, if there is one."""
        Path(str(self)).unlink(missing_ok=missing_ok)

    @property
    def fetched(self) -> bool:
        return os.path.exists(str(self))

    def open_remote(self) -> Any:
        """Open the object for reading parts of it, without keeping a copy."""
        assert self.version is not None
        with storage_errors(self.version.store, f"{self.version.name} cannot be read"):
            return self.version.store.files.open_input_file(self.version.store.at(self.version.key))

    def footer(self) -> bytes:
        """Return its end, in which a sealed file has the list of its contents."""
        assert self.version is not None
        with (
            self.open_remote() as file,
            storage_errors(self.version.store, f"{self.version.name} cannot be read"),
        ):
            size = file.size()
            end = file.read_at(min(size, FOOTER_BYTES), max(0, size - FOOTER_BYTES))
            wanted = int.from_bytes(end[-8:-4], "little") + 8 if end[-4:] == b"PAR1" else 0
            if len(end) < wanted <= size:
                end = file.read_at(wanted, size - wanted)
        return bytes(end)


def _path_here(held: ObjectVersion) -> StoredPath:
    """Return the path on the machine that unpickles it."""
    return StoredPath.of(held, _scratch() / held.label / held.name)


def _scratch() -> Path:
    """Return the folder of copies: on an executor its own folder, which is removed with it."""
    if folders := os.environ.get(SCRATCH):
        return Path(folders.split(",")[0], "seatrial")
    return private_folder(Path(tempfile.gettempdir(), f"seatrial-stored-{os.getuid()}"))


def _fetch(held: ObjectVersion, path: str) -> None:
    """Fetch the file once for all processes. Raises FetchFailed if it cannot be read, since it must
    not look like a torn file."""
    if os.path.exists(path):
        return
    folder, name = os.path.split(path)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open(os.path.join(folder, f".{name}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(path):
                _download_version(held, path, os.path.join(folder, f".{name}.tmp"))
    except SeatrialError as e:
        raise FetchFailed(str(e)) from e
    except OSError as e:
        raise FetchFailed(f"{path} cannot be kept: {e.strerror or e}; free space there") from e


def _download_version(held: ObjectVersion, path: str, temporary: str) -> None:
    try:
        with storage_errors(held.store, f"{held.name} cannot be fetched"):
            download(held.store, held.key, temporary)
            now = version_of(held.store, held.key)
        if now != held.version:
            raise BedFailed(f"{held.key} was changed while the run was read; try again")
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def download(store: ObjectStore, key: str, path: str) -> None:
    """Copy an object to a file here."""
    from pyarrow import fs

    fs.copy_files(
        store.at(key),
        path,
        source_filesystem=store.files,
        destination_filesystem=fs.LocalFileSystem(),
        use_threads=False,
    )


def upload(path: str, store: ObjectStore, key: str) -> None:
    """Copy a file to an object, atomically."""
    from pyarrow import fs

    fs.copy_files(
        path,
        store.at(key),
        source_filesystem=fs.LocalFileSystem(),
        destination_filesystem=store.files,
        use_threads=False,
    )
