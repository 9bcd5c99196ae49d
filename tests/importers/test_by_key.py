"""Jepsen's independent keys: many objects in one file, each judged by itself."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.importers._jepsen import recording
from harness.importers.jepsen import FORMATS
from harness.judge.judge import judge_small
from harness.judge.verdict import Judgement

Import = Callable[..., RunDir]


def history(*said: str) -> str:
    """Operations one after the other, each `f asked`, or `f asked told`, or `f asked told type`."""
    lines = []
    for words in said:
        f, asked, told, kind, *_ = *words.split("|"), "", ""
        value = f":process 0, :f :{f}, :value"
        lines.append(f"{{:type :invoke, {value} {asked}}}\n")
        lines.append(f"{{:type :{kind or 'ok'}, {value} {told or asked}}}\n")
    return "".join(lines)


SOUND = {
    "jepsen-set": ("add|[3 1]", "add|[4 1]", "read|[3 nil]|[3 #{1}]", "read|[4 nil]|[4 #{1}]"),
    "jepsen-queue": (
        *("enqueue|[3 1]", "enqueue|[4 2]", "dequeue|[4 nil]|[4 2]"),
        "drain|[3 nil]|[3 [1]]",
    ),
    "jepsen-counter": ("add|[3 5]", "add|[4 1]", "read|[3 nil]|[3 5]", "read|[4 nil]|[4 1]"),
    "jepsen-register": (
        *("write|[3 1]", "write|[4 2]|nil|info", "cas|[4 [2 5]]|nil|fail"),
        *("read|[3 nil]|[3 1]", "read|[4 nil]|[4 2]"),
    ),
}
WRONG = {
    "jepsen-set": ("ELEMENT_LOST", "add|[3 7]", "read|[3 nil]|[3 [1]]"),
    "jepsen-queue": ("DUPLICATE_ELEMENT", "dequeue|[4 nil]|[4 2]"),
    "jepsen-counter": ("COUNTER_OUT_OF_RANGE", "read|[4 nil]|[4 6]"),
    "jepsen-register": ("NOT_LINEARIZABLE", "read|[3 nil]|[3 2]"),
}


@pytest.mark.parametrize("tuples", [False, True])
@pytest.mark.parametrize("name", list(SOUND))
def test_each_key_is_an_object(imported: Import, name: str, tuples: bool) -> None:
    """What is true of one key says nothing of another, and one of them convicts by itself."""
    code, *wrong = WRONG[name]
    texts = [history(*SOUND[name]), history(*SOUND[name], *wrong)]
    if tuples:
        texts = [text.replace(":value [", ":value #jepsen.independent/tuple [") for text in texts]
    sound, bad = (judge_small(History.open(imported(name, text))) for text in texts)
    assert (sound.verdict, sound.reasons) == (Judgement.VALID, ())
    assert [(f.code, f.count) for r in bad.checkers for f in r.findings] == [(code, 1)]


def test_elements_may_be_vectors(imported: Import) -> None:
    """Reads that ask for no key are of one object, whatever its elements are."""
    run = imported("jepsen-set", history("add|[3 1]", "read|nil|#{[3 1]}"))
    assert judge_small(History.open(run)).verdict is Judgement.VALID


@pytest.mark.parametrize("size", [100, 1 << 20])
def test_pieces_without_reads_are_read_as_the_file_is(tmp_path: Path, size: int) -> None:
    path = tmp_path / "set.edn"
    path.write_text(history("add|[3 1]", "add|[3 2]", "read|[3 nil]|[3 [1 2]]"))
    parts = recording(path, FORMATS["jepsen-set"], size).parts
    assert set(parts.column("key").to_pylist()) == {3}
