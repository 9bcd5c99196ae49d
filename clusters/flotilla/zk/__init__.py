"""ZooKeeper's protocol and a coordinator that speaks it.

    jute      requests, answers and events, and their packing. Pure
    frames    frames over one TCP connection, either side
    session   a client session: pings, watches, reconnection, expiry
    tree      the tree of nodes and the sessions, as a state machine. Pure
    server    the coordinator: `tree`, replicated by Raft, served to sessions

Flotilla's brokers and HA controllers use `session` with a ZooKeeper ensemble or with coordinators
of their own, which can run in a simulated world. The protocol is that of Apache ZooKeeper 3.4 to
3.9.
"""
