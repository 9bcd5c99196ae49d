"""`python -m harness` is the command `seatrial`.

Python puts the working directory first on the path; unless this package itself is there, it is
removed before anything else is imported.
"""

import os
import sys

if not sys.flags.safe_path and sys.path[0] != os.path.dirname(os.path.dirname(__file__)):
    del sys.path[0]

from harness.cli.main import main

if __name__ == "__main__":
    main()
