"""Suites: lists of trials with expected verdicts.

`suite_file` reads and checks the file, `execution` carries it out within its budget, `log` lets
it resume after an interruption. `row` is the result of one run, `figures` its numbers, and
`expected` compares both with the expectation. `trend` compares nights, `record` keeps results with
the code they were measured with, `store` knows the files of suites, `view` formats summaries, and
`command` is the whole command.
"""
