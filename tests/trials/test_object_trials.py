"""Workloads whose objects are judged by linearizability, in simulated worlds: a sound Flotilla is
*valid*, with hundreds of operations and the fault seen at work; one with a planted bug is convicted
by the finding that the bug deserves.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkers import objects
from harness.campaign.simulation import SeedOutcome, simulate
from harness.errors import BadRequest
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.history.schema import OPS
from harness.operation import F, Type
from harness.registry import load
from harness.selftest.mutants import CAUGHT, PLANS, cases, in_worlds
from harness.trial import Trial
from nemesis import dump
from nemesis import load as plan_of


def played(folder: Path, story: str, **changes: Any) -> SeedOutcome:
    """Somebody else's story, with a load of its own."""
    path = PLANS / f"{story}.toml"
    overrides, faults = plan_of(path.read_text(), path.name)
    trial = Trial(name=story).with_(overrides)
    merged = {
        key: {**getattr(trial, key), **value} if isinstance(value, dict) else value
        for key, value in changes.items()
    }
    return simulate(trial.with_({"load": {}, **merged}), dump(faults), folder / "run")


def rows(run: RunDir) -> list[Mapping[str, Any]]:
    return History.open(run).read("ops").to_pylist()


# ------------------------------------------------------------- registers and locks: own mutants


@pytest.mark.parametrize("mutant", ["answers-alone", "forgotten-locks"])
def test_what_an_old_memory_tells_is_found(mutant: str, tmp_path: Path) -> None:
    """A deposed controller's registers, a restarted broker's locks: caught, and the sound build
    under the same plan is *valid*."""
    (case,) = cases([mutant])
    answer = in_worlds(case, tmp_path)
    assert (answer.word, answer.sound) == (CAUGHT, "valid"), answer.why


# ------------------------------------------------------------------------ sets and logs


SETS: Mapping[str, Any] = {"workload": "set", "load": {"objects": 2, "writers": 8, "rate": 60}}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> SeedOutcome:
    return played(tmp_path_factory.mktemp("sets"), "unclean-election", **SETS)


def test_whatever_was_added_to_a_sound_set_is_there(sets: SeedOutcome) -> None:
    """Also what was sent twice, for clients try again here: a set has it once."""
    assert sets.verdict
    assert (sets.verdict.verdict, sets.failure) == ("valid", ()), sets.verdict.sentence
    assert sets.verdict.stats("objects")["sets"] == 2
    assert sets.verdict.stats("objects")["operations"] > 200


def test_elements_of_a_set_are_lost_with_an_unclean_master(tmp_path: Path) -> None:
    flaw = {"settings": {"mutant": "unclean-election"}}
    assert "ELEMENT_LOST" in played(tmp_path, "unclean-election", **SETS, **flaw).failure


def test_what_nobody_read_at_the_end_proves_nothing(sets: SeedOutcome, tmp_path: Path) -> None:
    """The same history without its final reads, of one set or of all."""
    every = range(2)
    for unread, codes in (([1], {"OBJECTS_NOT_READ"}), (every, {"OBJECTS_NOT_READ", "NO_OBJECTS"})):
        run = RunDir(tmp_path / f"{len(unread)}")
        run.history.mkdir(parents=True)
        kept = [r for r in rows(sets.run) if r["f"] != F.LIST or r["key"] not in unread]
        pq.write_table(pa.Table.from_pylist(kept, OPS), run.history / "ops-w0-000.parquet")
        run.write_names(sets.run.names())
        run.update_state(ended=True)
        answer = objects.check(History.open(run), sets.run.trial(), None)
        assert {reason.code for reason in answer.reasons} == codes
        assert not answer.findings


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> SeedOutcome:
    options = {"workload": "log", "load": {"objects": 1, "writers": 8, "rate": 100}}
    return played(tmp_path_factory.mktemp("logs"), "offsets-from-visible", **options)


def test_entries_of_a_sound_log_have_a_place_each(logs: SeedOutcome) -> None:
    assert logs.verdict
    assert (logs.verdict.verdict, logs.failure) == ("valid", ()), logs.verdict.sentence
    assert logs.verdict.stats("objects")["logs"] == 1
    assert logs.verdict.stats("objects")["operations"] > 300


