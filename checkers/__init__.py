"""Checks of a recorded history: one property per file, `check(history, trial, spark) -> Result`.

Checkers share passes that reduce files to mergeable partial results in Spark's workers, column by
column, without making rows of them: `message_census` (which message was sent, acknowledged,
refused, seen), `queue_log` (which value is at which offset of a queue, and since when), `timeline`
(how many operations of which outcome in each tenth of a second). The files are read again only for
the witnesses of what is wrong. Counts are exact, evidence is capped. `registry` finds the files;
what they share is in folders with a leading underscore.
"""
