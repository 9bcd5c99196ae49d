"""What was acknowledged of topics, group offsets and locks, and what became of it.

A history is a line of words: `create`, `delete`, `commit 7`, `reset 3` are acknowledged; with `?`
behind them nobody knows, with `-` they were refused. `see` and `gone` look for the topic, `at 7`
asks for the offset. `lock 1` takes process 1 a lock for 30 ms; `unlock 1` gives it back. Every
operation takes 1 ms; `+20` lets 20 ms pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkers import groups, metadata
from checkers._run.metadata_changes import MetadataOp
from harness.history.journal import TableJournal
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.judge.verdict import Judgement
from harness.operation import NONE, F, Type, value_of
from harness.trial import Trial
from harness.workloads import messages, topics

MS = 1_000_000
MARKS = {"?": Type.INFO, "-": Type.FAIL}
LEASE_MS = 30


def told(text: str) -> list[MetadataOp]:
    return list(_told(iter(text.split())))


def _told(words: Iterator[str]) -> Iterator[MetadataOp]:
    now = 0
    for word in words:
        if word[0] == "+":
            now += int(word[1:]) * MS
            continue
        kind = MARKS.get(word[-1], Type.OK)
        name = word.rstrip("?-")
        match name:
            case "see" | "gone":
                f, offset, process = F.SEE, 2 * (name == "see"), 0
            case "create" | "delete":
                f, offset, process = F[name.upper()], NONE, 0
            case "lock" | "unlock":
                f, offset, process = F[name.upper()], LEASE_MS, int(next(words))
            case _:
                argument = next(words)
                kind = MARKS.get(argument[-1], Type.OK)
                f = F.QUERY if name == "at" else F[name.upper()]
                offset, process = int(argument.rstrip("?-")), 0
        yield MetadataOp(f, process, 0, now, now + MS, kind, offset)
        now += MS


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("gone create see delete gone create see", []),
        ("create gone", ["METADATA_LOST"]),
        ("create delete see", ["METADATA_RETURNED"]),
        ("create see gone gone see", ["METADATA_LOST", "METADATA_RETURNED"]),
        ("create delete? gone see gone", []),  # it may happen at any time
        ("create? gone see", []),
        ("create? delete gone see", []),
        ("create- see", ["METADATA_RETURNED"]),  # it certainly did not happen
        ("create delete- gone", ["METADATA_LOST"]),
        ("create gone- see", []),  # a look that failed says nothing
    ],
)
def test_topics(text: str, codes: list[str]) -> None:
    """An acknowledged change stays until the next one; one of unknown outcome may come later."""
    assert [breach.code for breach in metadata.of_topic(told(text))] == codes


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("at -1 commit 5 at 5 commit 3 at 5 reset 2 at 2 commit 4 at 4", []),
        ("commit 5 at 3", ["GROUP_WENT_BACK"]),
        ("commit 5 at -1", ["GROUP_WENT_BACK"]),
        ("commit 9 reset 2 at 9", ["RESET_UNDONE"]),
        ("commit 9 reset 2? at 9 at 2 at 9", []),
        ("commit 5 commit 8? at 8 at 5", []),
        ("commit 5 commit 8- at 8", ["RESET_UNDONE"]),
        ("commit 5 reset 7 at 5", ["GROUP_WENT_BACK"]),
        ("commit 9? reset 2 at 9", []),  # the commit may come after the reset
        ("commit 5 commit 3 at 3", ["LATE_COMMIT_TAKEN"]),
        ("commit 5 commit 3? at 3", ["LATE_COMMIT_TAKEN"]),
        ("commit 5 commit 3- at 3", ["GROUP_WENT_BACK"]),  # that commit certainly did not happen
        ("commit 5 commit 3 at 2", ["GROUP_WENT_BACK"]),  # nobody asked for that
        ("commit 5 commit 3 reset 7 at 3", ["GROUP_WENT_BACK"]),  # the reset is later
    ],
)
def test_offsets(text: str, codes: list[str]) -> None:
    """Back by a reset alone, and a reset stays."""
    assert [breach.code for breach in groups.of_group(told(text))] == codes


def test_how_much_a_group_is_given_again_is_counted() -> None:
    """From the committed offset to where it stands; spec 12, 25."""
    assert [breach.by for breach in groups.of_group(told("commit 50 at 20 at 20"))] == [30]
    assert [breach.by for breach in groups.of_group(told("commit 50 at -1"))] == [50]


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("lock 1 +29 lock 2", 0),  # the lease is counted from when it was asked for
        ("lock 1 +10 lock 2", 1),
        ("lock 1 unlock 1 lock 2", 0),
        ("lock 1 +10 lock 1 +25 lock 2", 1),  # taken again
        ("lock 1 +10 lock 2 +1 lock 1 +10 lock 1 +10 lock 2", 1),  # both renew
        ("lock 1 +5 lock 2 +3 unlock 2 +2 lock 2", 2),
        ("lock 1 +10 lock- 2 +20 lock 2", 0),
        ("lock 1 +10 unlock? 1 lock 2", 0),  # who asked to give it back no longer believes in it
    ],
)
def test_locks(text: str, times: int) -> None:
    """QUEUE_OWNED_TWICE: two holders at once, each certain of it."""
    breaches = list(metadata.of_lock(told(text)))
    assert [breach.code for breach in breaches] == ["QUEUE_OWNED_TWICE"] * times


def test_messages_beside_topics_are_judged_as_messages_are() -> None:
    """Its contract demands the same of them; the same checkers ask."""
    assert set(topics.CHECKERS) == {*messages.CHECKERS, "metadata", "groups"}


WORDS = st.sampled_from(["create", "delete", "create?", "delete?", "create-", "look"])


@given(st.lists(WORDS, max_size=12), st.data())
def test_a_sound_store_of_topics_convicts_nobody(words: list[str], data: st.DataObject) -> None:
    """Whatever comes late, in whatever order: an oracle that keeps every promise."""
    there, late, seen = False, list[bool](), []
    for word in words:
        if word == "look":
            while late and data.draw(st.booleans()):
                there = late.pop(data.draw(st.integers(0, len(late) - 1)))
            seen.append("see" if there else "gone")
            continue
        seen.append(word)
        if word[-1] == "?":
            late.append(word == "create?")
        elif word[-1] != "-":
            there = word == "create"
    assert not list(metadata.of_topic(told(" ".join(seen))))


STEPS = st.tuples(st.sampled_from(["commit", "reset", "at"]), st.integers(0, 9), st.booleans())


@given(st.lists(STEPS, max_size=12), st.data())
def test_a_sound_store_of_offsets_convicts_nobody(
    steps: list[tuple[str, int, bool]], data: st.DataObject
) -> None:
    """The same for offsets: commits raise, resets set, those of unknown outcome come when they
    come."""

    def after(offset: int, what: str, value: int) -> int:
        return max(offset, value) if what == "commit" else value

    offset, late, words = -1, list[tuple[str, int]](), []
    for what, value, certain in steps:
        while late and data.draw(st.booleans()):
            offset = after(offset, *late.pop(data.draw(st.integers(0, len(late) - 1))))
        if what == "at":
            words.append(f"at {offset}")
        elif certain:
            offset = after(offset, what, value)
            words.append(f"{what} {value}")
        else:
            late.append((what, value))
            words.append(f"{what} {value}?")
    assert not list(groups.of_group(told(" ".join(words))))


# ------------------------------------------------------------------------------- from recorded rows


def recorded(
    folder: Path,
    *lines: tuple[int, str],
    faults: Sequence[Any] = (),
    drain: int = 0,
    values: Mapping[int, int] = MappingProxyType({}),
) -> History:
    """A run in which each of these keys had this history. `faults`: when each began, and which
    never did; `values`: of a line's operations, by its number."""
    folder.mkdir(exist_ok=True)
    run = RunDir(folder)
    run.trial_file.write_text(Trial().to_toml())
    names = {"keys": ["made-0", "keep-0 on orders-0"], "processes": {"0": "maker 0 on client-1"}}
    run.write_names({**names, "nodes": [], "roles": {}})
    run.update_state(ended=True, interrupted=False)
    journal, number = TableJournal(run.journal, "ops", "client-1"), 0
    for line, (key, text) in enumerate(lines):
        for did in told(text):
            asked = NONE if did.f in (F.SEE, F.QUERY) else did.offset
            answered = did.offset if did.f in (F.SEE, F.QUERY) else NONE
            for t, kind, offset in (
                (did.begun, Type.INVOKE, asked),
                (did.begun + MS, did.type, answered),
            ):
                row = (
                    t,
                    did.process,
                    number,
                    kind,
                    did.f,
                    key,
                    values.get(line, NONE),
                    NONE,
                    offset,
                )
                journal.append((*row, NONE, NONE, NONE, NONE, NONE))
            number += 1
    journal.close()
    notes = TableJournal(run.journal, "notes", "runner")
    notes.append((drain, NONE, NONE, "drain"))
    notes.close()
    table = TableJournal(run.journal, "faults", "runner")
    for n, begin in enumerate(faults):
        healed = None if begin is None else begin + 1
        times = (0, 0, begin, begin, begin, healed, healed)
        table.append((n, "pause", "{}", "slave", "{}", *times, "installed", "{}"))
    table.close()
    return History.open(run)


