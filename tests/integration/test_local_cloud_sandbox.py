"""The sandbox alone, with real processes: reuse, freezing, limits, endings, isolation."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_cloud.model.functions.function import Outcome
from local_cloud.sandbox.process_tree import processes_in
from tests.integration.sandbox_runs import (
    ARN,
    PID,
    fail,
    idle,
    run,
    sandbox,
    spec,
    state_of,
    still_up,
    until,
)


@pytest.mark.asyncio
async def test_an_environment_is_reused_and_frozen_between_runs(
    tmp_path: Path, nothing_left: None
) -> None:
    async with sandbox(tmp_path) as box:
        what = spec(tmp_path, PID)
        first = await run(box, what)
        await idle(box)
        await until(lambda: state_of(first) == "T")
        assert await run(box, what) == first
        await idle(box)
    assert state_of(first) == "gone"


@pytest.mark.asyncio
async def test_children_are_frozen_and_killed_in_any_process_group(tmp_path: Path) -> None:
    source = """
import subprocess
kept = []
def handle(event, context):
    if not kept:
        for new_session in (False, True):
            kept.append(subprocess.Popen(["sleep", "600"], start_new_session=new_session))
    return [child.pid for child in kept]
"""
    async with sandbox(tmp_path) as box:
        pids = await run(box, spec(tmp_path, source))
        await idle(box)
        await until(lambda: [state_of(pid) for pid in pids] == ["T", "T"])
        assert await run(box, spec(tmp_path, source)) == pids
        await idle(box)
    await until(lambda: {state_of(pid) for pid in pids} <= {"gone", "Z"})


@pytest.mark.asyncio
async def test_concurrent_runs_have_their_own_processes_and_folders(tmp_path: Path) -> None:
    source = """
import os, tempfile, time
def handle(event, context):
    time.sleep(0.3)
    with open(os.path.join(tempfile.gettempdir(), "mark"), "a") as file:
        file.write("x")
    return [os.getpid(), tempfile.gettempdir(), os.path.getsize(file.name)]
"""
    async with sandbox(tmp_path, concurrency_max=2) as box:
        what = spec(tmp_path, source)
        one, two = await asyncio.gather(run(box, what), run(box, what))
        assert one[0] != two[0]
        assert one[1] != two[1]
        await idle(box)
        again = await run(box, what)
        assert again[2] == 2  # the folder stays while the environment is warm
        await idle(box)
        folder = Path(one[1])
        slow = asyncio.gather(run(box, what), run(box, what))
        await until(lambda: box.pool.busy("f") == 2)
        throttled, _ = await box.invoke(what, "request", "{}")
        assert throttled == Outcome(payload="", throttled=True)
        await slow
        await idle(box)
    assert not await asyncio.to_thread(folder.exists)


@pytest.mark.asyncio
async def test_too_slow_is_killed_with_everything_it_started(tmp_path: Path) -> None:
    source = """
import os, subprocess, time
def handle(event, context):
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print(child.pid, flush=True)
    time.sleep(600)
"""
    async with sandbox(tmp_path) as box:
        error = await fail(box, spec(tmp_path, source, timeout_s=2.0))
        assert error["errorType"] == "Sandbox.Timedout"
        assert error["errorMessage"].endswith("Task timed out after 2.00 seconds")
        (stream,) = (box.logs.streams("/aws/lambda/f") or {}).values()
        pid = next(int(line.message) for line in stream if line.message.isdigit())
        await until(lambda: state_of(pid) in ("gone", "Z"))
        assert await run(box, spec(tmp_path, PID))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("source", "kind", "text"),
    [
        ("import os\ndef handle(e, c): os._exit(3)", "Runtime.ExitError", "exit status 3"),
        ("import os\ndef handle(e, c): os.kill(os.getpid(), 9)", "Runtime.ExitError", "killed"),
        ("import nothing_like_it", "Runtime.ImportModuleError", "nothing_like_it"),
        ("x = 1", "Runtime.HandlerNotFound", "handle"),
        ("def handle(e, c): raise KeyError('k')", "KeyError", "k"),
        ("def handle(e, c): return object()", "Runtime.MarshalError", "JSON"),
        ("def handle(e, c): return 'x' * 7000000", "Function.ResponseSizeTooLarge", "6291556"),
        ("def handle(e, c): return len(bytearray(600 * 2**20))", "MemoryError", ""),
    ],
)
async def test_endings_have_the_names_that_aws_gives_them(
    tmp_path: Path, source: str, kind: str, text: str
) -> None:
    async with sandbox(tmp_path) as box:
        error = await fail(box, spec(tmp_path, source))
        assert error["errorType"] == kind
        assert text in error["errorMessage"]
        good = tmp_path / "good"
        good.mkdir()
        assert await run(box, spec(good, PID, revision="2"))  # the next one is not disturbed


@pytest.mark.asyncio
async def test_a_function_sees_its_own_code_and_the_runtime_and_nothing_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
import importlib.util, os
def handle(names, context):
    return [[n for n in names if importlib.util.find_spec(n)], dict(os.environ), os.getcwd()]
"""
    monkeypatch.setenv("SECRET_OF_THIS_SHELL", "x")
    names = ["boto3", "awslambdaric", "app", "corekit", "orchgpu", "remote_gpu", "pytest", "click"]
    async with sandbox(tmp_path) as box:
        what = spec(tmp_path, source, variables={"MINE": "1", "AWS_REGION": "moon-1"})
        importable, environment, folder = await run(box, what, names)
    assert importable == ["boto3", "awslambdaric", "app"]
    assert environment["MINE"] == "1"
    assert environment["AWS_REGION"] == "us-east-1"
    assert environment["AWS_ENDPOINT_URL"] == "http://127.0.0.1:1"
    assert (environment["LAMBDA_TASK_ROOT"], folder) == (str(what.code),) * 2
    assert environment["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"] == "256"
    assert "SECRET_OF_THIS_SHELL" not in environment


