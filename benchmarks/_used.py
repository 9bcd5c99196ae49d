"""What this process and all that descend from it have used."""

import os
import threading
from pathlib import Path
from types import TracebackType

UTIME, LAST = 11, 15  # of /proc/PID/stat, behind the name: its own times, and its dead children's


def used() -> tuple[float, float]:
    """CPU seconds of all of them, with those that have ended, and the sum of their peaks in GB."""
    cpu, peak = 0.0, 0.0
    for pid in descendants(os.getpid()):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        cpu += sum(map(int, stat[UTIME:LAST])) / os.sysconf("SC_CLK_TCK")
        high = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
        peak += int(high[0]) / 1e6 if high else 0.0
    return cpu, peak


class Peak:
    """While it is entered, the most that all of them had together: `gb`. Processes that came and
    went are in it if they lived for a look."""

    EVERY_S = 0.25

    def __init__(self) -> None:
        self.gb = 0.0
        self._over = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while True:
            self.gb = max(self.gb, used()[1])
            if self._over.wait(self.EVERY_S):
                return

    def __enter__(self) -> "Peak":
        self._looking.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._looking.join()


def descendants(root: int) -> list[int]:
    """Return a process and all that descend from it."""
    parent: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text()
            except OSError:
                continue
            parent[int(folder.name)] = int(text.rsplit(")", 1)[1].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, its in parent.items() if its == pid]
    return found
