"""Run a trial: raise a cluster, load it, break it, record every operation.

A *trial* is one run: system x hosts x workload x faults x seed. *Clients* invoke operations and
record how each completes: `ok` (it happened), `fail` (it certainly did not), `info` (nobody
knows, so it stays concurrent with everything after it). A *nemesis* carries out a *plan* of
*faults* meanwhile. What all of them record is the *history*; *checkers* turn the history into a
*verdict*: valid, invalid, or unknown when the run proved nothing. A harness may be wrong about
nothing else, so whatever it can not prove it records as unknown.

This package knows no fault, property, system or report by name: `registry` finds them.
"""
