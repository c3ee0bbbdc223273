"""Every call of the orchestrator, of users' commands and of the doctor is allowed by its role.

Each program writes down the calls of its clients, with their parameters; the printed policies are
evaluated over them. `tests/unit/infra/test_recorded_calls.py` does the same for deploys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdl.parse import parse
from fdl.plan.groups import deployed
from fdl.plan.resources import DeployTarget
from orchgpu.permissions.model import Scope, document
from orchgpu.permissions.roles import role_kind
from tests.e2e.live import ROOT, Live, live_system
from tests.iam_policies import Policy, Request, allowed
from tests.iam_requests import Account

pytestmark = pytest.mark.timeout(600)
PLACE = DeployTarget(account="000000000000", region="us-east-1", local=True)
FDL = """\
functions:
  aws:
  - lambda:
      name: lab-echo
      init_script: echo.sh
      output: [{path: lab-out/replies}]
    gpu: {memory: 64, kinds: [cpu]}
    job: {attempts: 1, input: [{path: lab-in/questions}]}
"""
SCRIPT = """#!/bin/sh
grep -q fail "$INPUT_FILE_PATH" && exit 3
cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"
"""
#: Imported by every Python program of the test; a program writes its calls into a file of its own.
RECORDER = """
import json, os, sys

words = sys.orig_argv
if "orchgpu" in words and "RECORDED" in os.environ:
    import aiobotocore.client, botocore.client

    kind = words[words.index("orchgpu") + 1]

    def note(client, operation, parameters):
        service = client.meta.service_model.service_name
        line = json.dumps([service, operation, parameters], default=lambda value: "")
        with open(f"{os.environ['RECORDED']}/{kind}-{os.getpid()}.jsonl", "a") as file:
            file.write(line + chr(10))

    plain = botocore.client.BaseClient._make_api_call
    later = aiobotocore.client.AioBaseClient._make_api_call

    def call(self, operation, parameters):
        note(self, operation, parameters)
        return plain(self, operation, parameters)

    async def call_later(self, operation, parameters):
        note(self, operation, parameters)
        return await later(self, operation, parameters)

    botocore.client.BaseClient._make_api_call = call
    aiobotocore.client.AioBaseClient._make_api_call = call_later
    if kind == "orchestrate":
        from orchgpu.adapters.aws.calls import Calls

        prepared = Calls.__call__

        async def call_prepared(self, operation, parameters, *, bytes_max=0):
            note(self._client, operation, parameters)
            return await prepared(self, operation, parameters, bytes_max=bytes_max)

        Calls.__call__ = call_prepared
"""


class Recorded:
    """A system whose programs write down their calls."""

    def __init__(self, live: Live, calls: Path) -> None:
        self.orchgpu = live.orchgpu
        self._calls = calls

    def requests(self, *kinds: str) -> list[Request]:
        """What AWS asks for the calls of programs of these kinds, each once."""
        account = Account(PLACE.account, PLACE.region)
        files = [file for kind in kinds for file in self._calls.glob(f"{kind}-*.jsonl")]
        lines = {line for file in files for line in file.read_text().splitlines()}
        found = {
            str(one): one for line in sorted(lines) for one in account.requests(*json.loads(line))
        }
        return list(found.values())


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """One job that succeeds and one that fails, and every command of a user."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "hook").mkdir()
    (folder / "hook/sitecustomize.py").write_text(RECORDER)
    calls = folder / "calls"
    calls.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}:{folder / 'hook'}")
        patch.setenv("RECORDED", str(calls))
        with live_system(folder / "live", warm_commands=False) as live:
            live.start_all()
            live.deploy_text("lab", FDL, {"echo.sh": SCRIPT})
            for name in ("good", "fail"):
                (live.path / f"{name}.txt").write_text(name)
            found = Recorded(live, calls)
            use(found)
            yield found


def use(system: Recorded) -> None:
    run = system.orchgpu("run", "lab-echo", "good.txt", "--wait", "--output", "out", "--json")
    [job] = json.loads(run)["jobs"]
    failed = json.loads(
        system.orchgpu("run", "lab-echo", "fail.txt", "--wait", "--json", status=1)
    )["jobs"][0]
    system.orchgpu("jobs")
    system.orchgpu("job", job["job_id"])
    system.orchgpu("logs", "lab-echo")
    system.orchgpu("ls", "lab-echo")
    system.orchgpu("get", "lab-echo", "got")
    system.orchgpu("put", "good.txt", "lab-echo")
    system.orchgpu("dlq", "ls", "lab-echo")
    system.orchgpu("retry", failed["job_id"])
    system.orchgpu("reconcile", "lab-echo", "--dry-run")
    system.orchgpu("doctor", "--aws", "lab/fdl.yaml")


COMMANDS = ("run", "jobs", "job", "logs", "ls", "get", "put", "dlq", "retry", "reconcile")


def policies(role: str) -> list[Policy]:
    """For the definition, and for all functions with the prefix."""
    functions = tuple(deployed(parse(FDL)))
    scopes = (
        Scope(place=PLACE, functions=functions),
        Scope(place=PLACE, bucket_prefix="lab-", function_prefix="lab-"),
    )
    return [document(role_kind(role).statements(scope)) for scope in scopes]


@pytest.mark.parametrize(
    ("role", "kinds", "seen"),
    [
        ("orchestrator", ("orchestrate",), {"sqs:ReceiveMessage", "s3:PutObject", "s3:GetObject"}),
        ("user", COMMANDS, {"s3:PutObject", "s3:ListBucket", "sqs:ReceiveMessage"}),
    ],
)
def test_every_call_of_a_role_is_allowed(
    system: Recorded, role: str, kinds: tuple[str, ...], seen: set[str]
) -> None:
    requests = system.requests(*kinds)
    assert seen <= {request.action for request in requests}
    for policy in policies(role):
        assert [str(one) for one in requests if not allowed(one, [policy])] == []


def test_the_doctor_reads_with_its_own_role_and_a_deployers(system: Recorded) -> None:
    """It compares what is deployed with what a deploy would make."""
    requests = system.requests("doctor")
    assert {"lambda:GetAccountSettings", "s3:ListBucket"} <= {one.action for one in requests}
    for policy, more in zip(policies("doctor"), policies("deployer"), strict=True):
        assert [str(one) for one in requests if not allowed(one, [policy, more])] == []


@pytest.mark.parametrize("role", ["orchestrator", "user"])
def test_what_a_role_uses_is_refused_to_that_of_other_functions(
    system: Recorded, role: str
) -> None:
    other = Scope(place=PLACE, bucket_prefix="payroll-", function_prefix="payroll-")
    policy = document(role_kind(role).statements(other))
    kinds = ("orchestrate",) if role == "orchestrator" else COMMANDS
    passed = [one for one in system.requests(*kinds) if allowed(one, [policy])]
    shared = (PLACE.state_bucket, "lambda:GetAccountSettings on *")  # limits of the account alone
    assert [text for text in map(str, passed) if not any(one in text for one in shared)] == []
