"""Endpoints: runs that answer calls over a real gpud."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from contract.envelope import Job
from contract.parameters import ENDPOINT
from contract.states import JobState
from fdl.parse import parse
from gpu_scheduler.protocol.host import Install
from orchgpu.deploy.package import build
from remote_gpu.client.transport.handshake import open_connection
from remote_gpu.wire import calls
from remote_gpu.wire.calls import Message
from remote_gpu.wire.channel import Channel
from remote_gpu.wire.connection import parse_access
from remote_gpu.wire.errors import Refused
from remote_gpu.wire.proof import ConnectionRole
from remote_gpu.wire.runs import Package

from .conftest import Gpud, running_gpud, until
from .run_bench import FUNCTION, Bench, bench_in, send_order
from .test_gpud_runs import finished, nothing_left

PROGRAM = """
import os
import time
import orchgpu

def load():
    return {"pid": os.getpid(), "calls": 0}

@orchgpu.function(input="input/a", output="output/res", load=load)
def work(work, loaded):
    loaded["calls"] += 1
    asked = work.input.read_text()
    if asked == "stream":
        return parts()
    if asked == "raise":
        raise ValueError("out of luck")
    if asked == "die":
        os._exit(7)
    if asked == "hang":
        time.sleep(60)
    if asked == "meet":
        meet(work.output_folder.parents[1] / "meeting")  # returns when another call does so, too
    if asked == "two":
        (work.output_folder / "b.txt").write_text("b")
    if asked != "nothing":
        text = f"{asked} {loaded['calls']} {loaded['pid']}"
        (work.output_folder / f"{work.input.stem}.txt").write_text(text)

def meet(place):
    try:
        place.touch(exist_ok=False)
    except FileExistsError:
        place.unlink()
    while place.exists():
        time.sleep(0.01)

def parts():
    yield "one "
    yield b"x" * (1 << 21)
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench_in(tmp_path_factory.mktemp("cloud")) as made:
        yield made


@pytest.fixture(scope="module")
def gpud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpud]:
    with running_gpud(tmp_path_factory.mktemp("gpud")) as made:
        yield made
        nothing_left(made)


@pytest.fixture(scope="module")
def package(bench: Bench) -> Package:
    (bench.folder / "prog.py").write_text(PROGRAM)
    text = f"functions: {{aws: [{{lambda: {{name: {FUNCTION}, handler: prog.work}}}}]}}"
    built = build(parse(text).functions.aws[0], bench.folder)
    key = f"packages/{built.sha256}.zip"
    bench.s3.put_object(Bucket="state", Key=key, Body=built.data)
    return Package(bucket="state", key=key, sha256=hashlib.sha256(built.data).hexdigest())


def opened(
    gpud: Gpud,
    bench: Bench,
    package: Package,
    idle_s: float = 30.0,
    call_s: float = 20.0,
    calls_max: int = 1,
) -> tuple[Install, Job]:
    install = gpud.install()
    job, event = bench.stage(gpud, install, metadata={ENDPOINT: "1"})
    variables = {
        "ORCHGPU_MODE": "job",
        "ORCHGPU_HANDLER": "prog.work",
        "ORCHGPU_ENDPOINT_IDLE_S": str(idle_s),
        "ORCHGPU_ENDPOINT_CALL_S": str(call_s),
        "ORCHGPU_ENDPOINT_CALLS_MAX": str(calls_max),
    }
    assert send_order(
        gpud, install, bench.order(job, event, package, variables=variables, called=True)
    )
    return install, job


@contextmanager
def caller(gpud: Gpud, install: Install) -> Iterator[Channel]:
    access = parse_access(gpud.connection(install)).hosts[0]
    stream, channel, _ = open_connection(
        access,
        role=ConnectionRole.CALLS,
        lease=install.lease,
        fence=install.fence,
        session=secrets.token_hex(16),
        timeout_s=60.0,
    )
    with closing(stream):
        channel.limits = calls.CALLS
        ready = calls.receive(channel)
        assert ready is not None
        assert ready.kind == "ready"
        yield channel


