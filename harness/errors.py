"""Whose fault it was: the error tree.

    SeatrialError
    ├── BadRequest        the request makes no sense: usage, unknown name, broken file   exit 254
    │   └── UnknownName   names the ones that exist
    └── BedFailed         the test bed failed: a tool, host or process of ours           exit 255
        ├── Unsupported   the hosts cannot do what the trial asks for                    exit 254
        ├── SparkDown     Java did not start here, so that Spark can judge nothing
        ├── NodeGone      a node that can not be reached any more, by us: it died for good
        └── Unfetched     a file of a run in storage can not be had: it may not look torn

That the system under test misbehaved is never an exception: it is a finding. Every message is
one sentence that says what is wrong and what to do about it.
"""

from collections.abc import Iterable
from difflib import get_close_matches

SHOWN = 80  # letters of an unknown name that are repeated
MAX_NAMES = 24  # that are all listed
MAX_NEAR = 5
LISTED = {"fault": "faults", "checker": "checkers", "importer": "importers"}
LITTLE_MEMORY = "there was not enough memory for what it was asked to do"
EXIT_VALID, EXIT_INVALID, EXIT_UNKNOWN, EXIT_BAD_REQUEST, EXIT_BED_FAILED = 0, 1, 2, 254, 255


class SeatrialError(Exception):
    exit_code = EXIT_BED_FAILED


class BadRequest(SeatrialError):
    """`key`: which value of a table has to be corrected, with dots, where it is certain."""

    exit_code = EXIT_BAD_REQUEST

    def __init__(self, said: str = "", key: str = "") -> None:
        super().__init__(said)
        self.key = key


class UnknownName(BadRequest):
    """A name that is not registered. The text lists the near ones, or all if they are few."""

    def __init__(self, kind: str, name: str, known: Iterable[str], key: str = "") -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        said = repr(name if len(name) <= SHOWN else f"{name[:SHOWN]}...")
        listed = kind in LISTED and len(self.known) > MAX_NAMES
        rest = f"; `seatrial list {LISTED[kind]}` names all" if listed else ""
        super().__init__(f"unknown {kind} {said}{near_names(name, self.known)}{rest}", key)


def near_names(name: str, known: Iterable[str]) -> str:
    """` (did you mean kill?); there are: ...` to end a sentence about an unknown name with. Of many
    names only those that are like it, or the first few."""
    names = sorted(known)
    near = get_close_matches(name, names, n=MAX_NEAR)
    hint = f" (did you mean {near[0]}?)" if near else ""
    if len(names) <= MAX_NAMES:
        return f"{hint}; there are: {', '.join(names)}"
    if len(near) > 1:
        return f"{hint}; also like it: {', '.join(near[1:])}"
    shown = near or names[:MAX_NEAR]
    return hint or f"; there are {len(names)}, such as {', '.join(shown)}"


class BedFailed(SeatrialError):
    exit_code = EXIT_BED_FAILED


class Unsupported(BedFailed):
    exit_code = EXIT_BAD_REQUEST


class SparkDown(BedFailed):
    """Java did not start on this machine within its time, or ended before it had."""


class NodeGone(BedFailed, ConnectionError):
    """The agent of a node can not be reached: the node died for good, or its host did."""


class Unfetched(BedFailed):
    """A file of a run in storage can not be had, or was changed meanwhile."""


def in_words(error: BaseException) -> str:
    """Our own errors say it themselves; of others the type is told too. Never empty."""
    name, text = type(error).__name__, str(error)
    if text and isinstance(error, SeatrialError):
        return text
    return f"{name}: {text}" if text else name
