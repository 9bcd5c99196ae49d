"""Plans: drawn, read, checked, written."""