FOREIGN = [
    "corekit",
    "orchgpu",
    "gpu_scheduler",
    "numpy",
    "PIL",
    "yaml",
    "aiohttp",
    "click",
    "pytest",
    "msgspec",
]
PROVIDED = [
    "boto3",
    "botocore",
    "s3transfer",
    "jmespath",
    "urllib3",
    "dateutil",
    "six",
    "awslambdaric",
]


@pytest.mark.asyncio
async def test_every_python_of_a_function_has_lambdas_packages_alone(
    tmp_path: Path,
) -> None:
    """This test's own Python can import all of them; so could scripts, once."""
    probe = "import importlib, json, sys\nfound = []\n"
    probe += (
        "for name in json.loads(sys.argv[-1]):\n    try:\n        importlib.import_module(name)"
    )
    probe += "\n        found.append(name)\n    except ImportError:\n        pass\n"
    probe += "print(json.dumps(found))"
    source = f"""
import json, os, subprocess, sys
PROBE = {probe!r}
def handle(names, context):
    script = os.path.join(os.environ["TMPDIR"], "script")
    with open(script, "w") as file:
        file.write("#!/usr/bin/env python3\\n" + PROBE)
    os.chmod(script, 0o755)
    ways = [[sys.executable, "-c", PROBE], ["python3", "-c", PROBE], ["python", "-c", PROBE],
            [script], [sys.executable, "-I", "-c", PROBE]]
    bare = {{"PATH": os.environ["PATH"]}}
    return [
        json.loads(subprocess.run([*way, json.dumps(names)], env=env, check=True,
                                  stdout=subprocess.PIPE).stdout)
        for way in ways for env in (None, bare)
    ]
"""
    async with sandbox(tmp_path) as box:
        found = await run(box, spec(tmp_path, source, timeout_s=60.0), [*PROVIDED, *FOREIGN])
    assert found == [PROVIDED] * len(found)
    assert all(importlib.util.find_spec(name) for name in FOREIGN)


