"""Run on a node: print which version of a program a process is.

python running_program.py PID VERSION PATH VERSION PATH ...

A process is the version whose file it executes, by the digest of /proc/PID/exe, or else the one
whose path is in its command line: Java and scripts are executed by another program. The process may
be one that starts the program (`process_tree`), so its descendants are asked, too.
"""

import hashlib
import os
import sys
from pathlib import Path


def family(pid: int) -> list[int]:
    """Return a process and its descendants, the youngest generation first."""
    parents: dict[int, list[int]] = {}
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = each.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        parents.setdefault(int(fields[1]), []).append(int(each.parent.name))
    found = [pid]
    for one in found:
        found += parents.get(one, ())
    return found[::-1]


def digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def version_of(pid: int, paths: dict[str, str]) -> str:
    """Return the version that a process runs; empty if it is none of these."""
    words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    executes = digest(f"/proc/{pid}/exe")
    for version, path in paths.items():
        if os.path.isfile(path) and digest(path) == executes:
            return version
    # what a script executes may lie beside it, in a folder that has the version in its name
    for part in (str, os.path.dirname):
        named = {part(path): version for version, path in paths.items() if part(path) in words}
        if named:
            return named[max(named, key=len)]
    return ""


def main() -> None:
    pid, *pairs = sys.argv[1:]
    paths = dict(zip(pairs[::2], pairs[1::2], strict=True))
    for one in family(int(pid)):
        try:
            if found := version_of(one, paths):
                print(found)
                return
        except OSError:
            continue  # it has ended, or is a thread of the kernel


if __name__ == "__main__":
    main()
