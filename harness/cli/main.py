"""The entry point of the console script `seatrial`.

It imports none of our modules at the top: imports take time, and a Ctrl-C during them must end with
an exit code, too (`harness.cli.exit_codes`). A Ctrl-C after the last output is ignored.
"""

import os
import sys

NO_VERDICT = 2


def main() -> None:
    """Run the command. Child processes import nothing from the working directory either."""
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        from harness.cli.exit_codes import run_command_line

        code = run_command_line(sys.argv[1:])
        _ignore_interrupts()
    except KeyboardInterrupt:
        print("seatrial: stopped before there was a verdict", file=sys.stderr)
        code = NO_VERDICT
    if code == NO_VERDICT:
        _abandon_threads(code)
    sys.exit(code)


def _ignore_interrupts() -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _abandon_threads(code: int) -> None:
    """End the process if threads still work for a command that was stopped: the interpreter would
    wait for them, and a compiler cannot be interrupted."""
    import atexit
    import threading

    others = set(threading.enumerate()) - {threading.main_thread()}
    if any(not thread.daemon for thread in others):
        atexit._run_exitfuncs()
        os._exit(code)


if __name__ == "__main__":
    main()
