"""The nameserver: which broker serves which topic."""
