"""Bytes of a registration and of a light heartbeat: `python benchmarks/registration.py`.

Prints a JSON object: the bytes of the frame with which a broker registers 10, 1,000 and 20,000
topics at a nameserver, and of a light heartbeat, encoded by the broker's own functions. Only sizes,
so neither time nor processors matter.
"""

import json
import sys

from clusters.flotilla.broker.registrar import LIGHT
from clusters.flotilla.net.wire import Op, frame, to_json

COUNTS = (10, 1_000, 20_000)
QUEUES = 8


def registration(topics: int) -> dict[str, object]:
    """Return the fields that `Announcer` registers."""
    return {
        "cluster": "flotilla",
        "brokerName": "set-1",
        "brokerId": 0,
        "addr": "198.18.0.11:10911",
        "haAddr": "198.18.0.11:10912",
        "stateVersion": 7,
        "timeoutMs": 5000.0,
        "topics": {f"orders-of-region-{number:05}": QUEUES for number in range(topics)},
        "life": 2**40,
        "beat": 1000,
    }


def main() -> int:
    sizes = {
        f"full_{count}": len(frame(Op.REGISTER_BROKER, 1, to_json(registration(count))))
        for count in COUNTS
    }
    fields = registration(COUNTS[-1])
    light = to_json({name: fields[name] for name in LIGHT})
    print(json.dumps({**sizes, "light": len(frame(Op.NAMESERVER_HEARTBEAT, 1, light))}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
