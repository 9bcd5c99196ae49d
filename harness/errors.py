"""The error tree.

    SeatrialError
    ├── BadRequest           the request makes no sense: usage, unknown name, broken file   exit 254
    │   └── UnknownName      lists the names that exist
    └── BedFailed            the test bed failed: a tool, a host or a process of ours       exit 255
        ├── Unsupported      the hosts cannot do what the trial requests                    exit 254
        ├── SparkUnavailable Java did not start here, so Spark cannot judge anything
        ├── NodeGone         a node cannot be reached any more: it died for good
        └── FetchFailed      a file of a run in storage cannot be read: it may not look torn

Misbehaviour of the system under test is never an exception: it is a finding. Every message is one
sentence that says what is wrong and what to do about it.
"""

from collections.abc import Iterable
from difflib import get_close_matches

MAX_SHOWN = 80  # letters of an unknown name in a message
MAX_NAMES = 24  # so many are listed in full
MAX_NEAR = 5
LISTED = {"fault": "faults", "checker": "checkers", "importer": "importers"}
OUT_OF_MEMORY = "there was not enough memory for this command"
EXIT_VALID, EXIT_INVALID, EXIT_UNKNOWN, EXIT_BAD_REQUEST, EXIT_BED_FAILED = 0, 1, 2, 254, 255


class SeatrialError(Exception):
    exit_code = EXIT_BED_FAILED


class BadRequest(SeatrialError):
    """`key`: the value of a table that has to be corrected, with dots, if it is certain."""

    exit_code = EXIT_BAD_REQUEST

    def __init__(self, message: str = "", key: str = "") -> None:
        super().__init__(message)
        self.key = key


class UnknownName(BadRequest):
    """A name that is not registered. The message lists similar names, or all if they are few."""

    def __init__(self, kind: str, name: str, choices: Iterable[str], key: str = "") -> None:
        self.kind, self.name, self.choices = kind, name, sorted(choices)
        shown = repr(name if len(name) <= MAX_SHOWN else f"{name[:MAX_SHOWN]}...")
        listed = kind in LISTED and len(self.choices) > MAX_NAMES
        rest = f"; `seatrial list {LISTED[kind]}` names all" if listed else ""
        super().__init__(f"unknown {kind} {shown}{near_names(name, self.choices)}{rest}", key)


def near_names(name: str, choices: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: ` (did you mean kill?); there are: ...`.
    Of many names it lists only similar ones, or the first few."""
    names = sorted(choices)
    near = get_close_matches(name, names, n=MAX_NEAR)
    hint = f" (did you mean {near[0]}?)" if near else ""
    if len(names) <= MAX_NAMES:
        return f"{hint}; there are: {', '.join(names)}"
    if len(near) > 1:
        return f"{hint}; similar names: {', '.join(near[1:])}"
    shown = near or names[:MAX_NEAR]
    return hint or f"; there are {len(names)}, such as {', '.join(shown)}"


class BedFailed(SeatrialError):
    exit_code = EXIT_BED_FAILED


class Unsupported(BedFailed):
    exit_code = EXIT_BAD_REQUEST


class SparkUnavailable(BedFailed):
    """Java did not start on this machine in time, or exited before it had."""


class NodeGone(BedFailed, ConnectionError):
    """The agent of a node cannot be reached: the node, or its host, died for good."""


class FetchFailed(BedFailed):
    """A file of a run in storage cannot be read, or was changed meanwhile."""


def error_text(error: BaseException) -> str:
    """Return the message of our own errors; of others with the type. Never empty."""
    name, text = type(error).__name__, str(error)
    if text and isinstance(error, SeatrialError):
        return text
    return f"{name}: {text}" if text else name
