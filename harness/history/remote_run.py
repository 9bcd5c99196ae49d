"""A run in object storage, as a folder of this machine for the duration of a command.

    s3a://BUCKET/PATH, s3://...     a bucket of S3, or of a compatible store (AWS_ENDPOINT_URL)
    hdfs://HOST:PORT/PATH           Hadoop's file system, where its libhdfs is installed

The folder is a local copy in the folder for temporary files: small files are fetched when it is
opened, the files of tables when they are read (`harness.history.object_store`). Files that a
command writes are uploaded, the verdict last. The copy is removed when the command ends, so it is
never older than the command; and an object that changes meanwhile is noticed.
"""

import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from harness.errors import BadRequest, BedFailed, SeatrialError
from harness.history.object_store import (
    HDFS,
    S3,
    ObjectStore,
    ObjectVersion,
    StoredPath,
    download,
    storage_errors,
    upload,
    version_of,
)
from harness.history.rundir import RunDir

SCHEMES = {"s3": S3, "s3a": S3, "hdfs": HDFS}
FORM = re.compile(r"(s3a?|hdfs):/+([^/]+)/(.*)")
FOUND_WITHIN_S = 15.0
AT_ONCE = 8  # requests
LARGE = ("history/*.parquet", "journal/*.arrows", "origin/*.parquet")
OPTIONAL = ("nodes/*", "report.html", "harness.log")  # not needed for judging

T = TypeVar("T")
FileState = tuple[int, int, int]


@dataclass(frozen=True)
class RunAddress:
    """Where a run is in storage."""

    text: str
    store: ObjectStore
    path: str

    @classmethod
    def of(cls, text: str) -> "RunAddress | None":
        """Parse an address; return None if it is not one of storage. Raises BadRequest if it names
        no run."""
        scheme, _, rest = text.partition(":/")
        if scheme not in SCHEMES or not rest or os.path.exists(text):
            return None
        match = FORM.fullmatch(text)
        path = match[3].strip("/") if match else ""
        if match is None or not path or ".." in path.split("/"):
            form = "hdfs://HOST:PORT/PATH" if scheme == "hdfs" else f"{scheme}://BUCKET/PATH"
            raise BadRequest(f"{text} names no run: write {form}")
        return cls(f"{scheme}://{match[2]}/{path}", _store(SCHEMES[scheme], match[2]), path)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def _store(kind: str, where: str) -> ObjectStore:
    """Return the store with the settings known here, so that executors need none but
    credentials."""
    if kind == HDFS:
        if not re.fullmatch(r"[^:]+(:\d{1,5})?", where):
            raise BadRequest(f"hdfs://{where} names no host; write hdfs://HOST:PORT/PATH")
        return ObjectStore(kind, where)
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "")
    return ObjectStore(kind, where, endpoint, region or ("us-east-1" if endpoint else ""))


@dataclass(frozen=True, eq=False)
class RemoteRun(RunDir):
    """A run in storage, and its local copy."""

    address: RunAddress
    objects: dict[str, ObjectVersion] = field(
        default_factory=dict
    )  # by path in the run: large files
    fetched: dict[str, FileState] = field(default_factory=dict)  # small files, as fetched

    @property
    def name(self) -> str:
        return self.address.text

    def display_path(self, path: Path) -> str:
        if not path.is_relative_to(self.path):
            return str(path)
        return f"{self.name}/{path.relative_to(self.path)}".removesuffix("/.")

    @property
    def probe_path(self) -> Path:
        with storage_errors(self.address.store, f"{self.name} cannot be read"):
            return self._stored("trial.toml", _object_version(self.address, "trial.toml"))

    def find(self, folder: str, pattern: str) -> list[Path]:
        here = {f"{folder}/{path.name}": path for path in super().find(folder, pattern)}
        there = {
            name: self._stored(name, held)
            for name, held in self.objects.items()
            if fnmatchcase(name, f"{folder}/{pattern}")
        }
        return [path for _, path in sorted({**here, **there}.items())]

    def put_back(self) -> None:
        """Upload what was written or changed here, the verdict last: its readers see everything
        else."""
        changed = sorted(self._changed(), key=lambda name: (name == "verdict.json", name))
        for name in changed:
            with storage_errors(self.address.store, f"{self.name}/{name} cannot be written"):
                upload(str(self.path / name), self.address.store, self._key(name))
                if _is_large(name):
                    self.objects[name] = _object_version(self.address, name)
            self.fetched[name] = _state(self.path / name)

    def on_sealed(self) -> None:
        """Upload sealed files, then remove their journals."""
        self.put_back()
        for name in [name for name in self.objects if fnmatchcase(name, "journal/*.arrows")]:
            sealed = f"history/{Path(name).stem}.parquet"
            if sealed in self.objects:
                with storage_errors(self.address.store, f"{self.name}/{name} cannot be removed"):
                    self.address.store.files.delete_file(self.address.store.at(self._key(name)))
                del self.objects[name]

    def _changed(self) -> Iterator[str]:
        for where, folders, names in os.walk(self.path):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for path in (Path(where, name) for name in names if not name.startswith(".")):
                name = str(path.relative_to(self.path))
                if self.fetched.get(name) != _state(path) and name not in self.objects:
                    yield name

    def _stored(self, name: str, held: ObjectVersion) -> StoredPath:
        return StoredPath.of(held, self.path / name)

    def _key(self, name: str) -> str:
        return f"{self.address.path}/{name}"


