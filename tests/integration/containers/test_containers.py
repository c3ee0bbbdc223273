"""Containers of runs: what the code in them gets, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from lambda_functions.gpu_runner.script import container
from remote_gpu.host.containers.command import Runtime
from remote_gpu.host.containers.serving import RunContainer
from tests.integration.containers.conftest import USER, Hosted, hosted
from tests.leaks import no_task_left

pytestmark = pytest.mark.asyncio


@no_task_left
async def test_a_command_gets_its_variables_input_and_output(
    runtime: Runtime, archive: bytes, tmp_path: Path
) -> None:
    async with hosted(runtime, archive, tmp_path) as on:
        async with on.run(on.order("copy")) as one:
            for name in ("input", "output"):
                (one.folder / name).mkdir()
                os.chown(one.folder / name, USER, USER)
            (one.folder / "input" / "a").write_text("content")
            variables = {
                "INPUT_FILE_PATH": str(one.folder / "input" / "a"),
                "TMP_OUTPUT_DIR": str(one.folder / "output"),
            }
            assert (await on.whole(one, variables)).status == 0
            copy = one.folder / "output" / "copy"
            assert copy.read_text() == "content"
            assert copy.stat().st_uid == USER
        async with on.run(on.order("env")) as one:
            ran = await on.whole(one, {"EVENT": '{"a": "b=c # d"}', "EMPTY": ""})
        shown = ran.output.splitlines()
        assert 'EVENT={"a": "b=c # d"}' in shown
        assert "EMPTY=" in shown
        assert "CUDA_VISIBLE_DEVICES=" in shown
        assert not [line for line in shown if line.startswith(("LD_", "TESTS_OF", "CONTAINERS_"))]


@no_task_left
async def test_the_end_of_the_command_is_the_runs(
    runtime: Runtime, archive: bytes, tmp_path: Path
) -> None:
    async with hosted(runtime, archive, tmp_path) as on:
        assert (await on.ran("exit", "3")).status == 3
        absent = await on.ran(command=("/absent",))
        assert absent.status != 0
        assert "/absent" in absent.output or "No such file" in absent.output
        ran = await on.ran("memory")
        assert ran.status == -signal.SIGKILL  # read as OUT_OF_MEMORY: the runner's own tests
        twice = await on.ran("exit", "0")
        assert twice.status == 0


@no_task_left
async def test_a_stopped_and_a_killed_client_end_the_container(
    runtime: Runtime, archive: bytes, tmp_path: Path
) -> None:
    async with hosted(runtime, archive, tmp_path) as on:
        async with on.run(on.order("wait")) as one:
            process = await _waiting(on, one)
            process.terminate()
            assert await process.wait() == 128 + signal.SIGTERM
        async with on.run(on.order("ignore")) as one:
            process = await _waiting(on, one)
            process.terminate()
            process.kill()
            await process.wait()
            while await on.containers():  # noqa: ASYNC110 - the host removes it now
                await asyncio.sleep(0.05)


@no_task_left
async def test_the_end_of_a_lease_kills_the_container(
    runtime: Runtime, archive: bytes, tmp_path: Path
) -> None:
    async with hosted(runtime, archive, tmp_path) as on:
        async with on.run(on.order("ignore")) as one:
            process = await _waiting(on, one)
            assert one.pid is not None
            assert Path(f"/proc/{one.pid}").exists()
        assert await process.wait() != 0


@no_task_left
async def test_leftovers_of_a_killed_gpud_are_removed(
    runtime: Runtime, archive: bytes, tmp_path: Path
) -> None:
    async with hosted(runtime, archive, tmp_path) as on:
        await on.host.podman.call("create", "--name=orchgpu-left", on.image, "/program", limit_s=30)
        (on.host.folder / "run-left").mkdir()
        await on.host.open()
        assert await on.containers() == []
        assert not (on.host.folder / "run-left").exists()


@no_task_left
async def test_a_run_has_one_container_in_its_own_folder(
    runtime: Runtime, archive: bytes, tmp_path: Path
) -> None:
    async with hosted(runtime, archive, tmp_path) as on:
        async with on.run(on.order("exit", "0")) as one:
            assert (await on.whole(one)).status == 0
            second = await on.whole(one)
            assert "the run has had its container" in second.output
        async with on.run(on.order("exit", "0")) as one:
            unprepared = await on.started(one)
            output, _ = await unprepared.communicate()
            assert b"has not prepared its image" in output
        async with on.run(on.order("exit", "0")) as one:
            lines = await on.whole(one, {"A": "one\ntwo"})
            assert "line break" in lines.output


async def _waiting(on: Hosted, one: RunContainer) -> asyncio.subprocess.Process:
    await asyncio.to_thread(container.prepare, one.descriptor, 30, lambda *_: Path())
    process = await on.started(one)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"waiting\n"
    return process
