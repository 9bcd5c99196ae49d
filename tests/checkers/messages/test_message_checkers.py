"""Each message checker on hand-written histories: a sound one leaves it green, a broken one turns
it red with the exact count. Without Spark: the same steps run in this process."""

from typing import Any

import pytest

from checkers import duplicates, linearizable, loss, offsets, order, phantom
from harness.history.journal import TableJournal
from harness.history.reader import History
from harness.judge.verdict import Judgement, Result
from harness.operation import NONE
from harness.trial import Trial

SOUND = """
    send 1 ok@0
    send 2 ok@1
    send 3 info
    send 4 fail
    send 1.1 q1 ok@0
    poll 1@0 2@1
    poll 3@2
    poll 1.1@0 q1
    read 1@0 2@1 3@2
    read 1.1@0 q1
    stored 1@0 2@1 3@2
    drained
    drained q1
"""
JUDGES = (loss, phantom, duplicates, order, offsets, linearizable)
CHECKERS = {judge.__name__.split(".")[-1]: judge for judge in JUDGES}
FAULT_COLUMNS = 14


def judged(checker: str, history: Any) -> Result:
    return CHECKERS[checker].check(history, Trial(), None)


def codes(result: Result) -> dict[str, int]:
    return {f.code: f.count for f in result.findings}


def convicts(result: Result) -> dict[str, int]:
    return {f.code: f.count for f in result.findings if f.demand}


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize("crews", [1, 3])
def test_a_sound_history_is_valid(written: Any, checker: str, crews: int) -> None:
    """A run that did everything right convicts nobody, however its rows are spread over files."""
    text = SOUND.replace("stored 1@0 2@1 3@2", "")  # only queue 0 can be stored in this notation
    result = judged(checker, written(text, crews))
    assert result.judgement is Judgement.VALID
    assert not result.findings


# ------------------------------------------------------------------------------------- loss


def test_an_acknowledged_message_that_the_fresh_reader_misses_is_lost(written: Any) -> None:
    """LOST_ACKED: ok'd, and absent from a queue that was read from end to end."""
    history = written("send 1 ok@0\nsend 2 ok@1\nsend 3 ok@2\nread 1@0 3@2\npoll 1@0 3@2\ndrained")
    result = judged("loss", history)
    assert convicts(result) == {"LOST_ACKED": 1}
    (row,) = result.findings[0].evidence
    assert (row["value"], row["offset"], row["queue"], row["outcome"]) == (2, 1, "orders-0", "ok")


def test_a_loss_is_placed_in_its_producers_sequence(written: Any) -> None:
    """Before the first message read: prefix; after the last: tail; otherwise the middle."""
    sends = "\n".join(f"send {v} ok@{v}" for v in range(8))
    result = judged("loss", written(f"{sends}\nread 2@2 3@3 5@5 6@6\ndrained reader"))
    assert result.stats["lost_where"] == {"prefix": 2, "middle": 1, "tail": 1}


def test_nothing_is_lost_where_nobody_read_to_the_end(written: Any) -> None:
    """Without a complete final read of the queue the answer is unknown, not a loss."""
    result = judged("loss", written("send 1 ok@0\nsend 2 q1 ok@0\nread 2@0 q1\ndrained reader q1"))
    assert not result.findings
    assert [r.code for r in result.reasons] == ["NO_FINAL_READ"]
    assert result.judgement is Judgement.UNKNOWN


def test_a_queue_that_was_given_up_on_is_not_judged(written: Any) -> None:
    """NOT_DRAINED says that the reader gave up: what it missed is not known to be lost."""
    result = judged("loss", written("send 1 ok@0\nundrained reader"))
    assert result.judgement is Judgement.UNKNOWN


@pytest.mark.parametrize("gap", ["killed", "damaged"])
def test_a_history_with_gaps_convicts_nobody_of_loss(written: Any, gap: str) -> None:
    """A killed or torn journal may have lost the reads themselves, whatever the notes say."""
    history = written("send 1 ok@0\nsend 2 ok@1\nread 1@0\ndrained", 3, ended=gap == "damaged")
    if gap == "damaged":
        path = history.files["ops"][-1]
        path.write_bytes(path.read_bytes()[:-10])
    result = judged("loss", History.open(history.run))
    assert not result.findings
    assert [r.code for r in result.reasons] == ["NO_FINAL_READ"]


