"""Rules for every test: `--rewrite` regenerates golden files, and on CI a skip is a failure.

A skipped test proves nothing, so where CI is set (every build service does) the machine must be
able to run them all.
"""

import gc
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from docker_lab import docker_lab as docker_lab  # a fixture
from hypothesis import settings
from ssh_lab import ssh_lab as ssh_lab  # another

from harness.history import run_files
from harness.spark.master import NONE, VARIABLE

if TYPE_CHECKING:
    from kafka_table import Table

# Tests press Ctrl-C, here and in what they start. A shell that starts them in the background has it
# ignored, and their children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("no deadline", deadline=None)  # a busy machine is not a failure
settings.load_profile("no deadline")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write golden files and generated docs anew"
    )


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(
    scope="session",
    params=["generated", *(["recorded"] if os.environ.get("SEATRIAL_HISTORIES") else [])],
)
def histories_folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Histories in other tools' formats, with what is known of them: those that a lab generates,
    and those that other tools recorded, where SEATRIAL_HISTORIES names their folder."""
    import generated_histories

    if request.param == "generated":
        return generated_histories.write(tmp_path_factory.mktemp("histories"))
    folder = Path(os.environ["SEATRIAL_HISTORIES"])
    assert (folder / "porcupine" / "expected.tsv").is_file(), f"{folder} has no histories"
    return folder


@pytest.fixture(scope="session")
def small_messages(tmp_path_factory: pytest.TempPathFactory) -> "Table":
    """Small histories of messages, imported once, for whatever Spark there is."""
    import small_histories

    return small_histories.messages(Path(tmp_path_factory.mktemp("messages")))


def pytest_collection_finish() -> None:
    """Garbage collections during tests need not visit modules and thousands of collected tests:
    each would take a quarter of a second, and every simulated world ends with one."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Commands start no Spark, save in tests with the mark `spark`: its start takes most of their
    time."""
    given = os.environ.get(VARIABLE)
    if not item.get_closest_marker("spark"):
        os.environ[VARIABLE] = NONE
    try:
        return (yield)
    finally:  # this variable alone: fixtures of a module set others for several tests
        os.environ.pop(VARIABLE, None)
        if given is not None:
            os.environ[VARIABLE] = given


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not hasattr(report, "wasxfail"):
        _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A whole file may be skipped too."""
    report = yield
    _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and CI allows no skips: {report.longrepr}"


@pytest.fixture(autouse=True)
def no_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that runs in the tests' process does not limit its memory, because that process
    also holds what all the tests before it have loaded."""
    monkeypatch.setattr(run_files, "limit_memory", lambda: None)
