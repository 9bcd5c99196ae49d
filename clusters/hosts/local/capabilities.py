"""What nodes on this machine's own kernel can do that depends on the machine, not on their kind.

A process is given a clock of its own by changing its memory, in machine code
(`wall_clock.py`). A kernel with Yama lets only ancestors do that, and root: which we are
among local nodes, but not in a container, that has no privilege but over its network.
"""

import platform
from pathlib import Path

YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


def clocks(as_root: bool) -> frozenset[str]:
    """Whether nodes can have clocks of their own, as a part of what their hosts can."""
    known = platform.machine() == "x86_64"
    allowed = as_root or not YAMA.exists() or YAMA.read_text().strip() == "0"
    return frozenset({"clock"} if known and allowed else ())
