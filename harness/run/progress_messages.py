"""What is done meanwhile, in a sentence, for somebody who waits and sees nothing.

Hosts may take long to raise for a reason that does not show, such as an image being built. They say
it to the `listener`: the command that started the runner, if one holds the line, else the log.
"""

import sys
from collections.abc import Callable
from contextvars import ContextVar

Say = Callable[[str], None]  # from any thread


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


listener: ContextVar[Say] = ContextVar("listener", default=_log)
