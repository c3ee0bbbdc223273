"""Every command of `ssgm` against a real ssgmd: output, effect, exit status."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpu_scheduler.client import client
from gpu_scheduler.parameters import NAMES
from remote_gpu.client.transport.readiness import readable
from tests.integration.conftest import until
from tests.integration.ssgm.conftest import Lab, run_ssgm


def test_a_lease_is_taken_shown_and_given_back(lab: Lab) -> None:
    impossible = lab.json("dry-run", "-g", "2")  # nobody enforces a lease there
    assert impossible["outcome"] == "impossible"
    assert impossible["explanation"]["counts"] == {"ADVISORY": 2}
    assert lab.json("dry-run", "-g", "2", "--advisory")["outcome"] == "granted"
    words = ("-g", "1", "-m", "4GiB", "--advisory", "--attempt", "mine", "--lease-length", "2m")
    lease = lab.json("alloc", *words)["granted"]["lease"]
    assert lease["shares"][0]["memory_mib"] == 4096
    again = lab.json("alloc", *words)["granted"]["lease"]
    assert again["id"] == lease["id"], "the same attempt is answered the same"
    assert [found["id"] for found in lab.json("leases")["leases"]] == [lease["id"]]
    assert lab.json("dealloc", lease["id"], "lease-unknown")["released"] == [
        lease["id"],
        "lease-unknown",
    ]
    assert lab.json("leases") == {"leases": [], "ends_in_s": {}, "more": False}
    assert lab.json("queue") == {"queue": [], "left_out": 0}


def test_busy_and_impossible_have_their_own_status(lab: Lab) -> None:
    lab.json("drain", "k80")
    try:
        busy = lab.json("alloc", "--advisory", status=6)
        assert busy["explanation"]["counts"] == {"DRAINED": 2}
        assert lab.ssgm("devices").stdout.splitlines()[1].split()[4] == "DRAINED"
    finally:
        lab.json("undrain", "k80")
    assert lab.json("alloc", "-g", "3", "--advisory", status=7)["outcome"] == "impossible"
    said = lab.ssgm("alloc", "-g", "3", "--advisory")
    assert (said.returncode, said.stderr) == (7, "")
    assert re.match(r"impossible: .*the largest fit is 2 × cuda with 12288 MiB", said.stdout)


def test_a_lease_is_renewed_resized_and_transferred(lab: Lab) -> None:
    lease = lab.take("-m", "1GiB", "--compute-guarantee", "20", "--lease-length", "1m")
    assert lab.json("renew", lease, "--lease-length", "2h")["lease_s"] == 7200.0
    too_long = lab.json("renew", lease, "--lease-length", "30d", status=2)["error"]["message"]
    assert "lease_s_max" in too_long
    resized = lab.json("resize", lease, "40 %")["lease"]
    assert [share["compute_limit_pct"] for share in resized["shares"]] == [40]
    assert "20…100" in lab.ssgm("resize", lease, "10").stderr
    assert lab.json("transfer", lease, "session-other")["lease"]["id"] == lease
    for command in (("renew",), ("resize", "50"), ("transfer", "session-other")):
        arguments = (command[0], "lease-of-yore", *command[1:])
        assert lab.ssgm(*arguments).returncode == 3, arguments


def test_eight_eighths_share_a_device_and_the_ninth_is_busy(lab: Lab) -> None:
    """The 8-way row of the KNIX paper, by its declaration, through the daemon and its journal."""
    eighth = ("-m", "12.5%", "--compute-guarantee", "12.5", "--advisory")
    leases = [lab.json("alloc", *eighth)["granted"]["lease"] for _ in range(8)]
    (first,) = {share["device"] for lease in leases for share in lease["shares"]}
    shares = [share for lease in leases for share in lease["shares"]]
    assert {(share["memory_mib"], share["compute_guarantee_pct"]) for share in shares} == {
        (12288 // 8, 12.5)
    }
    views = {
        view["device"]["id"]: view
        for host in lab.json("hosts")["hosts"]
        for view in host["devices"]
    }
    assert (views[first]["memory_free_mib"], views[first]["compute_free_pct"]) == (0, 0)
    assert "compute 12.5 to 100 %" in lab.ssgm("leases").stdout
    assert lab.json("alloc", *eighth)["granted"]["lease"]["shares"][0]["device"] != first
    for _ in range(7):
        lab.take(*eighth[:-1])
    busy = lab.json("alloc", *eighth, status=6)
    assert busy["explanation"]["counts"] == {"MEMORY": 2}
    assert (
        "1 × device with 12.5 % memory, 12.5 % compute must wait" in busy["explanation"]["sentence"]
    )


def test_long_lists_come_in_pages(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ITEMS_PER_PAGE", 1)  # of devices or shares
    taken = [lab.take("--attempt", f"one-{n}") for n in range(3)]
    found = lab.json("leases")
    assert [lease["id"] for lease in found["leases"]] == taken
    assert list(found["ends_in_s"]) == taken
    (host,) = lab.json("hosts")["hosts"]
    assert len(host["devices"]) == 2, "a host is not split"


def test_one_device_is_drained_by_its_name(lab: Lab) -> None:
    lease = lab.take("--attempt", "victim")
    (share,) = lab.json("leases")["leases"][0]["shares"]
    name = f"k80/{share['index']}"
    lab.json("drain", name, "--revoke")
    try:
        assert lab.json("leases")["leases"] == [], lease
        dry = lab.json("dry-run", "-g", "2", "--advisory")
        assert (dry["outcome"], dry["explanation"]["counts"]["DRAINED"]) == ("waiting", 1)
    finally:
        lab.json("undrain", name)
    assert lab.json("dry-run", "-g", "2", "--advisory")["outcome"] == "granted"
    assert "no device k80/7 is known" in lab.ssgm("drain", "k80/7").stderr


def test_rules_are_shown_and_changed(lab: Lab) -> None:
    everything = lab.json("get")["parameters"]
    assert {"policy", "aging_s", "bypass_max", "leases_max"} <= set(everything)
    assert lab.json("get", "policy") == {"parameters": {"policy": "fifo"}, "overridden": []}
    changed = lab.json("set", "quota.genomics.devices", "1")
    assert changed == {
        "parameters": {"quota.genomics.devices": 1},
        "overridden": ["quota.genomics.devices"],
    }
    try:
        lab.take("--tenant", "genomics")
        lab.json("alloc", "--advisory", "--tenant", "genomics", status=6)
        assert lab.take("--tenant", "others")
    finally:
        lab.json("set", "quota.genomics.devices", "default")
    assert lab.json("get", "quota.genomics.devices")["parameters"] == {
        "quota.genomics.devices": None
    }
    assert lab.json("set", "aging_s", "2m")["parameters"] == {"aging_s": 120.0}
    rows = [line.split() for line in lab.ssgm("get").stdout.splitlines()]
    assert rows[0] == ["PARAMETER", "VALUE", "SOURCE"]
    assert ["aging_s", "120", "set"] in rows
    assert ["policy", "fifo", "configured"] in rows
    assert lab.ssgm("set", "aging_s", "default").returncode == 0


def test_parameters_of_policies_have_one_name_and_a_value(lab: Lab) -> None:
    name = "policy.fair_sticky.patience_s"
    unset = {"parameters": {name: 5.0}, "overridden": []}
    assert lab.json("get", name) == unset
    assert lab.json("get", "policy.fair-sticky.patience_s") == unset
    try:
        changed = lab.json("set", "policy.fair-sticky.patience_s", "2m")
        assert changed == {"parameters": {name: 120.0}, "overridden": [name]}
        assert lab.json("get", name) == changed
    finally:
        assert lab.json("set", name, "default") == unset
    for wrong in ("policy.fair_sticky.patience", "policy.stiky.patience_s"):
        assert lab.ssgm("get", wrong).returncode == 2
        assert lab.ssgm("set", wrong, "1").returncode == 2
    text = lab.ssgm("get", "--help").stdout
    assert all(one.removeprefix("key_").removeprefix("tenant_") in text for one in NAMES)


def test_tables_for_people(lab: Lab) -> None:
    assert lab.ssgm("leases").stdout == "no live leases\n"
    assert lab.ssgm("queue").stdout == "queue is empty\n"
    lease = lab.take("-m", "4GiB")
    head, row = lab.ssgm("hosts").stdout.splitlines()
    assert head.split()[:5] == ["HOST", "STATE", "GATEWAY", "DEVICES", "LEASES"]
    assert row.split()[:5] == ["k80", "UP", "none", "2", "1"]
    head, first, second = lab.ssgm("devices").stdout.splitlines()
    assert head.split()[:4] == ["DEVICE", "KIND", "MODEL", "STATE"]
    assert {first.split()[0], second.split()[0]} == {"k80/0", "k80/1"}
    assert "8192 of 12288" in first + second
    assert lease in lab.ssgm("leases").stdout


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        (("alloc", "--memory", "4 parsecs"), 2, "--memory: '4 parsecs' is not a memory size"),
        (("alloc", "-g", "0"), 2, "count 0 must lie in 1…64"),
        (("alloc", "--kinds", "gpu"), 2, "--kinds: 'gpu' is not one of cuda, opencl, cpu, vpu"),
        (("drain", "nowhere"), 3, "nowhere"),
        (("explain", "nothing"), 3, "is waiting, granted or recently refused"),
        (("forget", "k80"), 4, "k80"),
        (("leases", "--timeout", "soon"), 2, "'soon' is not a duration"),
        (("get", "polcy"), 2, "parameter 'polcy' is unknown; did you mean 'policy'?"),
        (("set", "bypass_max", "-1"), 2, "bypass_max"),
        (
            ("resize", "lease-1", "much"),
            2,
            "PERCENT: 'much' is not a percentage; write a number such as 25 or 12.5",
        ),
        (
            ("set", "policy", "random"),
            2,
            "'random' is not an installed policy; installed are fifo, affinity, backfill",
        ),
    ],
)
def test_an_error_is_one_line_and_one_object(
    lab: Lab, arguments: tuple[str, ...], status: int, why: str
) -> None:
    said = lab.ssgm(*arguments)
    assert (said.returncode, said.stdout) == (status, "")
    assert said.stderr.startswith("ssgm: ")
    assert why in said.stderr
    assert said.stderr.count("\n") == 1
    assert why in lab.json(*arguments, status=status)["error"]["message"]


def test_a_wrong_command_line_ends_with_2_in_both_forms(lab: Lab) -> None:
    said = lab.ssgm("drain")
    assert (said.returncode, said.stdout) == (2, "")
    assert "Missing argument 'HOST[/INDEX]'" in said.stderr
    assert lab.json("drain", status=2)["error"]["code"] == "invalid"


def test_an_unreachable_scheduler_is_reported_with_its_status(nobody: str) -> None:
    done = run_ssgm("leases", "--scheduler", nobody, "--timeout", "200ms")
    assert (done.returncode, done.stdout) == (8, "")
    assert "is ssgmd up?" in done.stderr


def test_every_command_has_help_with_an_example() -> None:
    names = re.findall(r"(?m)^  ([a-z-]+)  ", run_ssgm("--help").stdout.partition("Leases:")[2])
    assert {"alloc", "dealloc", "renew", "leases", "hosts", "queue", "explain"} <= set(names)
    for name in names:
        said = run_ssgm(name, "--help")
        assert said.returncode == 0
        assert f"Example: ssgm {name}" in said.stdout


@contextmanager
def started(
    lab: Lab, *arguments: str, env: dict[str, str] | None = None, **how: Any
) -> Iterator[subprocess.Popen[str]]:
    """`ssgm` as a process, for what needs signals or a terminal."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_scheduler.client", *arguments, "--scheduler", lab.scheduler],
        env={**lab.programs.environment, **(env or {})},
        text=True,
        **how,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def waiting(lab: Lab) -> list[Any]:
    found: list[Any] = lab.json("queue")["queue"]
    return found