def test_a_lost_message_is_counted_once(written: Any) -> None:
    """That no group received a lost message is the same loss; delivered or not, one finding."""
    result = judged("loss", written("send 1 ok@0\nsend 2 ok@1\npoll 1@0\nread 1@0\ndrained"))
    assert convicts(result) == {"LOST_ACKED": 1}


@pytest.mark.parametrize(
    ("given", "unread", "says"),
    [
        ("1@0 3@2 4@3", "", "1 acknowledged message was lost, mid-stream"),
        ("1@0 4@3", "", "2 acknowledged messages were lost, all mid-stream"),
        ("3@2", "", "3 acknowledged messages were lost (2 at the start of what a producer sent, 1"),
        ("1@0 4@3", "1@0", "1 more was never delivered to group-0"),
        ("1@0 2@1 3@2 4@3", "1@0 2@1 3@2", "1 acknowledged message was never delivered to group-0"),
    ],
)
def test_losses_are_told_in_plain_words(written: Any, given: str, unread: str, says: str) -> None:
    """How many, where they stood, and apart from them what a group did not receive."""
    sends = "\n".join(f"send {n} ok@{n - 1}" for n in (1, 2, 3, 4))
    history = written(f"{sends}\npoll {unread or given}\nread {given}\ndrained")
    assert says in " | ".join(f.message for f in judged("loss", history).findings)


def test_what_every_replica_holds_was_skipped_by_the_reader(written: Any) -> None:
    """READ_SKIPPED and no loss, counted once although the group misses it as well."""
    told = "send 1 ok@0\nsend 2 ok@1\npoll 1@0\nread 1@0\ndrained\nstored 1@0 2@1"
    result = judged("loss", written(told))
    assert convicts(result) == {"READ_SKIPPED": 1}
    assert result.stats["lost"] == 0
    assert result.findings[0].evidence[0]["value"] == 2
    elsewhere = told.replace("stored 1@0 2@1", "stored 1@0 2@2")  # not where it was acknowledged
    assert convicts(judged("loss", written(elsewhere))) == {"LOST_ACKED": 1}


def test_what_some_replicas_hold_is_lost(written: Any) -> None:
    """Of an old master, say, that has not cut its log."""
    history = written("send 1 ok@0\nsend 2 ok@1\nread 1@0\ndrained reader\nstored 1@0")
    journal = TableJournal(history.run.journal, "replicas", "another")
    journal.append((0, 0, 1, 2, 1, 0))
    journal.close()
    assert convicts(judged("loss", History.open(history.run))) == {"LOST_ACKED": 1}


@pytest.mark.parametrize("who", ["read", "poll"])
def test_a_body_that_differs_is_one_finding(written: Any, who: str) -> None:
    """CORRUPTED, whoever was given it; the message is not lost or unread or vanished besides."""
    told = "send 1 ok@0\nsend 2 ok@1\npoll 1@0 2@1\nread 1@0 2@1\ndrained\nstored 1@0 ?@1"
    history = written(told.replace(f"{who} 1@0 2@1", f"{who} 1@0 ?@1"))
    _note(history, 'CORRUPTED {"key": 0, "offset": 1, "claimed": 2}', 41)
    found = [judged(name, History.open(history.run)) for name in CHECKERS]
    assert {code: n for result in found for code, n in convicts(result).items()} == {"CORRUPTED": 1}


@pytest.mark.parametrize(
    ("event", "codes"),
    [("deleted", {}), ("truncate", {"LOST_ACKED": 2})],
    ids=["retention", "none"],
)
def test_what_retention_deleted_is_not_lost(
    written: Any, event: str, codes: dict[str, int]
) -> None:
    """Below the queue's first offset, where a node says that it deleted; neither lost nor
    vanished, though it had been delivered, and counted."""
    sends = "\n".join(f"send {n} ok@{n}" for n in range(4))
    told = f"{sends}\npoll 0@0 1@1 2@2 3@3\nread 2@2 3@3\ndrained group\nstored 2@2 3@3"
    history = written(told)
    _note(history, 'DRAINED {"key": 0, "from": 2, "to": 4}', 60)
    journal = TableJournal(history.run.journal, "events", "runner")
    journal.append((50_000_000, "broker-1", event, '{"before": 0, "min": 500}'))
    journal.close()
    history = History.open(history.run)
    loss, phantom = judged("loss", history), judged("phantom", history)
    assert convicts(loss) | convicts(phantom) == codes
    if not codes:
        assert loss.stats["deleted"] == 2
        assert loss.stats["proved"] == (
            "2 of 4 acknowledged messages are in the log, and retention deleted the other 2"
        )


