"""Trials, plans and suites that come with Seatrial; harness.suite.bundled finds them by name."""
