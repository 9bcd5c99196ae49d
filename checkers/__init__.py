"""Judge a recorded history: one property a file, each `check(history, trial, spark) -> Result`.

A run's operations are read twice at most. The shared passes reduce files to mergeable partials in
Spark's workers, column by column, without making rows of them: `message_census` (which message was
sent, acknowledged, refused, seen), `queue_log` (which value stands at which offset of a queue, and
when), `timeline` (how many operations of which outcome in which tenth of a second). Checkers ask
those, and go back to the files only for the witnesses of what is wrong. Counts are exact, evidence
is capped. `registry` finds the files; a leading underscore marks what is shared.
"""
