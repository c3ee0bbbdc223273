"""A stopped and a killed scheduler, a host that is lost, and a job that waits without blocking."""

from __future__ import annotations

import json
import signal
import time

import pytest

from tests.e2e.live import FunctionSpec, Live, until
from tests.lease_overlaps import read_overlaps

SLEEP = """#!/bin/sh
sleep {}
cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"
"""
ONE = {"sharing": "exclusive"}
FUNCTIONS = {
    "short": FunctionSpec(SLEEP.format(0.3), gpu=ONE),
    "long": FunctionSpec(SLEEP.format(3), gpu=ONE),
    "both": FunctionSpec(SLEEP.format(0.3), gpu={**ONE, "count": 2}),
    "small": FunctionSpec(SLEEP.format(0.1)),
}


@pytest.fixture(scope="module", autouse=True)
def _deployed(live: Live) -> None:
    live.deploy(FUNCTIONS)
    live.start("orchestrator")


def _no_overlap(live: Live) -> None:
    for host in ("gpu-a", "gpu-b"):
        lines = (live.home.state(host) / "leases.jsonl").read_text().splitlines()
        devices = {s["device"] for line in lines for s in json.loads(line)["shares"]}
        assert devices, f"{host} had no lease"
        assert read_overlaps(lines, dict.fromkeys(devices, 2048)) == []


def test_jobs_survive_a_scheduler_that_is_stopped_for_long(live: Live) -> None:
    running = live.upload("long", "a.txt")
    until("a session", lambda: any(lease["state"] == "ACTIVE" for lease in live.leases()))
    live.signal("scheduler", signal.SIGSTOP)
    waiting = live.upload("short", "b.txt")
    time.sleep(1.0)  # 20 s at the scale of these tests: beyond every beat
    live.signal("scheduler", signal.SIGCONT)
    assert live.result("long", running).state == "SUCCEEDED"
    assert live.result("short", waiting).state == "SUCCEEDED"
    live.quiet("long", "short")


def test_a_killed_scheduler_recovers_its_leases_from_the_journal(live: Live) -> None:
    running = live.upload("long", "c.txt")
    until("a session", lambda: any(lease["state"] == "ACTIVE" for lease in live.leases()))
    (before,) = live.leases()
    epoch = live.ready["scheduler"]["epoch"]
    live.kill("scheduler")
    waiting = live.upload("short", "d.txt")
    live.start("scheduler")
    assert live.ready["scheduler"]["epoch"] > epoch
    result = live.result("long", running)
    assert (result.state, result.attempt) == ("SUCCEEDED", 1)
    assert live.result("short", waiting).state == "SUCCEEDED"
    live.quiet("long", "short")
    again = live.upload("small", "e.txt")
    assert live.result("small", again).state == "SUCCEEDED"
    fences = [
        json.loads(line)["fence"]
        for host in ("gpu-a", "gpu-b")
        for line in (live.home.state(host) / "leases.jsonl").read_text().splitlines()
    ]
    assert max(fences) > before["fence"]


def test_no_share_of_a_host_that_was_lost_is_double_booked(live: Live) -> None:
    job = live.upload("long", "f.txt")
    (lease,) = until(
        "a session", lambda: [held for held in live.leases() if held["state"] == "ACTIVE"]
    )
    host = lease["shares"][0]["host"]
    live.signal(host, signal.SIGSTOP)
    others = [live.upload("short", f"while {n}.txt") for n in range(3)]
    until(f"{host} is LOST", lambda: live.host_state(host) == "LOST")
    until("the end of its lease", lambda: lease["id"] not in [held["id"] for held in live.leases()])
    live.signal(host, signal.SIGCONT)
    for other in others:
        assert live.result("short", other).state == "SUCCEEDED"
    assert live.result("long", job).state == "SUCCEEDED"
    live.quiet("long", "short")
    _no_overlap(live)


def test_a_waiting_job_does_not_hold_back_another_that_fits(live: Live) -> None:
    holder = live.upload("long", "g.txt")
    until("a device taken", lambda: live.leases())
    blocked = live.upload("both", "h.txt")  # needs both devices: waits for the holder
    until("a waiting job", lambda: live.scheduler("queue")["queue"])
    fits = live.upload("small", "i.txt")
    assert live.result("small", fits).state == "SUCCEEDED"
    assert live.client("s3").list_objects_v2(Bucket="both-out")["KeyCount"] == 0
    assert live.result("long", holder).state == "SUCCEEDED"
    result = live.result("both", blocked)
    assert result.state == "SUCCEEDED", result
    live.quiet("long", "both", "small")
    _no_overlap(live)
