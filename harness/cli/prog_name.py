"""The name of the program, for commands in messages."""

import os
import shutil
import sys
from pathlib import Path

NAME = "seatrial"


def seatrial() -> str:
    """Return `seatrial` if that is on the PATH, else the path of the script that was called."""
    script = Path(sys.argv[0])
    if script.name != NAME or shutil.which(NAME):
        return NAME
    from_here = os.path.relpath(script)
    return str(script) if from_here.startswith("..") else from_here