def test_topics_of_one_key_are_told_apart_by_their_values(tmp_path: Path) -> None:
    """A topic that is made later does not repair the loss of another, nor does a deletion of it."""
    first, second = value_of(3, 0), value_of(3, 1)
    history = recorded(
        tmp_path,
        (0, "create gone"),
        (0, "create see delete gone"),
        values={0: first, 1: second},
    )
    (lost,) = metadata.check(history, Trial(), None).findings
    assert (lost.code, lost.count) == ("METADATA_LOST", 1)
    assert lost.evidence[0]["value"] == first
    assert lost.evidence[0]["why"] == "topic 3-0: its creation was acknowledged at 0.001 s"


def test_findings_name_what_was_lost_and_by_whom_it_was_missed(tmp_path: Path) -> None:
    """The evidence of both checkers, through the journal."""
    history = recorded(tmp_path, (0, "create gone"), (1, "commit 5 at 3"))
    (lost,) = metadata.check(history, Trial(), None).findings
    assert (lost.code, lost.count, lost.demand) == ("METADATA_LOST", 1, "keeps-metadata")
    assert lost.evidence[0]["what"] == "made-0"
    assert lost.evidence[0]["by"] == "maker 0 on client-1"
    result = groups.check(history, Trial(), None)
    assert [finding.code for finding in result.findings] == ["GROUP_WENT_BACK"]
    assert result.stats["redelivered"] == 2


