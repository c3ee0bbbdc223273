"""Containers of runs: what the code in them gets, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from lambda_functions.gpu_runner.script import container
from remote_gpu.host.containers.command import DATA_FOLDER, name_of
from remote_gpu.host.containers.serving import RunContainer, open_containers, run_folder
from tests.integration.containers.conftest import GROUP, USER, Hosted
from tests.leaks import no_task_left

pytestmark = pytest.mark.asyncio


@no_task_left
async def test_a_command_gets_its_variables_input_and_output(hosted: Hosted) -> None:
    async with hosted.run(hosted.order("copy")) as one:
        for name in ("input", "output"):
            (one.folder / name).mkdir()
            os.chown(one.folder / name, USER, GROUP)
        (one.folder / "input" / "a").write_text("content")
        variables = {
            "INPUT_FILE_PATH": str(one.folder / "input" / "a"),
            "TMP_OUTPUT_DIR": str(one.folder / "output"),
        }
        assert (await hosted.whole(one, variables)).status == 0
        copy = one.folder / "output" / "copy"
        assert copy.read_text() == "content"
        assert copy.stat().st_uid == USER
    async with hosted.run(hosted.order("env")) as one:
        ran = await hosted.whole(one, {"EVENT": '{"a": "b=c # d"}', "EMPTY": ""})
    shown = ran.output.splitlines()
    assert 'EVENT={"a": "b=c # d"}' in shown
    assert "EMPTY=" in shown
    assert "CUDA_VISIBLE_DEVICES=" in shown
    assert not [line for line in shown if line.startswith(("LD_", "TESTS_OF", "CONTAINERS_"))]


@no_task_left
async def test_a_command_reads_the_declared_data_sets(hosted: Hosted, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    weights.chmod(0o777)
    (weights / "part-0").write_text("a part")
    async with hosted.run(hosted.order("copy"), weights=weights) as one:
        (one.folder / "output").mkdir()
        os.chown(one.folder / "output", USER, GROUP)
        variables = {
            "INPUT_FILE_PATH": f"{DATA_FOLDER}/weights/part-0",
            "TMP_OUTPUT_DIR": str(one.folder / "output"),
        }
        assert (await hosted.whole(one, variables)).status == 0
        assert (one.folder / "output" / "copy").read_text() == "a part"
    async with hosted.run(hosted.order("copy"), weights=weights) as one:
        variables["TMP_OUTPUT_DIR"] = f"{DATA_FOLDER}/weights"
        assert (await hosted.whole(one, variables)).status != 0
    async with hosted.run(hosted.order("env"), weights=weights) as one:
        ran = await hosted.whole(one, {})
    assert f"DATA_DIR={DATA_FOLDER}" in ran.output.splitlines()
    assert [path.name for path in weights.iterdir()] == ["part-0"]


@no_task_left
async def test_the_end_of_the_command_is_the_runs(hosted: Hosted) -> None:
    assert (await hosted.ran("exit", "3")).status == 3
    absent = await hosted.ran(command=("/absent",))
    assert absent.status != 0
    assert "/absent" in absent.output or "No such file" in absent.output
    ran = await hosted.ran("memory")
    assert ran.status == -signal.SIGKILL  # read as OUT_OF_MEMORY: the runner's own tests
    twice = await hosted.ran("exit", "0")
    assert twice.status == 0


@no_task_left
async def test_a_stopped_and_a_killed_client_end_the_container(hosted: Hosted) -> None:
    async with hosted.run(hosted.order("wait")) as one:
        process = await _waiting(hosted, one)
        process.terminate()
        assert await process.wait() == 128 + signal.SIGTERM
    async with hosted.run(hosted.order("ignore")) as one:
        process = await _waiting(hosted, one)
        process.terminate()
        process.kill()
        await process.wait()
        while await hosted.containers():  # noqa: ASYNC110 - the host removes it now
            await asyncio.sleep(0.05)


@no_task_left
@pytest.mark.parametrize("stopped", ["runner", "podman"])
async def test_a_stopped_program_has_its_time_and_status(hosted: Hosted, stopped: str) -> None:
    async with hosted.run(hosted.order("finish")) as one:
        process = await _waiting(hosted, one)
        os.kill(process.pid if stopped == "runner" else _podman_of(hosted), signal.SIGTERM)
        assert await process.wait() == 7


@no_task_left
async def test_the_end_of_a_lease_kills_the_container(hosted: Hosted) -> None:
    async with hosted.run(hosted.order("ignore")) as one:
        process = await _waiting(hosted, one)
    assert await process.wait() != 0


@no_task_left
async def test_leftovers_of_a_killed_gpud_are_removed(hosted: Hosted) -> None:
    await hosted.host.podman.call(
        "create", "--name=orchgpu-left", hosted.image, "/program", limit_s=30
    )
    (hosted.host.folder / "run-left").mkdir()
    await hosted.host.open()
    assert await hosted.containers() == []
    assert not (hosted.host.folder / "run-left").exists()


@no_task_left
async def test_images_have_a_network_by_the_operators_decision_alone(tmp_path: Path) -> None:
    closed, why = await open_containers(tmp_path, 1 << 20)
    if closed is None:
        pytest.skip(f"NOT TESTED: containers; {why}")
    opened, _ = await open_containers(tmp_path, 1 << 20, network=True)
    assert "--images-network" in closed.runtime.network_refused
    assert opened is not None
    assert "--images-network" not in opened.runtime.network_refused
    await opened.close()
    shutil.rmtree(run_folder(tmp_path))


@no_task_left
async def test_a_run_has_one_container_in_its_own_folder(hosted: Hosted) -> None:
    async with hosted.run(hosted.order("exit", "0")) as one:
        assert (await hosted.whole(one)).status == 0
        second = await hosted.whole(one)
        assert "the run has had its container" in second.output
    async with hosted.run(hosted.order("exit", "0")) as one:
        unprepared = await hosted.started(one)
        output, _ = await unprepared.communicate()
        assert b"has not prepared its image" in output
    async with hosted.run(hosted.order("exit", "0")) as one:
        lines = await hosted.whole(one, {"A": "one\ntwo"})
        assert "line break" in lines.output


def _podman_of(hosted: Hosted) -> int:
    """The process that the host has started for the container, without root the first of two."""
    name = f"--name={name_of(hosted.lease)}".encode()
    of_threads = [one.read_text().split() for one in Path("/proc/self/task").glob("*/children")]
    (found,) = (
        int(child)
        for children in of_threads
        for child in children
        if name in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
    )
    return found


async def _waiting(hosted: Hosted, one: RunContainer) -> asyncio.subprocess.Process:
    await asyncio.to_thread(container.prepare, one.descriptor, 30, lambda *_: Path())
    process = await hosted.started(one)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"waiting\n"
    return process
