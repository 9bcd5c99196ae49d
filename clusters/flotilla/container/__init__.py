"""Several brokers in one process (RIP-31)."""
