"""What a run recorded: its folder, its journals, and how they are read."""
