"""Special messages: delayed ones, and those of transactions."""
