"""Operations: what a client invoked and how it completed, in Jepsen's terms.

Every outcome is one of three. `OK`: it took effect. `FAIL`: it certainly did not and never will.
`INFO`: unknown; it may take effect at any later time, so for a checker it never returns. An
operation with several attempts is INFO if any attempt was, even if the last was refused.

A transaction's micro-operations (GET, PUT, APPEND, LIST) are rows of one `op`, numbered by `mop`;
the operation itself is the row with neither `key` nor `mop`.

A message's value is `producer << 32 | sequence`: unique, and dense for each producer.
"""

from dataclasses import dataclass
from enum import IntEnum

NONE = -1  # an absent integer in an event that is about to be journalled; stored as null
SEQUENCE_BITS = 32


class Type(IntEnum):
    """The type of an event in the ops table."""

    INVOKE = 0
    OK = 1
    FAIL = 2
    INFO = 3


class F(IntEnum):
    """The function of an operation. The numbers are part of the history's schema: append only."""

    SEND = 1  # value sent to key; ok carries offset, epoch, node. Where the client selects the
    # queue, only ok has a key
    POLL = 2  # consumer group read: one ok row for each message, pos = index in the batch
    READ = 3  # the fresh reader's read in the final phase, same shape as POLL
    COMMIT = 4  # group offset committed: offset
    CREATE = 5  # topic made; key is the topic, offset its queues
    DELETE = 6  # topic deleted
    SEE = 7  # topic looked up: ok with its queues as offset, 0 if it does not exist
    RESET = 8  # group offset set, also backwards: offset
    QUERY = 9  # group offset read: ok with offset, -1 (absent) if there is none
    LOCK = 10  # a queue's lock taken: ok with offset, the lease in ms since the invoke
    UNLOCK = 11  # a lock released
    GET = 12  # a register read: ok with its value, absent when it has none
    PUT = 13  # a register written: value
    CAS = 14  # a register changed from value to arg; refused by the comparison itself: fail, pos 0
    APPEND = 15  # value appended to the list, or string, under key; ok may carry the offset
    LIST = 16  # a list or set read: one ok row for each element, pos = its index
    ADD = 17  # value added to a set, or to a counter (then it may repeat, and be negative)
    COUNT = 18  # a counter read: ok with value
    ENQUEUE = 19  # value put into a queue
    DEQUEUE = 20  # ok with the value taken; absent when the queue was empty
    ACQUIRE = 21  # a lock taken until it is released: ok, offset = its fencing token, arg = the ms
    # after which it ends by itself, counted from the invoke
    RELEASE = 22  # a lock released; fail: it was not held
    JOIN = 23  # a consumer joins the group under key
    LEAVE = 24  # a consumer leaves it
    WATCH = 25  # changes of a key after the version `offset`: one ok row for each, offset = its
    # version, pos = its index; the operation's ok has arg 1 if only the newest value is promised,
    # and 2 more if an event may come before reads show its value. PUT and GET of such a key are ok
    # with the version as offset, 0 if there is no value
    ACKNOWLEDGE = 26  # messages that a group was given, which it is not given again once this is
    # ok: one ok row for each, offset, pos = its index. Its arg, and that of the group's POLL, is
    # the number of the group
    DELAY = 27  # value sent to key, to be delivered `arg` ms after the invoke; ok: it is accepted
    PREPARE = 28  # value sent to key, to be delivered if it is committed; ok: offset = its id
    DECIDE = 29  # what was prepared for key with this value is committed (arg 1) or rolled back (0)
    ASKED = 30  # the system asked a producer for the decision of a value; its answer is `arg`: as
    # of DECIDE, 2 if it does not know
    POP = 31  # messages of key taken for `arg` ms, during which others of the group are not given
    # them: one ok row for each, as of POLL
    ACK = 32  # a message that was popped, with this value and offset, is done with
    HIDE = 33  # it is invisible to others for `arg` ms from now on


SENDS = (F.SEND, F.DELAY, F.PREPARE)  # a producer sends a message
DELIVERIES = (F.POLL, F.POP)  # a consumer group is given messages


@dataclass(frozen=True, slots=True)
class Completion:
    """How one operation ended; NONE where a field does not apply. `queue`: the number of the queue
    in which a send was acknowledged, if its client selected it."""

    type: Type
    offset: int = NONE
    epoch: int = NONE
    node: int = NONE
    attempts: int = 1
    error: str = ""
    arg: int = NONE
    pos: int = NONE
    queue: int = NONE


def ops_row(
    t: int,
    process: int,
    op: int,
    kind: int,
    f: int,
    key: int,
    *,
    value: int = NONE,
    arg: int = NONE,
    offset: int = NONE,
    pos: int = NONE,
    mop: int = NONE,
    epoch: int = NONE,
    node: int = NONE,
    attempts: int = NONE,
) -> tuple[int, ...]:
    """Return a row of the ops table, in the order of its columns (`harness.history.schema.OPS`).

    This is a plain tuple, because a NamedTuple takes four times as long to make.
    """
    return (t, process, op, kind, f, key, value, arg, offset, pos, mop, epoch, node, attempts)


def value_of(producer: int, sequence: int) -> int:
    return producer << SEQUENCE_BITS | sequence


def producer_of(value: int) -> int:
    return value >> SEQUENCE_BITS


def sequence_of(value: int) -> int:
    return value & (1 << SEQUENCE_BITS) - 1
