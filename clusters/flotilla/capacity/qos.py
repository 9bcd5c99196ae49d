"""Classes of topics: who is refused first when there is too much (spec 10.7). Pure.

Operators say which topics are *core* and which are *low* (`topicQos`); the rest is *normal*. Under
overload low is refused first, then normal: that is the point of having classes.
"""

from collections.abc import Mapping
from enum import IntEnum


class Qos(IntEnum):
    """The lower, the dearer."""

    CORE = 0
    NORMAL = 1
    LOW = 2


NAMES: Mapping[str, Qos] = {qos.name.lower(): qos for qos in Qos}
# of the places there are, how many a class may fill: core has a reserve that nobody else gets
SHARES: Mapping[Qos, float] = {Qos.CORE: 1.2, Qos.NORMAL: 1.0, Qos.LOW: 0.5}


def class_of(topic: str, classes: Mapping[str, str]) -> Qos:
    return NAMES[classes.get(topic, "normal")]


def why_not(classes: Mapping[str, object]) -> str:
    """What is wrong with a table of classes; empty: nothing."""
    for topic, name in classes.items():
        if name not in NAMES:
            return f"{topic} must be one of {', '.join(NAMES)}, not {name!r}"
    return ""
