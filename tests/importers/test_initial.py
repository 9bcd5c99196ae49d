"""Registers that held something before anybody wrote to them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import BadRequest
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.judge.judge import judge_small
from harness.judge.verdict import Judgement

Import = Callable[..., RunDir]
KINDS = ("invoke", "ok")


def history(*said: str) -> str:
    """Operations one after the other, each `f value`; `!` before it: the cas was refused."""
    lines = []
    for words in said:
        f, value = words.lstrip("!").split(" ", 1)
        asked, kind = "nil" if f == "read" else value, "fail" if words[0] == "!" else "ok"
        head = f":process 0, :f :{f}, :value"
        lines += [f"{{:type :invoke, {head} {asked}}}\n", f"{{:type :{kind}, {head} {value}}}\n"]
    return "".join(lines)


def told(run: RunDir) -> tuple[Judgement, str]:
    """The verdict, and what the counterexample says."""
    verdict = judge_small(History.open(run))
    rows = [f.evidence[0] for r in verdict.checkers for f in r.findings]
    return verdict.verdict, rows[0]["explanation"] if rows else ""


@pytest.mark.parametrize(
    ("zero", "one"), [("0", "1"), ('"none"', '"some"'), ("-1", "7"), ("nil", "1")]
)
def test_a_register_is_read_before_it_is_written(imported: Import, zero: str, one: str) -> None:
    """That is sound when it held this, whatever values are, and no order explains it else."""
    text = history(f"read {zero}", f"cas [{zero} {one}]", f"read {one}", f"write {zero}")
    initial = None if zero == "nil" else zero
    assert told(imported("jepsen-register", text, initial=initial)) == (Judgement.VALID, "")
    verdict, why = told(imported("jepsen-register", text, initial=one))
    assert verdict is Judgement.INVALID
    if initial:
        assert initial.strip('"') in why
        assert told(imported("jepsen-register", text))[0] is Judgement.INVALID


def test_what_was_there_is_gone_once_it_was_replaced(imported: Import) -> None:
    """It is a value like any other, also when it is written again."""
    text = history("write 1", "read 0")
    assert told(imported("jepsen-register", text, initial="0"))[0] is Judgement.INVALID
    text = history("write 1", "write 0", "read 0", "!cas [1 2]")
    assert told(imported("jepsen-register", text, initial="0"))[0] is Judgement.VALID
    text = history("!cas [0 2]", "read 0")
    assert told(imported("jepsen-register", text, initial="0"))[0] is Judgement.INVALID


def test_every_key_held_it(imported: Import) -> None:
    """Also a value that occurs nowhere in the file."""
    line = "{:process 0, :type :%s, :f :read, :value [%d %s]}\n"
    text = "".join(
        line % (kind, k, v) for k in (3, 4) for kind, v in zip(KINDS, ("nil", "0"), strict=True)
    )
    text += history("write [4 5]")
    assert told(imported("jepsen-register", text, initial="0"))[0] is Judgement.VALID
    words = history('read "a"')
    assert told(imported("jepsen-register", words, initial="nowhere"))[0] is Judgement.INVALID


def test_strings_begin_empty(imported: Import) -> None:
    """A file of them is about registers, and those that are appended to hold nothing at first."""
    line = '{:process 0, :type :%s, :f :%s, :key "x", :value %s}\n'
    said = (("append", '"a"', "nil"), ("get", "nil", '"a"'))
    text = "".join(
        line % (kind, f, v) for f, *vs in said for kind, v in zip(KINDS, vs, strict=True)
    )
    assert told(imported("porcupine-kv", text, initial="zero"))[0] is Judgement.VALID


def test_what_makes_no_sense_is_refused(imported: Import, tmp_path: Path) -> None:
    """In one sentence, and no folder is left behind."""
    with pytest.raises(BadRequest, match="--initial x: values of this history are whole numbers"):
        imported("jepsen-register", history("write 1"), initial="x")
    with pytest.raises(BadRequest, match="set have no initial value; omit --initial"):
        imported("jepsen-set", history("add 1"), initial="1")
    assert not list(tmp_path.glob("run-*"))
