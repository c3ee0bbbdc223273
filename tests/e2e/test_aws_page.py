"""docs/reference/aws-by-hand.md: executed against a local system on moto; others are parsed."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import click
import pytest

import gpu_scheduler.daemon.cli
import remote_gpu.host.cli
from orchgpu.cli.main import cli
from tests import warm_commands
from tests.aws_cli import MODEL_ONLY, UsageError, aws_program, parsed
from tests.pages import ROOT, Command, perform, said, shell_in, steps

PAGE = ROOT / "docs" / "reference/aws-by-hand.md"
SHORT = ROOT / "docs" / "how-to/aws.md"
PROGRAMS: dict[str, click.Command] = {
    "orchgpu": cli,
    "ssgmd": gpu_scheduler.daemon.cli.main,
    "gpud": remote_gpu.host.cli.main,
}
_SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(600)
def test_every_command_of_the_page_does_what_it_shows(tmp_path: Path) -> None:
    with aws_program(tmp_path) as aws:
        shim = (sys.executable, "-I", "-S", str(aws))
        commands = {"orchgpu": warm_commands.command("orchgpu"), "aws": shim}
        with shell_in(tmp_path, commands, AWS_REGION="us-east-1") as shell:
            started = said(shell, "orchgpu up --detach --cloud moto")  # it stands for the account
            assert "AWS endpoint" in started, started
            perform(PAGE, shell, tmp_path)


def test_commands_of_other_machines_can_be_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "question.txt").touch()
    pages = (PAGE, SHORT)
    blocks = [block for page in pages for block in _SHELL.findall(page.read_text())]
    lines = [line for block in blocks for line in block.splitlines()]
    assert any(line.startswith("orchgpu infra deploy") for line in lines)
    for line in lines:
        program, *words = shlex.split(line, comments=True)
        if program == "pip":
            continue
        command = PROGRAMS[program]
        while isinstance(command, click.Group):
            with command.make_context(program, list(words)) as context:
                rest = [*context._protected_args, *context.args]
                found = command.get_command(context, rest[0]) if rest else None
            if not rest:
                break  # the group itself serves
            assert found is not None, line
            command, words = found, rest[1:]
        else:
            command.make_context(line, words).close()


def test_calls_that_only_their_models_check_are_on_the_page() -> None:
    calls = [
        parsed(shlex.split(step.command)[1:])[0]
        for step in steps(PAGE.read_text())
        if isinstance(step, Command)
        and step.command.startswith(("aws lambda ", "aws service-quotas "))
    ]
    named = {(call.service_model.service_name, call.name) for call in calls}
    assert named >= MODEL_ONLY


@pytest.mark.parametrize(
    "line",
    [
        "ec2 make-vpc",
        "ec2 create-vpc --cidr 10.0.0.0/16",
        "ec2 authorize-security-group-ingress --ip-permissions Protocol=tcp",
        "ec2 create-route --route-table-id t --destination-cidr-block x --dry-run yes now",
    ],
)
def test_the_shim_refuses_what_aws_cli_would(line: str) -> None:
    with pytest.raises((UsageError, ValueError)):
        parsed(shlex.split(line))


def test_the_shim_reads_shorthand() -> None:
    rule = "IpProtocol=tcp,FromPort=1,UserIdGroupPairs=[{GroupId=a},{GroupId=b}]"
    words = ["ec2", "authorize-security-group-ingress", "--group-id", "g", "--ip-permissions", rule]
    _, parameters, _ = parsed(words)
    [permission] = parameters["IpPermissions"]
    assert permission["FromPort"] == 1
    assert permission["UserIdGroupPairs"] == [{"GroupId": "a"}, {"GroupId": "b"}]
