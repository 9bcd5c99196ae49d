"""kill -9 of the command, at three moments: nothing is left of the run, and it can be judged.

tests/acceptance/kills.py does it, and says what it saw; run for long, it kills at random moments.
"""

import pytest

pytestmark = [pytest.mark.bed, pytest.mark.spark]


@pytest.mark.parametrize(
    ("moment", "judged"),
    [
        ("set-up", "it had not begun"),
        ("drain", ": unknown of"),
        ("check", "phase ended: valid of"),
    ],
)
def test_a_killed_command_leaves_nothing_behind(fleet, moment: str, judged: str) -> None:
    """Soon no process, namespace, mount or rule is left; a run that had begun is INTERRUPTED, with
    exactly the events that its writers wrote, and one that had ended keeps its verdict."""
    done = fleet[moment]
    assert done.returncode == 0, done.stdout + done.stderr
    assert judged in done.stdout
