"""Which machine is this? What a run makes elsewhere carries the name of the machine that drives it.

Several drivers may share an engine or a set of hosts, and a folder of the same name on another
machine is another run. The host name alone is not enough: images of machines are copied.
"""

import socket
from contextlib import suppress
from pathlib import Path

ID_LENGTH = 12


def driver() -> str:
    """The name of this machine: its host name and the beginning of its machine id."""
    identity = ""
    with suppress(OSError):
        identity = Path("/etc/machine-id").read_text().strip()
    return f"{socket.gethostname()}/{identity[:ID_LENGTH]}"
