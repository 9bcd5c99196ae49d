"""A broker: it stores messages, serves clients, and replicates its log."""
