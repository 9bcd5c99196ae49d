"""Writes badge.svg: the verdict in one word, for a README or a CI job's page.

It loads nothing and has a fixed size for each word. Widths are those of Verdana at eleven pixels,
the font of most badges, and set by `textLength`, so that another font does not break the layout.
"""

from pathlib import Path

from harness.contracts import ReportPlugin
from harness.history.rundir import RunDir
from harness.judge.verdict import Judgement
from reports import _format
from reports._run import RunView, read_run, write_report

LABEL, LABEL_WIDTH = "seatrial", 56
LOOKS = {  # width and colour of the word: readable in white on light and dark pages
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
    """Write badge.svg into the run's folder; return its path."""
    return write_report(run.path / "badge.svg", svg(read_run(run)))


PLUGIN = ReportPlugin(render=render)


def svg(view: RunView) -> str:
    """Return the picture; it contains nothing of the run but one of three words."""
    width, colour = LOOKS[view.verdict.verdict]
    return SVG.format(
        label=LABEL,
        word=_format.VERDICT_WORDS[view.verdict.verdict],
        colour=colour,
        width=LABEL_WIDTH + width,
        left=LABEL_WIDTH,
        right=width,
        label_x=LABEL_WIDTH / 2,
        label_length=LABEL_WIDTH - 2 * PAD,
        word_x=LABEL_WIDTH + width / 2,
        word_length=width - 2 * PAD,
    )
