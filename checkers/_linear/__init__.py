"""Is every object linearizable: do all its operations fit one order that respects real time?

Objects are judged one by one, for a history is linearizable exactly when each of its objects is
(Herlihy and Wing 1990). The modules, from rows to words:

    encoding   rows of a history as arrays of operations by key; what is wrong with the rows
    zones      registers whose writes are all different: a sort and a sweep, no search
    search     any register with writes and compare-and-set: a depth-first search that decides
               nothing before it must
    breadth    the same question, level by level: for keys on which the search drowns
    strings    keys whose values are strings that grow by appending
    models     any object that somebody can write down as a step function; small histories only
    explain    why a key is not linearizable: a few operations that contradict each other
    judge      which of these for which key, in rounds of growing budgets, until a deadline

Kernels are compiled and know nothing of Spark, files or names. An operation of unknown outcome
(INFO) may take effect at any time after its call, or never. A verdict is legal, illegal or
unknown; the first two are certain.
"""
