"""What files and terminals can be given of somebody's words."""

import sys
import unicodedata
from xml.etree import ElementTree

from harness.text.sanitize import sanitize

LETTERS = [chr(number) for number in range(sys.maxunicode + 1)]
COMMANDS = [c for c in LETTERS if unicodedata.category(c) == "Cc" and c not in "\t\n"]


def test_no_letter_that_commands_a_terminal_gets_through() -> None:
    """All control letters but tabs and ends of lines, those of eight bits, too."""
    assert len(COMMANDS) == 63
    assert sanitize("".join(COMMANDS)) == "\ufffd" * len(COMMANDS)
    assert sanitize("\x9b31mred \x9d0;title\x07 over\rwritten") == (
        "\ufffd31mred \ufffd0;title\ufffd over\ufffdwritten"
    )


def test_words_stay_as_they_are() -> None:
    """Of any language, with tabs and ends of lines."""
    words = "a\tb\nc\u00a0d \u00e9\u00ff \u4e2d\u6587 \u05d0 \U0001f6a2"
    assert sanitize(words) == words


def test_xml_and_files_can_hold_it() -> None:
    """Whatever it was: half a pair, no letter at all, the end of a text."""
    made = sanitize("".join(c for c in LETTERS if c not in "<&"))
    made.encode()
    text = ElementTree.fromstring(f"<a>{made}</a>").text
    assert text == made
