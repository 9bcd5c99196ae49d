"""Files of several forms, in other encodings, and literals with tags."""

import json
from collections.abc import Callable

import pytest

from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.judge.judge import judge_small
from harness.judge.verdict import Judgement, Verdict

Import = Callable[..., RunDir]
VALID, INVALID, UNKNOWN = Judgement.VALID, Judgement.INVALID, Judgement.UNKNOWN


def judged(run: RunDir) -> Verdict:
    return judge_small(History.open(run))


def done(process: str, f: str, value: str, read: str | None = None) -> str:
    """An operation that ended ok, in two lines."""
    pairs = (("invoke", value), ("ok", read or value))
    return "".join(
        f"{{:process {process}, :type :{kind}, :f :{f}, :value {text}}}\n" for kind, text in pairs
    )


SOUND = done("0", "write", "3") + done("1", "read", "nil", "3")
STALE = done("0", "write", "3") + done("1", "read", "nil", "8")


@pytest.mark.parametrize(
    "around",
    [
        '{{:name "t", :history [\n{}]}}',
        "[{}]\n[]",
        "(\n{})",
        "'[{}]",
        "#jepsen.history/History [\n{}]",
        "[[{}]]",
    ],
)
def test_collections_are_what_is_in_them(imported: Import, around: str) -> None:
    """Whatever stands around the operations, over how many lines ever, they are the history."""
    run = imported("jepsen-register", around.format(STALE.strip()))
    assert run.state()["slips"]["counts"] == {}
    assert judged(run).verdict is INVALID


@pytest.mark.parametrize("form", ["[{0}]\n{1}", "{0}\n[{1}]", "[{0}][\n{1}\n]", "{0}[\n{1}\n]"])
def test_lines_and_vectors_may_follow_each_other(imported: Import, form: str) -> None:
    """A history that was appended to another one goes on."""
    later = done("4", "read", "nil", "8")
    run = imported("jepsen-register", form.format(SOUND.strip(), later.strip()))
    assert run.state()["slips"]["counts"] == {}
    assert judged(run).verdict is INVALID


def test_a_discarded_vector_is_no_history(imported: Import) -> None:
    """What stands behind #_ is not there, whether it is one operation or all of them."""
    written = done("4", "write", "8").strip()
    for text in (f"#_ [{written}]\n{STALE}", f"[{STALE}]\n#_ [\n{written}]"):
        assert judged(imported("jepsen-register", text)).verdict is INVALID


def test_a_text_with_a_newline_is_a_value(imported: Import) -> None:
    text = (done("0", "write", "3") + done("1", "read", "nil", "3")).replace("3}", '"a\nb"}')
    assert judged(imported("jepsen-register", text)).verdict is VALID


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_other_encodings_are_converted(imported: Import, encoding: str, newline: str) -> None:
    """PowerShell writes UTF-16 with a byte order mark."""
    data = STALE.replace("\n", newline).encode(encoding)
    assert judged(imported("jepsen-register", data)).verdict is INVALID


@pytest.mark.parametrize("form", ["%s", "[\n%s]", "json"])
def test_what_is_not_utf_8_equals_nothing(imported: Import, form: str) -> None:
    """Two texts whose bytes differ are not one because both show as a replacement character."""
    text = done("0", "write", '"<"') + done("1", "read", "nil", '">"')
    if form == "json":
        rows = [(t, 0, "write", v) for v in "3<" for t in ("invoke", "ok")]
        rows += [("ok", 1, "read", v) for v in ">3"]
        names = ("type", "process", "f", "value")
        text = "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows)
    else:
        text = form % text
    run = imported("jepsen-register", text.encode().replace(b"<", b"\xff").replace(b">", b"\xfe"))
    assert judged(run).verdict is UNKNOWN
    assert "not UTF-8" in str(run.state()["slips"]["first"])


def test_a_tag_of_a_number_or_text_is_a_part_of_it(imported: Import) -> None:
    """#a/x 1 is not #a/y 1; a record is a map, whatever its tag is."""
    for read, verdict in (("#a/x 1", VALID), ("#a/y 1", INVALID), ("1", INVALID)):
        text = done("0", "write", "#a/x 1") + done("1", "read", "nil", read)
        assert judged(imported("jepsen-register", text)).verdict is verdict
    records = SOUND.replace("{:process", "#jepsen.history.Op{:process")
    assert judged(imported("jepsen-register", records)).verdict is VALID


def test_a_file_of_compare_and_sets_alone_can_be_by_key(imported: Import) -> None:
    """[k [old new]] is a key and a pair; as one register's pair it would be refused."""
    sound = done("0", "cas", "[1 [nil 5]]") + done("0", "cas", "[1 [5 6]]")
    assert judged(imported("jepsen-register", sound)).verdict is UNKNOWN  # nothing was read
    wrong = sound + done("1", "cas", "[1 [5 7]]")
    assert judged(imported("jepsen-register", wrong)).verdict is INVALID
    one = done("0", "cas", "[nil 5]") + done("0", "cas", "[5 6]")
    assert judged(imported("jepsen-register", one)).verdict is UNKNOWN


@pytest.mark.parametrize("shape", ["; a comment\n{}", "[{}]", "json", "{}"])
def test_key_value_histories_have_these_shapes_too(imported: Import, shape: str) -> None:
    rows = [("invoke", 0, "put", "a"), ("ok", 0, "put", "a"), ("ok", 1, "get", "b")]
    names = ("type", "process", "f", "value")
    maps = [{**dict(zip(names, row, strict=True)), "key": "k"} for row in rows]
    if shape == "json":
        text = "\n".join(map(json.dumps, maps))
    else:
        edn = '{{:type :{type}, :process {process}, :f :{f}, :key "k", :value "{value}"}}\n'
        text = shape.format("".join(edn.format(**each) for each in maps))
    run = imported("porcupine-kv", text)
    assert set(run.state()["slips"]["counts"]) == {"NOT_INVOKED"}
    assert judged(run).verdict is INVALID


def test_the_initial_value_may_be_any_literal_of_a_number(imported: Import) -> None:
    text = done("1", "read", "nil", "16") + done("0", "write", "3")
    assert judged(imported("jepsen-register", text, initial="0x10")).verdict is VALID
