"""Raft, for the controllers: a core without I/O, a log on disk, and the asyncio node around them.

    messages   what the members tell each other, and its packing
    log        the entries in memory
    core       who leads and what is committed: ticks and messages in, effects out
    wal        term, vote and entries on disk
    links      one connection to each peer
    node       the event loop, the disk and the links around the core

"Raft" is the extended paper (Ongaro and Ousterhout, 2014), "thesis" Ongaro's dissertation; section
numbers in the code refer to them. Not here: snapshots and changes of membership. The controllers
write a few entries for each election, so the whole log is kept.
"""
