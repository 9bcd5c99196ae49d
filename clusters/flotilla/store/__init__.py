"""A broker's storage: the commit log, the indexes built from it, recovery and retention."""
