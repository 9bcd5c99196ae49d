"""What a node needs of the world: files, clocks, timers."""
