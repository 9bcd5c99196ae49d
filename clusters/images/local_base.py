"""A base image made of this machine's own programs, for engines that reach no registry.

It holds selected programs, the libraries that the dynamic linker reports for them, the plug-ins of
iptables, and Python with its standard library (without tests and graphics): about 60 MB that need
no package manager and no network. Paths are those of this machine, symbolic links included, so that
every program finds its files. No file of the user is in it.

Python is the machine's own if that is complete and new enough, else the interpreter that runs this
module. Files keep their times, because compiled modules contain the time of their source. The
archive is sorted and without owners, so the same machine gives the same bytes.
"""

import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusters.hosts.local.requirements import search_path
from harness.errors import BedFailed

REQUIRED_PROGRAMS = {  # program -> Debian's package
    "sh": "dash",
    "env": "coreutils",
    "sleep": "coreutils",
    "ip": "iproute2",
    "ps": "procps",
    "iptables": "iptables",
    "iptables-restore": "iptables",
    "iptables-save": "iptables",
}
OPTIONAL_PROGRAMS = (
    *("[", "awk", "basename", "bash", "cat", "chmod", "cp", "cut", "date", "dd", "df", "dirname"),
    *("du", "echo", "false", "fallocate", "find", "free", "grep", "gzip", "head", "hostname", "id"),
    *("ip6tables", "ip6tables-restore", "ip6tables-save", "kill", "less", "ln", "ls", "mkdir"),
    *("mktemp", "more", "mount", "mv", "nproc", "nsenter", "pgrep", "ping", "pkill", "printf"),
    *("prlimit", "pwd", "readlink", "redis-cli", "redis-server", "rm", "rmdir", "sed", "seq"),
    *("setsid", "sort", "ss", "stat"),
    *("sync", "sysctl", "tail", "tar", "tc", "tee", "test", "timeout", "top", "touch", "tr"),
    *("true", "truncate", "umount", "uname", "uniq", "wc", "which", "xargs"),
)
STANDARD_FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
MIN_PYTHON = (3, 11)
EXCLUDED_FOLDERS = {  # folders of the standard library that no node needs
    *("test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "pydoc_data"),
    *("distutils", "site-packages", "dist-packages"),
}
EXCLUDED_MODULES = re.compile(r"_tkinter|_dbm|_gdbm|_test|_ctypes_test|_xx|xx|ossaudiodev|nis")
HOME = "root"  # home of the only user
FOLDERS = {"dev": 0o755, "etc": 0o755, "proc": 0o755, HOME: 0o700, "run": 0o755, "sys": 0o755}
FILES = {
    "etc/passwd": f"root:x:0:0:root:/{HOME}:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_PROBE_PYTHON = """
import asyncio, gzip, hashlib, json, os, socket, sys, sysconfig, tarfile, tomllib, zlib
paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
print(json.dumps([sys.version_info[:2], os.path.realpath(sys.executable), sorted(set(paths))]))
"""


@dataclass(frozen=True)
class Interpreter:
    """An interpreter: its real path, and the folders of its standard library."""

    executable: Path
    libraries: tuple[Path, ...]


def name(more: Sequence[str] = ()) -> str:
    """Return a short name that changes with every program or library that matters. `more`: patterns
    of further files and folders."""
    telling = hashlib.sha256(Path(__file__).read_bytes())
    for path in (*_candidates(), *_programs().values(), *_c_library(), *_matching(more)):
        real = path.resolve()
        stat = real.stat()
        telling.update(f"{real} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return telling.hexdigest()[:16]


def archive(more: Sequence[str] = ()) -> bytes:
    """Return the image as a tar, with what matches the patterns of `more`. Raises BedFailed if a
    program that a node needs is missing here."""
    python = _python()
    started = [python.executable, *_programs().values()]
    others = _matching(more)
    plugins = [*_modules(python), *_iptables_plugins(), *filter(_is_binary, others)]
    files = {*_library_files(python), *started, *plugins, *_libraries([*started, *plugins])}
    files |= {*others}
    links = {"usr/bin/python3": str(python.executable), **_links_to(_programs())}
    return _pack({entry for path in files for entry in _with_links(path)}, links)


def machine() -> str:
    """Return this machine's architecture as Docker spells it."""
    spoken = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
    return spoken.get(platform.machine(), platform.machine())


# ------------------------------------------------------------------------------- what goes in


def _programs() -> dict[str, Path]:
    path = os.pathsep.join([*STANDARD_FOLDERS, search_path()])
    paths = {
        program: shutil.which(program, path=path)
        for program in (*REQUIRED_PROGRAMS, *OPTIONAL_PROGRAMS)
    }
    missing = [package for program, package in REQUIRED_PROGRAMS.items() if not paths[program]]
    if missing:
        packages = " ".join(sorted(set(missing)))
        raise BedFailed(
            "no registry can be reached, and the node image cannot be made of this machine's own "
            f"programs, because some are missing; to fix it: sudo apt-get install -y {packages}"
        )
    return {program: Path(at) for program, at in paths.items() if at}


def _links_to(programs: dict[str, Path]) -> dict[str, str]:
    """Return links for programs that are in no folder of a container's PATH."""
    away = (
        (name, path) for name, path in programs.items() if str(path.parent) not in STANDARD_FOLDERS
    )
    return {f"usr/bin/{name}": str(path) for name, path in away}


def _candidates() -> list[Path]:
    """Return interpreters, the preferred one first: the machine's own is smaller and starts
    faster."""
    running = Path(getattr(sys, "_base_executable", sys.executable))
    return [path for path in (Path("/usr/bin/python3"), running) if path.exists()]


def _python() -> Interpreter:
    for candidate in _candidates():
        done = subprocess.run(
            [candidate, "-I", "-S", "-c", _PROBE_PYTHON], capture_output=True, text=True
        )
        if done.returncode == 0:
            version, executable, libraries = json.loads(done.stdout)
            if tuple(version) >= MIN_PYTHON:
                return Interpreter(Path(executable), tuple(map(Path, libraries)))
    raise BedFailed(
        "no registry can be reached, and this machine has no complete Python 3.11 to make a node "
        "image of; to fix it: sudo apt-get install -y python3"
    )


def _library_files(python: Interpreter) -> Iterator[Path]:
    """Yield the files of the standard library, compiled modules included."""
    for library in python.libraries:
        for folder, below, files in os.walk(library):
            below[:] = [
                b for b in below if b not in EXCLUDED_FOLDERS and not b.startswith("config-")
            ]
            for file in files:
                if not EXCLUDED_MODULES.match(file) and not file.endswith((".opt-1.pyc", ".a")):
                    yield Path(folder, file)


def _modules(python: Interpreter) -> list[Path]:
    """Return the shared objects of the standard library."""
    return [path for path in _library_files(python) if path.suffix == ".so"]


def _iptables_plugins() -> list[Path]:
    """Return the matches and targets of iptables (`-m statistic`, `-j DROP`)."""
    folders = ("/usr/lib/*/xtables", "/usr/lib/xtables", "/usr/lib64/xtables", "/lib/xtables")
    return [plugin for folder in folders for plugin in Path("/").glob(f"{folder[1:]}/lib*.so")]


def _matching(patterns: Sequence[str]) -> list[Path]:
    """Return the files that match, and those below folders that match."""
    found = {Path("/", path) for pattern in patterns for path in Path("/").glob(pattern[1:])}
    below = (each for path in found for each in (path.rglob("*") if path.is_dir() else [path]))
    return sorted({path for path in below if path.is_file()})


def _is_binary(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _c_library() -> list[Path]:
    return sorted(_libraries([Path("/bin/sh")]))


def _libraries(binaries: Iterable[Path]) -> set[Path]:
    """Return what the dynamic linker loads for these files, and what the C library loads by
    itself."""
    programs = sorted({str(path.resolve()) for path in binaries})
    done = subprocess.run(
        ["ldd", *programs], capture_output=True, text=True
    )  # it fails for scripts, which need nothing
    libraries = {
        Path(at) for at in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", done.stdout, re.MULTILINE)
    }
    beside = {path.parent for path in libraries if path.name.startswith("libc.so")}
    # the last four were parts of their own until glibc 2.34: programs built before ask for them
    unasked = (
        *("libgcc_s.so.1", "libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2"),
        *("libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6"),
    )
    libraries |= {
        folder / file for folder in beside for file in unasked if (folder / file).exists()
    }
    cache = Path("/etc/ld.so.cache")
    return libraries | ({cache} if cache.exists() else set())


def _with_links(path: Path) -> Iterator[Path]:
    """Yield the file, and every symbolic link on its path."""
    at = Path("/")
    parts = path.parts[1:]
    for place, part in enumerate(parts):
        at = at / part
        if at.is_symlink():
            yield at
            target = Path(os.path.normpath(at.parent / os.readlink(at)))
            yield from _with_links(target.joinpath(*parts[place + 1 :]))
            return
    yield at


# ---------------------------------------------------------------------------------- packing


def _pack(paths: set[Path], links: dict[str, str]) -> bytes:
    entries: dict[str, tarfile.TarInfo] = {}
    for folder, mode in FOLDERS.items():
        entries[folder] = _folder(folder, mode)
    entries["tmp"] = _folder("tmp", 0o1777)
    for path in paths:
        entry = str(path)[1:]
        entries[entry] = _entry(entry, path)
    for entry, target in links.items():
        entries.setdefault(entry, _link(entry, target))
    for entry, text in FILES.items():
        entries[entry] = _with_size(tarfile.TarInfo(entry), len(text))
    for entry in list(entries):
        for parent in Path(entry).parents[:-1]:
            entries.setdefault(str(parent), _folder(str(parent), 0o755))
    return _tar(entries)


def _tar(entries: dict[str, tarfile.TarInfo]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for entry in sorted(entries):
            info = entries[entry]
            if not info.isreg():
                tar.addfile(info)
            elif entry in FILES:
                tar.addfile(info, io.BytesIO(FILES[entry].encode()))
            else:
                with Path("/", entry).open("rb") as file:
                    tar.addfile(info, file)
    return out.getvalue()


def _entry(entry: str, path: Path) -> tarfile.TarInfo:
    if path.is_symlink():
        return _link(entry, os.readlink(path))
    stat = path.stat()
    info = _with_size(tarfile.TarInfo(entry), stat.st_size, stat.st_mode & 0o755)
    info.mtime = int(stat.st_mtime)
    return info


def _with_size(info: tarfile.TarInfo, size: int, mode: int = 0o644) -> tarfile.TarInfo:
    info.size, info.mode = size, mode
    return info


def _folder(entry: str, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(entry)
    info.type, info.mode = tarfile.DIRTYPE, mode
    return info


def _link(entry: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(entry)
    info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
    return info
