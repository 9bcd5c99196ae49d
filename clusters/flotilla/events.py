"""The event log: a JSON line for each change of role, epoch, set or log that a checker asks for.

    {"t": wall ms, "mono": loop seconds, "node": "broker-1", "kind": "role", ...fields}

Kinds, shared by all nodes: `start` (pid), `stop`, `role` (role master|slave|fenced, brokerId,
masterId, masterAddr, epoch), `set` (set, setEpoch, why), `epoch` (epoch, start), `election`
(brokerName, masterId, epoch, set, previousSet, unclean: whether it may be so, trigger: broker,
operator, drill, closed, expired, restarted, returned or scan; the leader tells), `recover` (min,
max, confirm, records, scanned: how many of them by reading the log, clean, notes: what was damaged,
epochs), `deleted` (before, min: retention), `disk` (pressure, freeBytes), `cutting` (point, before,
case; nothing is done yet), `truncate` (point, before, case, action, confirm, belowConfirm),
`handshake` (peer, epoch, status), `connection` (peer, state opened|closed, why), `raft` (term,
state, leader), `expired` (brokerName, brokerId, why), `refused` (peer, why: a malformed frame),
`senseless` (peer, why: it sent what nobody of ours sends; once of a connection),
`set-refused` (set, setEpoch, why), `offsets-lowered` (rows), `log-case` (case, action, point,
slave, master: both logs' first and last offset; spec 7.8), `metadata-refused` (ours, theirs),
`metadata-unheard` (master, why: a slave can not ask it for changes; once, until it answers again),
`replication` (end, acks: brokerId -> offset, none when it has said nothing; a master tells twice a
second, if it has moved), `route` (brokerName, masterAddr, stateVersion: what a nameserver shows
clients from now on), `stale` (brokerName, masterAddr, stateVersion, why: a nameserver refused an
older master's registration; told once), `halted` (why: a slave that needs a person), `forgotten`
(brokerId), `cleaned` (brokerName, brokerIds: by an operator), `config` (changed: by an operator),
`starved` (why: nobody can be let in; at most once a second), `fatal` (why).

A log for people must not decide over what it tells of: an event that the disk refuses is dropped,
and the next that is written says with `missed` how many were.
"""

import asyncio
import json
from typing import Any

from .world.ports import Ports


class EventLog:
    """Appends events to a file, or drops them when the path is empty."""

    def __init__(self, path: str, node: str, ports: Ports) -> None:
        self._path = path
        self._node = node
        self._ports = ports
        self._missed = 0

    def senseless(self, peer: str, why: str) -> None:
        self.write("senseless", peer=peer, why=why)

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
