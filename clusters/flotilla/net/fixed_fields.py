"""Packing of the fixed-size fields of a message, derived from the message's own annotations.

A packed message is a dataclass that gives each fixed-size field its `struct` code in its type:

    last_index: U64
    pre: Flag

The dataclass is the only table: the field's name, its place on the wire and its size are written
once. Fields without a code (text, lists, log records) follow on the wire and are packed by their
message.
"""

import struct
from operator import attrgetter
from typing import Annotated, Any, get_type_hints

U32 = Annotated[int, "I"]
U64 = Annotated[int, "Q"]
F64 = Annotated[float, "d"]
Flag = Annotated[bool, "?"]


class FixedFields:
    """The fixed-size fields of one message class (two or more), big-endian, as declared."""

    def __init__(self, message: type) -> None:
        hints = get_type_hints(message, include_extras=True)
        codes = {
            name: hint.__metadata__[0]
            for name, hint in hints.items()
            if hasattr(hint, "__metadata__")
        }
        self._names = tuple(codes)
        self._struct = struct.Struct(">" + "".join(codes.values()))
        self._values = attrgetter(*self._names)
        self.size = self._struct.size

    def pack(self, message: Any) -> bytes:
        return self._struct.pack(*self._values(message))

    def unpack(self, body: bytes, at: int = 0) -> dict[str, Any]:
        """Return the values by name. Raises struct.error if `body` is too short."""
        return dict(zip(self._names, self._struct.unpack_from(body, at), strict=True))