def test_a_message_that_no_group_was_given_is_unread(written: Any) -> None:
    """UNREAD_ACKED: in the log, and skipped by a group that read on to the end."""
    result = judged("loss", written("send 1 ok@0\nsend 2 ok@1\npoll 2@1\nread 1@0 2@1\ndrained"))
    assert convicts(result) == {"UNREAD_ACKED": 1}
    assert result.findings[0].evidence[0]["value"] == 1


def test_a_group_that_did_not_finish_is_not_blamed(written: Any) -> None:
    """A group that never said that it drained the queue may still be on its way."""
    result = judged("loss", written("send 1 ok@0\nread 1@0\ndrained reader\nundrained group"))
    assert not result.findings


@pytest.mark.parametrize("gave_up", ["undrained group", "undrained group q1", "drained group q1"])
def test_a_group_that_did_not_finish_proves_nothing(written: Any, gave_up: str) -> None:
    """Whether it would have been given the rest nobody knows, as long as there is a rest."""
    told = f"drained reader\n{gave_up}"
    result = judged("loss", written(f"send 1 ok@0\nsend 2 ok@1\nread 1@0 2@1\npoll 1@0\n{told}"))
    assert [reason.code for reason in result.reasons] == ["NO_FINAL_READ"]
    assert result.reasons[0].message.startswith(
        "group-0 did not read to the end of its queues, and 1 acknowledged message there was not "
    )
    whole = judged("loss", written(f"send 1 ok@0\nread 1@0\npoll 1@0\n{told}"))
    assert whole.judgement is Judgement.VALID


def test_a_final_phase_that_was_given_up_proves_nothing(written: Any) -> None:
    """Somebody was not at his end, and a group may have come to no word at all."""
    history = written("send 1 ok@0\nread 1@0\ndrained reader")
    _note(history, "gave up on collecting logs and replicas after 60 s")
    assert judged("loss", History.open(history.run)).judgement is Judgement.VALID
    _note(history, "gave up on the final phase after 120 s")
    (reason,) = judged("loss", History.open(history.run)).reasons
    assert reason.code == "NO_FINAL_READ"
    assert "gave up on the final phase after 120 s" in reason.message


def test_what_was_acknowledged_after_the_last_look_is_not_lost(written: Any) -> None:
    """Where sends were still open in the final phase, who read to the end may have come too early
    for them; what had been acknowledged before is lost all the same, and what was seen is there."""
    told = """
        send 1 ok@0 [1..5]
        send 2 ok@1 [6..70]
        send 3 ok@2 [7..71]
        poll 1@0 [50..51]
        read 1@0 2@1 [52..60]
        drained [61..62]
    """
    history = written(told)
    assert convicts(judged("loss", history)) == {"LOST_ACKED": 1, "UNREAD_ACKED": 1}
    _note(history, "drain", 40)
    _note(history, "gave up on ending all open operations after 30 s", 39)
    result = judged("loss", History.open(history.run))
    assert not result.findings
    (reason,) = result.reasons
    assert (reason.code, reason.message.split(",")[0]) == (
        "NO_FINAL_READ",
        "2 sends were acknowledged after the final phase had begun",
    )
    early = written(told.replace("[7..71]", "[7..30]").replace("1@0 2@1 [52", "1@0 [52"))
    _note(early, "drain", 40)
    _note(early, "gave up on ending all open operations: client-1 is gone", 39)
    result = judged("loss", History.open(early.run))
    assert convicts(result) == {"LOST_ACKED": 1}
    assert result.findings[0].evidence[0]["value"] == 3


def _note(history: History, text: str, at_ms: int = 90) -> None:
    notes = TableJournal(history.run.journal, "notes", "runner")
    notes.append((at_ms * 1_000_000, None, None, text))
    notes.close()


def test_a_group_that_was_not_asked_to_finish_is_not_missed(written: Any) -> None:
    """Only who took part in the final phase may have been too late in it."""
    result = judged("loss", written("send 1 ok@0\nread 1@0\ndrained reader"))
    assert result.judgement is Judgement.VALID


