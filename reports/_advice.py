"""What to do about a run that proves nothing, by the code of the reason.

The texts are a short form of those in docs/verdicts.md; a test keeps both in step.
"""

RUN_AGAIN = "Run it again."
LONGER = "Make the load longer, or use fewer faults."
NOT_BACK = (
    "The cluster did not recover, or the deadline is too short: see the end of the run below."
)
UNIQUE = "Write each value once."
LOOK_AT_LOGS = "Look at harness.log and at the nodes' logs in the run's folder."

ADVICE = {
    "EXCUSED": "Nothing; or claim the kind of fault (--claims) to hold the system to it.",
    "INTERRUPTED": "Run it to the end.",
    "BED_FAILED": "Fix what the sentence names (details: harness.log); run it again.",
    "HISTORY_MALFORMED": "Repair the file, or use the verdict on the rest.",
    "NOTHING_COMPLETED": "Record a history in which something succeeds.",
    "NODE_GONE": "Make sure that the host is up and reachable; run it again.",
    "DISK_FULL": "Free space there; run it again.",
    "NO_LOAD": LOOK_AT_LOGS,
    "NO_OPERATIONS": LOOK_AT_LOGS,
    "NO_OK_BEFORE": "Lengthen rhythm.quiet_s, or find out why nothing succeeds at first.",
    "NO_OK_AFTER": "Lengthen rhythm.recovery_s, or find out why it does not recover.",
    "NO_OK_BETWEEN": "Lengthen rhythm.recovery_s, or find out why it does not recover.",
    "FAULT_NOT_OBSERVED": "Read the observed effect of the fault, below the table of faults.",
    "FAULTS_MISSING": "Read the observed effect of each fault, below the table of faults.",
    "IDLE_FAULTS": "Raise the load's rate, or make the faults longer.",
    "NOT_HEALED": "See the cause. On hosts that outlive a run: seatrial heal. Run it again.",
    "HEALING_NOT_OBSERVED": "See harness.log for why its end was not observed.",
    "MASTER_FAULT_UNSEEN": "Make the fault longer than the time it takes to detect it.",
    "NO_FINAL_READ": NOT_BACK,
    "OBJECTS_NOT_READ": NOT_BACK,
    "CLOCKS_DOUBTFUL": "Make sure that no machine is suspended and no clock slewed; run it again.",
    "LAWS_NOT_WATCHED": "Run it again; report it if that does not help.",
    "LAWS_UNSEEN": "Look at the nodes' logs, and whether a disk was full.",
    "REPLICAS_NOT_COMPARED": "Make the quiet times longer; see why the last comparison failed.",
    "NOTHING_COMPARED": "See harness.log for why the logs could not be read.",
    "NO_CHANGES": LONGER,
    "NO_MEMBERS": LONGER,
    "NO_OFFSETS": LONGER,
    "NO_FINAL_LOOK": NOT_BACK,
    "GROUPS_NOT_JUDGED": "Use fewer consumer groups.",
    "NO_TRANSACTIONS": LONGER,
    "VALUES_NOT_UNIQUE": UNIQUE,
    "WRITING_UNRECORDED": RUN_AGAIN,
    "NOT_CHECKED": "Add the checker that the sentence names, or omit the demand from the contract.",
    "NO_MESSAGES": "Name the checkers that are for its kind of operations.",
    "NO_REGISTERS": "See whether the history is of this kind, and has reads that ended ok.",
    "REGISTERS_NOT_DECIDED": f"{UNIQUE} Go on to new keys after some hundred operations, or use "
    "fewer clients for each key.",
    "NO_OBJECTS": "See whether the history is of this kind.",
    "OBJECTS_NOT_DECIDED": f"{UNIQUE} Count in equal steps; give a process a new number after a "
    "timeout.",
    "OPERATIONS_UNRECORDED": RUN_AGAIN,
    "RECOVERY_UNRECORDED": RUN_AGAIN,
    "SENDING_UNRECORDED": RUN_AGAIN,
    "TOO_MUCH_LOAD": "Lower the load's rate or body_bytes.",
    "CHECKER_FAILED": "Check it again (seatrial check); report the crash.",
    "CHECKER_TIMEOUT": "Check it again (seatrial check), on more cores.",
    "JOURNAL_DAMAGED": RUN_AGAIN,
}
