"""Trials, plans and suites that come with Seatrial; harness.bundled finds them by name."""
