"""Flotilla: a replicated message broker after RocketMQ 5's controller-mode high availability.

A *broker set* is a master and its slaves, one commit log copied between them. Three kinds of
process make a cluster:

    nameserver   which broker serves which topic; in memory only, shares nothing
    controller   a Raft group that keeps, for each broker set, its members, its master with the
                 master's epoch, and the SyncStateSet: the members that may be elected
    broker       a commit log, consume queues built from it, and replication to its peers

Only the master changes the SyncStateSet, with the controllers' consent. When the master is gone,
the controllers elect a new one from the set and raise the epoch. Each log remembers at which offset
each epoch began, so a returning replica can find where it diverged and truncate there. A message
is acknowledged when as many members of the set hold it as the profile demands, so an elected member
has every acknowledged message. There is no lease: an old master that has not learned of the
election keeps its role, and only the acknowledgement rule holds it back.

Decisions are pure functions, collected in one value, `rules.Rules`. The outside world is the
asyncio event loop and the small interfaces in `world.ports`. Only the standard library is used, so
a node needs Python 3.11 and this folder: `python -m clusters.flotilla node.toml`.
"""
