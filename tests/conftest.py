"""Shared by every suite: a clean environment, and nothing left behind."""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import leaks, warm_commands, weather

#: Folders of suites that start programs or serve on sockets.
_PROCESS_LEVEL = ("browser", "contract", "e2e", "integration")

#: What a developer's shell may hold and a test must not see.
_SCRUBBED = ("AWS_", "ORCHGPU_", "LOCALSTACK_", "RCUDA_", "REMOTE_GPU_", "CUDA_VISIBLE_DEVICES")


#: An example may take any time: the machine has other work.
settings.register_profile("orchgpu", deadline=None)
settings.load_profile("orchgpu")

#: Tests report to nobody, and find no file of ONNX Runtime's reporting among their own.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

#: No test needs the machine's certificate authorities; aiohttp reads them when it is imported,
#: which is a quarter of the start of a daemon.
os.environ["SSL_CERT_FILE"] = os.devnull

#: A shell that runs the tests in its background has SIGINT ignored, and their programs inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(_SCRUBBED):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """For tests of clients and daemons in this process: nothing stays open after each of them."""
    with leaks.nothing_left_open():
        yield


@pytest.fixture(scope="session", autouse=True)
def _nothing_outlives_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No program, socket or thread does, whatever the scope of the fixture that started it."""
    with leaks.nothing_left_running(tmp_path_factory.getbasetemp()), leaks.nothing_left_open():
        yield
        warm_commands.end()


@pytest.fixture(scope="module", autouse=True)
def _module_leaves_nothing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """A module of process-level tests leaves no temporary file; its programs carry its name."""
    module = request.path.relative_to(Path(__file__).parent)
    if module.parts[0] not in _PROCESS_LEVEL:
        yield
        return
    temporary = tmp_path_factory.mktemp("tmp")
    with (
        leaks.nothing_left_in(temporary),
        leaks.module_mark(str(module)),
        leaks.same_cores(),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("TMPDIR", str(temporary))
        patch.setattr(tempfile, "tempdir", str(temporary))
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Modules and tests stay until the end: the garbage collector need not look at them again.

    A full collection would take a quarter of a second, and `nothing_left` needs two for each test.
    """
    gc.disable()
    try:
        _compile_a_share(session.config)
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def _compile_a_share(config: pytest.Config) -> None:
    """Import the test modules, each worker from another one on, so that it finds most compiled.

    In the same order all workers would compile each module of a fresh clone at the same time, with
    its assertions rewritten: that is more than half of their collection.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    root = Path(__file__).parents[1]
    folders = [root / argument for argument in config.args if (root / argument).is_dir()]
    files = sorted(file for folder in folders for file in folder.rglob("test_*.py"))
    start = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for file in (*files[start:], *files[:start]):
        name = ".".join(file.relative_to(root).with_suffix("").parts)
        with contextlib.suppress(Exception, pytest.skip.Exception):  # the collection reports it
            importlib.import_module(name)


def pytest_addoption(parser: pytest.Parser) -> None:
    weather.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    weather.choose(config)


@pytest.hookimpl
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """No asynchronous test leaves a task."""
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = leaks.no_task_left(item.obj)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was skipped and why: a line for each reason, not for each test."""
    skipped = terminalreporter.stats.get("skipped", ())
    if not skipped:
        return
    reasons = Counter(_reason(report.longrepr) for report in skipped)
    terminalreporter.section("skipped, and why")
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"{count:5}  {reason}")


def _reason(skip: object) -> str:
    """Of a report's (file, line, "Skipped: …")."""
    text = skip[2] if isinstance(skip, tuple) else str(skip)
    return text.removeprefix("Skipped: ").split("\n", 1)[0]
