"""`seatrial explain` on a run that really lost messages: each fact in the line where it belongs."""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import sinking

from harness.cli.exit_codes import exit_code
from harness.errors import BadRequest, UnknownName
from harness.history.journal import TableJournal
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.history.seal import seal
from harness.judge.judge import judge_small
from harness.judge.verdict import Finding, Result, Verdict
from harness.operation import NONE, F, Type
from harness.text.plurals import ordinal
from harness.trial import Trial
from reports._stories.story import Story, explain, nothing_to_explain


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    run: RunDir = sinking.sunk(Path(tmp_path_factory.mktemp("explain")) / "run").run
    return run


def told(run: RunDir, text: str | None = None) -> Story:
    story = explain(run, text)
    assert story
    return story


def evidence(run: RunDir, code: str, number: int = 1) -> dict[str, object]:
    found = [f for r in Verdict.read(run.verdict_file).checkers for f in r.findings]
    return dict(next(f for f in found if f.code == code).evidence[number - 1])


def places(text: str, *words: str) -> list[int]:
    at = [text.find(each) for each in words]
    assert -1 not in at, words[at.index(-1)] + " is not in\n" + text
    return at


def test_a_lost_message_is_followed_from_its_sender_to_the_last_reader(run: RunDir) -> None:
    """In order of time: sender, acknowledgement, faults, election, truncation, reader; then the
    final logs, and the conclusion."""
    row = evidence(run, "LOST_ACKED")
    text = "\n".join(told(run).lines())
    at = places(
        text,
        f"(value {row['value']})",
        " fault 2: partition (isolate, from slave), broker-",
        f" sends the message to {row['queue']}",
        f"{row['node']} acknowledges the message: offset {row['offset']}, epoch {row['epoch']}",
        " fault 3: kill, broker-",
        " master of set-1: epoch 2, SyncStateSet broker-",
        f"{row['node']} cuts its log from ",
        f" reads past offset {row['offset']} of {row['queue']}: it receives message ",
        "In the end no log holds the message, of broker-1, broker-2, broker-3.",
        f"In its place, offset {row['offset']} of {row['queue']}, broker-",
        f" read {row['queue']} to its end, from offset 0 to ",
        f"Conclusion: {str(row['node']).capitalize()} acknowledged the message in epoch 1 while "
        "fault 2 (partition (isolate)",
        ", whose log did not hold it, was elected for epoch 2; in that epoch it wrote ",
        "in the end no replica holds it",
    )
    assert at == sorted(at)


def test_each_moment_stands_with_the_faults_that_were_on(run: RunDir) -> None:
    """The acknowledgement during fault 2 alone, the election during 2 and 3, the end without."""
    moments = told(run).plain()["moments"]
    on = {
        word: next(m["faults"] for m in moments if word in m["what"])
        for word in ("acknowledges the message", "elects", "reads past")
    }
    assert on == {"acknowledges the message": [2], "elects": [2, 3], "reads past": []}
    times = [moment["t"] for moment in moments]
    assert times == sorted(times)
    acked = next(m for m in moments if "acknowledges the message" in m["what"])
    assert acked["t"] / 1e9 == pytest.approx(evidence(run, "LOST_ACKED")["acked_s"], abs=1e-6)


def test_a_message_that_a_group_was_not_given_is_in_a_log(run: RunDir) -> None:
    """The story has the logs with the message, its readers, and the readers that went on without
    it."""
    row = evidence(run, "UNREAD_ACKED", 2)
    text = "\n".join(told(run, "UNREAD_ACKED:2").lines())
    places(
        text,
        f"(value {row['value']})",
        f"In the end the message is in the log of broker-1 ({row['queue']} at {row['offset']}), ",
        "consumer 1 of group-0 on client-1 reads past offset ",
        "consumer 1 of group-0 on client-1 notes: broker-2: PULL_OFFSET_MOVED ",
        "group-0 read to the end without receiving it",
    )
    assert "In its place" not in text


def test_without_a_word_it_is_the_first_violation_and_the_others_are_named(run: RunDir) -> None:
    """Codes are understood as people write them, witnesses are numbered from 1."""
    first = told(run)
    assert first == told(run, "LOST_ACKED:1") == told(run, "lost-acked")
    assert first != told(run, "LOST_ACKED:2")
    found = {f.code: f for r in Verdict.read(run.verdict_file).checkers for f in r.findings}
    lost, unread = found["LOST_ACKED"], found["UNREAD_ACKED"]
    assert lost.count > len(lost.evidence) == 20
    assert list(first.lines())[-1] == (
        f"Can be explained: LOST_ACKED:1 to :20 of {lost.count}, "
        f"UNREAD_ACKED:1 to :{len(unread.evidence)}"
    )


