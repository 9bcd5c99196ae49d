"""A message's body, derived from its value and size, so that readers detect damage.

    body      u64 value | u64 mark of value and size | filler cut from a fixed block at the mark

After a flipped bit, a torn tail, bytes of another message or a changed length the body differs from
the one that follows from its own first bytes. The mark is also the key of the message.
"""

import struct
from hashlib import shake_128

from harness.operation import NONE

MIN_BYTES = 16
_HEAD = struct.Struct(">QQ")
_BLOCK_BYTES = 1 << 12
_BLOCK = shake_128(b"seatrial").digest(_BLOCK_BYTES)
_MASK = (1 << 64) - 1


def body_of(value: int, size: int) -> bytes:
    """Return the body of `size` bytes (at least MIN_BYTES) that carries a value."""
    mark = _mark(value, size)
    start = mark >> 52  # 12 bits: a position in the block
    filler = size - MIN_BYTES
    blocks = _BLOCK * (filler // _BLOCK_BYTES + 2)
    return _HEAD.pack(value, mark) + blocks[start : start + filler]


def value_in(body: bytes) -> int:
    """Return the value that a body carries; NONE if the body is damaged."""
    value = claimed_value(body)
    sound = len(body) >= MIN_BYTES and 0 <= value < 1 << 63 and body_of(value, len(body)) == body
    return value if sound else NONE


def key_of(body: bytes) -> bytes:
    """Return the key of the message with this body: its mark, so that keys are unique."""
    return body[8:MIN_BYTES]


def claimed_value(body: bytes) -> int:
    """Return the value at a body's start, even if the rest is damaged; NONE if it is too short."""
    return int.from_bytes(body[:8]) if len(body) >= 8 else NONE


def damaged_part(body: bytes, key: bytes | None) -> str:
    """Return which part of a message is damaged: "body", "key", or "" for neither.

    `key`: None if the client that read the message does not know it.
    """
    if value_in(body) == NONE:
        return "body"
    return "" if key is None or key == key_of(body) else "key"


def _mark(value: int, size: int) -> int:
    """Mix value and size to a number (splitmix64's finaliser)."""
    x = (value + size * 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _MASK
    return x ^ x >> 31
