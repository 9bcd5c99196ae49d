"""A run that lies in storage, as a folder of this machine for the length of a command.

    s3a://BUCKET/PATH, s3://...     a bucket of S3, or of what speaks like it (AWS_ENDPOINT_URL)
    hdfs://HOST:PORT/PATH           Hadoop's file system, where its libhdfs is

The folder is the run's shadow, in the system's folder for temporary files: what is small is fetched
when it is opened, the files of tables by whoever reads them (`harness.history.object_store`). What
a command makes of the run is put back, the verdict last. The shadow goes when the command ends, so
nothing of it is ever older than the command; and an object that is changed meanwhile is noticed.
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
    Held,
    Store,
    Stored,
    copied,
    put,
    told,
    version_of,
)
from harness.history.rundir import RunDir

SCHEMES = {"s3": S3, "s3a": S3, "hdfs": HDFS}
FORM = re.compile(r"(s3a?|hdfs):/+([^/]+)/(.*)")
FOUND_WITHIN_S = 15.0
AT_ONCE = 8  # requests
LARGE = ("history/*.parquet", "journal/*.arrows", "origin/*.parquet")
ASIDE = ("nodes/*", "report.html", "harness.log")  # what judging needs nothing of

T = TypeVar("T")
State = tuple[int, int, int]


@dataclass(frozen=True)
class Address:
    """Where a run lies in storage."""

    text: str
    store: Store
    path: str

    @classmethod
    def of(cls, text: str) -> "Address | None":
        """None when it is no such address. BadRequest when it names no run."""
        scheme, _, rest = text.partition(":/")
        if scheme not in SCHEMES or not rest or os.path.exists(text):
            return None
        found = FORM.fullmatch(text)
        path = found[3].strip("/") if found else ""
        if found is None or not path or ".." in path.split("/"):
            form = "hdfs://HOST:PORT/PATH" if scheme == "hdfs" else f"{scheme}://BUCKET/PATH"
            raise BadRequest(f"{text} names no run: write {form}")
        return cls(f"{scheme}://{found[2]}/{path}", _store(SCHEMES[scheme], found[2]), path)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def _store(kind: str, where: str) -> Store:
    """What is known of it here, so that executors need no settings but credentials."""
    if kind == HDFS:
        if not re.fullmatch(r"[^:]+(:\d{1,5})?", where):
            raise BadRequest(f"hdfs://{where} names no host; write hdfs://HOST:PORT/PATH")
        return Store(kind, where)
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "")
    return Store(kind, where, endpoint, region or ("us-east-1" if endpoint else ""))


@dataclass(frozen=True, eq=False)
class StoredRun(RunDir):
    """A run in storage, and its shadow."""

    address: Address
    held: dict[str, Held] = field(default_factory=dict)  # by path in the run: large files
    known: dict[str, State] = field(default_factory=dict)  # small ones, as they were fetched

    @property
    def name(self) -> str:
        return self.address.text

    def called(self, path: Path) -> str:
        if not path.is_relative_to(self.path):
            return str(path)
        return f"{self.name}/{path.relative_to(self.path)}".removesuffix("/.")

    @property
    def witness(self) -> Path:
        with told(self.address.store, f"{self.name} cannot be read"):
            return self._stored("trial.toml", _held(self.address, "trial.toml"))

    def found(self, folder: str, pattern: str) -> list[Path]:
        here = {f"{folder}/{path.name}": path for path in super().found(folder, pattern)}
        there = {
            name: self._stored(name, held)
            for name, held in self.held.items()
            if fnmatchcase(name, f"{folder}/{pattern}")
        }
        return [path for _, path in sorted({**here, **there}.items())]

    def put_back(self) -> None:
        """What was made or changed here becomes the run's; whoever sees the verdict sees all."""
        changed = sorted(self._changed(), key=lambda name: (name == "verdict.json", name))
        for name in changed:
            with told(self.address.store, f"{self.name}/{name} cannot be written"):
                put(str(self.path / name), self.address.store, self._key(name))
                if _is_large(name):
                    self.held[name] = _held(self.address, name)
            self.known[name] = _state(self.path / name)

    def sealed(self) -> None:
        """Sealed files are there before a journal goes."""
        self.put_back()
        for name in [name for name in self.held if fnmatchcase(name, "journal/*.arrows")]:
            sealed = f"history/{Path(name).stem}.parquet"
            if sealed in self.held:
                with told(self.address.store, f"{self.name}/{name} cannot be removed"):
                    self.address.store.files.delete_file(self.address.store.at(self._key(name)))
                del self.held[name]

    def _changed(self) -> Iterator[str]:
        for where, folders, names in os.walk(self.path):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for path in (Path(where, name) for name in names if not name.startswith(".")):
                name = str(path.relative_to(self.path))
                if self.known.get(name) != _state(path) and name not in self.held:
                    yield name

    def _stored(self, name: str, held: Held) -> Stored:
        return Stored.of(held, self.path / name)

    def _key(self, name: str) -> str:
        return f"{self.address.path}/{name}"


