"""Replication of a log: quorums, epochs, SyncStateSets, and both ends of an HA link."""
