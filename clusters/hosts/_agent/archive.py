"""Our code for nodes: one archive of plain Python, for Python 3.11 without packages.

It holds the cluster under test, the client process with its driver, and `tomli_w`, which is plain
Python, too. The same sources give the same bytes, so an image made of them can be found by its
name.
"""

import gzip
import io
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import tomli_w

import clusters
import harness

SUFFIXES = {".py", ".toml"}


@cache
def archive() -> bytes:
    """Return a .tar.gz of `harness/`, `clusters/` and `tomli_w/`."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in sources(*map(_root, (clusters, harness, tomli_w))):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))
    return gzip.compress(plain.getvalue(), compresslevel=6, mtime=0)


def sources(*roots: Path) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the code in these packages' folders, sorted by name."""
    for root in roots:
        for path in sorted(root.rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                yield f"{root.name}/{path.relative_to(root).as_posix()}", path.read_bytes()


def _root(package: ModuleType) -> Path:
    return Path(str(package.__file__)).resolve().parent