def test_a_waiter_gets_the_device_by_the_release(lab: Lab) -> None:
    lease = lab.take("-g", "2", "--sharing", "exclusive")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    wanted = ("alloc", "--advisory", "--wait", "--json", "--attempt", "patient")
    with started(lab, *wanted, **pipes) as waiter:
        until("it waits", lambda: len(waiting(lab)) == 1)
        why = lab.ssgm("explain", "patient").stdout
        assert why.startswith("waiting: number 1 in the queue")
        assert "2 allocated exclusively" in why
        assert "patient" in lab.ssgm("queue").stdout
        lab.ssgm("dealloc", lease)
        out, err = waiter.communicate(timeout=60)
    assert json.loads(out)["outcome"] == "granted"
    assert err.startswith("ssgm: waiting: "), "elsewhere than on a terminal it is told once"
    assert err.count("\n") == 1
    assert lab.json("explain", "patient")["outcome"] == "granted"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_wait_leaves_no_request(lab: Lab, number: int) -> None:
    lab.take("-g", "2", "--sharing", "exclusive")
    with started(lab, "alloc", "--advisory", "--wait", stderr=subprocess.PIPE) as waiter:
        until("it waits", lambda: len(waiting(lab)) == 1)
        waiter.send_signal(number)
        _, err = waiter.communicate(timeout=60)
        assert waiting(lab) == [], "withdrawn before the program ended"
    assert waiter.returncode == 130
    assert err.endswith("ssgm: interrupted\n")


