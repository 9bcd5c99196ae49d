"""A world in one process: virtual clock, virtual network, virtual disks, all drawn from one seed.

    world.py      one heap of events, one clock, the seed's random streams, the livelock guard
    clock.py      the clocks of a machine, right or wrong
    process.py    simulated machines and their processes: start, kill, pause, power cut
    loop.py       the asyncio event loop of one simulated process
    transport.py  what asyncio puts between a protocol and a socket
    network.py    links between machines, and who listens where
    tcp.py        TCP as their kernels do it
    console.py    what a simulated process prints and reads
    border.py     the real world's functions, refused to whoever is simulated
    disk.py       files that a power cut can tear; content.py: what is in one
    ports.py      Flotilla's ports on all of it

The product's code runs unchanged: for it, the world is the event loop and its ports. Nothing in
here reads a real clock, and nothing depends on hashes, on addresses of objects or on a collector's
whims, so that the same seed gives the same transcript on every CPython.
"""
