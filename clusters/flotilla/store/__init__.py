"""A broker's storage: the commit log, the queues built from it, recovery, and group offsets."""
