"""Notes with a meaning: phase marks, and the first words of notes of client processes and the
runner.

A phase mark is the whole text of a note. The other words begin a note: `DRAINED {"key": 3}`. They
are here, apart from the schema of the tables, because client processes on nodes without Arrow write
them.
"""

PHASES = ("raised", "load", "healed", "drain", "collected", "ended", "interrupted")

MEMBER = "MEMBER"  # {"group": "g"}: the process reads for this group
UNSETTLED = "UNSETTLED"  # {"group": "g", "members": 3, "lacks": [...]}: in the final phase
DRAINED, NOT_DRAINED, CORRUPTED = "DRAINED", "NOT_DRAINED", "CORRUPTED"
PASSED = "PASSED"  # {"key": 3, "to": 1200}: a reader got that far, and could read all before it
# of imported histories: what a process reads from, {"keys": [0, 5]}; what it lost; a new client
ASSIGN, SUBSCRIBE, REBALANCE, CRASH = "ASSIGN", "SUBSCRIBE", "REBALANCE", "CRASH"
SKIPPED = "SKIPPED"  # "SKIPPED 120": so many arrivals of a process found every slot taken so far
# "SELECTIONS {"detours": 3}": of a client that selects queues, since its process began
SELECTIONS = "SELECTIONS"
NOT_COMPARED = "NOT_COMPARED"  # "stretch 3: why": a failed comparison between faults
GAVE_UP = "gave up on"  # of the runner, on a step of the trial
OPEN_OPERATIONS, FINAL_PHASE = "ending all open operations", "the final phase"  # two of them
NODE_GONE, DISK_FULL = "NODE_GONE", "DISK_FULL"  # of the runner, and codes of reasons

GONE, FULL = "gone", "full"  # how a node is lost: kinds of events, and keys of run.json
