"""What this process and all that descend from it have used."""

import os
from pathlib import Path

UTIME, LAST = 11, 15  # of /proc/PID/stat, behind the name: its own times, and its dead children's


def used() -> tuple[float, float]:
    """CPU seconds of all of them, with those that have ended, and the sum of their peaks in GB."""
    cpu, peak = 0.0, 0.0
    for pid in _tree():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        cpu += sum(map(int, stat[UTIME:LAST])) / os.sysconf("SC_CLK_TCK")
        high = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
        peak += int(high[0]) / 1e6 if high else 0.0
    return cpu, peak


def _tree() -> list[int]:
    parent: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text()
            except OSError:
                continue
            parent[int(folder.name)] = int(text.rsplit(")", 1)[1].split()[1])
    found = [os.getpid()]
    for pid in found:
        found += [child for child, its in parent.items() if its == pid]
    return found
