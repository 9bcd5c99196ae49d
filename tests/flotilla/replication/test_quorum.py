"""When a message counts as acknowledged ("Quorum and acknowledgement" in
docs/flotilla-design.md)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.replication.quorum import ALL, admit, needed_acks, replicated_offset

Acks = dict[int, int | None]


@pytest.mark.parametrize(
    ("size", "minimum", "admitted"), [(1, 1, True), (1, 2, False), (2, 2, True)]
)
def test_admission(size: int, minimum: int, admitted: bool) -> None:
    """Below minInSyncReplicas nothing is appended."""
    assert admit(size, minimum) is admitted


@pytest.mark.parametrize(("all_ack", "n", "needed"), [(True, 1, ALL), (False, 2, 2), (False, 0, 1)])
def test_needed(all_ack: bool, n: int, needed: int) -> None:
    """All of the set, or inSyncReplicas; at least the master's own copy."""
    assert needed_acks(all_ack, n) == needed


@pytest.mark.parametrize(
    ("needed", "acks", "members", "minimum", "offset"),
    [
        (1, {}, (), 1, 900),
        (1, {2: 10}, (2,), 1, 900),
        (ALL, {}, (), 1, 900),
        (ALL, {2: 500}, (2,), 1, 500),
        (ALL, {2: 500, 3: 400}, (2, 3), 2, 400),
        (ALL, {2: 500}, (2, 3), 2, 0),
        (ALL, {2: 500, 3: None}, (2, 3), 1, 0),
        # the set shrank to the master after the message was admitted
        (ALL, {2: 500}, (), 2, -1),
        (2, {2: 500, 3: 400}, (2, 3), 1, 500),
        (3, {2: 500, 3: 400}, (2, 3), 1, 400),
        (3, {2: 500}, (2,), 1, -1),
        # a slave outside the set saves nothing when a member is elected
        (2, {2: 500, 3: 800}, (2,), 1, 500),
        (2, {3: 800}, (), 1, -1),
    ],
)
def test_replicated(
    needed: int, acks: Acks, members: tuple[int, ...], minimum: int, offset: int
) -> None:
    """Each setting, counted per member of the set. The log ends at 900."""
    assert replicated_offset(needed, 900, acks, members, minimum) == offset


@given(
    st.dictionaries(st.integers(2, 6), st.integers(0, 100)),
    st.sets(st.integers(2, 6)),
    st.sampled_from([ALL, 1, 2, 3]),
    st.integers(1, 3),
)
def test_against_the_definition(
    acks: dict[int, int], members: set[int], needed: int, minimum: int
) -> None:
    """An offset is replicated if and only if enough members hold it, one by one."""

    def holds(end: int) -> bool:
        copies = 1 + sum(acks.get(m, 0) >= end for m in members)
        enough = max(1 + len(members), minimum) if needed == ALL else needed
        return copies >= enough

    known: dict[int, int | None] = dict(acks)
    found = replicated_offset(needed, 100, known, tuple(sorted(members)), minimum)
    assert [end for end in range(1, 101) if holds(end)] == list(range(1, found + 1))
