"""`seatrial`: the console script's door.

It imports nothing of ours: what takes time to import, a Ctrl-C may interrupt, and that is an ending
like any other (`harness.cli.exit_codes`). One that comes after the last output changes nothing.
"""

import os
import sys


def main() -> None:
    """The console script. Its children import nothing from the working directory either."""
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        from harness.cli.exit_codes import ended

        code = ended(sys.argv[1:])
        _ignore_interrupts()
    except KeyboardInterrupt:
        print("seatrial: stopped before there was a verdict", file=sys.stderr)
        code = 2
    sys.exit(code)


def _ignore_interrupts() -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
