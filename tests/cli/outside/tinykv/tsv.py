"""Writes findings.tsv: a line for each row of evidence."""

from harness.contracts import ReportPlugin, Verdict


def render(run):
    lines = ["checker\tcode\tdemand\tevidence"]
    for result in Verdict.read(run.verdict_file).checkers:
        for finding in result.findings:
            for row in finding.evidence:
                text = " ".join(f"{name}={value}" for name, value in row.items())
                lines.append("\t".join((result.checker, finding.code, finding.demand, text)))
    path = run.path / "findings.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


PLUGIN = ReportPlugin(render=render)
