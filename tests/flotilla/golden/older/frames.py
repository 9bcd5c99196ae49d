"""What the first edition's nodes say to each other, as hex by name, on standard output.

Run with the first edition's code: see README.md beside it.
"""

import json

from clusters.flotilla.net.wire import Message, PullReply, Status
from clusters.flotilla.raft.messages import (
    Append,
    AppendReply,
    Entry,
    VoteReply,
    VoteRequest,
    pack,
)
from clusters.flotilla.replication.divergence import LogShape
from clusters.flotilla.replication.epochs import EpochTable
from clusters.flotilla.replication.ha_protocol import Hello, Welcome

SHAPE = LogShape(4096, 9000, EpochTable(((1, 4096), (3, 8000))))
FRAMES = {
    "VoteRequest": pack(VoteRequest(term=7, source="n1", last_index=5, last_term=6, pre=True)),
    "VoteReply": pack(VoteReply(term=7, source="n2", granted=True, pre=False)),
    "Append": pack(
        Append(
            term=7,
            source="n1",
            prev_index=4,
            prev_term=6,
            commit=3,
            stamp=2.5,
            entries=(Entry(7, b""), Entry(7, b"[]")),
        )
    ),
    "AppendReply": pack(
        AppendReply(
            term=7, source="n2", matched=False, index=4, stamp=2.5, hint_index=2, hint_term=5
        )
    ),
    "Hello": Hello(2, 3, 8500, SHAPE).pack(),
    "Welcome": Welcome(Status.SUCCESS, 3, 4096, SHAPE).pack(),
    "PullReply": PullReply(Status.SUCCESS, 9, 0, 9, (Message(8, 3, 77, b"key", b"body"),)).pack(),
}
print(json.dumps({name: frame.hex() for name, frame in FRAMES.items()}, indent=2))
