"""From the findings of checkers to a verdict."""
