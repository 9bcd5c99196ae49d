"""The file that holds a broker's permanent id (spec 5.3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.identity import Claim
from clusters.flotilla.wire import to_json

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
