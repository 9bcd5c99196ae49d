"""The story of one witness: what happened to a message or an object, line by line, and around it.

Who sent it, when, and how that ended; who was given it, and who read on past it; which faults were
on at each moment; elections, changes of the SyncStateSet and logs that were cut meanwhile; whose
log holds it in the end; and what follows. Everything is read from the run's folder, without an
engine. An imported history tells less, and the story is as long as what it tells.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.errors import BadRequest
from harness.explain.context import Cast, cluster_told, faults_told
from harness.explain.outcome import Known, concluded, ending
from harness.explain.rows import Pass, Row, Wanted, passes, rows_about, stored
from harness.explain.subject import Asked, asked, history_of, others, times_of, wanted_of
from harness.explain.words import Names, Step, of_messages, of_operations, of_passes
from harness.history.faults_and_events import faults_at
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.history.source_names import messages_of
from harness.judge.stored_verdict import BROKEN, verdict_of
from harness.judge.verdict import Verdict
from harness.operation import F, Type, producer_of, sequence_of

STEPS_INDENT = 20  # columns of time and faults before the words of a step
MOST = 40  # moments
NOTES_SHOWN = 3  # of one reader
FINE_NS = 1_000_000_000  # what is shorter is told to the microsecond
MARGIN_NS = 1_000_000_000  # of the cluster's moments around a story that has no end of its own
LETTERS = "ABCDEFGH"
MISSED = ("LOST", "UNREAD", "UNSEEN", "SKIP")  # in codes: a reader did not receive it


@dataclass(frozen=True)
class Told:
    """A story. `moments` are in the order of time, with the faults that were on."""

    asked: Asked
    subject: str
    began: int
    moments: tuple[tuple[Step, tuple[int, ...]], ...]
    left_out: int
    end: tuple[str, ...]
    conclusion: str
    others: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        finding = self.asked.finding
        yield f"{self.asked.name}, found by {self.asked.checker}: {finding.message}"
        yield f"It violates {self.asked.law}."
        if self.subject:
            yield self.subject
        if self.moments:
            yield ""
            yield from self._timed()
        yield from ("", *self.end) if self.end else ()
        yield from ("", f"Conclusion: {self.conclusion}")
        yield from ("", f"Can be explained: {', '.join(self.others)}")

    def _timed(self) -> Iterator[str]:
        since = f"since the {'load' if self.began else 'history'} began"
        yield f"In seconds {since}, with the faults that are on."
        width = max(6, *(len(_ids(on)) for _, on in self.moments))
        yield f"{'s':>10}  faults"
        long = self.moments[-1][0].t - self.moments[0][0].t >= FINE_NS
        digits = 3 if long else 6
        for step, on in self.moments:
            yield f"{(step.t - self.began) / 1e9:10.{digits}f}  {_ids(on):<{width}}  {step.words}"
        if self.left_out:
            yield f"{'':10}  {'':{width}}  ({self.left_out:,} less telling moments left out)"

    def plain(self) -> dict[str, Any]:
        """The same as JSON knows it."""
        finding = self.asked.finding
        return {
            "code": finding.code,
            "witness": self.asked.number,
            "witnesses": len(finding.evidence),
            "count": finding.count,
            "checker": self.asked.checker,
            "message": finding.message,
            "demand": finding.demand,
            "permitted": finding.permitted,
            "excused": finding.excused,
            "evidence": dict(self.asked.row),
            "subject": self.subject,
            "moments": [self._moment(step, on) for step, on in self.moments],
            "left_out": self.left_out,
            "end": list(self.end),
            "conclusion": self.conclusion,
            "explainable": list(self.others),
        }

    def _moment(self, step: Step, on: tuple[int, ...]) -> dict[str, Any]:
        after_s = round((step.t - self.began) / 1e9, 6)
        return {"t": step.t, "after_s": after_s, "faults": list(on), "what": step.words}


def _ids(faults: Sequence[int]) -> str:
    return " ".join(map(str, faults))


def explained(run: RunDir, text: str | None = None) -> Told | None:
    """The story of a finding's witness; None when the run has no finding at all. BadRequest when
    there is nothing that a story could be made of."""
    verdict = verdict_of(run)
    about = asked(verdict, text)
    if about is None:
        return None
    history = history_of(run)
    try:
        return _told(history, verdict, about)
    except BROKEN as e:
        why = " ".join(str(e).split())[:200] or type(e).__name__
        raise BadRequest(
            f"{about.name} of {run.path} cannot be explained: its evidence or the history is"
            f" damaged or of another version ({why}); seatrial check {run.path} judges it again"
        ) from e


def _told(history: History, verdict: Verdict, about: Asked) -> Told:
    known = known_of(history, about)
    steps = own(known)
    around = _around(known, steps)
    shown = _chosen([*steps, *around], _heart(about, steps))
    began = int(history.state.get("load_began_ns", 0))
    return Told(
        asked=about,
        subject=subject(known),
        began=began,
        moments=tuple((step, faults_at(known.history.faults, step.t)) for step in shown),
        left_out=len({*steps, *around}) - len(shown),
        end=tuple(ending(known)),
        conclusion=concluded(known),
        others=tuple(others(verdict)),
    )


def known_of(history: History, about: Asked) -> Known:
    """What the run's folder says about a witness."""
    wanted, rows = _found(history, wanted_of(about, history))
    acked = ((r["key"], r["offset"]) for r in rows if r["f"] == F.SEND and r["type"] == Type.OK)
    places = tuple(place for place in dict.fromkeys(acked) if None not in place)
    held, read = stored(history, replace(wanted, places=(*wanted.places, *places)))
    names = _names(history, wanted, rows)
    missed = any(word in about.finding.code for word in MISSED)
    past = _passes(history, wanted, rows) if missed else {}
    return Known(history, names, about, wanted, rows, held, read, past)