def test_indeterminate_sends_are_recovered_or_not_but_never_lost(written: Any) -> None:
    """info promises nothing: found, it is counted as recovered; not found, it is no loss."""
    result = judged("loss", written("send 1 info\nsend 2 info\nread 1@0\npoll 1@0\ndrained"))
    assert result.judgement is Judgement.VALID
    assert (result.stats["indeterminate"], result.stats["recovered"]) == (2, 1)


def test_a_send_that_never_completed_is_indeterminate(written: Any) -> None:
    """So whatever was sent was acknowledged, refused or that."""
    sends = "send 1 open\nsend 2 info\nsend 3 fail\nsend 4 ok@1"
    stats = judged("loss", written(f"{sends}\nread 1@0 4@1\npoll 1@0 4@1\ndrained")).stats
    assert (stats["indeterminate"], stats["recovered"]) == (2, 1)
    assert stats["sent"] == stats["acknowledged"] + stats["refused"] + stats["indeterminate"]


def fault(number: int, kind: str, begin_ms: int, end_ms: int) -> tuple[Any, ...]:
    begin, end = begin_ms * 1_000_000, end_ms * 1_000_000
    return (number, kind, "{}", "", "{}", 0, 0, begin, begin, begin, end, end, "installed", "{}")


def test_a_loss_names_the_faults_it_falls_in(written: Any) -> None:
    """The fault that was on when messages were acknowledged, not one that came long after; RPO is
    the time from the first lost acknowledgement to the last."""
    faults = [fault(0, "partition", 5, 41), fault(1, "kill", 61_000, 62_000)]
    sends = "send 1 ok@0 [5..6]\nsend 2 ok@1 [10..15]\nsend 3 ok@2 [25..35]"
    result = judged("loss", written(f"{sends}\nread 1@0 [70..75]\ndrained reader", faults=faults))
    assert result.findings[0].faults == (0,)
    assert result.findings[0].evidence[0]["faults"] == "0"
    assert result.stats["rpo_s"] == pytest.approx(0.020)
    assert result.stats["lost_by_fault"] == {"0": 2}


def test_unread_messages_name_the_faults_that_they_were_acknowledged_in(written: Any) -> None:
    """Not those of messages that the group was given, nor what came after."""
    faults = [fault(0, "kill", 5, 20), fault(1, "kill", 30, 41), fault(2, "kill", 50, 60)]
    sends = "send 1 ok@0 [10..15]\nsend 2 ok@1 [20..35]\nsend 3 ok@2 [42..44]"
    seen = "read 1@0 2@1 3@2 [70..75]\npoll 1@0 [52..55]\ndrained"
    (finding,) = judged("loss", written(f"{sends}\n{seen}", faults=faults)).findings
    assert (finding.code, finding.count, finding.faults) == ("UNREAD_ACKED", 2, (1,))


def test_a_loss_that_no_fault_lasts_at_is_of_the_next_one(written: Any) -> None:
    """What was acknowledged just before a kill; RPO is the time from the first to the kill."""
    faults = [fault(0, "kill", 45, 60), fault(1, "kill", 90, 95)]
    sends = "send 1 ok@0 [10..15]\nsend 2 ok@1 [20..25]"
    result = judged("loss", written(f"{sends}\nread 1@0 [70..75]\ndrained reader", faults=faults))
    assert result.findings[0].faults == (0,)
    assert result.stats["rpo_s"] == pytest.approx(0.020)
    assert result.stats["lost_by_fault"] == {}


# ---------------------------------------------------------------------------------- phantom


@pytest.mark.parametrize("way", ["read", "poll"])
def test_what_was_never_sent_can_not_come_out(written: Any, way: str) -> None:
    """PHANTOM_NEVER_SENT, whoever saw it."""
    result = judged("phantom", written(f"send 1 ok@0\n{way} 1@0 9@1\ndrained"))
    assert convicts(result) == {"PHANTOM_NEVER_SENT": 1}


def test_a_gap_in_the_record_is_not_a_phantom(written: Any) -> None:
    """When a writer was killed, a missing invocation may be the record's fault."""
    result = judged("phantom", written("read 9@1\ndrained", ended=False))
    assert not result.findings
    assert [r.code for r in result.reasons] == ["SENDING_UNRECORDED"]


