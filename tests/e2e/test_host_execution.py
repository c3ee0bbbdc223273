"""Functions that run on the host of their device: a file through the whole system, and kills."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_gpu.isolation import probe
from tests.e2e.live import DEVICE, FunctionSpec, Live, get, live_system, until
from tests.e2e.test_orchestrator_crashes import CRASHING

SLOW = """#!/bin/sh
sleep 1
cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"
"""
LOADING_S = 2.0
WARM = f"""# python
import os, time
import orchgpu

def load():
    time.sleep({LOADING_S})
    return os.getpid()

@orchgpu.function(input="warm-in", output="warm-out", load=load)
def work(work, loaded):
    (work.output_folder / "pid.txt").write_text(str(loaded))
"""
HANDLER = {"name": "warm", "handler": "warm.work", "memory": 512, "output": [{"path": "warm-out"}]}
FUNCTIONS = {
    "host": FunctionSpec(DEVICE, timeout=1200, more={"execution": "host"}),
    "slow": FunctionSpec(SLOW, more={"execution": "auto"}),
    "warm": FunctionSpec(
        WARM, more={"lambda": HANDLER, "execution": "host", "host": {"warm": True}}
    ),
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A runner on a host starts in a second of real work; the usual scale leaves it seven."""
    with live_system(tmp_path_factory.mktemp("live"), scale="0.3") as system:
        system.start_all(orchestrators=())
        yield system


@pytest.fixture(scope="module", autouse=True)
def _deployed(live: Live) -> None:
    live.deploy(FUNCTIONS)


@pytest.fixture(autouse=True)
def _no_orchestrator_left(live: Live) -> Iterator[None]:
    yield
    for name in [n for n in live.children if n.startswith("orchestrator")]:
        live.children[name].kill()
        live.wait(name)


def names_of(live: Live) -> list[str]:
    found = live.client("lambda").list_functions()["Functions"]
    return [str(one["FunctionName"]) for one in found]


def test_a_file_becomes_a_result_without_a_lambda_function(live: Live) -> None:
    assert names_of(live) == ["slow"]  # of `auto` alone
    live.start("orchestrator")
    job = live.upload("host", "in.txt", b"data")
    result = live.result("host", job)
    assert (result.state, len(result.files)) == ("SUCCEEDED", 1), result
    function = result.provenance["function"]
    assert isinstance(function, dict)
    assert function["place"] == "host"
    live.quiet("host")


def test_its_place_and_its_log_are_shown(live: Live) -> None:
    live.start("orchestrator")
    job = live.upload("host", "shown.txt", b"data")
    live.result("host", job)
    live.quiet("host")
    shown = " ".join(live.orchgpu("job", job).split())
    assert "it ran in host gpu-" in shown
    assert "it is declared so" in shown
    assert f"{job}, attempt" in live.orchgpu("logs", job)


def residents(live: Live) -> list[object]:
    hosts = live.scheduler("inventory")["hosts"]
    return [one for host in hosts for view in host["devices"] for one in view["residents"]]


def test_the_second_job_starts_in_the_program_that_the_first_one_loaded(live: Live) -> None:
    if not probe.ask([]).cgroup:
        pytest.skip("NOT TESTED: this machine has no cgroups of version 2, which freeze programs")
    live.start("orchestrator")

    def served(key: str) -> tuple[float, bytes | None]:
        """Seconds from the start of the user's code to its end, and the process."""
        result = live.result("warm", live.upload("warm", key))
        assert result.state == "SUCCEEDED", result
        live.quiet("warm")
        (file,) = result.files
        body = get(live.client("s3"), "warm-out", str(file["key"]))
        return result.times["EEnd"] - result.times["EStart"], body

    loads_s, first = served("first.txt")
    until("a program is parked", lambda: residents(live))
    warm_s, second = served("second.txt")
    assert first == second
    assert loads_s >= LOADING_S
    assert warm_s <= loads_s / 5


@pytest.mark.parametrize("point", ["before:OrderRun", "after:OrderRun:RunOrdered"])
def test_an_adopter_repeats_the_order(live: Live, point: str, tmp_path: Path) -> None:
    command = (sys.executable, CRASHING, point, str(tmp_path / "crashed"))
    live.start("orchestrator-1", "orchestrator", command)
    job = live.upload("host", f"{point}.txt", b"data")
    assert live.wait("orchestrator-1") == -9
    live.start("orchestrator-2", "orchestrator")
    result = live.result("host", job)
    assert (result.state, result.attempt) == ("SUCCEEDED", 1), result
    live.quiet("host")
    assert live.messages("host", "dlq") == 0


def test_auto_runs_in_lambda_what_fits_there(live: Live) -> None:
    live.start("orchestrator")
    job = live.upload("slow", "in.txt", b"data")
    result = live.result("slow", job)
    function = result.provenance["function"]
    assert isinstance(function, dict)
    assert (result.state, function["place"]) == ("SUCCEEDED", "lambda")
    live.quiet("slow")


@pytest.mark.timeout(300)  # three deploys and removals on a loaded machine
def test_the_ways_of_a_function_are_compared(live: Live, tmp_path: Path) -> None:
    live.start("orchestrator")
    (tmp_path / "in.txt").write_bytes(b"data")
    (tmp_path / "way.py").write_text(DEVICE)
    entry = FunctionSpec(DEVICE).entry("way", "way.py")
    (tmp_path / "fdl.yaml").write_text(json.dumps({"functions": {"aws": [entry]}}))
    shown = live.orchgpu("compare", "--json", str(tmp_path / "fdl.yaml"), str(tmp_path / "in.txt"))
    found = json.loads(shown)
    remote, host, cpu = found["ways"]
    assert not remote["why"] + host["why"], found
    for one in (remote["mean"], host["mean"]):
        assert one["total_s"] > one["code_s"] > 0
        assert (one["input_bytes"], one["output_bytes"]) == (4, 4)
        assert one["usd"] > 0
    assert cpu["mean"] is None  # its script needs the device
    assert "EXIT_NONZERO" in cpu["why"]
    assert found["auto"] == {"place": "lambda", "why": "it fits Lambda"}
    assert names_of(live) == ["slow"]  # the variants are removed