def _found(history: History, wanted: Wanted) -> tuple[Wanted, list[Row]]:
    """The rows; where places are wanted, of the messages that stood there, too. Messages come in
    the order in which they appear."""
    rows = rows_about(history, wanted)
    if wanted.places:
        there = {row["value"] for row in rows if (row["key"], row["offset"]) in wanted.places}
        wanted = replace(wanted, values=tuple({*wanted.values, *there} - {None}))
        rows = rows_about(history, wanted)
    first = {row["value"]: at for at, row in reversed(list(enumerate(rows)))}
    values = sorted(wanted.values, key=lambda value: (first.get(value, len(rows)), value))
    return replace(wanted, values=tuple(values)), rows


def _names(history: History, wanted: Wanted, rows: Sequence[Row]) -> Names:
    """A message alone is `the message`; of several each has a letter."""
    values = wanted.values[: len(LETTERS)]
    labels = {value: f"message {LETTERS[n]}" for n, value in enumerate(values)}
    if len(values) == 1:
        labels = {values[0]: "the message"}
    ops = {row["op"] for row in rows}
    notes = history.read("notes").to_pylist()
    said = {note["op"]: note["text"] for note in notes if note["op"] in ops and note["text"]}
    numbers = {row["value"] for row in rows if row["value"] is not None}
    called = {value: str(text) for value, (text, _) in messages_of(history.run, numbers).items()}
    return Names(history, said, labels, called)


def _passes(history: History, wanted: Wanted, rows: Sequence[Row]) -> Mapping[int, list[Pass]]:
    """By message: who read on past the place at which it was acknowledged, and was not given it."""
    found: dict[int, list[Pass]] = {}
    for row in rows:
        acked = row["f"] == F.SEND and row["type"] == Type.OK and row["offset"] is not None
        if not acked or row["value"] not in wanted.values:
            continue
        given = {r["process"] for r in rows if r["f"] != F.SEND and r["value"] == row["value"]}
        some = passes(history, (row["key"], row["offset"]), row["t"])
        found[row["value"]] = [one for one in some if one.process not in given]
    return found


