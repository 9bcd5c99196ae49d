"""Limits the files or the memory that running processes may still take. It runs on their node.

    python -S -s rlimits.py take GROUP descriptors|memory ROOM     leave so much room
    python -S -s rlimits.py look GROUP descriptors|memory          show the limits
    python -S -s rlimits.py give GROUP descriptors|memory LIMIT    restore the old limit

The limits are the kernel's own for each process, changed from outside (prlimit): they are not
shared with other processes, and end with the process. ROOM is a number of files, or bytes. The
answer has for each process of the group its limit, how much it uses, and the room that is left. -1
means no limit.
"""

from __future__ import annotations

import json
import os
import resource
import sys

KINDS = {"descriptors": resource.RLIMIT_NOFILE, "memory": resource.RLIMIT_AS}


class LimitError(Exception):
    """The change is impossible here; the text says why."""


def members(group: int) -> list[int]:
    """Return the living processes of a group."""
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended
        if fields[2] == str(group) and fields[0] not in "ZX":
            pids.append(int(name))
    return sorted(pids)


def open_files(pid: int) -> list[int]:
    """Return the descriptors of its open files."""
    return sorted(map(int, os.listdir(f"/proc/{pid}/fd")))


def address_space_bytes(pid: int) -> int:
    """Return the size of its address space in bytes."""
    with open(f"/proc/{pid}/status") as file:
        sizes = [line.split()[1] for line in file if line.startswith("VmSize:")]
    return int(sizes[0]) * 1024 if sizes else 0


def lowest_limit(used: list[int], room: int) -> int:
    """Return the limit below which so many descriptors are free: a new file gets the lowest free
    one."""
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


def usage(pid: int, kind: str) -> dict[str, int]:
    limit = resource.prlimit(pid, KINDS[kind])[0]
    if kind == "memory":
        used = address_space_bytes(pid)
        return {"limit": limit, "used": used, "room": limit - used if limit >= 0 else -1}
    numbers = open_files(pid)
    below = sum(number < limit for number in numbers)
    return {"limit": limit, "used": len(numbers), "room": limit - below if limit >= 0 else -1}


def main(verb: str, group: int, kind: str, amount: int = 0) -> dict[str, dict[str, int]]:
    """Carry out a command; return by process its old limit, its limit, its use and the room that is
    left."""
    pids = members(group)
    if not pids:
        raise LimitError(f"no process of group {group} lives")
    answer = {}
    for pid in pids:
        was = resource.prlimit(pid, KINDS[kind])[0]
        if verb == "take":
            wanted = (
                address_space_bytes(pid) + amount
                if kind == "memory"
                else lowest_limit(open_files(pid), amount)
            )
            set_soft(pid, kind, wanted)
        elif verb == "give":
            set_soft(pid, kind, amount)
        answer[str(pid)] = {"was": was, **usage(pid, kind)}
    return answer


if __name__ == "__main__":
    try:
        print(json.dumps(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:]))))
    except (LimitError, OSError, ValueError) as e:
        sys.exit(str(e))
