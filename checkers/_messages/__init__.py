"""What became of every message, and what logs hold."""
