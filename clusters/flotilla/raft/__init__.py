"""Raft, for the controllers: a core without I/O, a folder on disk, and an asyncio node around them.

    messages        messages between members, and their packing
    log             the entries in memory; the oldest are compacted away
    membership      the configuration, and its changes, one member at a time
    snapshot        the state machine's state after one entry of the log
    journal         log, configurations and snapshot of one member together
    votes           the pure decisions, fields of `rules.Rules`
    effects         what the core asks its driver to do, and in which order
    leader_state    a leader: what it sends to followers, and what their replies prove
    follower_state  a follower: entries and snapshots in, replies out
    core            elections, terms and roles: ticks and messages in, effects out
    wal             term, vote and entries on disk
    storage         wal and snapshot in one folder, and recovery from them
    links           one connection to each peer
    node            the event loop, the disk and the links around the core

"Raft" is the extended paper (Ongaro and Ousterhout, 2014), "thesis" is Ongaro's dissertation.
Section numbers in the code refer to them.
"""
