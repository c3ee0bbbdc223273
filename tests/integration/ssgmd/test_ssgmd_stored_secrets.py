"""Keys and master key of ssgmd in AWS Secrets Manager and SSM Parameter Store (moto)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.daemon.access import aws_secrets
from gpu_scheduler.daemon.access.keys import KeyEntry, KeyRole, add_key
from gpu_scheduler.daemon.access.secret import LeaseSecrets
from gpu_scheduler.daemon.access.sources import FileSecret, is_stored, source_of
from tests.integration.conftest import Programs, until

MASTER = bytes(range(32))


@pytest.fixture
def store(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Endpoint of moto, which boto3 of this process and of its programs uses."""
    endpoint: str = programs.start("orchgpu.local.moto").wait_ready()["endpoint"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    aws_secrets._client.cache_clear()
    yield endpoint
    aws_secrets._client.cache_clear()


def manager() -> Any:
    return boto3.client("secretsmanager")


def test_a_file_has_no_scheme() -> None:
    assert isinstance(source_of("/etc/ssgmd/keys.json"), FileSecret)
    assert isinstance(source_of("C:/keys.json"), FileSecret)
    assert not is_stored("keys.json")
    with pytest.raises(AppError, match="write ssm:NAME"):
        source_of("ssm:")


def test_boto3_is_imported_only_for_such_a_source() -> None:
    text = "import sys, gpu_scheduler.daemon.cli as cli; "
    text += "cli.source_of('/a/file'); print('boto3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ({"SecretBinary": MASTER}, ""),
        ({"SecretString": MASTER.hex()}, ""),
        ({"SecretString": json.dumps({"master": MASTER.hex(), "other": "x"})}, "#master"),
    ],
)
def test_a_master_key_of_secrets_manager(
    store: str, tmp_path: Path, content: dict[str, Any], key: str
) -> None:
    arn = manager().create_secret(Name="orchgpu/master", **content)["ARN"]
    made = LeaseSecrets(MASTER).of("lease", 1, "h")
    for name in ("orchgpu/master", arn):
        source = source_of(f"secretsmanager:{name}{key}")
        assert LeaseSecrets.open(tmp_path / "state", source).of("lease", 1, "h") == made
    assert not (tmp_path / "state").exists(), "nothing is written beside it"
    if key:
        with pytest.raises(AppError, match="has no key 'masters'"):
            source_of("secretsmanager:orchgpu/master#masters").refresh()


def test_a_master_key_of_the_parameter_store(store: str, tmp_path: Path) -> None:
    ssm = boto3.client("ssm")
    ssm.put_parameter(Name="/orchgpu/master", Value=MASTER.hex(), Type="SecureString")
    secrets = LeaseSecrets.open(tmp_path, source_of("ssm:/orchgpu/master"))
    assert secrets.fingerprint == LeaseSecrets(MASTER).fingerprint


def test_a_wrong_master_key_is_refused_without_its_text(store: str, tmp_path: Path) -> None:
    manager().create_secret(Name="short", SecretString="0badc0ffee")
    with pytest.raises(AppError, match="secretsmanager:short holds 10 bytes") as caught:
        LeaseSecrets.open(tmp_path, source_of("secretsmanager:short"))
    assert "0badc0ffee" not in caught.value.message


@pytest.mark.parametrize("name", ["secretsmanager:none", "ssm:/none"])
def test_a_secret_that_does_not_exist(store: str, name: str) -> None:
    with pytest.raises(AppError, match=f"{name} does not exist") as caught:
        source_of(name).refresh()
    assert caught.value.code is ErrorCode.NOT_FOUND


def test_refusals_name_the_missing_permission(store: str) -> None:
    """AWS's words for a role without the action; moto refuses nobody."""
    client = aws_secrets._client("secretsmanager", None)
    with Stubber(client) as stub:
        stub.add_client_error("get_secret_value", "AccessDeniedException", "User: arn is not")
        with pytest.raises(AppError, match="allow secretsmanager:GetSecretValue") as caught:
            source_of("secretsmanager:a").refresh()
        assert caught.value.code is ErrorCode.DENIED
        stub.add_client_error("get_secret_value", "InternalServiceError", "An error", 500)
        stub.add_client_error("get_secret_value", "InternalServiceError", "An error", 500)
        with pytest.raises(AppError) as caught:
            source_of("secretsmanager:a").refresh()
        assert caught.value.code is ErrorCode.UNAVAILABLE


def test_keys_are_rotated_while_the_daemon_runs(
    store: str, programs: Programs, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    first = add_key(file, KeyEntry(name="ada", role=KeyRole.READER, sha256="0" * 64))
    manager().create_secret(Name="keys", SecretString=file.read_text())
    ssm = boto3.client("ssm")
    ssm.put_parameter(Name="/master", Value=MASTER.hex(), Type="SecureString")
    sources = ("--keys", "secretsmanager:keys", "--master-key", "ssm:/master")
    state = ("--state", str(tmp_path / "state"))
    daemon = programs.start("gpu_scheduler.daemon", *state, *sources)
    address = daemon.wait_ready()["socket"]

    def accepted(key: str) -> bool:
        keyed = tmp_path / "key"
        keyed.write_text(key)
        keyed.chmod(0o600)
        words = ("hosts", "--scheduler", address, "--key-file", str(keyed), "--timeout", "20s")
        return programs.ssgm(*words).returncode == 0

    assert accepted(first)
    assert not accepted("ada." + "x" * 43)
    file.unlink()
    second = add_key(file, KeyEntry(name="ada", role=KeyRole.READER, sha256="0" * 64))
    manager().put_secret_value(SecretId="keys", SecretString="{")  # by mistake
    daemon.process.send_signal(signal.SIGHUP)
    until("the mistake is reported", lambda: "is not JSON" in daemon.log.read_text())
    assert accepted(first), "the last valid keys stay in force"
    manager().put_secret_value(SecretId="keys", SecretString=file.read_text())
    daemon.process.send_signal(signal.SIGHUP)
    until("the new key is in force", lambda: accepted(second))
    assert not accepted(first)
    assert daemon.terminate() == 0
    log = daemon.log.read_text()
    hashes = [entry["sha256"] for entry in json.loads(file.read_text())["keys"]]
    for secret in (MASTER.hex(), first, second, *hashes):
        assert secret not in log
    assert not (tmp_path / "state" / "master.key").exists()


def test_stored_keys_are_not_changed_by_the_command(store: str, tmp_path: Path) -> None:
    add_key(tmp_path / "k.json", KeyEntry(name="ada", role=KeyRole.READER, sha256="0" * 64))
    content = (tmp_path / "k.json").read_text()
    boto3.client("ssm").put_parameter(Name="/keys", Value=content, Type="SecureString")
    line = [sys.executable, "-m", "gpu_scheduler.daemon", "--state", str(tmp_path), "--keys"]
    line += ["ssm:/keys", "keys"]
    shown = subprocess.run([*line, "list"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("ada ")
    added = [*line, "add", "bob", "--role", "reader"]
    refused = subprocess.run(added, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "changed where it is stored" in refused.stderr