def test_what_was_refused_can_not_come_out(written: Any) -> None:
    """PHANTOM_REFUSED: `fail` means that it certainly did not happen and never will."""
    result = judged("phantom", written("send 1 fail\nread 1@0\ndrained"))
    assert convicts(result) == {"PHANTOM_REFUSED": 1}


def test_what_was_delivered_is_in_some_replica(written: Any) -> None:
    """PHANTOM_VANISHED: a consumer acted on it, and the cluster has forgotten it."""
    result = judged(
        "phantom", written("send 1 ok@0\nsend 2 info\npoll 1@0 2@1\nread 1@0\nstored 1@0\ndrained")
    )
    assert convicts(result) == {"PHANTOM_VANISHED": 1}
    assert result.findings[0].evidence[0]["value"] == 2


def test_a_lost_message_does_not_vanish_too(written: Any) -> None:
    """Acknowledged, delivered and lost is a loss: one root cause, one finding."""
    result = judged(
        "phantom", written("send 1 ok@0\nsend 2 ok@1\npoll 1@0 2@1\nread 1@0\nstored 1@0\ndrained")
    )
    assert not result.findings


def test_a_body_that_does_not_fit_its_value_is_corrupted(written: Any) -> None:
    """Readers verify bodies; what they note convicts."""
    history = written("send 1 ok@0\nread 1@0 ?@1\ndrained")
    note = 'CORRUPTED {"key": 0, "offset": 1, "claimed": 7}'
    journal = TableJournal(history.run.journal, "notes", "client-2")
    journal.append((5, 9, 3, note))
    journal.close()
    assert convicts(judged("phantom", history)) == {"CORRUPTED": 1}


# ------------------------------------------------------------------------------- duplicates


def test_one_attempt_stores_one_message(written: Any) -> None:
    """DUPLICATED: sent once, acknowledged once, found at two offsets."""
    result = judged("duplicates", written("send 1 ok@0\nread 1@0 1@1\ndrained"))
    assert convicts(result) == {"DUPLICATED": 1}
    assert result.findings[0].evidence[0]["seen_at"] == "orders-0@0, orders-0@1"


@pytest.mark.parametrize("outcome", ["ok@1 x2", "info", "open"])
def test_a_retry_may_store_two(written: Any, outcome: str) -> None:
    """At-least-once: with a second attempt, or an unknown outcome, two copies only inform."""
    result = judged("duplicates", written(f"send 1 {outcome}\nread 1@0 1@1\ndrained"))
    assert codes(result) == {"DUPLICATED_BY_RETRY": 1}
    assert result.judgement is Judgement.VALID


def test_a_send_without_an_end_may_be_anywhere(written: Any) -> None:
    """Its client died: how often it tried, nobody knows, so two witnesses of two places are no
    OFFSET_MOVED; and found it is recovered, as any message of unknown outcome."""
    text = "send 1 open\npoll 1@0\nread 1@1\ndrained"
    assert not convicts(judged("offsets", written(text)))
    assert judged("loss", written(text)).stats["recovered"] == 1


def test_being_delivered_again_is_no_duplicate(written: Any) -> None:
    """The same message at the same offset, given twice, is stored once; that it was is counted."""
    text = "send 1 ok@0\nsend 2 ok@1\npoll 1@0 2@1\npoll 1@0\npoll 1@0\nread 1@0 2@1\ndrained"
    result = judged("duplicates", written(text))
    assert not result.findings
    assert result.stats == {"stored_twice": 0, "given_twice": 1}


# ------------------------------------------------------------------------------------ order


def test_a_later_send_has_the_higher_offset(written: Any) -> None:
    """REORDERED: 1 was acknowledged before 2 was invoked, and 2 has the lower offset."""
    result = judged(
        "order", written("send 1 ok@1 [1..2]\nsend 2 ok@0 [3..4]\nread 2@0 1@1\ndrained")
    )
    assert convicts(result) == {"REORDERED": 1}
    (row,) = result.findings[0].evidence
    assert (row["value"], row["lower_value"]) == (1, 2)


def test_overlapping_sends_land_either_way(written: Any) -> None:
    """Pipelining convicts nobody."""
    text = "send 1 ok@1 [1..5]\nsend 2 ok@0 [3..9]\nread 2@0 1@1\ndrained"
    assert not judged("order", written(text)).findings


