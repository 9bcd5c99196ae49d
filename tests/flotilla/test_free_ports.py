"""The ports that tests choose: not taken by another between the choice and the use. Servers that
end leave no socket open."""

import asyncio
import gc
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import loopback
import pytest

COUNT = 250  # more than two slices
SCRIPT = f"""
import loopback
print(*[loopback.free_port(f"127.0.0.{{1 + i % 3}}") for i in range({COUNT})], flush=True)
input()
"""


def chosen(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout
    return [int(word) for word in process.stdout.readline().split()]


def test_no_port_is_chosen_twice_in_processes_at_the_same_time() -> None:
    """Three test processes under way together choose different ports, each never one twice."""
    folder = Path(loopback.__file__).parent
    argv = [sys.executable, "-c", SCRIPT]
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(argv, cwd=folder, stdin=pipe, stdout=pipe, text=True) for _ in range(3)
    ]
    ports = [port for process in processes for port in chosen(process)]
    for process in processes:
        process.communicate("\n")
    assert len(set(ports)) == len(ports) == 3 * COUNT


def test_the_kernel_gives_a_chosen_port_to_no_connection() -> None:
    """Chosen ports are outside the range that outgoing connections get theirs from."""
    lowest, highest = map(int, loopback.KERNELS.read_text().split())
    assert not lowest <= loopback.free_port() <= highest


@pytest.mark.parametrize(
    ("lowest", "highest", "never"),
    [(32768, 60999, range(10_000, 32768)), (1024, 40000, range(40001, 65_536))],
)
def test_the_longer_part_outside_the_kernels_range(lowest: int, highest: int, never: range) -> None:
    """Below it as a rule, above it where the kernel begins low."""
    assert loopback.never_given(lowest, highest) == never


@pytest.mark.parametrize("passes", range(5))
def test_what_a_server_accepted_last_is_closed(passes: int) -> None:
    """Whether the loop has accepted a connection, or begun it, when the server is closed."""

    async def scenario() -> None:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()):
            for _ in range(passes):
                await asyncio.sleep(0)
            await loopback.stop_serving(server)
        await server.wait_closed()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(scenario())
        gc.collect()
    assert not [str(one.message) for one in said if "unclosed" in str(one.message)]
