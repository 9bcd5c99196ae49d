"""Nodes in a simulated world inside the runner: the same code, a virtual clock, network and disks.
Everything that chance decides is drawn from one seed.

    hosts.py      the kind of hosts: raises the nodes and runs the trial in the world
    agent.py      the agent of a node; machine.py: what a node can run
    driver.py     the process of the trial's driver, which reaches the real world
    options.py    the options of the bed
    world.py      one heap of events, one clock, the seed's random streams, the livelock guard
    guards.py     refuses the real world's functions to simulated processes, and stops endless loops
    clock.py      the clocks of a machine, right or wrong
    process.py    simulated machines and their processes: start, kill, pause, power cut
    loop.py       the asyncio event loop of one simulated process
    transport.py  what asyncio puts between a protocol and a socket
    network.py    links between machines, and who listens where
    tcp.py        TCP as their kernels do it
    console.py    what a simulated process prints and reads
    disk.py       files that a power cut can tear; content.py: what is in one
    ports.py      Flotilla's ports on all of it

The product's code runs unchanged: for it, the world is the event loop and its ports. No module here
reads a real clock, and nothing depends on hashes, on addresses of objects or on when garbage is
collected, so that the same seed gives the same transcript on every CPython.
"""

from clusters.hosts.simulated.hosts import PLUGIN

__all__ = ["PLUGIN"]