def test_a_log_is_written_by_clients_that_never_try_again(logs: SeedOutcome) -> None:
    """A second try would be an entry that nobody asked for. The master was killed meanwhile."""
    ended = [r for r in rows(logs.run) if r["f"] == F.APPEND and r["type"] != Type.INVOKE]
    assert {row["attempts"] for row in ended} <= {0, 1}
    for workload, retries in (("log", 0), ("set", 2)):
        system = load("system", "flotilla")(Trial(workload=workload))
        assert system.client_settings(system.nodes())["retryTimesWhenSendFailed"] == retries


def test_two_entries_at_one_offset_are_found(tmp_path: Path) -> None:
    options = {"workload": "log", "load": {"objects": 1, "writers": 8, "rate": 100}}
    flaw = {"settings": {"mutant": "offsets-from-visible"}}
    assert "OFFSET_CONFLICT" in played(tmp_path, "offsets-from-visible", **options, **flaw).failure


# ------------------------------------------------------------------ how it is journalled


@pytest.fixture(scope="module")
def registers(tmp_path_factory: pytest.TempPathFactory) -> SeedOutcome:
    """Of the type jraft, few values, a short life, and a leader that is cut off."""
    return played(
        tmp_path_factory.mktemp("registers"),
        "answers-alone",
        settings={"controllerType": "jraft"},
        load={"distinct": 3, "registers": 2, "operations": 60, "rate": 60},
    )


def test_registers_with_few_values_are_judged_too(registers: SeedOutcome) -> None:
    assert registers.verdict
    assert (registers.verdict.verdict, registers.failure) == ("valid", ())
    assert registers.verdict.stats("coverage")["operations"]["cas"]["ok"] > 10


def test_a_client_that_is_paused_holds_its_lock_no_longer_than_its_lease(tmp_path: Path) -> None:
    """Its process is seen stopped; others get the lock meanwhile, and a sound cluster is valid."""
    outcome = played(tmp_path, "unlock-anybody")
    assert outcome.verdict
    assert (outcome.verdict.verdict, outcome.failure) == ("valid", ()), outcome.verdict.sentence
    (paused,) = History.open(outcome.run).faults
    assert paused.state == "installed"
    assert [name.partition("-")[0] for name in paused.names] == ["client"]


def test_an_unknown_outcome_ends_a_client(registers: SeedOutcome) -> None:
    """Its process does nothing more; another number, of the same crew, does the rest."""
    found = rows(registers.run)
    ended = {row["process"]: row["t"] for row in found if row["type"] == Type.INFO}
    assert ended
    assert all(row["t"] <= ended.get(row["process"], row["t"]) for row in found)
    processes = load("workload", "register")(registers.run.trial()).processes
    assert {p % processes for p in ended} <= {row["process"] for row in found}
    assert max(row["process"] for row in found) >= processes


def test_a_comparison_that_refused_is_told_from_other_failures(registers: SeedOutcome) -> None:
    found = [row for row in rows(registers.run) if row["f"] == F.CAS]
    refused = [row for row in found if row["type"] == Type.FAIL and row["pos"] == 0]
    assert refused
    assert all(row["arg"] is not None for row in found)
    assert {row["pos"] for row in found if row["type"] != Type.FAIL} == {None}


def test_registers_are_given_up_and_all_are_read_at_the_end(registers: SeedOutcome) -> None:
    found = rows(registers.run)
    used = {row["key"] for row in found}
    assert len(used) > 4
    workload = load("workload", "register")(registers.run.trial())
    numbers = range(workload.operating, workload.processes)
    readers = [row for row in found if row["process"] in numbers]
    read = {r["key"] for r in readers if (r["f"], r["type"]) == (F.GET, Type.OK)}
    assert used <= read


@pytest.mark.parametrize(
    ("workload", "options", "why"),
    [
        ("register", {"client": 1}, "load.client is not an option of the workload register"),
        ("register", {"distinct": -1}, "load.distinct must be a whole number from 0"),
        ("register", {"rate": 0}, "load.rate must be a number from 0.1"),
        ("register", {"operations": 1, "rate": 10_000}, "more than 100,000 registers"),
        ("set", {"objects": 1.5}, "load.objects must be a whole number"),
        ("log", {"body_bytes": 3}, "load.body_bytes must be a whole number from 16"),
        ("lock", {"hold_ms": True}, "load.hold_ms must be a whole number"),
    ],
)
def test_a_load_that_makes_no_sense_names_the_key(workload: str, options: Any, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        load("workload", workload)(Trial(workload=workload, load=options)).check_options()