def test_different_queues_have_no_order(written: Any) -> None:
    """Order is promised within a queue."""
    text = "send 1 ok@1 [1..2]\nsend 2 q1 ok@0 [3..4]\nsend 3 ok@0 [1..9]\nread 3@0 1@1\ndrained"
    assert not judged("order", written(text)).findings


def test_a_poll_goes_forward(written: Any) -> None:
    """NONMONOTONIC_POLL: offsets fell, or stood still, within one answer."""
    sends = "send 1 ok@0 [1..9]\nsend 2 ok@1 [1..9]\n"
    back = judged("order", written(f"{sends}poll 2@1 1@0\nread 1@0 2@1\ndrained"))
    assert convicts(back) == {"NONMONOTONIC_POLL": 1}
    again = judged("order", written(f"{sends}poll 1@0 2@1\npoll 1@0 2@1\nread 1@0 2@1\ndrained"))
    assert not again.findings


# ---------------------------------------------------------------------------------- offsets


def test_an_offset_holds_one_message(written: Any) -> None:
    """OFFSET_CONFLICT: two values at one offset of one queue, whoever says so."""
    result = judged("offsets", written("send 1 ok@0\nsend 2 ok@0 [1..99]\nread 1@0 2@1\ndrained"))
    assert convicts(result)["OFFSET_CONFLICT"] == 1


def test_a_lost_messages_offset_may_be_used_again(written: Any) -> None:
    """After an unclean failover the new master reuses offsets: an echo of the loss."""
    text = "send 1 ok@0 [1..2]\nsend 2 ok@1 [3..4]\nsend 3 ok@0 [5..6]\nread 3@0\ndrained reader"
    history = written(text)
    assert convicts(judged("loss", history)) == {"LOST_ACKED": 2}
    assert not judged("order", history).findings
    assert not judged("offsets", history).findings
    assert not judged("linearizable", history).findings


def test_a_message_stays_where_it_was_acknowledged(written: Any) -> None:
    """OFFSET_MOVED: acknowledged at 0 at the first attempt, and found at 1."""
    result = judged("offsets", written("send 1 ok@0\nread 1@1\ndrained"))
    assert convicts(result) == {"OFFSET_MOVED": 1}


def test_a_hole_informs(written: Any) -> None:
    """An offset that the fresh reader was not given, between two that it was."""
    result = judged("offsets", written("send 1 ok@0\nsend 2 ok@2\nread 1@0 2@2\ndrained"))
    assert codes(result) == {"OFFSET_HOLE": 1}
    assert result.judgement is Judgement.VALID


# ----------------------------------------------------------------------------- linearizable


def test_nobody_reads_past_what_comes_later(written: Any) -> None:
    """A read of offset 1 before the append of offset 0 was invoked fits no order of the log."""
    text = (
        "send 1 ok@1 [1..20]\npoll 1@1 [3..4]\nsend 2 ok@0 [6..9]\nread 2@0 1@1 [30..31]\ndrained"
    )
    history = written(text)
    assert convicts(judged("linearizable", history)) == {"NOT_LINEARIZABLE": 1}
    assert not convicts(judged("order", history))


def test_nobody_reads_what_is_not_sent_yet(written: Any) -> None:
    """A read that returned before the message was invoked."""
    text = "poll 1@0 [1..2]\nsend 1 ok@0 [5..9]\nread 1@0 [30..31]\ndrained"
    assert convicts(judged("linearizable", written(text))) == {"NOT_LINEARIZABLE": 1}


def test_an_append_of_unknown_outcome_counts_once_it_is_seen(written: Any) -> None:
    """info at offset 0, invoked after offset 1 was acknowledged: seen, so it is bound too."""
    text = "send 1 ok@1 [1..2]\nsend 2 info [5..9]\nread 2@0 1@1 [30..31]\ndrained"
    assert convicts(judged("linearizable", written(text))) == {"NOT_LINEARIZABLE": 1}


@pytest.mark.parametrize("crews", [1, 2, 5])
def test_every_breakage_is_found_however_rows_are_spread(written: Any, crews: int) -> None:
    """Counts are the same with one journal and with many."""
    text = """
        send 1 ok@0
        send 1.2 ok@1
        send 2.3 ok@2
        send 3.4 fail
        poll 3.4@3
        read 1@0 2.3@2 2.3@5
        drained reader
    """
    history = written(text, crews)
    assert convicts(judged("loss", history)) == {"LOST_ACKED": 1}
    assert convicts(judged("phantom", history)) == {"PHANTOM_REFUSED": 1}
    assert convicts(judged("duplicates", history)) == {"DUPLICATED": 1}


