"""A simulated world in one process: virtual clock, network and disks, all drawn from one seed.

    world.py      one heap of events, one clock, the seed's random streams, the livelock guard
    guards.py     refuses the real world's functions to simulated processes, and stops endless loops
    clock.py      the clocks of a machine, right or wrong
    process.py    simulated machines and their processes: start, kill, pause, power cut
    driver.py     the process of a trial's driver, which may use the real world
    loop.py       the asyncio event loop of one simulated process
    transport.py  what asyncio puts between a protocol and a socket
    network.py    links between machines, and listening ports
    tcp.py        TCP as their kernels do it
    console.py    what a simulated process prints and reads
    disk.py       files that a power cut can tear; content.py: what is in one
    ports.py      Flotilla's ports on all of it

The product's code runs unchanged: for it, the world is the event loop and its ports. No module here
reads a real clock, and nothing depends on hashes, on addresses of objects or on when garbage is
collected, so that the same seed gives the same transcript on every CPython. They need nothing but
the standard library and Flotilla.
"""