@contextmanager
def shadowed(address: Address, whole: bool) -> Iterator[RunDir]:
    """The run at an address. `whole`: with what nodes and the harness said."""
    address = _within(FOUND_WITHIN_S, address, lambda: _in_region(address))
    with tempfile.TemporaryDirectory(prefix="seatrial-stored-") as folder:
        run = StoredRun(Path(folder).resolve() / address.name, address)
        try:
            infos = _within(FOUND_WITHIN_S, address, lambda: _listed(address))
            _fill(run, infos, whole)
            yield run
            run.put_back()
        except SeatrialError as e:  # a path here helps nobody: it is gone
            e.args = (str(e).replace(str(run.path), address.text), *e.args[1:])
            raise


def _in_region(address: Address) -> Address:
    """A bucket of AWS says itself in which region it is."""
    store = address.store
    if store.kind == S3 and not store.region:
        from pyarrow import fs

        with suppress(OSError):  # the listing says better what is wrong
            store = replace(store, region=fs.resolve_s3_region(store.where))
    return replace(address, store=store)


def _fill(run: StoredRun, infos: Mapping[str, Any], whole: bool) -> None:
    """The shadow, with what is small in it."""
    if "trial.toml" not in infos:
        raise BadRequest(f"{run.name} is not a run: there is no trial.toml in it")
    large = [name for name in infos if _is_large(name)]
    small = [name for name in infos if not _is_large(name) and (whole or not _is_aside(name))]
    run.path.mkdir()
    with told(run.address.store, f"{run.name} cannot be read"), ThreadPoolExecutor(AT_ONCE) as by:
        run.held.update(by.map(lambda name: (name, _held(run.address, name, infos[name])), large))
        run.known.update(by.map(lambda name: (name, _copy(run, name)), small))


def _listed(address: Address) -> dict[str, Any]:
    """What lies there, by its path in the run. BadRequest when a path leads out of it."""
    from pyarrow import fs

    store, base = address.store, address.store.at(address.path)
    with told(store, f"{address.text} cannot be read"):
        selector = fs.FileSelector(base, allow_not_found=True, recursive=True)
        infos = [info for info in store.files.get_file_info(selector) if info.is_file]
        if not infos and store.kind == S3 and not store.files.get_file_info(store.where).type:
            raise BadRequest(f"{address.text}: there is no bucket {store.where}; see its name")
    start = len(base.rstrip("/")) + 1
    named = {info.path[start:]: info for info in infos}
    for name in named:
        if name.startswith("/") or {"", ".", ".."} & set(name.split("/")):
            raise BadRequest(f"{address.text} is not opened: {name!r} leads out of its folder")
    return {name: info for name, info in named.items() if not re.search(r"(^|/)\.", name)}


def _held(address: Address, name: str, info: Any = None) -> Held:
    key = f"{address.path}/{name}"
    info = info or address.store.files.get_file_info(address.store.at(key))
    version = version_of(address.store, key)
    return Held(address.store, key, info.size, info.mtime_ns or 0, version)


def _copy(run: StoredRun, name: str) -> State:
    path = run.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    copied(run.address.store, f"{run.address.path}/{name}", str(path))
    return _state(path)


def _is_large(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in LARGE)


def _is_aside(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in ASIDE)


def _state(path: Path) -> State:
    found = os.stat(path)
    return found.st_ino, found.st_mtime_ns, found.st_size


def _within(seconds: float, address: Address, ask: Callable[[], T]) -> T:
    """BedFailed when nobody answers in time; Arrow itself would wait for minutes."""
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
            f"{seconds:.0f} s; see the network and AWS_ENDPOINT_URL"
        )
    return answers[0]
