"""When a delayed packet may go on, and the protocol between the kernel and the helper."""

import socket
import struct
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.hosts._agent import network as _agent_network
from clusters.hosts._agent import nfqueue as _agent_queue
from clusters.hosts._agent.nfqueue import ACCEPTED, DROPPED, HeldPackets, RateLimit, SourceDelay

A, B = "198.18.1.11", "198.18.1.12"
FROM_A, FROM_B = socket.inet_aton(A), socket.inet_aton(B)
PACKET = 1000


def rule(source: str = A, **paces: float) -> dict[str, Any]:
    return {"source": source, **dict.fromkeys(_agent_network.PACES, 0.0), **paces}


def way(shared: RateLimit | None = None, **paces: float) -> SourceDelay:
    return SourceDelay(rule(**paces), shared or RateLimit(), Random(1))


def ways(*rules: dict[str, Any]) -> HeldPackets:
    made = HeldPackets()
    made.keep(list(rules))
    return made


def test_a_late_packet_waits_for_the_delay() -> None:
    """And no longer, however many packets there are."""
    late = way(delay_s=0.1)
    assert [late.due_s(now_s, PACKET) for now_s in (1.0, 1.0, 1.5)] == [1.1, 1.1, 1.6]


@given(
    delay_s=st.floats(0.001, 1),
    jitter_s=st.floats(0, 1),
    gaps_s=st.lists(st.floats(0, 0.5), max_size=30),
)
def test_jitter_keeps_the_order(delay_s: float, jitter_s: float, gaps_s: list[float]) -> None:
    """Each packet waits for the delay and at most the jitter, or for the one before it."""
    late, now_s, last_s = way(delay_s=delay_s, jitter_s=jitter_s), 5.0, 0.0
    for gap_s in gaps_s:
        now_s += gap_s
        due_s = late.due_s(now_s, PACKET)
        assert due_s is not None
        latest_s = max(last_s, now_s + delay_s + jitter_s)
        assert now_s + delay_s <= due_s <= latest_s + 1e-9  # sums of floats are not exact
        assert due_s >= last_s
        last_s = due_s


def test_a_share_is_not_late() -> None:
    """About the requested share is not delayed; the others wait for the whole delay."""
    late = way(delay_s=0.1, reorder=0.3)
    dues = [late.due_s(1.0, PACKET) for _ in range(1000)]
    assert 230 < dues.count(1.0) < 370
    assert set(dues) == {1.0, 1.1}


def test_a_narrow_way_carries_one_packet_after_the_other() -> None:
    """Each takes a tenth of a second; one that arrives while none waits is not delayed by
    others."""
    narrow = way(bytes_per_s=10 * PACKET)
    assert [narrow.due_s(1.0, PACKET) for _ in range(3)] == pytest.approx([1.1, 1.2, 1.3])
    assert narrow.due_s(9.0, PACKET) == pytest.approx(9.1)


@given(
    rate=st.floats(10_000, 1e7),
    arrivals=st.lists(st.tuples(st.floats(0, 0.2), st.integers(20, 65_535)), min_size=1),
)
def test_nothing_gets_through_sooner_than_there_is_room(
    rate: float, arrivals: list[tuple[float, int]]
) -> None:
    """The packets that passed since any packet arrived took at least the time of their bytes; never
    much more than a second's worth waits."""
    narrow, now_s, carried, begun_s = way(bytes_per_s=rate), 1.0, 0, None
    for gap_s, size in arrivals:
        now_s += gap_s
        due_s = narrow.due_s(now_s, size)
        if due_s is None:
            continue
        begun_s = now_s if begun_s is None else begun_s
        carried += size
        assert due_s - begun_s >= carried / rate * (1 - 1e-9)
        most = max(rate, _agent_queue.MIN_FULL_BYTES) + size
        assert (due_s - now_s) * rate <= most * (1 + 1e-9)


def test_what_finds_too_much_waiting_is_lost() -> None:
    """At most a second's worth may wait; later there is room again."""
    narrow = way(bytes_per_s=100_000)
    dues = [narrow.due_s(1.0, PACKET) for _ in range(200)]
    assert dues[99] is not None
    assert dues[150] is None
    assert narrow.due_s(3.0, PACKET) == pytest.approx(3.01)