@pytest.mark.asyncio
async def test_new_code_gets_a_new_environment_and_the_old_one_ends(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as box:
        old = await run(box, spec(tmp_path, PID, revision="0"))
        await idle(box)
        assert await run(box, spec(tmp_path, PID)) != old
        await idle(box)
        await box.sweep()
        assert state_of(old) == "gone"
        assert len(box.pool) == 1


@pytest.mark.asyncio
async def test_a_machine_that_cannot_start_it_is_an_error_of_the_invocation(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as box:
        gone = spec(tmp_path, PID, code=tmp_path / "removed")
        error = await fail(box, gone)
        assert error["errorType"] == "Sandbox.Failure"
        assert "removed" in error["errorMessage"]
        assert await run(box, spec(tmp_path, PID))


def test_processes_are_found_by_their_folder_and_no_other(tmp_path: Path) -> None:
    def sleeper(folder: Path, cwd: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "60"], env={"TMPDIR": str(folder)}, cwd=cwd)

    folder, inside = tmp_path / "1", tmp_path / "1" / "deep"
    inside.mkdir(parents=True)
    ours = [sleeper(folder, tmp_path), sleeper(inside, tmp_path), sleeper(tmp_path, inside)]
    others = [sleeper(tmp_path / "10", tmp_path), sleeper(tmp_path, tmp_path)]
    try:
        assert set(processes_in(folder)) == {process.pid for process in ours}
    finally:
        for process in [*ours, *others]:
            process.kill()
            process.wait()


@pytest.mark.asyncio
async def test_a_child_that_left_everything_behind_ends_with_its_environment(
    tmp_path: Path,
) -> None:
    source = """
import subprocess
def handle(event, context):
    script = "setsid sleep 600 >/dev/null 2>&1 & echo $!"
    return int(subprocess.run(["/bin/sh", "-c", script], capture_output=True).stdout)
"""
    async with sandbox(tmp_path) as box:
        pid = await run(box, spec(tmp_path, source))
        assert state_of(pid) != "gone"
    await until(lambda: state_of(pid) in ("gone", "Z"))


@pytest.mark.asyncio
async def test_the_context_has_the_remaining_time(tmp_path: Path) -> None:
    source = "def handle(e, c): return [c.get_remaining_time_in_millis(), c.invoked_function_arn]"
    async with sandbox(tmp_path) as box:
        left_ms, arn = await run(box, spec(tmp_path, source))
    assert 8_000 < left_ms <= 10_000
    assert arn == ARN


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_an_environment_that_ended_while_frozen_costs_no_invocation(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with sandbox(tmp_path, concurrency_max=1) as box:
        what = spec(tmp_path, PID)
        for _ in range(3):
            warm = await run(box, what)
            await idle(box)
            await until(lambda pid=warm: state_of(pid) == "T")
            os.kill(warm, number)
            with contextlib.suppress(ProcessLookupError):  # SIGKILL ends a stopped process, too
                os.kill(warm, signal.SIGCONT)
            await until(lambda pid=warm: state_of(pid) in ("gone", "Z"))
            assert await run(box, what) != warm
            await idle(box)
        assert await still_up(box)


@pytest.mark.asyncio
async def test_an_environment_that_dies_as_its_work_arrives_harms_no_other(
    tmp_path: Path,
) -> None:
    """The kernel's word of a death may come before or after the one of its closed connection."""
    async with sandbox(tmp_path) as box:
        what = spec(tmp_path, PID)
        for _ in range(10):
            warm = await run(box, what)
            await idle(box)
            os.kill(warm, signal.SIGKILL)
            outcome, _ = await box.invoke(what, "request", "{}")
            assert not outcome.error, outcome.payload
        assert await still_up(box)


@pytest.mark.asyncio
async def test_an_unexpected_error_is_a_failure_of_one_invocation(tmp_path: Path) -> None:
    """A handler that a program's arguments cannot carry raises what no rule names."""
    async with sandbox(tmp_path) as box:
        error = await fail(box, spec(tmp_path, PID, handler="app\0.handle"))
        assert error["errorType"] == "Sandbox.Failure"
        assert await run(box, spec(tmp_path, PID))
        assert await still_up(box)


@pytest.mark.asyncio
async def test_an_environment_that_is_being_ended_takes_no_work(tmp_path: Path) -> None:
    slow = "import os, time\ndef handle(e, c):\n    time.sleep(1)\n    return os.getpid()"
    async with sandbox(tmp_path) as box:
        what = spec(tmp_path, slow)
        pids = await asyncio.gather(*(run(box, what) for _ in range(3)))
        await idle(box)
        box.pool.idle_s_max = 0.0
        sweep = asyncio.create_task(box.sweep())
        await asyncio.sleep(0)
        assert await run(box, what) not in pids
        await sweep
        assert await still_up(box)


@pytest.mark.asyncio
async def test_an_end_that_fails_is_repeated_until_nothing_of_it_is_left(tmp_path: Path) -> None:
    """Without a free descriptor the table of processes cannot be read."""
    async with sandbox(tmp_path) as box:
        pid = await run(box, spec(tmp_path, PID))
        await idle(box)
        await until(lambda: state_of(pid) == "T")
        box.pool.idle_s_max = 0.0
        with no_free_descriptor():
            sweep = asyncio.create_task(box.sweep())
            await asyncio.sleep(0.5)
        await sweep
        await until(lambda: state_of(pid) == "gone")
        assert not box._live


@contextlib.contextmanager
def no_free_descriptor() -> Iterator[None]:
    """Use up the descriptors of this process."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                used.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for descriptor in used:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
