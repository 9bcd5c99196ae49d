"""Findings about objects and transactions of imported histories, explained: the operations that
contradict each other, by the lines of their file, with what they were answered."""

from collections.abc import Callable

import pytest

from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.judge.judge import judge_small
from reports._stories.story import Story, explain

Import = Callable[..., RunDir]

APPEND = """\
{:type :invoke, :process 0, :f :txn, :value [[:append 7 1]], :time 1000000, :index 0}
{:type :fail, :process 0, :f :txn, :value [[:append 7 1]], :time 2000000, :index 1}
{:type :invoke, :process 1, :f :txn, :value [[:r 7 nil] [:append 8 2]], :time 3000000, :index 2}
{:type :ok, :process 1, :f :txn, :value [[:r 7 [1]] [:append 8 2]], :time 4000000, :index 3}
"""
QUEUE = """\
{:type :invoke, :process 0, :f :enqueue, :value 5, :time 1000000}
{:type :ok, :process 0, :f :enqueue, :value 5, :time 2000000}
{:type :invoke, :process 1, :f :dequeue, :value nil, :time 3000000}
{:type :ok, :process 1, :f :dequeue, :value 5, :time 4000000}
{:type :invoke, :process 2, :f :dequeue, :value nil, :time 5000000}
{:type :ok, :process 2, :f :dequeue, :value 5, :time 6000000}
{:type :invoke, :process 2, :f :dequeue, :value nil, :time 7000000}
{:type :info, :process 2, :f :dequeue, :value nil, :time 8000000, :error :timeout}
"""
REGISTER = """\
{:type :invoke, :process 0, :f :write, :value 3, :time 1000000}
{:type :ok, :process 0, :f :write, :value 3, :time 2000000}
{:type :invoke, :process 1, :f :read, :value nil, :time 3000000}
{:type :ok, :process 1, :f :read, :value 9, :time 4000000}
"""
STORIES = {
    "jepsen-append": (
        APPEND,
        "G1A",
        [
            "It violates the isolation level read-committed",
            "process 0 begins T1: append 1 to key 7",
            "T1 of process 0 is refused",
            "process 1 begins T3: list of key 7; append 2 to key 8",
            "T3 of process 1 ends ok: key 7 is [1]",
            "Conclusion: T3 read 1 of 7, which T1 wrote, and T1 was aborted.",
        ],
    ),
    "jepsen-queue": (
        QUEUE,
        "DUPLICATE_ELEMENT",
        [
            "It is about queue ",
            "Operations are numbered by the lines of history-0.",
            "process 1 begins op 3: dequeue of",
            "op 3 of process 1 ends ok: ",
            " gives 5",
            "process 2 begins op 5: dequeue of",
        ],
    ),
    "jepsen-register": (
        REGISTER,
        "NOT_LINEARIZABLE",
        ["process 1 begins op 3: get of", " gives 9"],
    ),
}


def told(imported: Import, name: str) -> Story:
    text, code, _ = STORIES[name]
    run = imported(name, text)
    judge_small(History.open(run))
    story = explain(run, code)
    assert story
    return story


@pytest.mark.parametrize("name", STORIES)
def test_operations_are_told_with_their_times_and_answers(imported: Import, name: str) -> None:
    """In the order of time, and by the lines on which they begin."""
    story = told(imported, name)
    text = "\n".join(story.lines())
    assert not [words for words in STORIES[name][2] if words not in text], text
    times = [step.t for step, _ in story.moments]
    assert times == sorted(times)
    assert len(times) >= 2


def test_there_is_no_more_than_the_file_tells(imported: Import) -> None:
    """No fault, no broker, no log of a replica."""
    story = told(imported, "jepsen-queue")
    assert not story.final_state
    assert not [on for _, on in story.moments if on]
    assert "master" not in "\n".join(story.lines())
