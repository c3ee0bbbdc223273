"""`orchgpu demo` and `orchgpu up` for real: what a person who just installed it will do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchgpu.local.child import birth_of
from tests import weather
from tests.e2e.live import until

ROOT = Path(__file__).resolve().parents[2]
#: Two cores, shared with the rest of a test run.
DEMO_WITHIN_S = 110
STEPS = {"RECEIVED", "RESERVED", "STAGED", "RUNNING", "COMMITTED", "ENDED"}
MOMENTS = ("RStart", "NStart", "EStart", "EEnd", "NEnd", "REnd")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Temporary files and the local system go where the test can see what is left."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    return {
        **os.environ,
        "TMPDIR": str(temporary),
        "PYTHONPATH": str(ROOT),
        "ORCHGPU_HOME": str(tmp_path / "home"),
        **weather.environment(),
    }


def start(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "orchgpu", *arguments],
        env=environment,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], within_s: float = DEMO_WITHIN_S) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, out, err


def processes_naming(text: str) -> list[str]:
    """Command lines of this machine's processes that contain the text."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line and entry.name != str(os.getpid()):
            found.append(line)
    return found


def assert_clean(environment: dict[str, str]) -> None:
    assert list(Path(environment["TMPDIR"]).iterdir()) == []
    assert processes_naming(environment["TMPDIR"]) == []


def assert_good(shown: dict[str, Any]) -> None:
    assert shown["leases_left"] == shown["messages_left"] == shown["dead_letters"] == 0
    assert shown["processes_left"] == []
    jobs = shown["jobs"]
    assert len(jobs) >= 3
    assert {job["function"] for job in jobs} == {"sequence-search", "text-recognition"}
    for job in jobs:
        assert (job["state"], job["reason"]) == ("SUCCEEDED", "NONE"), job
        assert job["job_id"].startswith("j")
        assert job["device"]["kind"] == "cpu"
        assert job["outputs"]
        assert all(len(o["sha256"]) == 64 and o["size"] > 0 for o in job["outputs"])
        moments = [job["timeline"][name] for name in MOMENTS]
        assert moments == sorted(moments), job["timeline"]
        assert moments[0] == 0.0
        assert set(job["timeline"]["steps"]) >= STEPS


#: Of a person with an account of AWS, which the demo must not touch.
ACCOUNT = {"AWS_PROFILE": "no-such-profile", "AWS_ACCESS_KEY_ID": "AKIAOFSOMEBODYELSE"}


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "persons", [[ACCOUNT], pytest.param([{}, ACCOUNT], marks=pytest.mark.soak)], ids=["one", "two"]
)
def test_demos_finish_their_jobs_and_leave_nothing(
    environment: dict[str, str], persons: list[dict[str, str]]
) -> None:
    demos = [start({**environment, **own}, "demo", "--json") for own in persons]
    ended = [finish(demo, 200) for demo in demos]
    for status, out, err in ended:
        assert status == 0, err
        assert_good(json.loads(out))
    assert_clean(environment)


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_the_demo_on_moto_finishes_the_same_jobs(environment: dict[str, str]) -> None:
    environment = {**environment, "ORCHGPU_WEATHER": ""}  # moto has none
    status, out, err = finish(start(environment, "demo", "--cloud", "moto", "--json"), 180)
    assert status == 0, err
    assert_good(json.loads(out))
    assert_clean(environment)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_demo_that_is_ended_early_leaves_nothing(
    environment: dict[str, str], number: signal.Signals
) -> None:
    demo = start(environment, "demo")
    assert demo.stderr is not None
    while "gpu-" not in demo.stderr.readline():
        assert demo.poll() is None
    demo.send_signal(number)
    status, _, err = finish(demo, 60)
    if number is signal.SIGINT:
        assert status == 130
        assert "interrupted" in err
    until("everything gone", lambda: not processes_naming(environment["TMPDIR"]))
    assert_clean(environment)