def shown(terminal: int, needle: bytes) -> bytes:
    """What a terminal shows until it has shown these bytes."""
    seen = b""
    while needle not in seen:
        assert readable((terminal,), 60), seen
        seen += os.read(terminal, 4096)
    return seen


def test_progress_and_colour_on_a_terminal_unless_no_color(lab: Lab) -> None:
    lease = lab.take("-g", "2", "--sharing", "exclusive")
    ours, theirs = pty.openpty()
    try:
        wanted = ("alloc", "--advisory", "--wait", "--attempt", "seen")
        terminal = {"TERM": "xterm"}
        with started(lab, *wanted, stdout=theirs, stderr=theirs, env=terminal) as waiter:
            until("it waits", lambda: len(waiting(lab)) == 1)
            assert b"\rwaiting " in shown(ours, b"number 1 in the queue")
            lab.ssgm("dealloc", lease)
            assert waiter.wait(timeout=60) == 0
        with started(lab, "leases", stdout=theirs) as process:
            assert process.wait(timeout=60) == 0
        shown(ours, b"\x1b[32mACTIVE\x1b[0m")
        with started(lab, "devices", stdout=theirs, env={"NO_COLOR": "1"}) as process:
            assert process.wait(timeout=60) == 0
        assert b"\x1b" not in shown(ours, b"k80/1").partition(b"DEVICE ")[2]
    finally:
        os.close(ours)
        os.close(theirs)


