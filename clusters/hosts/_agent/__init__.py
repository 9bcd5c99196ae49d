"""The agent that runs on every node, and the driver's ways to it."""