def test_nothing_is_proved_beside_a_finding(tmp_path: Path) -> None:
    """The result says that changes survived every failover only if all of them did."""
    kept = recorded(tmp_path / "kept", (0, "create see"), (1, "commit 5 at 5"))
    broken = recorded(tmp_path / "broken", (0, "create gone"), (1, "commit 5 at 3"))
    for checker in (metadata, groups):
        assert "1 acknowledged" in checker.check(kept, Trial(), None).stats["proved"]
        assert "proved" not in checker.check(broken, Trial(), None).stats


def test_a_finding_names_the_fault_before_it(tmp_path: Path) -> None:
    """The last that had begun by then, where none was in force; not one that never began."""
    history = recorded(tmp_path, (0, "create +5 gone"), faults=(MS, None, 100 * MS))
    (lost,) = metadata.check(history, Trial(), None).findings
    assert lost.faults == (0,)


@pytest.mark.parametrize("checker", [metadata, groups])
def test_a_change_that_is_missing_convicts_nobody(tmp_path: Path, checker: ModuleType) -> None:
    """The delete, or the reset, that explains what was seen may be what the record lacks; what no
    operation is missing from convicts, whatever else is."""
    run = recorded(tmp_path, (0, "create gone"), (1, "commit 5 at 3"), faults=(MS,)).run
    (run.journal / "faults-runner-000.arrows").unlink()
    assert History.open(run).gaps == {"faults"}
    assert len(checker.check(History.open(run), Trial(), None).findings) == 1
    run.update_state(gaps=True)
    result = checker.check(History.open(run), Trial(), None)
    assert (result.findings, result.judgement) == ((), Judgement.UNKNOWN)
    assert "OPERATIONS_UNRECORDED" in [reason.code for reason in result.reasons]
    assert "proved" not in result.stats


def test_what_nobody_looked_at_in_the_end_proves_nothing(tmp_path: Path) -> None:
    """Neither does a run in which nothing was acknowledged."""
    blind = recorded(tmp_path / "blind", (0, "create"), (1, "commit 5 at 5-"))
    assert [r.code for r in metadata.check(blind, Trial(), None).reasons] == ["NO_FINAL_LOOK"]
    assert [r.code for r in groups.check(blind, Trial(), None).reasons] == ["NO_FINAL_LOOK"]
    idle = recorded(tmp_path / "idle", (0, "create? see"))
    assert [r.code for r in metadata.check(idle, Trial(), None).reasons] == ["NO_CHANGES"]
    assert [r.code for r in groups.check(idle, Trial(), None).reasons] == ["NO_OFFSETS"]


def test_looks_of_clients_whose_clocks_are_off_are_stamped_early(tmp_path: Path) -> None:
    """By up to twice the error, so also before the final phase; then nothing is changed after."""
    rows = (0, "create +3 see"), (1, "commit 5 +3 at 5")
    sound = recorded(tmp_path / "sound", *rows, drain=6 * MS).run
    checkers = (metadata, groups)
    codes = ["NO_FINAL_LOOK"]
    for checker in checkers:
        assert [r.code for r in checker.check(History.open(sound), Trial(), None).reasons] == codes
    for error_ns, reasons in ((MS, []), (MS // 2, codes)):
        sound.update_state(clocks={"client-1": {"offset_ns": 7, "error_ns": error_ns}})
        for checker in checkers:
            found = checker.check(History.open(sound), Trial(), None).reasons
            assert [r.code for r in found] == reasons
    changed = (0, "create see create"), (1, "commit 5 at 5 commit 6")
    blind = recorded(tmp_path / "blind", *changed, drain=MS).run
    blind.update_state(clocks={"client-1": {"offset_ns": 7, "error_ns": MS}})
    for checker in checkers:
        assert [r.code for r in checker.check(History.open(blind), Trial(), None).reasons] == codes
