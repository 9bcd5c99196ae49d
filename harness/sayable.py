"""Text that XML and files can hold, whatever it came from: a file's name, an error, a run."""

import re

UNSAYABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML 1.0


def sayable(text: str) -> str:
    """The same; a sign stands for each letter that can not be written."""
    return UNSAYABLE.sub("\N{REPLACEMENT CHARACTER}", text)
