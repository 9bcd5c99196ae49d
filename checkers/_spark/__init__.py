"""How the work of a checker is spread and compiled."""
