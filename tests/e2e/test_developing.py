"""A function from its beginning to its results: begun, deployed, changed while it is watched,
declared in Python, and mapped over files."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

import orchgpu
from orchgpu.local.home import Home
from orchgpu.local.stack import StackRecord, keep_stack
from tests.e2e.live import Live, until
from tests.pages import ROOT, File, steps

DECLARED = """
import orchgpu


@orchgpu.function(
    gpu={"memory": "64MiB", "kinds": ["cpu"]},
    input="shout-in",
    output="shout-out",
    job={"intermediate": "shout-intermediate", "attempts": 1},
    memory=256,
    timeout=60,
)
def shout(work):
    import remote_gpu.client as gpu

    text = work.input.read_bytes()
    if b"fail" in text:
        raise ValueError("the text asks for it")
    with gpu.connect() as device:
        echo = bytes(device.op("noop", text).buffers[0])
    (work.output_folder / f"{work.input.stem}.loud").write_bytes(echo.upper())
"""


@pytest.fixture(scope="module", autouse=True)
def _started(live: Live) -> None:
    live.start("orchestrator")


@pytest.fixture
def _as_user(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in live.environment.items():
        monkeypatch.setenv(name, value)


def test_what_init_writes_deploys_and_runs(live: Live) -> None:
    live.orchgpu("init", "greeter")
    live.orchgpu("deploy", "greeter/fdl.yaml")
    told = live.orchgpu(
        "run", "greeter", "greeter/input/hello.txt", "--output", "greeted", "--json"
    )
    (job,) = json.loads(told)["jobs"]
    assert job["state"] == "SUCCEEDED"
    (output,) = (live.path / "greeted").rglob("*.txt")
    assert output.read_text().endswith("says: hello, device\n")


READS_PAYLOAD = """#!/usr/bin/env python3
import os, pathlib

word = pathlib.Path(os.environ["LAMBDA_TASK_ROOT"], "words", "word.txt").read_text()
name = pathlib.Path(os.environ["INPUT_FILE_PATH"]).name
pathlib.Path(os.environ["TMP_OUTPUT_DIR"], name).write_text(word)
"""


def test_a_definition_is_deployed_and_run_and_the_payload_is_at_the_root(live: Live) -> None:
    live.orchgpu("init", "packed")
    folder = live.path / "packed"
    (folder / "data/words").mkdir(parents=True)
    (folder / "data/words/word.txt").write_text("payload")
    (folder / "hello.py").write_text(READS_PAYLOAD)
    definition = folder / "fdl.yaml"
    keys = "extra_payload: data\n      init_script:"
    definition.write_text(definition.read_text().replace("init_script:", keys, 1))
    command = ("run", "packed/fdl.yaml", "packed/input/hello.txt", "--output", "unpacked")
    (job,) = json.loads(live.orchgpu(*command, "--json"))["jobs"]  # the deploy prints none of it
    assert job["state"] == "SUCCEEDED"
    (output,) = (live.path / "unpacked").rglob("*.txt")
    assert output.read_text() == "payload"


def test_the_files_of_the_aws_page_run_here_and_on_a_stack_by_the_same_command(live: Live) -> None:
    folder = live.path / "aws"
    folder.mkdir()
    page = (ROOT / "docs/how-to/aws.md").read_text()
    for file in steps(page):
        if isinstance(file, File):
            (folder / file.name).write_text(file.text)
    (folder / "question.txt").write_text("who?")
    [line] = [line for line in page.splitlines() if line.startswith("orchgpu run first.yaml")]
    _, *command = shlex.split(line, comments=True)

    def replied(*more: str) -> str:
        environment = dict(live.environment)
        if more:  # a laptop: it knows the stack, and reaches no scheduler
            del environment["ORCHGPU_SCHEDULER"]
        done = subprocess.run(
            [sys.executable, "-m", "orchgpu", *command, *more],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert "SUCCEEDED" in done.stdout
        (reply,) = (folder / "out").rglob("question.txt")
        assert reply.read_text() == "a device of kind cpu answers: who?"
        shutil.rmtree(folder / "out")
        return done.stderr

    replied()
    stack = StackRecord(
        name="lab",
        account="000000000000",
        region="us-east-1",
        schedulers="10.83.0.10:4700",
        subnets=("subnet-a", "subnet-b"),
        function_group="sg-f",
        function_prefix="gpu-",
        bucket_prefix="gpu-",
    )
    keep_stack(Home(folder / ".orchgpu"), stack)
    noted = replied("--again")
    assert "gpu-first: in the network of the stack lab" in noted
    assert "jobs are followed by their results: the scheduler of the stack lab needs a key" in noted
    function = live.client("lambda").get_function_configuration(FunctionName="gpu-first")
    assert function["VpcConfig"]["SubnetIds"] == ["subnet-a", "subnet-b"]


def test_a_change_of_the_script_is_deployed_until_ctrl_c(live: Live) -> None:
    live.orchgpu("init", "changing")
    command = [sys.executable, "-m", "orchgpu", "deploy", "changing/fdl.yaml", "--watch", "--json"]
    shown = live.path / "watched.log"
    with shown.open("wb") as log:
        watching = subprocess.Popen(
            command,
            env=live.environment,
            cwd=live.path,
            stdout=log,
            stderr=log,
        )

    def deploys() -> list[dict[str, object]]:
        lines = shown.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line[-1] == "\n"]

    try:
        until("the first deploy", lambda: len(deploys()) == 1)
        script = live.path / "changing" / "hello.py"
        script.write_text(script.read_text().replace("says", "whispers"))
        until("the second deploy", lambda: len(deploys()) == 2)
        for _ in range(6):  # Python may lose one that comes in the middle of a finalizer
            watching.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                watching.wait(20)
                break
        assert watching.returncode == 130
    finally:
        watching.kill()
        watching.wait()
    assert all(one["applied"] for one in deploys())
    live.orchgpu("run", "changing", "changing/input/hello.txt", "--output", "whispered")
    (output,) = (live.path / "whispered").rglob("*.txt")
    assert "whispers" in output.read_text()


@pytest.mark.usefixtures("_as_user")
def test_a_declared_function_is_mapped_over_files(live: Live) -> None:
    (live.path / "shouting.py").write_text(DECLARED)
    live.orchgpu("deploy", "shouting.py")
    texts = {"one.txt": "first", "two.txt": "second", "three.txt": "please fail"}
    for name, text in texts.items():
        (live.path / name).write_text(text)
    files = [live.path / name for name in texts]
    found = {
        one.input.name: one
        for one in orchgpu.map("shout", files, output=live.path / "loud", timeout_s=90)
    }
    assert [found[name].succeeded for name in texts] == [True, True, False]
    assert [found[name].outputs[0].read_text() for name in ("one.txt", "two.txt")] == [
        "FIRST",
        "SECOND",
    ]
    assert found["one.txt"].objects == ("s3://shout-out/one.loud",)
    failed = found["three.txt"]
    assert (failed.state, failed.reason, failed.outputs) == ("FAILED", "EXIT_NONZERO", ())
    assert "the text asks for it" in failed.log_tail
    again = orchgpu.map("shout", files[:2])
    assert next(again).succeeded, "it is not uploaded again"
    again.close()
    live.quiet("shout")
