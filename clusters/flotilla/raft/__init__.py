"""Raft, for the controllers: a core without I/O, a folder on disk, the asyncio node around them.

    messages     what the members tell each other, and its packing
    log          the entries in memory, the oldest compacted away
    membership   who the members are, and how that changes, one at a time
    snapshot     the state machine's state at one place of the log
    journal      log, configurations and snapshot of one member together
    votes        the pure decisions, fields of `rules.Rules`
    effects      what the core asks its driver to do, in which order
    leading      a leader's reign: what it sends, and what the answers prove
    following    a follower's part: entries and snapshots in, answers out
    core         elections, terms and who of the two this is: ticks and messages in, effects out
    wal          term, vote and entries on disk
    storage      wal and snapshot in one folder, and what a restart makes of them
    links        one connection to each peer
    node         the event loop, the disk and the links around the core

"Raft" is the extended paper (Ongaro and Ousterhout, 2014), "thesis" Ongaro's dissertation; section
numbers in the code refer to them.
"""
