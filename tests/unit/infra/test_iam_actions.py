"""infra/README.md lists every IAM action that the code's calls need, per role."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

import botocore.session
import pytest
from botocore import xform_name

ROOT = Path(__file__).resolve().parents[3]
SERVICES = ("s3", "sqs", "lambda", "sts", "iam", "logs", "ec2", "ecr")

COMMANDS = "orchgpu/adapters/aws/commands.py"
DEPLOY = "orchgpu/adapters/aws/deploy"
#: Of `orchgpu infra`: its machines' (test_machine_calls.py), and those of an administrator.
INFRA = ("orchgpu/adapters/aws/machine.py", "orchgpu/adapters/aws/stacks.py")
#: Heading in the README -> folders whose calls that role makes.
ROLES = {
    "Orchestrator": ("orchgpu/adapters/aws",),
    "Function": ("lambda_functions", "contract", "remote_gpu/client", "remote_gpu/wire"),
    "Deployment": (DEPLOY,),
    "Commands": (COMMANDS,),
}
#: Calls whose action has another name (AWS's service authorization reference); the rest share it.
RENAMED: Mapping[str, str] = {
    "Invoke": "InvokeFunction",
    "HeadBucket": "ListBucket",
    "HeadObject": "GetObject",
    "ListObjectsV2": "ListBucket",
    "ListObjectVersions": "ListBucketVersions",
    "GetBucketNotificationConfiguration": "GetBucketNotification",
    "PutBucketNotificationConfiguration": "PutBucketNotification",
    "GetBucketLifecycleConfiguration": "GetLifecycleConfiguration",
    "PutBucketLifecycleConfiguration": "PutLifecycleConfiguration",
    "DeleteBucketLifecycle": "PutLifecycleConfiguration",
    "GetBucketEncryption": "GetEncryptionConfiguration",
    "ChangeMessageVisibilityBatch": "ChangeMessageVisibility",
    "DeleteMessageBatch": "DeleteMessage",
    "SendMessageBatch": "SendMessage",
}
#: boto3's transfers are several calls each.
TRANSFERS = {
    "upload_fileobj": {"s3:PutObject", "s3:AbortMultipartUpload"},
    "upload_file": {"s3:PutObject", "s3:AbortMultipartUpload"},
    "download_file": {"s3:GetObject"},
    "download_fileobj": {"s3:GetObject"},
}


@pytest.fixture(scope="module")
def actions_by_call() -> dict[str, set[str]]:
    """Method of a boto3 client -> the IAM actions it needs."""
    session = botocore.session.get_session()
    found = dict(TRANSFERS)
    for service in SERVICES:
        for operation in session.get_service_model(service).operation_names:
            action = f"{service}:{RENAMED.get(operation, operation)}"
            found.setdefault(xform_name(operation), set()).add(action)
    return found


def _names(code: Path) -> set[str]:
    """Every attribute and every string of the code: methods, and names of paginators."""
    files = code.rglob("*.py") if code.is_dir() else [code]
    others = [ROOT / part for part in (COMMANDS, DEPLOY, *INFRA) if ROOT / part != code]
    paths = [path for path in files if not any(path.is_relative_to(part) for part in others)]
    nodes = [n for path in paths for n in ast.walk(ast.parse(path.read_text()))]
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return attributes | {
        n.value for n in nodes if isinstance(n, ast.Constant) and n.value.__class__ is str
    }


@pytest.mark.parametrize("role", ROLES)
def test_every_call_of_a_role_is_listed(role: str, actions_by_call: dict[str, set[str]]) -> None:
    readme = (ROOT / "infra/README.md").read_text()
    section = re.split(r"^### ", readme, flags=re.MULTILINE)
    [text] = [part for part in section if part.startswith(role)]
    listed = set(re.findall(r"`([a-z0-9]+:[A-Z]\w+)`", text))
    names = set().union(*(_names(ROOT / folder) for folder in ROLES[role]))
    called = names & actions_by_call.keys() - {"get_caller_identity"}  # needs no permission
    assert called, "the search finds nothing: the folders have moved"
    # where services share a method's name (lambda's and SQS's add_permission) one of them is meant
    missing = {name for name in called if not _is_listed(name, actions_by_call[name], listed)}
    assert not missing


def _is_listed(call: str, actions: set[str], listed: set[str]) -> bool:
    return actions <= listed if call in TRANSFERS else bool(actions & listed)
