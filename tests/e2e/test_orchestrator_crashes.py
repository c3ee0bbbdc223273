"""`kill -9` of the orchestrator at every step: the job finishes once and nothing is left."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from corekit.budget import Budget
from tests.e2e.live import COPY, DEVICE, FunctionSpec, Live, until

CRASHING = str(Path(__file__).with_name("crashing_orchestrator.py"))
POINTS = {
    "received": "before:ReadInput",
    "reserved": "after:OpenAttempt:AttemptGranted",
    "packed": "packed",
    "staged": "after:StageEnvelope",
    "recorded": "after:RecordStaged",
    "started": "on:LeaseChanged:ACTIVE",
    "ended": "on:LeaseChanged:ENDED",
    "committed": "after:ReadResult:Result",
    "finished": "after:FinishJob",
    "before delete": "before:DeleteMessages",
    "after delete": "after:DeleteMessages",
}
#: One of each kind of work that a replica takes over: a message, a promise, a staged job, a result,
#: and what is left of a finished job. The rest is for `make soak`.
ADOPTED = ("received", "reserved", "staged", "committed", "before delete")
#: The same of a job without a device, which has no lease.
POINTS_WITHOUT = {"opened": "after:OpenAttempt:AttemptOpened"} | {
    name: POINTS[name]
    for name in (
        "received",
        "packed",
        "staged",
        "recorded",
        "committed",
        "finished",
        "before delete",
    )
}
ADOPTED_WITHOUT = ("opened", "staged", "committed")
CRASHES = [
    *(pytest.param("crash", point, id=name) for name, point in POINTS.items()),
    *(
        pytest.param(
            "plain",
            point,
            id=f"{name}, without a device",
            marks=[] if name in ADOPTED_WITHOUT else pytest.mark.soak,
        )
        for name, point in POINTS_WITHOUT.items()
    ),
]
HOLD = """#!/bin/sh
sleep 2
cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"
"""
FUNCTIONS = {
    "crash": FunctionSpec(DEVICE),
    "plain": FunctionSpec(COPY, gpu=None),
    "holder": FunctionSpec(HOLD, gpu={"sharing": "exclusive", "count": 2}),
    "waiter": FunctionSpec(COPY, gpu={"sharing": "exclusive", "count": 2}),
}


@pytest.fixture(scope="module", autouse=True)
def _deployed(live: Live) -> None:
    live.deploy(FUNCTIONS)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "crashed"


@pytest.fixture(autouse=True)
def _no_orchestrator_left(live: Live) -> Iterator[None]:
    yield
    for name in [n for n in live.children if n.startswith("orchestrator")]:
        live.children[name].kill()
        live.wait(name)


def crashing(live: Live, name: str, point: str, marker: Path) -> None:
    command = (sys.executable, CRASHING, point, str(marker))
    live.start(name, "orchestrator", command)


@pytest.mark.parametrize(("function", "point"), CRASHES)
def test_a_restarted_orchestrator_resumes(
    live: Live, function: str, point: str, marker: Path
) -> None:
    crashing(live, "orchestrator-1", point, marker)
    job = live.upload(function, f"{point}.txt", b"data")
    assert live.wait("orchestrator-1") == -9
    live.start("orchestrator-2", "orchestrator")
    result = live.result(function, job)
    assert (result.state, len(result.files)) == ("SUCCEEDED", 1)
    live.quiet(function)
    assert live.messages(function, "dlq") == 0
    assert live.terminate("orchestrator-2") == 0


def test_an_orchestrator_that_starts_first_waits_for_the_cloud(live: Live) -> None:
    live.terminate("cloud")
    live._spawn("orchestrator-1", "orchestrator")
    until("a line", lambda: "the cloud cannot be reached" in live.log("orchestrator-1"))
    assert live.children["orchestrator-1"].poll() is None
    live.start("cloud")
    live._await("orchestrator-1")
    job = live.upload("crash", "late.txt", b"data")
    assert live.result("crash", job).state == "SUCCEEDED"
    live.quiet("crash")
    assert live.terminate("orchestrator-1") == 0


def test_a_job_that_kills_four_orchestrators_while_they_pack_is_poison(
    live: Live, tmp_path: Path
) -> None:
    """Five that die of packing; the fifth adopts the job and does not even try."""
    names = [f"orchestrator-{number}" for number in range(5)]
    for name in names:
        crashing(live, name, "packed", tmp_path / name)
    job = live.upload("crash", "poison.txt", b"data")
    result = live.result("crash", job)
    assert (result.state, result.reason) == ("FAILED", "POISON"), result
    live.quiet("crash")
    assert live.take_dead_letters("crash") == [(job, "POISON")]
    (survivor,) = [name for name in names if not (tmp_path / name).exists()]
    for name in names:
        assert (live.terminate(name) if name == survivor else live.wait(name)) in (0, -9)


def test_the_neighbours_of_a_poison_job_are_not_struck_with_it(live: Live, tmp_path: Path) -> None:
    """Eight are packed at once; each orchestrator dies of one of them, again and again."""
    keys = [f"{number}.neighbour" for number in range(7)]
    poison = live.upload("crash", "fatal", b"data")
    jobs = [live.upload("crash", key, b"data") for key in keys]
    deaths = 0
    while deaths < 12:
        name = f"orchestrator-{deaths}"
        crashing(live, name, "packing:fatal", tmp_path / "none")
        process = live.children[name]

        def settled() -> bool:
            died = process.poll() is not None  # noqa: B023 - called before the next one starts
            return died or live.messages("crash") == 0

        until("a death, or the end of all jobs", settled)
        if live.messages("crash") == 0:
            break
        assert live.wait(name) == -9
        deaths += 1
    assert live.result("crash", poison).reason == "POISON"
    assert [live.result("crash", job).state for job in jobs] == ["SUCCEEDED"] * len(jobs)
    live.quiet("crash")
    assert live.take_dead_letters("crash") == [(poison, "POISON")]
    assert live.terminate(name) == 0


@pytest.mark.soak
def test_orchestrators_that_are_starved_strike_no_job(live: Live) -> None:
    """Stopped again and again, longer than their sessions last, while they pack; none has ended."""
    names = [f"orchestrator-{number}" for number in range(3)]
    for name in names:
        live.start(name, "orchestrator")
    stream, jobs = random.Random(33), []
    gone_s = Budget().scaled(1 / 20).client_gone_s
    for number in range(40):
        jobs += [live.upload("crash", f"starved-{number}-{n}.txt") for n in range(3)]
        time.sleep(stream.uniform(0.0, 0.3))  # some of them are being packed now
        stopped = stream.sample(names, stream.choice((1, 2, 3)))
        for name in stopped:
            live.signal(name, signal.SIGSTOP)
        time.sleep(gone_s * stream.choice((1.5, 3.0)))
        for name in stopped:
            live.signal(name, signal.SIGCONT)
    outcomes = Counter(live.result("crash", job, within_s=180.0).reason for job in jobs)
    assert set(outcomes) == {"NONE"}, outcomes
    live.quiet("crash", within_s=180.0)
    for name in names:
        assert live.terminate(name) == 0


def _crashed_within(live: Live, within_s: float) -> bool:
    try:
        until("a crash", lambda: live.children["orchestrator-1"].poll() is not None, within_s)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_waiting_job_keeps_its_place(live: Live, marker: Path, replicas: int) -> None:
    crashing(live, "orchestrator-1", "after:OpenAttempt:AttemptWaiting", marker)
    if replicas == 2:
        live.start("orchestrator-2", "orchestrator")
    jobs = []
    for number in range(20):  # until one of them waits in the replica that crashes
        function = "waiter" if number else "holder"
        jobs.append((function, live.upload(function, f"{replicas}-{number}.txt")))
        if number == 0:
            until("the devices taken", live.leases)
        elif _crashed_within(live, 0.5):
            break
    assert marker.exists(), "no job waited in the replica that crashes"
    assert live.wait("orchestrator-1") == -9
    if replicas == 1:
        live.start("orchestrator-2", "orchestrator")
    for function, job in jobs:
        assert live.result(function, job).state == "SUCCEEDED"
    live.quiet("holder", "waiter")


@pytest.fixture(scope="module")
def replica(live: Live) -> Iterator[None]:
    """One that never crashes, for all tests below."""
    live.start("replica", "orchestrator")
    yield
    assert live.terminate("replica") == 0


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, id=name, marks=[] if name in ADOPTED else pytest.mark.soak)
        for name, point in POINTS.items()
    ],
)
def test_a_second_replica_resumes_without_a_restart(
    live: Live, replica: None, point: str, marker: Path
) -> None:
    crashing(live, "orchestrator-1", point, marker)
    jobs = []
    for number in range(40):  # until one of them reaches the replica that crashes
        jobs.append(live.upload("crash", f"second {point} {number}.txt", b"data"))
        if _crashed_within(live, 0.5):
            break
    assert marker.exists(), "no job reached the crash point"
    live.wait("orchestrator-1")
    states = [live.result("crash", job).state for job in jobs]
    assert states == ["SUCCEEDED"] * len(jobs)
    live.quiet("crash")
    assert live.messages("crash", "dlq") == 0