def own(known: Known) -> list[Step]:
    """What happened to the subject itself."""
    rows, names = known.rows, known.names
    values, ops = known.wanted.values, known.wanted.ops
    steps = list(of_operations([row for row in rows if row["op"] in ops], names))
    steps += of_messages([row for row in rows if row["value"] in values], names)
    for value, some in known.passes.items():
        (place,) = known.acknowledged_at(value)[:1]
        steps += of_passes(some, place, names)
        steps += _why_passed(known, value, some)
    return steps


def _why_passed(known: Known, value: int, some: Sequence[Pass]) -> Iterator[Step]:
    """What those who read on were told in the meantime, the last of it."""
    until = {one.process: one.t for one in some}
    since = min(row["t"] for row in known.sends(value, Type.OK))
    said: dict[int, list[Step]] = {process: [] for process in until}
    for note in known.history.read("notes").sort_by("t").to_pylist():
        process, t = note["process"], note["t"]
        if process in until and note["op"] is not None and since <= t <= until[process]:
            words = f"{known.names.process(process)} notes: {note['text']}"
            said[process].append(Step(t, 1, words, 6))
    for steps in said.values():
        yield from steps[-NOTES_SHOWN:]


def _around(known: Known, steps: Sequence[Step]) -> list[Step]:
    """The faults that were on meanwhile, and what became of the broker set."""
    history = known.history
    times = [*(step.t for step in steps), *times_of(known.asked.row)]
    if not times:
        return []
    first, last = min(times), max(times)
    if not steps:
        first, last = first - MARGIN_NS, last + MARGIN_NS
    overlapping = {
        f.id
        for f in known.history.faults
        if f.begin is not None and f.begin <= last and (f.healed is None or f.healed >= first)
    }
    told = list(faults_told(history, overlapping))
    began = min(first, int(history.state.get("load_began_ns", 0)))
    cluster = cluster_told(history, Cast.of(history), began, known.broker_set)
    told += [m for m in cluster if first <= m.t <= last]
    return [*_stood(known, first), *told]


def _stood(known: Known, t: int) -> Iterator[Step]:
    """Who was master before the story begins."""
    cast = Cast.of(known.history)
    master, members = "", ""
    for event in known.events:
        fields = event.fields
        if event.t > t or fields.get("brokerName", "") not in (known.broker_set, ""):
            continue
        if event.kind == "election" and fields.get("masterId"):
            master = f"{cast.name(fields['masterId'])} is master in epoch {fields['epoch']}"
        if event.kind in ("election", "set") and "brokerName" in fields and "set" in fields:
            members = f", SyncStateSet {cast.names(fields['set'])}"
    if master and known.broker_set:
        yield Step(t, -1, f"{known.broker_set}: {master}{members}", 7)


def _heart(about: Asked, steps: Sequence[Step]) -> int:
    """The moment that matters most."""
    times = times_of(about.row) or [step.t for step in steps]
    return min(times, default=0)


def _chosen(steps: Sequence[Step], about: int) -> list[Step]:
    """Of a long story, what tells most and is nearest to what matters."""
    ranked = sorted(
        dict.fromkeys(steps), key=lambda step: (-step.weight, abs(step.t - about), step)
    )
    return sorted(ranked[:MOST])


def subject(known: Known) -> str:
    """What the story is about, by its numbers."""
    if known.wanted.values:
        return "\n".join(_message(known, value) for value in known.wanted.values[: len(LETTERS)])
    words = [
        str(known.asked.row[name]) for name in ("kind", "key", "what") if name in known.asked.row
    ]
    imported = known.history.state.get("imported")
    lines = f" Operations are numbered by the lines of {imported['file']}." if imported else ""
    words = ["key", *words] if "key" in known.asked.row and len(words) == 1 else words
    what = " ".join(words)
    return f"It is about {what}.{lines}" if words else lines.strip()


def _message(known: Known, value: int) -> str:
    original = known.original(value)
    called = f", {original} in its file" if original else ""
    label = known.names.message(value)
    number = f"number {sequence_of(value):,} of producer {producer_of(value)}"
    return f"{label[:1].upper()}{label[1:]} is {number} (value {value}){called}."


def nothing(run: RunDir) -> str:
    """What there is to say of a run without findings."""
    return f"There is nothing to explain: {verdict_of(run).sentence}"
