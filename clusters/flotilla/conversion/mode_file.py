"""In which haMode a broker is: the file `mode.json` of a store of a convertible broker.

A *generation* is the time of a set in one mode, from one conversion to the next. Its number rises
with every conversion and never returns; generation 0 is the mode of the configuration. The file has

    mode, generation   in force on this broker
    master             the broker that was master when the generation began, and leads it first
    epoch              the last epoch of the earlier generation
    attempt            the number of the last attempt to convert this broker, also of a failed one
    pending            what this broker, a slave, has promised to convert to; null: nothing

It is replaced atomically and has a checksum. A damaged file stops the broker: it could take part in
two modes of its set at once.
"""

from dataclasses import asdict, dataclass
from typing import Any
from zlib import crc32

from ..config import Config
from ..net.wire import Json, from_json, to_json
from ..world.ports import FileSystem, Ports, retry_when_out_of_files


@dataclass(frozen=True)
class Generation:
    """A set's time in one mode. `master`: 0 in generation 0."""

    mode: str
    number: int = 0
    master: int = 0
    epoch: int = 0

    def fields(self) -> Json:
        return asdict(self)

    @classmethod
    def of(cls, fields: Json) -> "Generation":
        numbers = (int(fields[name]) for name in ("number", "master", "epoch"))
        return cls(str(fields["mode"]), *numbers)


@dataclass(frozen=True)
class ModeState:
    """The content of the file. `pending`: the generation that a slave has promised to begin."""

    in_force: Generation
    attempt: int = 0
    pending: Generation | None = None

    def pack(self) -> bytes:
        fields = self._fields()
        return to_json(fields | {"crc": crc32(to_json(fields))})

    def _fields(self) -> Json:
        pending = self.pending.fields() if self.pending else None
        in_force = self.in_force.fields()
        return {"inForce": in_force, "attempt": self.attempt, "pending": pending}

    @classmethod
    def unpack(cls, data: bytes) -> "ModeState":
        """Parse the file. Raises ValueError if it is damaged."""
        try:
            fields: dict[str, Any] = from_json(data)
            pending = fields["pending"]
            in_force = Generation.of(fields["inForce"])
            state = cls(in_force, int(fields["attempt"]), pending and Generation.of(pending))
            crc = int(fields["crc"])
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise ValueError(f"no mode: {type(e).__name__}: {e}") from e
        if crc != crc32(to_json(state._fields())):
            raise ValueError("its checksum does not match")
        return state


class ModeFile:
    """`mode.json` in the store."""

    def __init__(self, config: Config, ports: Ports) -> None:
        self._config, self._ports = config, ports
        self._path = f"{config.store}/mode.json"

    async def load(self) -> ModeState:
        """Return what is on the disk; a new store is in generation 0 of the configured mode.

        A damaged file, or one of a set that was converted on a broker without `convertible`, ends
        the process with one sentence.
        """
        files, configured = self._ports.files, self._config.ha_mode
        if not files.exists(self._path):
            return ModeState(Generation(configured))
        data = await retry_when_out_of_files(lambda: _read(files, self._path))
        try:
            state = ModeState.unpack(data)
        except ValueError as e:
            self._ports.exit.fatal(
                f"{self._path} is damaged ({e}): this broker could take part in two modes; bring "
                f"the file back, or empty {self._config.store}"
            )
        if state.in_force.number and not self._config.convertible:
            self._ports.exit.fatal(
                f"{self._path} says that this set was converted to {state.in_force.mode}, but "
                f"haMode is {configured} and convertible = false; set convertible = true"
            )
        return state

    async def save(self, state: ModeState) -> None:
        """Replace the file. Raises OSError."""
        await self._ports.files.replace(self._path, state.pack())


async def _read(files: FileSystem, path: str) -> bytes:
    return files.read(path)
