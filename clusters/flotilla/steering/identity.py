"""A broker's permanent id: assigned by the controllers once, kept on the broker's disk.

A temporary file first remembers the id that the broker asks for, with a check code that makes the
request repeatable after a lost answer. With the controllers' consent it becomes `broker.meta`. Each
file is replaced atomically, and none is removed before its successor is on disk. RocketMQ deletes
first; a crash in between costs the broker its identity, while its old id stays in the set.

Each file has a checksum, since one wrong digit would give a broker another's id. (Files without one
are of the first edition.) A damaged file is neither repaired nor replaced by a new id: the node
names the byte and stops.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, NoReturn
from zlib import crc32

from ..config import Config
from ..net.wire import Json, Op, Status, from_json, to_json
from ..world.ports import Ports, retry_when_out_of_files

Ask = Callable[[Op, Json], Awaitable[Json]]


_CLAIM_FIELDS: Mapping[str, Callable[[Any], Any]] = {  # of `Claim`, in its order
    "cluster": str,
    "brokerName": str,
    "brokerId": int,
    "checkCode": str,
}


class Claim(NamedTuple):
    """An id that is requested or assigned."""

    cluster: str
    broker_name: str
    broker_id: int
    check_code: str

    def fields(self) -> Json:
        return dict(zip(_CLAIM_FIELDS, self, strict=True))

    @classmethod
    def of(cls, fields: Json) -> "Claim":
        return cls(*(kind(fields[name]) for name, kind in _CLAIM_FIELDS.items()))

    def packed(self) -> bytes:
        """Return the contents of the file."""
        return to_json(self.fields() | {"crc": crc32(to_json(self.fields()))})

    @classmethod
    def unpacked(cls, data: bytes) -> "Claim":
        """Parse the contents of the file. Raises ValueError with what is wrong and where."""
        try:
            fields = from_json(data)
            claim = cls.of(fields)
        except json.JSONDecodeError as e:
            raise ValueError(f"byte {e.pos}: {e.msg}") from e
        except (KeyError, TypeError, ValueError) as e:
            raise ValueError(f"byte 0: {type(e).__name__}: {e}") from e
        if fields.get("crc", (own := crc32(to_json(claim.fields())))) != own:
            raise ValueError(f"byte 0 to {len(data)}: the checksum is {fields['crc']}, not {own}")
        return claim


class Identity:
    """The files `broker.meta` and `broker.meta.claim` in the store."""

    def __init__(self, config: Config, ports: Ports) -> None:
        self._config = config
        self._files = ports.files
        self._ports = ports
        self._path = f"{config.store}/broker.meta"
        self._claim_path = f"{config.store}/broker.meta.claim"
        self._given: Claim | None = None

    async def obtain(self, ask: Ask) -> int | None:
        """Return the id; None if the controllers assigned the requested one to another broker."""
        claim = await self._load(self._path)
        if claim is None:
            claim = await self._load(self._claim_path) or await self._choose(ask)
            if not await self._apply(ask, claim):
                self._remove_claim()
                return None
            await retry_when_out_of_files(lambda: self._files.replace(self._path, claim.packed()))
        self._remove_claim()
        self._given = claim
        return claim.broker_id

    def check_code(self) -> str:
        """Return the code that proves the ownership of the id, "" before it is assigned."""
        return self._given.check_code if self._given else ""

    async def apply_again(self, ask: Ask) -> None:
        """Request the present id again, after the controllers lost it."""
        if self._given is not None:
            await self._apply(ask, self._given)

    async def _choose(self, ask: Ask) -> Claim:
        config = self._config
        fields: Json = {"cluster": config.cluster, "brokerName": config.broker_name}
        if config.convertible:  # its id is the same in each mode
            broker_id = config.broker_id + 1
        else:
            broker_id = int((await ask(Op.NEXT_BROKER_ID, fields))["brokerId"])
        code = f"{config.address};{self._ports.clock.wall_ms()}"
        claim = Claim(config.cluster, config.broker_name, broker_id, code)
        await retry_when_out_of_files(lambda: self._files.replace(self._claim_path, claim.packed()))
        return claim

    async def _apply(self, ask: Ask, claim: Claim) -> bool:
        addresses: Json = {"addr": self._config.address, "haAddr": self._config.ha_address}
        reply = await ask(Op.APPLY_BROKER_ID, claim.fields() | addresses)
        return bool(reply["code"] == Status.SUCCESS)

    def _remove_claim(self) -> None:
        if self._files.exists(self._claim_path):
            self._files.remove(self._claim_path)

    async def _load(self, path: str) -> Claim | None:
        if not self._files.exists(path):
            return None
        data = await retry_when_out_of_files(lambda: self._read(path))
        try:
            claim = Claim.unpacked(data)
        except ValueError as e:
            self._ports.exit.fatal(
                f"{path} is damaged at {e}; bring it back from a copy, or remove the store and "
                "clean this broker's old id at the controllers"
            )
        expected = (self._config.cluster, self._config.broker_name)
        if (claim.cluster, claim.broker_name) != expected:
            self._refuse(path, claim)
        return claim

    async def _read(self, path: str) -> bytes:
        return self._files.read(path)

    def _refuse(self, path: str, claim: Claim) -> NoReturn:
        self._ports.exit.fatal(
            f"{path} belongs to {claim.cluster}/{claim.broker_name}, but the configuration says "
            f"{self._config.cluster}/{self._config.broker_name}; give this broker its own storePath"
        )
