"""`seatrial import` and `seatrial check` after it, through the real console script."""

import gzip
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from harness.cli.exit_codes import exit_code

Script = Callable[..., "CompletedProcess[str]"]

SENDS = "".join(
    f"{{:type :invoke, :process 1, :f :send, :value [[:send x {v}]], :time {2 * v}}}\n"
    f"{{:type :ok, :process 1, :f :send, :value [[:send x [{v} {v}]]], :time {2 * v + 1}}}\n"
    for v in range(3)
)
POLL = """\
{{:type :invoke, :process 2, :f :poll, :value [[:poll]], :time 8}}
{{:type :ok, :process 2, :f :poll, :value [[:poll {{x [{}]}}]], :time 9}}
"""
ENDINGS = [
    ("[0 0] [1 1] [2 2]", "", 0, "ll 3 acknowledged messages"),
    ("[0 0] [2 2]", "", 1, "1 acknowledged message was lost"),
    ("[0 0] [1 1] [2 2]", "{:type :ok", 2, "line 9, column 1: not EDN: { is never closed"),
]


@pytest.mark.spark
@pytest.mark.parametrize(("pairs", "more", "code", "says"), ENDINGS)
def test_a_history_is_imported_and_judged(
    seatrial: Script, tmp_path: Path, pairs: str, more: str, code: int, says: str
) -> None:
    """Valid, invalid and unknown are 0, 1 and 2, as of any run; importing is 0."""
    text = SENDS + POLL.format(pairs) + more
    (tmp_path / "history.edn.gz").write_bytes(gzip.compress(text.encode()))
    made = seatrial("import", "history.edn.gz", "--as", "jepsen-kafka", "--out", "run")
    assert made.returncode == 0, made.stderr
    assert "8 events of messages: seatrial check run" in made.stdout
    assert ("line 9" in made.stderr) is bool(more)
    checked = seatrial("check", "run")
    assert checked.returncode == code, checked.stdout + checked.stderr
    assert says in " ".join(checked.stdout.split())
    assert seatrial("report", "run").returncode == 0
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.spark
@pytest.mark.parametrize("master", ["local[1]", "none"])
def test_one_command_imports_and_checks(seatrial: Script, tmp_path: Path, master: str) -> None:
    """With --check the exit code is the verdict's, and the run is as if checked afterwards."""
    (tmp_path / "a.edn").write_text(SENDS + POLL.format("[0 0] [2 2]"))
    words = ("import", "a.edn", "--as", "jepsen-kafka", "--out")
    made = seatrial(*words, "run", "--check", "--spark", master)
    assert made.returncode == 1, made.stderr
    assert "1 acknowledged message was lost" in " ".join(made.stdout.split())
    assert seatrial(*words, "again").returncode == 0
    assert seatrial("check", "again", "--spark", "none").returncode == 1
    verdicts = [(tmp_path / name / "verdict.json").read_bytes() for name in ("run", "again")]
    assert verdicts[0].replace(b"/run", b"/again") == verdicts[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing.edn", "--as", "jepsen-kafka", "--out", "run"], "nothing.edn cannot be read"),
        (["a.edn", "--as", "jepsen-kafca", "--out", "run"], "did you mean jepsen-kafka?"),
        (["a.edn", "--as", "jepsen-queue", "--out", "run"], "line 1 has :f :send"),
        (["a.edn", "--as", "jepsen-kafka", "--out", "full"], "full is not an empty folder"),
        (["nothing.edn", "--as", "jepsen-kafka", "--out", "full"], "full is not an empty folder"),
        (["a.edn", "--as", "jepsen-kafka", "--out", "a.edn/b"], "a.edn/b cannot be created"),
        (["a.edn", "--as", "csv", "--out", "run"], "a.edn"),
        (["a.edn", "--as", "parquet", "--out", "run"], "a.edn cannot be read as Parquet"),
        (["empty.edn", "--as", "jepsen-kafka", "--out", "run"], "empty.edn is empty"),
        (["a.edn", "--out", "run"], "--as"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_import_that_makes_no_sense_is_254(
    seatrial: Script, tmp_path: Path, arguments: list[str], says: str
) -> None:
    """One sentence that says what to do about it, and no folder is left behind."""
    (tmp_path / "a.edn").write_text(SENDS)
    (tmp_path / "empty.edn").write_text("\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").write_text("")
    made = seatrial("import", *arguments)
    (line,) = made.stderr.splitlines()
    assert made.returncode == 254, made.stderr
    assert line.startswith("seatrial: ")
    assert says in line
    assert not (tmp_path / "run").exists()


def test_a_contract_is_what_an_import_demands(seatrial: Script, tmp_path: Path) -> None:
    """It is the trial's from then on; a word of another kind of history is refused."""
    lines = [
        f"{{:process 1, :type :{kind}, :f :{f}, :value {value}}}"
        for f, value in (("enqueue", 1), ("enqueue", 2), ("dequeue", 2), ("dequeue", 1))
        for kind in ("invoke", "ok")
    ]
    (tmp_path / "a.edn").write_text("\n".join(lines))
    words = ("import", "a.edn", "--as", "jepsen-queue", "--out", "run", "--contract")
    refused = seatrial(*words, "no-loss,serializable")
    assert refused.returncode == 254
    assert "no-loss, at-least-once, order-per-queue can be demanded" in refused.stderr
    assert seatrial(*words, "no-loss,at-least-once").returncode == 0
    assert (
        'contract = [\n    "no-loss",\n    "at-least-once",\n]'
        in (tmp_path / "run" / "trial.toml").read_text()
    )


@pytest.mark.parametrize("module", ["harness", "harness.cli.main"])
def test_the_command_is_a_module_too(module: str) -> None:
    """`python -m` with either of its names says what the script says, and ends as it does."""
    asked = [sys.executable, "-m", module]
    shown = subprocess.run([*asked, "--version"], capture_output=True, text=True, check=False)
    assert shown.returncode == 0
    assert shown.stdout.startswith("seatrial")
    wrong = subprocess.run([*asked, "no-such"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 254
    assert wrong.stderr


def test_what_to_type_next_can_be_typed(seatrial: Script, tmp_path: Path) -> None:
    """The folder is one word, as a shell reads it."""
    (tmp_path / "a.edn").write_text(SENDS)
    made = seatrial("import", "a.edn", "--as", "jepsen-kafka", "--out", "two words")
    assert made.stdout.endswith(": seatrial check 'two words'\n"), made.stderr


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (["bogus"] * 100, ["line 4: f is 'bogus'", "and 99 more such lines"]),
        (["bogus"], ["line 4: f is 'bogus'"]),
        (["bogus"] * 2 + ["ok\n"] * 7, [*["cells"] * 5, "and 4 more such lines"]),
    ],
)
def test_the_lines_that_are_not_said_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[str], says: list[str]
) -> None:
    """Rows that are told together are one line; all others are counted."""
    text = "process,type,f,key,value\n1,invoke,put,x,1\n1,ok,put,x,1\n"
    text += "".join(row if "\n" in row else f"1,invoke,{row},x,1\n" for row in rows)
    (tmp_path / "t.csv").write_text(text)
    arguments = ["import", str(tmp_path / "t.csv"), "--as", "csv"]
    assert exit_code([*arguments, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(says), said
    assert all(word in line for word, line in zip(says, said, strict=True)), said


@pytest.mark.parametrize("command", ["replay", "shrink"])
def test_what_was_imported_can_not_be_run_again(
    seatrial: Script, tmp_path: Path, command: str
) -> None:
    """It has no plan, and not because it ended early."""
    (tmp_path / "a.edn").write_text(SENDS)
    assert seatrial("import", "a.edn", "--as", "jepsen-kafka", "--out", "run").returncode == 0
    tried = seatrial(command, "run")
    assert tried.returncode == 254
    assert "run was imported, so it cannot be run again" in tried.stderr