def test_events_are_printed_as_they_happen(lab: Lab) -> None:
    pipe: dict[str, Any] = {"stdout": subprocess.PIPE}
    with started(lab, "events", "--count", "2", "--json", **pipe) as watcher:
        assert watcher.stdout is not None
        assert json.loads(watcher.stdout.readline())["event"] == "connected"
        # its `watch` may still be under way: lend and give back until both changes were seen
        while watcher.poll() is None:
            lab.ssgm("dealloc", lab.take())
        lines = [json.loads(line) for line in watcher.stdout.read().splitlines()]
    assert [line["event"] for line in lines] == ["lease", "lease"]
    assert {line["state"] for line in lines} == {"ACTIVE", "ENDED"}
    assert lines[0]["device"].startswith("k80/")


def test_every_event_is_sent_by_the_http_endpoint(lab: Lab) -> None:
    pipe: dict[str, Any] = {"stdout": subprocess.PIPE}
    with started(lab, "events", "--http", lab.http, **pipe) as watcher:
        output = watcher.stdout
        assert output is not None
        told: list[list[str]] = []

        def seen(*words: str) -> None:
            """Read on until a line has these words."""
            while not told or told[-1][: len(words)] != list(words):
                told.append(output.readline().split())

        seen("started", "epoch")
        seen("host", "k80", "UP")
        seen("device", "k80")
        lease = lab.take("-g", "2", "--sharing", "exclusive")
        seen("lease", lease, "ACTIVE")
        lab.ssgm("drain", "k80")
        seen("host", "k80", "DRAINED")
        lab.ssgm("undrain", "k80")
        lab.ssgm("set", "aging_s", "90")
        seen("parameter", "aging_s")
        lab.ssgm("set", "aging_s", "default")
        lab.ssgm("dealloc", lease)
        seen("lease", lease, "ENDED", "RELEASED")


def test_an_unreachable_http_endpoint_is_reported(lab: Lab, nobody: str) -> None:
    said = lab.ssgm("events", "--http", nobody)
    assert (said.returncode, said.stdout) == (8, "")
    assert "is ssgmd up?" in said.stderr


def test_a_closed_pipe_is_not_an_error(lab: Lab) -> None:
    with started(lab, "events", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watcher:
        assert watcher.stdout is not None
        watcher.stdout.readline()
        watcher.stdout.close()
        while watcher.poll() is None:
            lab.ssgm("dealloc", lab.take())
        assert watcher.returncode == 141
        assert watcher.stderr is not None
        assert watcher.stderr.read() == ""
