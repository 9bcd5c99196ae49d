"""The record of a run: its folder, its journals, and how they are read."""