def test_what_is_not_there_is_one_sentence(run: RunDir, tmp_path: Path) -> None:
    """Another code, another number, no number, no verdict, no finding."""
    with pytest.raises(UnknownName, match=r"did you mean LOST_ACKED\?"):
        explain(run, "LOST_AKED")
    with pytest.raises(BadRequest, match="LOST_ACKED has witnesses 1 to 20 in this run, not 21"):
        explain(run, "LOST_ACKED:21")
    for text in ("LOST_ACKED:x", "LOST_ACKED:-1"):
        with pytest.raises(BadRequest, match="write LOST_ACKED, or LOST_ACKED:2"):
            explain(run, text)
    bare = RunDir(shutil.copytree(run.path, tmp_path / "bare"))
    fields = json.loads(bare.verdict_file.read_text())
    fields["checkers"] = []
    bare.verdict_file.write_text(json.dumps(fields))
    assert explain(bare) is None
    assert nothing_to_explain(bare).startswith("There is nothing to explain: Invalid: ")
    with pytest.raises(BadRequest, match="this run has no findings"):
        explain(bare, "LOST_ACKED")
    for damage in ("{}", "verdict: guilty"):
        bare.verdict_file.write_text(damage)
        with pytest.raises(BadRequest, match=r"is not a verdict .*seatrial check"):
            explain(bare)
    bare.verdict_file.unlink()
    with pytest.raises(BadRequest, match="has no verdict yet: seatrial check"):
        explain(bare)


def test_a_finding_about_a_node_is_told_by_what_happened_around_it(
    run: RunDir, tmp_path: Path
) -> None:
    """No message, no operation: faults, elections and logs within a second of it."""
    other = RunDir(shutil.copytree(run.path, tmp_path / "node"))
    row = {"node": "broker-1", "at_s": 2.0, "why": "broker-1 and broker-2 were masters of epoch 2"}
    finding = Finding("ONE_MASTER", 1, "an epoch had two masters", "integrity", (row,))
    verdict = Verdict.read(run.verdict_file)
    results = (Result("invariants", (finding,)),)
    other.verdict_file.write_text(replace(verdict, checkers=results).to_json())
    story = told(other)
    words = "\n".join(step.text for step, _ in story.moments)
    assert "fault 3: kill, broker-" in words
    assert " elects broker-" in words
    assert "fault 0: pause" not in words
    assert not story.final_state
    assert story.conclusion == "Broker-1 and broker-2 were masters of epoch 2."


def test_what_is_damaged_is_read_as_far_as_it_goes(run: RunDir, tmp_path: Path) -> None:
    """A torn file of operations makes the story shorter, not an error."""
    other = RunDir(shutil.copytree(run.path, tmp_path / "torn"))
    seal(other)
    (path,) = other.history.glob("ops-*.parquet")
    path.write_bytes(path.read_bytes()[:-1000])
    story = told(other)
    assert not [step for step, _ in story.moments if "sends the message" in step.text]
    assert "LOST_ACKED:1" in "\n".join(story.lines())


def altered(
    run: RunDir, folder: Path, evidence: object, files: Mapping[str, object] | None = None
) -> RunDir:
    """A copy of the run, of whose first finding this is the evidence, and with these files."""
    other = RunDir(shutil.copytree(run.path, folder, ignore=shutil.ignore_patterns("nodes")))
    fields = json.loads(other.verdict_file.read_text())
    first = next(row for row in fields["checkers"] if row["findings"])["findings"][0]
    first["evidence"] = evidence or first["evidence"]
    other.verdict_file.write_text(json.dumps(fields))
    for name, text in (files or {}).items():
        (other.path / f"{name}.json").write_text(json.dumps(text))
    return other


@pytest.mark.parametrize(
    ("evidence", "files", "says"),
    [
        ([1], {}, "verdict.json is not a verdict .evidence cannot be '1'.*: seatrial check"),
        ([{"value": 2**70}], {}, "LOST_ACKED:1 of .* cannot be explained: .*; seatrial check"),
        ([{"op": -(2**70)}], {}, "LOST_ACKED:1 of .* cannot be explained: .*; seatrial check"),
        (None, {"names": {"keys": 5}}, "names.json: 'keys' cannot be '5'; restore"),
        (None, {"names": {"processes": []}}, "names.json: 'processes' cannot be '..'; restore"),
        (None, {"run": {"load_began_ns": "x"}}, "run.json: 'load_began_ns' cannot be 'x'; res"),
        (None, {"run": {"load_began_ns": 2**70}}, "run.json: 'load_began_ns' cannot be '1180"),
    ],
)
def test_what_no_story_can_be_made_of_is_one_sentence(
    run: RunDir, tmp_path: Path, evidence: object, files: dict[str, object], says: str
) -> None:
    """Damaged or forged evidence gives one sentence with the error and the remedy."""
    with pytest.raises(BadRequest, match=says) as raised:
        explain(altered(run, tmp_path / "damaged", evidence, files))
    assert "\n" not in str(raised.value)


