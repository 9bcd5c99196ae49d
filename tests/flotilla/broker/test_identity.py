"""The file with a broker's permanent id."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.net.wire import Json, Op, Status, to_json
from clusters.flotilla.steering.identity import Claim, Identity
from clusters.flotilla.world import ports
from clusters.flotilla.world.ports import OsFileSystem, real

CLAIM = Claim("flotilla", "set-1", 3, "198.18.1.5:10911;1763776000000")


def test_a_claim_survives_its_file() -> None:
    """What is read is what was written; a file of an earlier edition has no checksum."""
    assert Claim.unpacked(CLAIM.packed()) == CLAIM
    assert Claim.unpacked(to_json(CLAIM.fields())) == CLAIM


@given(st.integers(0, len(CLAIM.packed()) - 1), st.integers(0, 7))
def test_a_flipped_bit_is_never_another_identity(at: int, bit: int) -> None:
    """One bit wrong anywhere: refused, or it did not matter."""
    data = bytearray(CLAIM.packed())
    data[at] ^= 1 << bit
    try:
        claim = Claim.unpacked(bytes(data))
    except ValueError:
        return
    assert claim == CLAIM or b'"crc"' not in data


@pytest.mark.parametrize("data", [b"", b"{", CLAIM.packed()[:40], b"[]", b"{}", b'{"cluster":1}'])
def test_a_damaged_file_is_told_with_its_place(data: bytes) -> None:
    """Which byte makes no sense is said in one sentence."""
    with pytest.raises(ValueError, match=r"^byte \d+: "):
        Claim.unpacked(data)


class Starved(OsFileSystem):
    """So many times a file can not be read, since too many are open."""

    times = 0

    def read(self, path: str) -> bytes:
        if self.times:
            self.times -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().read(path)


def of_a_broker_that_had_one(
    folder: Path, story: Callable[[Identity, Starved], Awaitable[None]]
) -> None:
    """What becomes of an identity that its file holds."""
    config: Any = SimpleNamespace(
        store=str(folder),
        cluster=CLAIM.cluster,
        broker_name=CLAIM.broker_name,
        address="198.18.1.5:10911",
        ha_address="198.18.1.5:10912",
    )
    (folder / "broker.meta").write_bytes(CLAIM.packed())
    files = Starved()
    asyncio.run(story(Identity(config, replace(real(1), files=files)), files))


async def nobody(op: Op, fields: Json) -> Json:
    raise AssertionError("there was nothing to ask for")


def test_an_id_is_proved_without_descriptors(tmp_path: Path) -> None:
    """A broker registers again and applies again with what it has in memory."""
    applied: list[Json] = []

    async def controllers(op: Op, fields: Json) -> Json:
        applied.append(fields)
        return {"code": Status.SUCCESS}

    async def story(identity: Identity, files: Starved) -> None:
        assert await identity.obtain(nobody) == CLAIM.broker_id
        files.times = 2
        assert identity.check_code() == CLAIM.check_code
        await identity.apply_again(controllers)
        assert applied[0]["checkCode"] == CLAIM.check_code

    of_a_broker_that_had_one(tmp_path, story)


def test_an_id_that_can_not_be_read_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as there is a descriptor it is read; no other one is asked for."""
    monkeypatch.setattr(ports, "RETRY_S", 0.0)

    async def story(identity: Identity, files: Starved) -> None:
        files.times = 2
        assert await identity.obtain(nobody) == CLAIM.broker_id

    of_a_broker_that_had_one(tmp_path, story)
