"""Writes badge.svg: the verdict in one word, for the head of a README or a job's page.

It loads nothing and is of one size for each word; widths are those of Verdana at eleven pixels, as
every badge has them, and set by `textLength`, so that no reader's font breaks it.
"""

from pathlib import Path

from harness.contracts import ReportPlugin
from harness.history.rundir import RunDir
from harness.judge.verdict import Judgement
from reports import _words
from reports._run import Told, put, read

LABEL, LABEL_WIDTH = "seatrial", 56
LOOKS = {  # the word's width, and its colour: readable in white on light and dark pages
    Judgement.VALID: (36, "#17694a"),
    Judgement.INVALID: (48, "#b3242f"),
    Judgement.UNKNOWN: (62, "#8a5a00"),
}
PAD = 6
SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" \
aria-label="{label}: {word}">
<title>{label}: {word}</title>
<clipPath id="r"><rect width="{width}" height="20" rx="3"/></clipPath>
<g clip-path="url(#r)">
<rect width="{left}" height="20" fill="#3b4654"/>
<rect x="{left}" width="{right}" height="20" fill="{colour}"/>
</g>
<g fill="#fff" text-anchor="middle" font-family="Verdana,Geneva,DejaVu Sans,sans-serif" \
font-size="11">
<text x="{label_x}" y="14" textLength="{label_length}">{label}</text>
<text x="{word_x}" y="14" textLength="{word_length}">{word}</text>
</g>
</svg>
"""


def render(run: RunDir) -> Path | None:
    """The path of badge.svg in the run's folder."""
    return put(run.path / "badge.svg", svg(read(run)))


PLUGIN = ReportPlugin(render=render)


def svg(told: Told) -> str:
    """The picture; nothing of the run is in it but one of three words."""
    width, colour = LOOKS[told.verdict.verdict]
    return SVG.format(
        label=LABEL,
        word=_words.VERDICT_WORDS[told.verdict.verdict],
        colour=colour,
        width=LABEL_WIDTH + width,
        left=LABEL_WIDTH,
        right=width,
        label_x=LABEL_WIDTH / 2,
        label_length=LABEL_WIDTH - 2 * PAD,
        word_x=LABEL_WIDTH + width / 2,
        word_length=width - 2 * PAD,
    )
