"""The id of the driver's machine, which marks what a run makes on other machines.

Several drivers may share an engine or hosts, and a folder of the same name on another machine is
another run. The host name is not enough: images of machines are copied.
"""

import socket
from contextlib import suppress
from pathlib import Path

ID_LENGTH = 12


def driver_id() -> str:
    """Return this machine's host name and the beginning of its machine id."""
    identity = ""
    with suppress(OSError):
        identity = Path("/etc/machine-id").read_text().strip()
    return f"{socket.gethostname()}/{identity[:ID_LENGTH]}"
