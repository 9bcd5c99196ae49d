"""How much a running process may still take: files or memory; it runs on the node.

    python -S -s rlimits.py take GROUP descriptors|memory ROOM     what is left from now on
    python -S -s rlimits.py look GROUP descriptors|memory
    python -S -s rlimits.py give GROUP descriptors|memory LIMIT    what it was before

Limits are the kernel's own for each process, changed from outside (prlimit): nothing is shared with
others, and a process that ends takes them along. ROOM is a number of files, or bytes. For each
process of the group is told its limit, what it uses of it, and how much room that leaves. -1 is no
limit.
"""

from __future__ import annotations

import json
import os
import resource
import sys

KINDS = {"descriptors": resource.RLIMIT_NOFILE, "memory": resource.RLIMIT_AS}


class Refused(Exception):
    """It can not be done here; the text says why."""


def members(group: int) -> list[int]:
    """The processes of a group that live."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if fields[2] == str(group) and fields[0] not in "ZX":
            found.append(int(name))
    return sorted(found)


def opened(pid: int) -> list[int]:
    """The numbers of its open files."""
    return sorted(map(int, os.listdir(f"/proc/{pid}/fd")))


def mapped(pid: int) -> int:
    """Bytes of its address space."""
    with open(f"/proc/{pid}/status") as file:
        sizes = [line.split()[1] for line in file if line.startswith("VmSize:")]
    return int(sizes[0]) * 1024 if sizes else 0


def least(used: list[int], room: int) -> int:
    """The limit below which so many numbers are free: a new file gets the lowest of them."""
    limit, taken = 0, set(used)
    while room or limit in taken:
        room -= limit not in taken
        limit += 1
    return limit


def set_soft(pid: int, kind: str, limit: int) -> None:
    hard = resource.prlimit(pid, KINDS[kind])[1]
    if hard != resource.RLIM_INFINITY and not 0 <= limit <= hard:
        limit = hard
    resource.prlimit(pid, KINDS[kind], (limit, hard))


def told(pid: int, kind: str) -> dict[str, int]:
    limit = resource.prlimit(pid, KINDS[kind])[0]
    if kind == "memory":
        used = mapped(pid)
        return {"limit": limit, "used": used, "room": limit - used if limit >= 0 else -1}
    numbers = opened(pid)
    below = sum(number < limit for number in numbers)
    return {"limit": limit, "used": len(numbers), "room": limit - below if limit >= 0 else -1}


def main(verb: str, group: int, kind: str, amount: int = 0) -> dict[str, dict[str, int]]:
    """By process: its limit before, its limit now, what it uses, and the room that is left."""
    found = members(group)
    if not found:
        raise Refused(f"no process of group {group} lives")
    answer = {}
    for pid in found:
        was = resource.prlimit(pid, KINDS[kind])[0]
        if verb == "take":
            wanted = mapped(pid) + amount if kind == "memory" else least(opened(pid), amount)
            set_soft(pid, kind, wanted)
        elif verb == "give":
            set_soft(pid, kind, amount)
        answer[str(pid)] = {"was": was, **told(pid, kind)}
    return answer


if __name__ == "__main__":
    try:
        print(json.dumps(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:]))))
    except (Refused, OSError, ValueError) as e:
        sys.exit(str(e))