def test_all_ways_share_the_door() -> None:
    """Packets from two sources take turns on the shared limit, each after its own."""
    both = ways(*(rule(source, node_bytes_per_s=10 * PACKET) for source in (A, B)))
    assert both.take(1, FROM_A, PACKET, 1.0) is None
    assert both.take(2, FROM_B, PACKET, 1.0) is None
    assert both.due(1.15) == [1]
    assert both.due(1.25) == [2]


def test_packets_go_on_when_they_are_due() -> None:
    """In order; the next wait is for the first of them; packets of other sources do not wait."""
    late = ways(rule(delay_s=0.1), rule(B, delay_s=0.05))
    assert late.wait_s(1.0) is None
    assert late.take(1, FROM_A, PACKET, 1.0) is None
    assert late.take(2, FROM_B, PACKET, 1.0) is None
    assert late.take(3, FROM_A, PACKET, 1.0) is None
    assert late.take(4, socket.inet_aton("10.0.0.1"), PACKET, 1.0) == ACCEPTED
    assert late.wait_s(1.0) == pytest.approx(0.05)
    assert late.due(1.06) == [2]
    assert late.due(1.11) == [1, 3]
    assert late.wait_s(2.0) is None


def test_what_is_lost_is_said_at_once() -> None:
    """The kernel need not keep it."""
    narrow = ways(rule(bytes_per_s=10_000))
    verdicts = [narrow.take(number, FROM_A, PACKET, 1.0) for number in range(50)]
    assert verdicts[0] is None
    assert verdicts[-1] == DROPPED


def test_a_rule_that_goes_lets_go_of_what_it_held() -> None:
    """In order, and no other packets; a rule that stays goes on."""
    late = ways(rule(delay_s=10.0), rule(B, bytes_per_s=10 * PACKET))
    for number, source in enumerate((FROM_A, FROM_B, FROM_A, FROM_B)):
        late.take(number, source, PACKET, 1.0)
    assert late.keep([rule(B, bytes_per_s=10 * PACKET)]) == [0, 2]
    assert late.take(4, FROM_B, PACKET, 1.0) is None
    assert late.due(1.35) == [1, 3, 4]
    assert late.keep([rule(B, delay_s=0.1)]) == []
    late.take(5, FROM_B, PACKET, 2.0)
    assert late.keep([]) == [5]
    assert late.take(6, FROM_B, PACKET, 2.0) == ACCEPTED


def test_large_packets_are_cut_up_only_where_it_is_narrow() -> None:
    """One of 64 KB would take seconds."""
    assert ways(rule(delay_s=1.0)).whole
    assert not ways(rule(delay_s=1.0), rule(B, bytes_per_s=10_000)).whole
    assert not ways(rule(node_bytes_per_s=10_000)).whole


def told(number: int, header: bytes, size: int = 0) -> bytes:
    """A packet as the kernel tells of it."""
    body = _agent_queue.FAMILY.pack(socket.AF_INET, 0, 7)
    body += _agent_queue.attribute(1, struct.pack("!IHB", number, 0x800, 1))
    body += _agent_queue.attribute(5, bytes(4))
    body += _agent_queue.attribute(10, header)
    body += _agent_queue.attribute(13, struct.pack("!I", size)) if size else b""
    head = _agent_queue.HEAD.pack(16 + len(body), _agent_queue.PACKET, 0, 0, 0)
    return head + body


def test_packets_are_read_as_the_kernel_tells_of_them() -> None:
    """Number, source and full size, also if only the header was copied; other and partial messages
    give none."""
    header = bytes(12) + FROM_A + FROM_B
    error = _agent_queue.HEAD.pack(20, 2, 0, 0, 0) + bytes(4)
    data = told(5, header, 64_000) + error + told(6, header)
    assert _agent_queue.packets_in(data) == [(5, FROM_A, 64_000), (6, FROM_A, 20)]
    assert _agent_queue.packets_in(data[:10]) == []
