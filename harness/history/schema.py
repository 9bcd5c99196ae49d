"""The schema of a history: five tables of Arrow columns, and the conventions of their rows.

    ops       one row per event: invoke, ok, fail, info; a polled batch gives one ok row a message
    faults    stages of fault intervals; the last row of an `id` counts
    events    server-side events: roles, epochs, sets, elections, truncations ...
    replicas  one row per message in a replica's log at the end
    notes     error texts, log lines, phase marks

Times are nanoseconds since the run's start on the driver's monotonic clock. `process`, `op` and
`value` are integers; `key` and `node` index the lists in the run's `names.json`, which is written
before the load begins. Absent is null. Rows of one journal are in time order; rows of different
journals interleave, so an order across processes is by `t` and then by the rest of the row.

A POLL or READ is invoked with the offset it reads from. Every message it returned is an ok row with
offset, value and pos (0, 1, 2 ... in the batch); the operation itself completes with one more row
that has neither value nor pos: ok with the offset to read next, or fail, or info.

The readers of the final phase note what they read: `DRAINED` or `NOT_DRAINED` and a JSON object,
`DRAINED {"key": 3, "from": 0, "to": 1200}`; for a consumer group also `"group": "billing"`. Only a
queue that the fresh reader drained can convict of loss. Phase marks and such words are in
`harness.history.notes`.
"""

import pyarrow as pa

SCHEMA_VERSION = 1

OPS = pa.schema(
    [
        pa.field("t", pa.int64(), nullable=False),
        pa.field("process", pa.int32(), nullable=False),
        pa.field("op", pa.int64(), nullable=False),  # unique; invoke and completions share it
        pa.field("type", pa.int8(), nullable=False),  # operation.Type
        pa.field("f", pa.int8(), nullable=False),  # operation.F
        ("key", pa.int32()),  # a topic-queue or an object
        ("value", pa.int64()),
        ("arg", pa.int64()),  # second value: cas; a lock's lease; a given message's store time, ms
        ("offset", pa.int64()),
        ("pos", pa.int32()),  # index in a polled batch
        ("mop", pa.int32()),  # index in a transaction
        ("epoch", pa.int32()),
        ("node", pa.int16()),
        ("attempts", pa.int16()),
    ]
)

FAULTS = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),  # position in the plan, from 0
        ("kind", pa.string()),
        ("params", pa.string()),  # JSON
        ("selector", pa.string()),
        ("targets", pa.string()),  # JSON: role -> node names
        ("planned", pa.int64()),  # ns after the load began, as the plan says
        ("planned_for", pa.int64()),
        ("begin", pa.int64()),
        ("applied", pa.int64()),
        ("observed", pa.int64()),
        ("heal", pa.int64()),
        ("healed", pa.int64()),  # observed healed
        ("state", pa.string()),  # planned, installed, partial, failed
        ("observation", pa.string()),  # JSON evidence
    ]
)

EVENTS = pa.schema(
    [
        pa.field("t", pa.int64(), nullable=False),
        ("node", pa.string()),
        ("kind", pa.string()),
        ("fields", pa.string()),  # JSON
    ]
)

REPLICAS = pa.schema(
    [
        ("node", pa.int16()),
        ("key", pa.int32()),
        ("offset", pa.int64()),
        ("value", pa.int64()),
        ("epoch", pa.int32()),
        ("crc", pa.int64()),  # of what else a record holds: Flotilla's of key, body and store time
    ]
)

NOTES = pa.schema(
    [
        pa.field("t", pa.int64(), nullable=False),
        ("process", pa.int32()),
        ("op", pa.int64()),
        ("text", pa.string()),
    ]
)

# not one of the history's tables: `harness.history.messages`
MESSAGES = pa.schema(
    [
        pa.field("sent", pa.int64(), nullable=False),
        ("received", pa.int64()),  # when the process read the last byte
        pa.field("lost", pa.bool_(), nullable=False),  # the receiving end was gone
        pa.field("source", pa.string(), nullable=False),  # node names
        pa.field("target", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("routine", pa.bool_(), nullable=False),  # it repeats, and changed nothing
    ]
)

TABLES = {
    "ops": OPS,
    "faults": FAULTS,
    "events": EVENTS,
    "replicas": REPLICAS,
    "notes": NOTES,
}
LARGE = ("ops", "replicas")  # never read whole
