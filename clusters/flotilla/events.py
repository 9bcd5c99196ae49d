"""The event log: a JSON line for each change of role, epoch, set or log that a checker asks for.

    {"t": wall ms, "mono": loop seconds, "node": "broker-1", "kind": "role", ...fields}

Kinds, shared by all nodes: `start` (pid), `stop`, `role` (role master|slave|fenced, masterId,
masterAddr, epoch), `set` (set, setEpoch, why), `epoch` (epoch, start), `election` (brokerName,
masterId, epoch, set, previousSet, trigger: broker, operator, closed, expired, restarted, returned
or scan; the leading controller tells), `recover` (min, max, confirm, records, clean, epochs),
`truncate` (point, before, case, action, confirm, belowConfirm), `handshake` (peer, epoch, status),
`connection` (peer, state opened|closed, why), `raft` (term, state, leader), `expired` (brokerName,
brokerId, why), `refused` (peer, why: a malformed frame), `set-refused` (set, setEpoch, why),
`offsets-lowered` (rows), `halted` (why: a slave that needs a person), `forgotten` (brokerId),
`fatal` (why).

A log for people must not decide over what it tells of: an event that the disk refuses is dropped,
and the next that is written says with `missed` how many were.
"""

import asyncio
import json
from typing import Any

from .ports import Ports


class EventLog:
    """Appends events to a file, or drops them when the path is empty."""

    def __init__(self, path: str, node: str, ports: Ports) -> None:
        self._path = path
        self._node = node
        self._ports = ports
        self._missed = 0

    def write(self, kind: str, **fields: Any) -> None:
        if not self._path:
            return
        loop_time = asyncio.get_running_loop().time()
        head = {"t": self._ports.clock.wall_ms(), "mono": round(loop_time, 6)}
        if self._missed:
            fields["missed"] = self._missed
        line = json.dumps({**head, "node": self._node, "kind": kind, **fields}).encode() + b"\n"
        try:
            # after a failure a part of a line may be there
            self._ports.files.append(self._path, b"\n" + line if self._missed else line)
            self._missed = 0
        except OSError:
            self._missed += 1