def called(channel: Channel, text: str) -> list[Message]:
    calls.send(channel, Message(kind="call", name="in.txt", content=text.encode()))
    found: list[Message] = []
    while not found or found[-1].kind == "part":
        received = calls.receive(channel)
        assert received is not None
        found.append(received)
    return found


def texts(channel: Channel, asked: str) -> list[str]:
    (answer,) = called(channel, asked)
    assert (answer.kind, answer.name) == ("answer", "in.txt"), answer
    return answer.content.decode().split()


def test_one_process_answers_call_after_call(gpud: Gpud, bench: Bench, package: Package) -> None:
    install, job = opened(gpud, bench, package, idle_s=2.0)
    with caller(gpud, install) as one, caller(gpud, install) as two:
        first, second = texts(one, "hello"), texts(two, "again")
        assert (first[:2], second[:2]) == (["hello", "1"], ["again", "2"])
        assert first[2] == second[2]
        *parts, answer = called(one, "stream")
        content = b"".join(part.content for part in parts)
        assert content == b"one " + b"x" * (1 << 21)
        assert answer == Message(kind="answer")
        assert called(one, "nothing") == [Message(kind="answer")]
        (failed,) = called(two, "two")
        assert (failed.code, "2 files" in failed.message) == ("failed", True)
        assert calls.receive(one) is None  # it had no call for two seconds
    result = finished(gpud, bench, install, job)
    assert (result.state, result.document) == (JobState.SUCCEEDED, {"calls": 5}), result
    until(lambda: gpud.scheduler.is_cut(install.lease))


def test_a_call_that_fails_is_the_only_one(gpud: Gpud, bench: Bench, package: Package) -> None:
    install, job = opened(gpud, bench, package, call_s=1.0, idle_s=2.0)
    with caller(gpud, install) as channel:
        process = texts(channel, "hello")[2]
        (raised,) = called(channel, "raise")
        assert raised.code == "failed"
        assert raised.message.endswith("ValueError: out of luck")
        assert texts(channel, "hello")[1:] == ["3", process]  # the process stayed
        (died,) = called(channel, "die")
        assert (died.code, "ended with 7" in died.message) == ("failed", True)
        assert texts(channel, "hello")[1] == "1"  # another one
        (hung,) = called(channel, "hang")
        assert hung.code == "timeout"
        assert texts(channel, "hello")[1] == "1"
    assert finished(gpud, bench, install, job).state == JobState.SUCCEEDED


def test_calls_run_side_by_side_in_processes_of_their_own(
    gpud: Gpud, bench: Bench, package: Package
) -> None:
    install, job = opened(gpud, bench, package, calls_max=2, idle_s=2.0)
    with caller(gpud, install) as one, caller(gpud, install) as two:
        for _ in range(2):
            calls.send(one, Message(kind="call", name="in.txt", content=b"meet"))
            met = texts(two, "meet")
            beside = calls.receive(one)
            assert beside is not None
            assert beside.content.decode().split()[2] != met[2]
        calls.send(one, Message(kind="call", name="in.txt", content=b"meet"))
        (died,) = called(two, "die")
        assert (died.code, "ended with 7" in died.message) == ("failed", True)
        assert texts(two, "meet")[1] == "1"  # by a new process
        assert calls.receive(one) is not None
    assert finished(gpud, bench, install, job).document == {"calls": 7}


def test_the_end_of_its_lease_ends_the_callers(gpud: Gpud, bench: Bench, package: Package) -> None:
    install, _ = opened(gpud, bench, package)
    with caller(gpud, install) as channel:
        calls.send(channel, Message(kind="call", name="in.txt", content=b"hang"))
        time.sleep(0.2)
        gpud.scheduler.end(install)
        last = calls.receive(channel)
        assert last is None or last.code == "unavailable"
    until(lambda: gpud.scheduler.is_cut(install.lease))


def test_an_ordinary_run_takes_no_calls(gpud: Gpud, bench: Bench) -> None:
    install, job = bench.run(gpud, "#!/bin/sh\nsleep 1\n")
    with pytest.raises(Refused, match="takes calls"), caller(gpud, install):
        pass
    finished(gpud, bench, install, job)
