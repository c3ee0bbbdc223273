"""The command line itself: help, bad input, exit statuses, output and error streams."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from corekit.errors import EXIT_STATUS, AppError, ErrorCode
from gpu_scheduler.model import Record, Step
from orchgpu.cli.main import cli
from orchgpu.jobs.scheduler import scheduler_address
from orchgpu.local.home import Home
from tests.commandline import run
from tests.history_records import job_record
from tests.local_systems import home_of


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def status_of(*arguments: str) -> int:
    return run(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["run"],
        ["run", "f"],
        ["run", "f", "x", "--timeout"],
        ["up", "--cloud", "gcp"],
        ["demo", "extra"],
        ["jobs", "--limit", "0"],
        ["status", "--nope"],
    ],
)
def test_a_wrong_command_line_ends_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(*arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Error:" in shown.err


def test_a_mistyped_command_gets_a_hint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert status_of("jbos") == 2
    assert "No such command 'jbos'. Did you mean 'jobs'?" in capsys.readouterr().err
    assert status_of("zzz") == 2
    assert "mean" not in capsys.readouterr().err


def test_a_mistyped_state_gets_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("jobs", "--state", "runing") == 2
    assert "did you mean 'RUNNING'?" in capsys.readouterr().err


def test_with_json_a_wrong_command_line_is_data_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("jobs", "--json", "--limit", "0") == 2
    shown = capsys.readouterr()
    assert json.loads(shown.out)["error"]["code"] == "invalid"
    assert "Error:" in shown.err


def test_ctrl_c_in_the_first_moments_prints_no_traceback() -> None:
    """While the command is still being imported nothing of it can catch anything."""
    early = (
        "import sys\n"
        "class Early:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'orchgpu.cli.main':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Early())\n"
        "import orchgpu.cli\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", early], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (130, "orchgpu: interrupted\n")


def test_an_unwritable_home_is_reported_and_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home(tmp_path / ".orchgpu")
    home.create()
    home.lock_file.mkdir()  # root may write everywhere, but open no folder
    assert status_of("up") == EXIT_STATUS[ErrorCode.INVALID]
    assert f"cannot use {home.path} for the local system" in capsys.readouterr().err
    home.lock_file.rmdir()
    with home.lock():
        home.lock_file.chmod(0o400)
        assert home.supervised()
    assert not home.supervised()


@pytest.mark.parametrize("option", ["--cpu-s", "--gpu-s"])
def test_a_cost_needs_finite_numbers(option: str) -> None:
    given = {"--cpu-s": "3", "--gpu-s": "1", option: "nan"}
    assert status_of("cost", *(word for pair in given.items() for word in pair)) == 2


@pytest.mark.parametrize("arguments", [["status"], ["jobs"], ["gpus"], ["orchestrate"]])
def test_without_a_system_one_line_names_the_remedy(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(*arguments) == EXIT_STATUS[ErrorCode.UNAVAILABLE]
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "orchgpu up" in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["history", "f"],
        ["ls"],
        ["ls", "f"],
        ["ls", "s3://b/"],
        ["dlq", "ls"],
        ["dlq", "ls", "f"],
        ["dlq", "redrive", "f"],
        ["get", "f"],
        ["put", "x", "f"],
        ["run", "f", "x"],
        ["job", "j" + "0" * 25],
        ["job", "j000"],
        ["logs", "f"],
        ["cancel", "j" + "0" * 25],
        ["retry", "j" + "0" * 25],
        ["rm", "f"],
        ["rollback", "f"],
        ["plan", "f.yaml"],
        ["deploy", "f.yaml"],
        ["cost", "j" + "0" * 25, "--cpu-s", "3"],
    ],
)
@pytest.mark.parametrize("region", [None, "eu-central-1"])
def test_without_a_cloud_one_line_names_the_remedy(
    arguments: list[str],
    region: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "ORCHGPU_"))]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    if region is not None:
        monkeypatch.setenv("AWS_REGION", region)
    (tmp_path / "x").touch()
    (tmp_path / "x.sh").write_text("#!/bin/sh\n")
    (tmp_path / "f.yaml").write_text(
        "functions: {aws: [{lambda: {name: f, init_script: x.sh, input: "
        "[{storage_provider: s3, path: inputs/i}], output: "
        "[{storage_provider: s3, path: outputs/o}]}}]}\n"
    )
    assert status_of(*arguments) == EXIT_STATUS[ErrorCode.UNAVAILABLE]
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"no local system runs in {tmp_path / '.orchgpu'}" in shown.err
    assert "orchgpu up" in shown.err
    assert shown.err.count("\n") == 1


def test_down_without_a_system_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("down") == 0
    assert status_of("down", "--json") == 0
    assert '"stopped": false' in capsys.readouterr().out


def test_up_beside_a_running_system_names_the_way_to_stop_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = home_of(tmp_path / ".orchgpu")
    with home.lock():  # as the supervisor of a running one does
        assert status_of("up") == 0
    said = f"already running in {home.path}; `orchgpu down` stops it\n"
    assert capsys.readouterr().err == said


def test_logs_show_the_last_lines_of_each_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / ".orchgpu" / "logs"
    folder.mkdir(parents=True)
    assert status_of("logs") == EXIT_STATUS[ErrorCode.NOT_FOUND]
    (folder / "cloud.log").write_text("a\nb\nc\n")
    (folder / "gpu-a.log").write_bytes(b"\xff\n")
    assert status_of("logs", "--tail", "2") == 0
    assert capsys.readouterr().out == "cloud | b\ncloud | c\ngpu-a | \ufffd\n"
    assert status_of("logs", "gpu-c") == EXIT_STATUS[ErrorCode.NOT_FOUND]
    assert "cloud, gpu-a" in capsys.readouterr().err


def test_logs_are_made_visible_unless_they_are_wanted_raw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / ".orchgpu" / "logs"
    folder.mkdir(parents=True)
    (folder / "cloud.log").write_bytes(b"\x1b]52;c;ZXZpbA==\x07 \xe2\x80\xaetxt\n")
    assert status_of("logs") == 0
    assert capsys.readouterr().out == "cloud | \\x1b]52;c;ZXZpbA==\\x07 \\u202etxt\n"
    assert status_of("logs", "cloud", "--raw") == 0
    assert capsys.readouterr().out == "cloud | \x1b]52;c;ZXZpbA==\x07 \u202etxt\n"
    assert status_of("logs", "--json") == 0
    told = json.loads(capsys.readouterr().out)["lines"]
    assert told == [{"program": "cloud", "text": "\x1b]52;c;ZXZpbA==\x07 \u202etxt"}]


@pytest.mark.parametrize("data", ["proteins", "=x", "proteins=", "proteins=/no/such/file"])
def test_up_refuses_wrong_data_before_it_starts_anything(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of("up", "--data", data) == 2
    assert "--data" in capsys.readouterr().err
    assert not (tmp_path / ".orchgpu").exists()


@pytest.mark.parametrize("address", ["x", "x:", ":1", "x:y", "x:0", "x:70000", "x:1:"])
def test_a_scheduler_address_is_checked(address: str) -> None:
    with pytest.raises(AppError, match="is not an address") as refused:
        scheduler_address(address)
    assert refused.value.code is ErrorCode.INVALID


def test_the_scheduler_comes_from_the_option_then_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ORCHGPU_SCHEDULER", "10.0.0.7:4700")
    assert scheduler_address(None) == "10.0.0.7:4700"
    assert scheduler_address("[::1]:1") == "[::1]:1"


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (AppError(ErrorCode.CONFLICT, "somebody was first"), 4, "orchgpu: somebody was first\n"),
        (KeyboardInterrupt(), 130, "orchgpu: interrupted\n"),
        (click.Abort(), 130, "orchgpu: interrupted\n"),
        (click.UsageError("not so"), 2, "Error: not so\n"),
    ],
)
def test_a_failure_becomes_a_line_and_a_status(
    raised: BaseException,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(**_: Any) -> None:
        raise raised

    assert status_of("down", "--help") == 0  # commands are loaded when they are used
    monkeypatch.setattr(cli.commands["down"], "callback", fails)
    assert status_of("down") == status
    assert capsys.readouterr().err.endswith(said)


def test_with_json_a_failure_is_data_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("status", "--json") == 8
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert (told["version"], told["error"]["code"]) == (1, "unavailable")
    assert shown.err == f"orchgpu: {told['error']['message']}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["nonsense"]])
def test_the_list_of_commands_imports_none_of_them(arguments: list[str]) -> None:
    heavy = ("boto3", "botocore", "aiohttp", "numpy", "onnxruntime", "moto", "orchgpu.replica.app")
    check = (
        "import sys, orchgpu.cli\n"
        f"sys.argv[1:] = {arguments!r}\n"
        "try:\n"
        "    orchgpu.cli.main()\n"
        "except SystemExit:\n"
        f"    found = [m for m in {heavy!r} if m in sys.modules]\n"
        "    found += [m for m in sys.modules if m.count('.') > 3 and 'cli.commands' in m]\n"
        "    print(found, file=sys.stderr)\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True
    )
    assert shown.stderr.splitlines()[-1] == "[]", "imported before a command runs"


def test_no_command_that_needs_no_cloud_imports_boto3() -> None:
    commands = (["status"], ["down"], ["logs"], ["completion", "bash"], ["fdl", "schema"])
    check = (
        "import sys, orchgpu.cli\n"
        f"for command in {commands!r}:\n"
        "    sys.argv[1:] = command\n"
        "    try:\n"
        "        orchgpu.cli.main()\n"
        "    except SystemExit:\n"
        "        print('boto3' in sys.modules, *command, file=sys.stderr)\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True
    )
    found = [line for line in shown.stderr.splitlines() if line.startswith(("True ", "False "))]
    assert found == [f"False {' '.join(command)}" for command in commands]


def record(**fields: Any) -> Record:
    given: dict[str, Any] = {
        "waiting_since_s": 5.0,
        "updated_s": 7.0,
        "block": {"function": "f", "input": {"bucket": "b", "key": "k/x"}},
    }
    return job_record(**{**given, **fields})


def test_a_job_is_described_by_its_record() -> None:
    from orchgpu.jobs.records import record_json

    shown = record_json(record())
    assert json.loads(json.dumps(shown)) == shown
    assert (shown["state"], shown["reason"], shown["input"]) == ("RUNNING", "NONE", "b/k/x")
    assert shown["waiting_s"] is None
    waiting_s = record_json(record(step=Step.WAITING))["waiting_s"]
    assert isinstance(waiting_s, float)
    assert waiting_s > 0


def test_reasons_of_leases_are_not_reasons_of_jobs() -> None:
    from orchgpu.jobs.summary import reason_of

    assert reason_of(record(reason="DONE")) == "NONE"
    assert reason_of(record(reason="POISON")) == "POISON"


@pytest.mark.parametrize("block", [{}, {"input": None}, {"input": "x"}, {"input": {}}])
def test_a_foreign_block_is_shown_as_unknown(block: dict[str, Any]) -> None:
    from orchgpu.jobs.records import record_json

    assert record_json(record(block=block))["input"] is None


def test_ctrl_c_before_a_coroutines_first_step_prints_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    @click.command
    def begin() -> None:
        work = asyncio.sleep(0)  # of which the interrupt's traceback has the last reference
        interrupted()
        asyncio.run(work)

    monkeypatch.setitem(cli.commands, "begin", begin)
    assert status_of("begin") == 130
    gc.collect()
    assert capsys.readouterr().err == "\norchgpu: interrupted\n"
