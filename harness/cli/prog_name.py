"""What a user has to type: the command as it was called, if the plain name would not be found."""

import os
import shutil
import sys
from pathlib import Path

NAME = "seatrial"


def seatrial() -> str:
    """`seatrial` where that is on the PATH, else the script that was called, from here."""
    script = Path(sys.argv[0])
    if script.name != NAME or shutil.which(NAME):
        return NAME
    from_here = os.path.relpath(script)
    return str(script) if from_here.startswith("..") else from_here