@contextmanager
def local_copy(address: RunAddress, whole: bool) -> Iterator[RunDir]:
    """Yield a local copy of the run at an address. `whole`: with the logs of nodes and the
    harness."""
    address = _with_timeout(FOUND_WITHIN_S, address, lambda: _in_region(address))
    with tempfile.TemporaryDirectory(prefix="seatrial-stored-") as folder:
        run = RemoteRun(Path(folder).resolve() / address.name, address)
        try:
            infos = _with_timeout(FOUND_WITHIN_S, address, lambda: _list_files(address))
            _fill(run, infos, whole)
            yield run
            run.put_back()
        except SeatrialError as e:  # a local path would not help: it is removed
            e.args = (str(e).replace(str(run.path), address.text), *e.args[1:])
            raise


def _in_region(address: RunAddress) -> RunAddress:
    """Look up the region of a bucket of AWS."""
    store = address.store
    if store.kind == S3 and not store.region:
        from pyarrow import fs

        with suppress(OSError):  # the listing has a better error
            store = replace(store, region=fs.resolve_s3_region(store.where))
    return replace(address, store=store)


def _fill(run: RemoteRun, infos: Mapping[str, Any], whole: bool) -> None:
    """Create the local copy, with its small files."""
    if "trial.toml" not in infos:
        raise BadRequest(f"{run.name} is not a run: there is no trial.toml in it")
    large = [name for name in infos if _is_large(name)]
    small = [name for name in infos if not _is_large(name) and (whole or not _is_optional(name))]
    run.path.mkdir()
    with (
        storage_errors(run.address.store, f"{run.name} cannot be read"),
        ThreadPoolExecutor(AT_ONCE) as by,
    ):
        run.objects.update(
            by.map(lambda name: (name, _object_version(run.address, name, infos[name])), large)
        )
        run.fetched.update(by.map(lambda name: (name, _fetch(run, name)), small))


def _list_files(address: RunAddress) -> dict[str, Any]:
    """Return the files by their path in the run. Raises BadRequest if a path leads out of it."""
    from pyarrow import fs

    store, base = address.store, address.store.at(address.path)
    with storage_errors(store, f"{address.text} cannot be read"):
        selector = fs.FileSelector(base, allow_not_found=True, recursive=True)
        infos = [info for info in store.files.get_file_info(selector) if info.is_file]
        if not infos and store.kind == S3 and not store.files.get_file_info(store.where).type:
            raise BadRequest(f"{address.text}: there is no bucket {store.where}; check its name")
    start = len(base.rstrip("/")) + 1
    named = {info.path[start:]: info for info in infos}
    for name in named:
        if name.startswith("/") or {"", ".", ".."} & set(name.split("/")):
            raise BadRequest(f"{address.text} is not opened: {name!r} leads out of its folder")
    return {name: info for name, info in named.items() if not re.search(r"(^|/)\.", name)}


def _object_version(address: RunAddress, name: str, info: Any = None) -> ObjectVersion:
    key = f"{address.path}/{name}"
    info = info or address.store.files.get_file_info(address.store.at(key))
    version = version_of(address.store, key)
    return ObjectVersion(address.store, key, info.size, info.mtime_ns or 0, version)


def _fetch(run: RemoteRun, name: str) -> FileState:
    path = run.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    download(run.address.store, f"{run.address.path}/{name}", str(path))
    return _state(path)


def _is_large(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in LARGE)


def _is_optional(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in OPTIONAL)


def _state(path: Path) -> FileState:
    stat = os.stat(path)
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _with_timeout(seconds: float, address: RunAddress, ask: Callable[[], T]) -> T:
    """Return the answer. Raises BedFailed if none comes in time; Arrow itself would wait for
    minutes."""
    answers: list[T] = []
    failures: list[BaseException] = []

    def asked() -> None:
        try:
            answers.append(ask())
        except BaseException as e:
            failures.append(e)

    thread = threading.Thread(target=asked, name="storage", daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not answers:
        raise BedFailed(
            f"{address.text} cannot be read: {address.store.name} did not answer within "
            f"{seconds:.0f} s; check the network and AWS_ENDPOINT_URL"
        )
    return answers[0]
