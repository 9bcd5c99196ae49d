"""Stories of findings: what happened to a message or an object, event by event.

A story is made from one witness of a finding and the run's folder: the rows of its operations, the
faults, the nodes' events and the replicas' logs. `rows` finds the few rows without Spark, `witness`
chooses what the story is about, `moments` and `cluster_events` turn rows into sentences with times,
`outcome` describes the final state, and `story` puts them together, also for a simulated run that
shrinking found. `page_findings` and `interval_drawing` show the same witnesses on the HTML page.
The harness loads this package by name (`registry.stories`).
"""

from collections.abc import Mapping

from reports._stories.story import STEPS_INDENT, explain, failing_run_story, nothing_to_explain

NOTHING: Mapping[str, list[str]] = {"explainable": []}  # JSON for a run without findings

__all__ = ["NOTHING", "STEPS_INDENT", "explain", "failing_run_story", "nothing_to_explain"]
