"""Flotilla: a replicated message broker after RocketMQ 5's controller-mode high availability.

A *broker set* is a master and its slaves, one commit log copied between them. Three kinds of
process make a cluster:

    nameserver   which broker owns which topic; memory only, shares nothing
    controller   a Raft group that keeps, for each broker set, its members, its master with the
                 master's epoch, and the SyncStateSet: the members that may be elected
    broker       a commit log, consume queues built from it, and replication to its peers

The master alone changes the SyncStateSet, with the controllers' consent; the controllers elect a
new master from it when the old one is gone. An election raises the epoch; each log remembers at
which offset each epoch began, so a returning replica can find where it forked and cut there.
A message is acknowledged when the members of the set hold it, as the profile demands, so an
elected member has every acknowledged message. There is no lease: an old master that nobody told
keeps its role, and is held back by the acknowledgement rule alone.

Decisions are pure and hang on one value, `rules.Rules`; the outside world is the asyncio event
loop and the four small things in `ports`. Only the standard library is used, so a node needs
Python 3.11 and this folder: `python -m clusters.flotilla node.toml`.
"""
