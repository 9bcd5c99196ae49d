"""What a checker offers: one property, proven or refuted on a history."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.verdict import Result

if TYPE_CHECKING:
    from harness.history import History
    from harness.trial import Trial

Check = Callable[["History", "Trial", Any], Result]  # the last is the Spark session, if any
