"""`ssgm` and `ssgm-monitor` against a real ssgmd: golden transcripts, staleness, placement."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

K80 = "kind: cuda, model: Tesla K80, memory_mib: 12GiB"


@pytest.fixture
def scheduler(programs: Any) -> str:
    """An ssgmd with one watched host of two devices."""
    address: str = programs.ssgmd().wait_ready()["socket"]
    programs.monitor(address, "k80", programs.inventory("k80.yaml", K80, K80)).wait_ready()
    return address


def classic(programs: Any, address: str, *arguments: str) -> Any:
    host, _, port = address.rpartition(":")
    return programs.ssgm("-S", host, "-P", port, *arguments)


def hosts(programs: Any, address: str) -> dict[str, Any]:
    done = programs.ssgm("hosts", "--json", "--scheduler", address)
    assert done.returncode == 0, done.stderr
    return {host["host"]: host for host in json.loads(done.stdout)["hosts"]}


def wait_for(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_the_classic_transcript(programs: Any, scheduler: str) -> None:
    """What the published orchestrator reads: the line, by position."""
    done = classic(programs, scheduler, "-alloc", "-g", "2")
    golden = (
        r"SSGM_ERROR=0;JOB=(lease-\w+);RCUDA_DEVICE_COUNT=2;"
        r"RCUDA_DEVICE_0=k80:0;RCUDA_DEVICE_1=k80:1;\n"
    )
    match = re.fullmatch(golden, done.stdout)
    assert match, done.stdout
    assert (done.returncode, done.stderr) == (0, "")
    busy = classic(programs, scheduler, "-alloc", "-g", "1")
    assert (busy.returncode, busy.stdout) == (0, "SSGM_ERROR=2;\n")
    impossible = classic(programs, scheduler, "-alloc", "-g", "3")
    assert (impossible.returncode, impossible.stdout) == (0, "SSGM_ERROR=1;\n")
    assert "largest fit" in impossible.stderr
    for _ in range(2):  # giving back twice is no error
        back = classic(programs, scheduler, "-dealloc", "-j", match[1])
        assert (back.returncode, back.stdout) == (0, "SSGM_ERROR=0;\n")
    shared = classic(programs, scheduler, "-alloc", "-g", "1", "-m", "1024")
    assert shared.stdout.startswith("SSGM_ERROR=0;")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("-alloc", "-g", "many"), "invalid int value"),
        (("-alloc", "-g", "0"), "count 0 must lie in"),
        (("-g", "1"), "one of the arguments -alloc -dealloc is required"),
        (("-dealloc",), "-dealloc needs -j ID"),
    ],
)
def test_a_wrong_classic_line_is_a_bad_request(
    programs: Any, arguments: tuple[str, ...], why: str
) -> None:
    done = classic(programs, "127.0.0.1:1", *arguments)
    assert (done.returncode, done.stdout) == (2, "SSGM_ERROR=1;\n")
    assert why in done.stderr


def test_nobody_there_is_said_and_ends_with_its_status(programs: Any) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*unused.getsockname())
    done = classic(programs, address, "-alloc")
    assert (done.returncode, done.stdout) == (8, "SSGM_ERROR=1;\n")
    assert "is ssgmd up?" in done.stderr
    done = programs.ssgm("leases", "--scheduler", address)
    assert (done.returncode, done.stdout) == (8, "")


def test_commands_for_people(programs: Any, scheduler: str) -> None:
    def ask(*arguments: str, status: int = 0) -> Any:
        done = programs.ssgm(*arguments, "--json", "--scheduler", scheduler)
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout)

    assert ask("dry-run", "-g", "2", "--advisory")["outcome"] == "granted"
    impossible = ask("dry-run", "-g", "2")  # nobody enforces a lease there
    assert impossible["explanation"]["counts"] == {"ADVISORY": 2}
    taken = ask("alloc", "-g", "1", "-m", "4GiB", "--advisory", "--attempt", "mine")
    lease = taken["granted"]["lease"]
    assert lease["shares"][0]["memory_mib"] == 4096
    again = ask("alloc", "-g", "1", "-m", "4GiB", "--advisory", "--attempt", "mine")
    assert again["granted"]["lease"]["id"] == lease["id"]
    assert [found["id"] for found in ask("leases")["leases"]] == [lease["id"]]
    ask("drain", "k80")
    busy = ask("alloc", "--advisory", status=6)
    assert busy["explanation"]["counts"] == {"DRAINED": 2}
    ask("undrain", "k80")
    ask("dealloc", lease["id"])
    assert ask("leases") == {"leases": []}
    assert ask("queue") == {"queue": []}
    table = programs.ssgm("hosts", "--scheduler", scheduler).stdout.splitlines()
    assert table[0].split()[:3] == ["HOST", "STATE", "DEVICE"]
    assert table[1].split()[:3] == ["k80", "UP", "0"]


def test_a_waiter_gets_the_device_by_the_release(programs: Any, scheduler: str) -> None:
    first = classic(programs, scheduler, "-alloc", "-g", "2")
    lease = first.stdout.split(";")[1].removeprefix("JOB=")
    waiter = subprocess.Popen(
        [sys.executable, "-m", "gpu_scheduler.client", "alloc", "--advisory", "--wait", "--json",
         "--scheduler", scheduler],
        env=programs.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:

        def queued() -> bool:
            done = programs.ssgm("queue", "--json", "--scheduler", scheduler)
            return len(json.loads(done.stdout)["queue"]) == 1

        wait_for(queued)
        classic(programs, scheduler, "-dealloc", "-j", lease)
        out, _ = waiter.communicate(timeout=20)
    finally:
        waiter.kill()
        waiter.wait()
    assert json.loads(out)["outcome"] == "granted"


def test_a_silent_monitor_goes_stale_and_comes_back(programs: Any) -> None:
    address = programs.ssgmd().wait_ready()["socket"]
    monitor = programs.monitor(address, "k80", programs.inventory("k80.yaml", K80))
    monitor.wait_ready()
    assert hosts(programs, address)["k80"]["state"] == "UP"
    monitor.process.send_signal(signal.SIGSTOP)
    wait_for(lambda: hosts(programs, address)["k80"]["state"] == "LOST")
    refused = programs.ssgm("alloc", "--advisory", "--json", "--scheduler", address)
    assert refused.returncode == 6
    assert json.loads(refused.stdout)["outcome"] == "busy", "known, hence not impossible"
    monitor.process.send_signal(signal.SIGCONT)
    wait_for(lambda: hosts(programs, address)["k80"]["state"] == "UP")
    assert monitor.terminate() == 0


def test_an_edited_inventory_is_reported_in_real_time(programs: Any) -> None:
    address = programs.ssgmd().wait_ready()["socket"]
    monitor = programs.monitor(address, "k80", programs.inventory("k80.yaml", K80))
    monitor.wait_ready()
    programs.inventory("k80.yaml", K80, "kind: cuda, model: V100, memory_mib: 32GiB")
    wait_for(lambda: len(hosts(programs, address)["k80"]["devices"]) == 2)
    (programs.folder / "k80.yaml").write_text("devices: [oops]")

    def all_bad() -> bool:
        devices = hosts(programs, address)["k80"]["devices"]
        return not any(view["device"]["health"] == "OK" for view in devices)

    wait_for(all_bad)
    detail = hosts(programs, address)["k80"]["devices"][0]["device"]["detail"]
    assert "expected an object" in detail
    programs.inventory("k80.yaml", K80, "kind: cuda, model: V100, memory_mib: 32GiB")
    wait_for(lambda: not all_bad())


def test_a_monitor_needs_exactly_one_source(programs: Any) -> None:
    monitor = programs.start(
        "gpu_scheduler.monitor", "--scheduler", "127.0.0.1:1", "--host-id", "h"
    )
    assert monitor.process.wait(timeout=20) == 2
    assert "exactly one of --inventory" in monitor.log.read_text()


def test_events_are_told_as_they_happen(programs: Any, scheduler: str) -> None:
    watcher = subprocess.Popen(
        [sys.executable, "-m", "gpu_scheduler.client", "events", "--count", "2", "--json",
         "--scheduler", scheduler],
        env=programs.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert watcher.stdout is not None
        assert json.loads(watcher.stdout.readline())["event"] == "Connected"
        # its `watch` may still be under way: lend and give back until both changes were seen
        lines: list[dict[str, Any]] = []
        while watcher.poll() is None:
            taken = classic(programs, scheduler, "-alloc", "-g", "1")
            lease = taken.stdout.split(";")[1].removeprefix("JOB=")
            classic(programs, scheduler, "-dealloc", "-j", lease)
        lines = [json.loads(line) for line in watcher.stdout.read().splitlines()]
    finally:
        watcher.kill()
        watcher.wait()
        assert watcher.stdout is not None
        watcher.stdout.close()
    assert [line["event"] for line in lines] == ["LeasePush", "LeasePush"]
    assert {line["state"] for line in lines} == {"ACTIVE", "ENDED"}
    assert lines[0]["device"].startswith("k80/")


def test_a_waiting_request_over_http_is_asked_again_until_it_is_granted(programs: Any) -> None:
    ready = programs.ssgmd().wait_ready()
    programs.monitor(ready["socket"], "k80", programs.inventory("k.yaml", K80)).wait_ready()

    def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{ready['http']}/v1/{path}", data=data, method=method
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())

    whole = {"sharing": "exclusive", "advisory": True}
    held = ask("POST", "reserve", {"attempt": "a", "request": whole})[1]
    wanted = {"attempt": "b", "request": whole, "wait": True}
    status, value = ask("POST", "reserve", wanted)
    assert (status, value["outcome"]) == (202, "waiting")
    assert value["explanation"]["position"] == 1
    ask("DELETE", f"leases/{held['granted']['lease']['id']}")
    status, value = ask("POST", "reserve", wanted)
    assert (status, value["outcome"]) == (200, "granted")