@pytest.fixture
def up(environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    status, out, err = finish(start(environment, "up", "--detach", "--json"))
    assert status == 0, err
    yield json.loads(out)
    finish(start(environment, "down"))
    until("everything gone", lambda: not processes_naming(environment["ORCHGPU_HOME"]))


def orchgpu(environment: dict[str, str], *arguments: str) -> tuple[int, str, str]:
    return finish(start(environment, *arguments))


def shown_processes(environment: dict[str, str]) -> dict[str, dict[str, Any]]:
    _, out, _ = orchgpu(environment, "status", "--json")
    return {process["name"]: process for process in json.loads(out)["processes"]}


@pytest.mark.timeout(240)
def test_a_dead_program_comes_back_and_a_killed_supervisor_takes_all_along(
    environment: dict[str, str], up: dict[str, Any]
) -> None:
    before = shown_processes(environment)
    for name in ("gpu-b", "cloud", "scheduler"):
        os.kill(before[name]["pid"], signal.SIGKILL)

    def revived() -> bool:
        now = shown_processes(environment)
        return all(p["healthy"] for p in now.values()) and now["cloud"]["restarts"] == 1

    until("all of it again", revived)
    after = shown_processes(environment)
    for name in ("gpu-b", "cloud", "scheduler"):
        assert after[name]["pid"] != before[name]["pid"]
        assert after[name]["address"] == before[name]["address"]
    assert (after["orchestrator"]["pid"], after["orchestrator"]["restarts"]) == (
        before["orchestrator"]["pid"],
        0,
    )

    def sound() -> dict[str, Any] | None:  # the host is known again, once it has reported
        status, out, _ = orchgpu(environment, "doctor", "--json")
        found: dict[str, Any] = json.loads(out)
        return found if status == 0 else None

    said = {f["check"]: f["message"] for f in until("health", sound)["findings"]}
    assert "restarts since the start: " in said["local system"]
    assert "gpu-b 1" in said["local system"]
    home = Path(environment["ORCHGPU_HOME"])
    os.kill(json.loads((home / "system.json").read_text())["supervisor_pid"], signal.SIGKILL)
    pids = [process["pid"] for process in (*up["processes"], *after.values())]
    until("all programs gone", lambda: not any(birth_of(pid) for pid in pids))
    status, _, err = orchgpu(environment, "status")
    assert (status, "orchgpu up" in err) == (8, True)


def up_without_reader(
    environment: dict[str, str], *options: str, merged: bool = True
) -> subprocess.Popen[bytes]:
    """`orchgpu up | head -c 1`. `merged`: its standard error too has that reader."""
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "orchgpu", "up", *options],
        env=environment,
        cwd="/",
        stdout=write,
        stderr=write if merged else subprocess.DEVNULL,
    )
    os.close(write)
    assert os.read(read, 1)
    os.close(read)
    return process


def running_system(environment: dict[str, str]) -> dict[str, Any]:
    record = (Path(environment["ORCHGPU_HOME"]) / "system.json").read_text()
    return dict(json.loads(record))


def detached_without_reader(environment: dict[str, str], *, merged: bool) -> dict[str, Any]:
    """A detached system stays when its reader leaves; its record, after `orchgpu down`."""
    status = up_without_reader(environment, "--detach", merged=merged).wait(DEMO_WITHIN_S)
    processes = shown_processes(environment)
    system = running_system(environment)
    session = os.getsid(system["supervisor_pid"])
    assert orchgpu(environment, "down")[0] == 0
    assert status == 0
    assert all(process["healthy"] for process in processes.values()), processes
    assert session == system["supervisor_pid"]
    return system


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.parametrize("merged", [False, True], ids=["stdout", "stdout and stderr"])
def test_readers_that_leave_take_no_detached_system_down(
    environment: dict[str, str], *, merged: bool
) -> None:
    """Several times, since a race might decide."""
    for _ in range(5):
        detached_without_reader(environment, merged=merged)


@pytest.mark.timeout(240)
def test_a_system_serves_though_its_reader_left_and_the_next_has_its_ports(
    environment: dict[str, str],
) -> None:
    """The first is detached, the second attached."""
    before = detached_without_reader(environment, merged=True)
    process = up_without_reader(environment)
    until("the system", (Path(environment["ORCHGPU_HOME"]) / "system.json").exists)
    assert all(p["healthy"] for p in shown_processes(environment).values())
    after = running_system(environment)
    endpoints = ("endpoint", "scheduler", "scheduler_http", "console")
    assert [after[name] for name in endpoints] == [before[name] for name in endpoints]
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    until("everything gone", lambda: not processes_naming(environment["ORCHGPU_HOME"]))


def test_a_system_that_verifies_signatures_runs_a_job(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """The key pair reaches every program, the function and the commands by itself."""
    status, out, err = orchgpu(
        environment, "up", "--detach", "--json", "--verify-signatures", "--allow-host", "a.example"
    )
    assert status == 0, err
    try:
        started = json.loads(out)
        assert set(started["credentials"]) == {"access_key", "secret_key"}
        example = ROOT / "fdl/examples/sequence-search"
        assert orchgpu(environment, "deploy", str(example / "fdl.yaml"))[0] == 0
        command = ("run", "sequence-search", str(example / "input/kinase.fasta"), "--wait")
        status, _, err = orchgpu(environment, *command, "--output", str(tmp_path / "out"))
        assert status == 0, err
        assert [p for p in (tmp_path / "out").rglob("*.tsv") if p.stat().st_size]
        for host in ("a.example", "b.example"):  # unsigned; foreign
            request = urllib.request.Request(started["endpoints"]["aws"], headers={"Host": host})
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(request, timeout=60)
            with error.value as answer:
                assert answer.code == 403
                assert (b"--allow-host b.example" in answer.read()) == (host == "b.example")
    finally:
        finish(start(environment, "down"))
    until("everything gone", lambda: not processes_naming(environment["ORCHGPU_HOME"]))


def test_moto_verifies_no_signatures(environment: dict[str, str]) -> None:
    status, _, err = orchgpu(environment, "up", "--cloud", "moto", "--verify-signatures")
    assert (status, "--cloud embedded" in err) == (2, True)


def test_a_start_that_fails_ends_with_the_failed_program(environment: dict[str, str]) -> None:
    status, _, err = orchgpu(environment, "up", "--program", "x=/no/such")
    assert status == 8
    assert "--program x: /no/such is not an executable file" in err
    assert "ended with status 2; its log: " in err.splitlines()[-1]
    assert_clean(environment)
