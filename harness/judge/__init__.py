"""From what checkers found to a verdict."""
