"""Is each object linearizable: do all of its operations fit one order that respects real time?

A history is linearizable exactly when each of its objects is (Herlihy and Wing 1990), so objects
are judged one by one. The modules:

    encoding          rows of a history as arrays of operations by key; flaws of the rows
    zones             registers whose writes all differ: one sort and one sweep, no search
    search            any register with writes and compare-and-set: a depth-first search
    strings           keys whose values are strings that grow by appending
    judge             the method for each key, in rounds of growing budgets, until a deadline
    counterexample    a few operations of an illegal key that contradict each other
    registers         registers and strings of a history; explanations: their texts
    objects           queues, sets, counters, locks and logs as columns; object_kinds: the method
                      for each: fifo, sets, counters, locks, appends
    models            any object with a step function; for short histories only

Kernels are compiled, and use neither Spark nor files nor names. An operation of unknown outcome
(INFO) may take effect at any time after its call, or never. A verdict is legal, illegal or unknown;
the first two are certain.
"""
