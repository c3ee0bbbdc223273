"""Two real hosts, one of which has a program: where its jobs run, and what results tell."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.provenance import RELEASE
from tests.e2e.live import FunctionSpec, Live, live_system
from tests.unit.cli.test_cli_provenance import check

PROGRAM = Path("/usr/bin/tr")
OPERATIONS = ("--operation", "noop", "--operation", "exec")
SCRIPT = """#!/usr/bin/env python3
import os, pathlib
import remote_gpu.client as gpu
text = pathlib.Path(os.environ["INPUT_FILE_PATH"]).read_bytes()
with gpu.connect() as device:
    loud = device.op("exec", text, program="PROGRAM").buffers[0]
pathlib.Path(os.environ["TMP_OUTPUT_DIR"], "loud.txt").write_bytes(loud)
"""
SHOUTS = SCRIPT.replace("PROGRAM", "shout")
ONE = {"attempts": 1}  #: a failure that counts ends the job


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    options = {"gpu-b": ("--program", f"shout={PROGRAM} a-z A-Z")}
    folder = tmp_path_factory.mktemp("live")
    with live_system(folder, host_options=OPERATIONS, own_host_options=options) as system:
        system.start_all()
        yield system


def test_jobs_that_declare_the_program_run_where_it_is(live: Live) -> None:
    live.deploy({"declared": FunctionSpec(SHOUTS, gpu={"programs": ["shout"]}, job=ONE)})
    jobs = [live.upload("declared", f"{n}.txt") for n in range(4)]
    results = [live.result("declared", job) for job in jobs]
    assert {(one.state, one.attempt) for one in results} == {("SUCCEEDED", 1)}
    assert {one.device["host"] for one in results} == {"gpu-b"}
    assert re.search(r"gpu-b has programs .*\bshout\b", live.orchgpu("gpus"))
    live.quiet("declared")


def test_jobs_that_do_not_are_tried_there_next_and_it_does_not_count(live: Live) -> None:
    live.deploy({"undeclared": FunctionSpec(SHOUTS, gpu={"placement": "spread"}, job=ONE)})
    jobs = [live.upload("undeclared", f"{n}.txt") for n in range(4)]
    results = {job: live.result("undeclared", job) for job in jobs}
    assert {one.state for one in results.values()} == {"SUCCEEDED"}
    assert {one.device["host"] for one in results.values()} == {"gpu-b"}
    again = [job for job, one in results.items() if one.attempt > 1]
    assert again, "with SPREAD at least one began on the other host"
    for job in again:
        assert results[job].attempt == 2
        report = live.report("undeclared", job, 1)
        assert report is not None
        assert (report.reason, report.lacks) == ("NOT_ON_HOST", {"programs": ["shout"]})
        assert report.detail.startswith("its host has no programs shout: ")
    live.quiet("undeclared")


def test_what_no_host_has_ends_at_once(live: Live) -> None:
    live.deploy({"nowhere": FunctionSpec(SCRIPT.replace("PROGRAM", "shoot"))})
    result = live.result("nowhere", live.upload("nowhere"))
    assert (result.state, result.reason, result.attempt) == ("REJECTED", "IMPOSSIBLE", 1)
    named = "host gpu-a lacks program shoot; host gpu-b lacks program shoot"
    assert f"{named} (did you mean 'shout'?)" in result.detail
    assert live.take_dead_letters("nowhere") != []
    live.quiet("nowhere")


def test_deploy_refuses_a_program_that_no_host_has(live: Live) -> None:
    folder = live.path / "refused"
    folder.mkdir()
    (folder / "s.sh").write_text("#!/bin/sh\n")
    (folder / "fdl.yaml").write_text(
        "functions:\n  aws:\n  - lambda: {name: refused, init_script: s.sh, output: [r-out]}\n"
        "    gpu: {programs: [shoot]}\n    job: {input: [refused-in]}\n"
    )
    shown = live.orchgpu("deploy", str(folder / "fdl.yaml"), "--json", status=7)
    assert "did you mean 'shout'?" in shown


def test_the_result_tells_what_was_used(live: Live) -> None:
    live.deploy({"told": FunctionSpec(SHOUTS, gpu={"programs": ["shout"]}, job=ONE)})
    body = b"to be hashed\n"
    job = live.upload("told", "a b.txt", body)
    live.result("told", job)
    known = json.loads(live.orchgpu("job", job, "--provenance", "--json"))["job"]["provenance"]
    assert known["programs"] == {"shout": hashlib.sha256(PROGRAM.read_bytes()).hexdigest()}
    assert known["input"]["sha256"] == hashlib.sha256(body).hexdigest()
    assert known["input"]["version"]
    assert known["function"]["name"] == "told"
    assert len(known["function"]["package_sha256"]) == 64
    assert known["operations"][0]["name"] == "exec"
    assert (known["devices"][0]["host"], known["devices"][0]["kind"]) == ("gpu-b", "cpu")
    assert (known["versions"]["orchgpu"], known["versions"]["runner"]) == (RELEASE, RELEASE)
    assert "exec" in live.orchgpu("job", job, "--provenance")
    crate = live.path / "crate"
    live.orchgpu("job", job, "--ro-crate", str(crate))
    by_id = check(json.loads((crate / "ro-crate-metadata.json").read_text()))
    assert "s3://told-in/a%20b.txt" in by_id
    assert "s3://told-out/loud.txt" in by_id