# ------------------------------------------------------------------- queues that clients select

SELECTED = """
    send 1 ok@0 any
    send 2 ok@0 q1 x2 any
    send 3 info x3 any
    send 4 fail x2 any
    send 5 ok@1 any
    poll 1@0 5@1
    poll 2@0 3@1 q1
    read 1@0 5@1
    read 2@0 3@1 q1
    drained
    drained q1
"""


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize("crews", [1, 3])
def test_a_send_whose_queue_is_known_when_it_ends_is_sound(
    written: Any, checker: str, crews: int
) -> None:
    """A send that was acknowledged at the first attempt is where it was acknowledged, whichever
    queue that is."""
    result = judged(checker, written(SELECTED, crews))
    assert result.judgement is Judgement.VALID
    assert not result.findings


@pytest.mark.parametrize("crews", [1, 3])
def test_a_detour_may_store_a_message_in_two_queues(written: Any, crews: int) -> None:
    """The first attempt had been stored after all: at-least-once delivery permits that."""
    text = SELECTED.replace("read 1@0 5@1", "read 1@0 5@1 2@2")
    found = [judged(checker, written(text, crews)) for checker in CHECKERS]
    assert [codes(result) for result in found if result.findings] == [{"DUPLICATED_BY_RETRY": 1}]
    assert not any(map(convicts, found))


@pytest.mark.parametrize("crews", [1, 3])
def test_a_message_is_stored_twice_by_one_attempt_in_no_two_queues(
    written: Any, crews: int
) -> None:
    """DUPLICATED: nothing but the servers can have stored it again."""
    text = SELECTED.replace("read 1@0 5@1", "read 1@0 5@1 2@2").replace("q1 x2 any", "q1 any")
    assert convicts(judged("duplicates", written(text, crews))) == {"DUPLICATED": 1}


@pytest.mark.parametrize("crews", [1, 3])
def test_the_copy_that_was_acknowledged_has_to_be_there(written: Any, crews: int) -> None:
    """LOST_ACKED: the copy of an earlier attempt, in another queue, does not replace it."""
    text = SELECTED.replace("read 2@0 3@1 q1", "read 3@1 q1")
    assert convicts(judged("loss", written(text, crews))) == {"LOST_ACKED": 1}
    text = text.replace("read 1@0 5@1", "read 1@0 5@1 2@2")
    result = judged("loss", written(text, crews))
    assert convicts(result) == {"LOST_ACKED": 1}
    assert "of 1, the log has a copy that an earlier attempt left elsewhere" in (
        result.findings[0].message
    )
    assert not judged("offsets", written(text, crews)).findings


def test_nothing_is_lost_in_a_queue_that_was_not_read_to_its_end(written: Any) -> None:
    """The queue that the copy of an earlier attempt is in says nothing about the other one."""
    text = SELECTED.replace("read 1@0 5@1", "read 1@0 5@1 2@2").replace("drained q1", "")
    assert not convicts(judged("loss", written(text.replace("read 2@0 3@1 q1", ""))))


def test_queues_that_clients_select_keep_their_order(written: Any) -> None:
    """REORDERED: the later one was sent only after the first had been acknowledged."""
    text = SELECTED.replace("send 1 ok@0", "send 1 ok@1").replace("send 5 ok@1", "send 5 ok@0")
    text = text.replace("1@0 5@1", "5@0 1@1")
    assert convicts(judged("order", written(text))) == {"REORDERED": 1}
    wrong = SELECTED.replace("read 1@0 5@1", "read 1@0 5@1 4@2")
    assert convicts(judged("phantom", written(wrong))) == {"PHANTOM_REFUSED": 1}


def test_what_clients_selected_is_counted(written: Any) -> None:
    """The counters of all client processes are added up."""
    history = written(SELECTED)
    journal = TableJournal(history.run.journal, "notes", "client-2")
    for t in (1, 2):
        journal.append((t, NONE, NONE, 'SELECTIONS {"detours": 3, "avoided": 0}'))
    journal.close()
    stats = judged("duplicates", History.open(history.run)).stats
    assert (stats["detours"], stats["avoided"]) == (6, 0)