def test_an_order_that_is_told_in_part_is_told_by_its_checker(run: RunDir, tmp_path: Path) -> None:
    """The story of two log entries needs both; with one, the checker's text is printed."""
    row = {"value": 5, "there_by_s": 1.0, "only_invoked_at_s": 2.0}
    finding = Finding("NOT_LINEARIZABLE", 1, "two messages stand the wrong way", "linear", (row,))
    other = altered(run, tmp_path / "half", None)
    verdict = replace(Verdict.read(other.verdict_file), checkers=(Result("l", (finding,)),))
    other.verdict_file.write_text(verdict.to_json())
    assert told(other).conclusion == "Two messages stand the wrong way."


def test_words_that_command_a_terminal_are_not_printed(
    run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run may come from an untrusted source."""
    other = altered(run, tmp_path / "odd", [{"why": "it \x1b[31mwas\ud800 so\rIt\x9b2J"}])
    assert exit_code(["explain", str(other.path)]) == 0
    out = " ".join(capsys.readouterr().out.split())  # lines are wrapped where they come to be
    assert "It \ufffd[31mwas\ufffd so\ufffdIt\ufffd2J" in out


def test_a_sealed_history_tells_the_same(run: RunDir, tmp_path: Path) -> None:
    """Journals or Parquet: the story is of what they hold."""
    sealed = RunDir(shutil.copytree(run.path, tmp_path / "sealed"))
    seal(sealed)
    assert not list(sealed.journal.glob("*.arrows"))
    for text in ("LOST_ACKED:3", "UNREAD_ACKED"):
        assert told(sealed, text).plain() == told(run, text).plain()


def test_the_same_is_had_as_json(run: RunDir) -> None:
    """Every line about a moment is in the JSON, too, and nothing of it is not JSON."""
    story = told(run)
    plain = json.loads(json.dumps(story.plain()))
    assert (plain["code"], plain["witness"], plain["demand"]) == ("LOST_ACKED", 1, "no-loss")
    assert plain["evidence"] == evidence(run, "LOST_ACKED")
    spoken = [line for line in story.lines() if re.match(r" +\d+\.\d{3,6} ", line)]
    assert len(spoken) == len(plain["moments"])
    for line, moment in zip(spoken, plain["moments"], strict=True):
        assert line.endswith(moment["what"])


def test_a_topic_that_was_forgotten_is_told_by_its_last_changes(tmp_path: Path) -> None:
    """Created, acknowledged, and gone at the next query."""
    run = RunDir(tmp_path)
    run.trial_file.write_text(Trial(checkers=("metadata",)).to_toml())
    run.write_names({"keys": ["another", "topic-7"], "nodes": [], "roles": {}, "processes": {}})
    run.update_state(ended=True)
    journal = TableJournal(run.journal, "ops", "client-1")
    done = [(F.CREATE, 0, 4), (F.CREATE, 1, 4), (F.SEE, 0, 4), (F.SEE, 1, 0)]
    for op, (f, key, queues) in enumerate(done):
        for kind, t in ((Type.INVOKE, 2 * op), (Type.OK, 2 * op + 1)):
            offset = queues if kind is Type.OK and f is F.SEE else NONE
            row = (t * 1_000_000, 5, op, kind, f, key, *[NONE] * 2, offset, *[NONE] * 5)
            journal.append(row)
    journal.close()
    judge_small(History.open(run))
    story = told(run, "METADATA_LOST")
    assert [step.text for step, _ in story.moments] == [
        "process 5 begins op 1: create of topic-7",
        "op 1 of process 5 ends ok",
        "process 5 begins op 3: see of topic-7",
        "op 3 of process 5 ends ok: topic-7 gives 0",
    ]
    assert story.subject == "It is about topic-7."
    assert story.conclusion == (
        "A topic was missing whose creation had been acknowledged (once). "
        "Here: its creation was acknowledged at 0.003 s."
    )


def test_how_often_is_said_as_people_say_it() -> None:
    """3rd, not 3th; and all the teens are th."""
    told = {n: ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 22, 103, 111, 1012, 1013, 2023)}
    assert " ".join(told.values()) == (
        "1st 2nd 3rd 4th 11th 12th 13th 21st 22nd 103rd 111th 1,012th 1,013th 2,023rd"
    )
