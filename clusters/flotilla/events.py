"""The event log: one JSON line for each change of role, epoch, set or log.

    {"t": wall ms, "mono": loop seconds, "node": "broker-1", "kind": "role", ...fields}

Lines of a broker inside a container have the container's node, and the broker's brokerName as
`inner`.

Kinds, shared by all nodes:

    start             pid, role, address
    stop
    role              role (master, slave, fenced), brokerId, masterId, masterAddr, epoch
    set               set, setEpoch, why
    set-refused       set, setEpoch, why
    epoch             epoch, start
    election          brokerName, masterId, epoch, set, previousSet, unclean (whether it may be),
                      trigger (broker, operator, drill, closed, expired, restarted, returned,
                      scan or converted); written by the leader
    recover           min, max, confirm, records, scanned (how many by reading the log), clean,
                      notes (what was damaged), epochs
    deleted           before, min: by retention
    disk              pressure, freeBytes
    cutting           point, before, case: a truncation that is about to begin
    truncate          point, before, case, action, confirm, belowConfirm
    log-case          case, action, point, slave, master: the first and last offset of both logs
                      (docs/flotilla-design.md, Truncation)
    handshake         peer, epoch, status; of a converted set: generation, slaveGeneration
    connection        peer, state (opened, closed), why
    replication       end, acks (brokerId -> offset, null before the first ack); by a master twice a
                      second if something has changed
    raft              term, state, leader
    machine           brokerName, seq, state, replaces (seq), masterId, epoch, sync: an HA
                      controller, or a master that has held sends for too long, switched a pair
                      (ha_machine/machine.py); not written if the answer of ZooKeeper was lost
    held, released    seq: a master holds all sends, and serves them again, by the state of this
                      SequenceID
    mode              brokerName, brokerId, mode, generation, masterId, epoch (of the generation
                      before), end (of the log): a convertible broker begins a generation, or starts
                      in one (conversion/)
    prepared          attempt, epoch, end: a master holds its sends until its set is converted
    promised          attempt, epoch, end: a slave will leave its generation
    withdrawn         attempt: a conversion was given up
    conversion        brokerName, mode, generation, masterId, epoch: controllers noted it
    session           state: of a session with ZooKeeper (zk/session.py)
    session-ended     session: written by the coordinator that leads
    expired           brokerId, brokerName, why
    route             brokerName, masterAddr, stateVersion: what a nameserver tells clients
    stale             brokerName, masterAddr, stateVersion, why: a nameserver refused the
                      registration of an older master; once
    refused           peer, why: a malformed frame
    senseless         peer, why: a request with invalid fields; once for each connection
    offsets-lowered   rows
    delay-resumed     floor, end: a new master's log lacks the end of what its progress counts
    half-discarded    offset: a half message whose producers never decided
    delay-dropped     offset, why: a delayed message that is not delivered
    metadata-refused  ours, theirs
    metadata-unheard  master, why: a slave cannot ask the master for changes; once, until it can
    halted            why: a slave that needs an operator
    forgotten         brokerId
    cleaned           brokerName, brokerIds: by an operator
    config            changed: by an operator
    starved           why: connections cannot be accepted; at most once a second
    inner             action (restored, starting, started, added, removing, removed, failed or
                      refused), cluster, brokerName, brokerId, storePath, why; of restored: brokers,
                      gone, remembers; by a container
    fatal             why

A full disk must not stop a node for lack of an event: an event that cannot be written is dropped,
and the next one that is written has the number of dropped events in `missed`.
"""

import asyncio
import json
from typing import Any

from .world.ports import Ports


class EventLog:
    """Appends events to a file; drops them if the path is empty."""

    def __init__(self, path: str, node: str, ports: Ports, inner: str = "") -> None:
        self._path = path
        self._head = {"node": node, "inner": inner} if inner else {"node": node}
        self._ports = ports
        self._missed = 0

    def protocol_error(self, peer: str, why: str) -> None:
        self.write("senseless", peer=peer, why=why)

    def write(self, kind: str, **fields: Any) -> None:
        if not self._path:
            return
        loop_time = asyncio.get_running_loop().time()
        head = {"t": self._ports.clock.wall_ms(), "mono": round(loop_time, 6)}
        if self._missed:
            fields["missed"] = self._missed
        line = json.dumps({**head, **self._head, "kind": kind, **fields}).encode() + b"\n"
        try:
            # a failed write may have left a part of a line
            self._ports.files.append(self._path, b"\n" + line if self._missed else line)
            self._missed = 0
        except OSError:
            self._missed += 1
