"""What makes no sense, and machines that cannot: one sentence, the right code, nothing started."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import run_command

UNKNOWN = {
    "--system": ("flotila", "flotilla"),
    "--faults": ("kil", "kill", "seatrial list faults"),  # of 92 names the near ones
    "--targets": ("mastr", "master"),
    "--profile": ("alack-min2", "allack-min2"),
}
TRIAL = 'system = "flotilla"\n\n'
PLAN = '[[fault]]\nkind = "kill"\nat_s = 1\nfor_s = 5\n'
MALFORMED = [
    ("trial", 'duration_s = "long"', 3, "duration_s"),
    ("trial", "durations = 3", 3, "durations"),
    ("trial", "duration_s = = 3", 3, "duration_s"),
    ("plan", 'target = "captain"\nwhen = 3', 6, "when"),
    ("plan", 'params = { shape = "star" }', 5, "params"),
    ("plan", 'target = "master', 5, "target"),
]


def refused(tmp_path: Path, *arguments: object) -> run_command.FinishedCommand:
    """A run that was never begun."""
    done = run_command.seatrial("run", *arguments, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    assert len(done.err.strip().splitlines()) == 1, done.words
    return done


@pytest.mark.parametrize("flag", UNKNOWN)
def test_an_unknown_name_is_answered_with_those_that_exist(tmp_path: Path, flag: str) -> None:
    """254, and the names that there are, or those that are like it and what lists them all."""
    wrong, *right = UNKNOWN[flag]
    others = ("--faults", "kill") if flag == "--targets" else ()
    done = refused(tmp_path, "messages", *others, flag, wrong)
    assert done.code == 254
    assert f"'{wrong}'" in done.err
    assert all(name in done.err for name in right)


@pytest.mark.parametrize(("kind", "text", "line", "key"), MALFORMED)
def test_a_malformed_file_names_the_line_and_the_key(
    tmp_path: Path, kind: str, text: str, line: int, key: str
) -> None:
    """254, the file, the line and the key, for trials and plans alike."""
    path = tmp_path / f"{kind}.toml"
    path.write_text((TRIAL if kind == "trial" else PLAN) + text + "\n")
    asked = (path,) if kind == "trial" else ("messages", "--plan", path)
    done = refused(tmp_path, *asked)
    assert done.code == 254
    assert str(path) in done.err
    assert f"line {line}" in done.err
    assert key in done.err


def test_a_fault_that_cannot_be_is_named_by_its_line(tmp_path: Path) -> None:
    """254: the file, and the line of the key, not only a number."""
    path = tmp_path / "plan.toml"
    second = '[[ fault ]]\nat_s = 2\nfor_s = 60\nkind = "pause"\ntarget = "captain"\n'
    path.write_text(PLAN + 'target = "master"\n\n# the second\n' + second)
    done = refused(tmp_path, "messages", "--plan", path, "--set", "timeScale=1")
    assert done.code == 254
    assert f"{path} line 4: for_s: fault 0 (kill at 1 s) lasts 5 s" in done.err
    done = refused(tmp_path, "messages", "--plan", path, "--duration", "5m")
    assert f"{path} line 12: target: fault 1 (pause at 2 s)" in done.err


@pytest.mark.parametrize(
    ("kind", "content", "says"),
    [
        ("trial", b"\xef\xbb\xbfseed = 1\n", "begins with a byte order mark"),
        ("plan", b"\xef\xbb\xbf[trial]\nseed = 1\n", "begins with a byte order mark"),
        ("trial", "seed = 1\n".encode("utf-16"), "is not text in UTF-8"),
        (
            "plan",
            b"[trial]\nplan = 'other.toml'\n",
            "line 2: plan: a plan cannot name another plan",
        ),
    ],
)
def test_a_file_of_the_wrong_sort_is_refused_in_words(
    tmp_path: Path, kind: str, content: bytes, says: str
) -> None:
    """254: how an editor saved it, or what such a file may not say."""
    path = tmp_path / f"{kind}.toml"
    path.write_bytes(content)
    asked = (path,) if kind == "trial" else ("messages", "--plan", path)
    done = refused(tmp_path, *asked)
    assert done.code == 254
    assert f"{path} {says}" in done.err


def without(*programs: str) -> Sequence[str]:
    """A mount namespace in which these programs can not be run."""
    places = {Path(found).resolve() for name in programs if (found := _which(name))}
    hide = [f"mount --bind /dev/null {place}" for place in sorted(places)]
    script = "\n".join(["set -e", *hide, 'exec "$@"'])
    return ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh")


def _which(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin:/usr/local/sbin")


@pytest.mark.parametrize(
    ("package", "programs"),
    [("iptables", ("iptables", "iptables-restore", "iptables-save")), ("iproute2", ("ip",))],
)
def test_a_missing_program_is_refused_in_the_words_of_the_doctor(
    tmp_path: Path, package: str, programs: Sequence[str]
) -> None:
    """255 before anything starts: what is missing, why it matters, the one command that helps."""
    wrapper = without(*programs)
    runs = tmp_path / "runs"
    done = run_command.seatrial("run", "messages", runs=runs, wrapper=wrapper)
    assert done.code == 255
    assert not runs.exists()
    assert f"the program {programs[0]} is missing" in done.err
    assert done.err.strip().endswith(f"install -y {package}")
    doctor = run_command.seatrial("doctor", runs=runs, wrapper=wrapper)
    assert doctor.code == 255
    sentence = done.err.strip().removeprefix("seatrial: ")
    assert all(part in doctor.out for part in sentence.split("; to fix it: "))
