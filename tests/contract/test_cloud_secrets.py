"""Parameter Store and Secrets Manager as our code uses them, on the embedded cloud and on moto."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from contract.aws.faults import Fault
from contract.secrets.reference import SecretReference, parse_reference
from contract.secrets.stores import description_of, key_of
from lambda_functions.gpu_runner.secrets.stores import Stores, Unreadable

Cloud = Any
Refused = Callable[[Callable[[], Any]], str]


# ---------------------------------------------------------------------- parameters


def _put(cloud: Cloud, name: str, value: str, kind: str = "SecureString", **more: Any) -> Any:
    return cloud.client("ssm").put_parameter(Name=name, Value=value, Type=kind, **more)


def test_a_parameter_and_its_versions(cloud: Cloud, refused: Refused) -> None:
    ssm, name = cloud.client("ssm"), cloud.unique("/team/parameter")
    assert _put(cloud, name, "one")["Version"] == 1
    assert refused(lambda: _put(cloud, name, "two")) == "ParameterAlreadyExists"
    assert _put(cloud, name, "two", Overwrite=True)["Version"] == 2
    newest = ssm.get_parameter(Name=name, WithDecryption=True)["Parameter"]
    assert (newest["Value"], newest["Version"], newest["Type"]) == ("two", 2, "SecureString")
    assert newest["ARN"].endswith(f":parameter{name}")
    first = ssm.get_parameter(Name=f"{name}:1", WithDecryption=True)["Parameter"]
    assert first["Value"] == "one"
    assert refused(lambda: ssm.get_parameter(Name=f"{name}:9")) == "ParameterVersionNotFound"
    ssm.delete_parameter(Name=name)
    assert refused(lambda: ssm.get_parameter(Name=name)) == "ParameterNotFound"
    assert refused(lambda: ssm.delete_parameter(Name=name)) == "ParameterNotFound"


def test_a_selected_version_is_named(cloud: Cloud) -> None:
    name = cloud.unique("/selected")
    _put(cloud, name, "x")
    answer = cloud.client("ssm").get_parameter(Name=f"{name}:1")
    assert answer["Parameter"]["Selector"] == ":1"


def test_a_parameter_is_known_by_its_arn(cloud: Cloud) -> None:
    ssm = cloud.client("ssm")
    for name in (cloud.unique("/level/p"), cloud.unique("plain")):
        _put(cloud, name, "x", "String")
        arn = ssm.get_parameter(Name=name)["Parameter"]["ARN"]
        assert ssm.get_parameter(Name=arn)["Parameter"]["Name"] == name


def test_a_secure_string_is_readable_with_decryption_only(cloud: Cloud) -> None:
    name = cloud.unique("/secure")
    _put(cloud, name, "hunter2")
    shown = cloud.client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    assert shown != "hunter2"


def test_names_of_parameters_are_checked(cloud: Cloud, refused: Refused) -> None:
    for name in ("a/b", "aws-key", "/ssm/x", "a b"):
        assert refused(partial(_put, cloud, name, "x")) == "ValidationException"


def test_values_of_parameters_are_limited(cloud: Cloud, refused: Refused) -> None:
    name = cloud.unique("/large")
    assert refused(lambda: _put(cloud, name, "x" * 4097)) == "ValidationException"
    _put(cloud, name, "x" * 4096)


def test_a_type_of_a_parameter_does_not_change(cloud: Cloud, refused: Refused) -> None:
    name = cloud.unique("/typed")
    _put(cloud, name, "x", "String")
    code = refused(lambda: _put(cloud, name, "x", Overwrite=True))
    assert code == "HierarchyTypeMismatchException"


# ---------------------------------------------------------------------- secrets


def _create(cloud: Cloud, **content: Any) -> Any:
    name = cloud.unique("team/secret")
    return cloud.client("secretsmanager").create_secret(Name=name, **content)


def test_a_secret_and_its_next_value(cloud: Cloud, refused: Refused) -> None:
    manager = cloud.client("secretsmanager")
    made = _create(cloud, SecretString="one")
    name, arn = made["Name"], made["ARN"]
    assert arn[:-7].endswith(f":secret:{name}")
    for reference in (name, arn, arn[:-7]):
        assert manager.get_secret_value(SecretId=reference)["SecretString"] == "one"
    changed = manager.put_secret_value(SecretId=name, SecretString="two")
    assert changed["VersionStages"] == ["AWSCURRENT"]
    newest = manager.get_secret_value(SecretId=name)
    assert (newest["SecretString"], newest["VersionId"]) == ("two", changed["VersionId"])
    code = refused(lambda: manager.create_secret(Name=name, SecretString="x"))
    assert code == "ResourceExistsException"


def test_a_secret_of_bytes(cloud: Cloud) -> None:
    made = _create(cloud, SecretBinary=b"\0\xff")
    found = cloud.client("secretsmanager").get_secret_value(SecretId=made["ARN"])
    assert found["SecretBinary"] == b"\0\xff"
    assert "SecretString" not in found


def test_a_version_is_made_once_for_its_token(cloud: Cloud, refused: Refused) -> None:
    manager, name = cloud.client("secretsmanager"), _create(cloud)["Name"]
    token = str(uuid.UUID(int=7))

    def put(value: str) -> Any:
        return manager.put_secret_value(SecretId=name, SecretString=value, ClientRequestToken=token)

    assert put("one")["VersionId"] == put("one")["VersionId"]
    assert refused(lambda: put("two")) == "ResourceExistsException"


def test_a_secret_without_a_value(cloud: Cloud, refused: Refused) -> None:
    manager, name = cloud.client("secretsmanager"), _create(cloud)["Name"]
    code = refused(lambda: manager.get_secret_value(SecretId=name))
    assert code == "ResourceNotFoundException"
    assert manager.describe_secret(SecretId=name)["Name"] == name


def test_a_deleted_secret_can_be_described_and_not_read(cloud: Cloud, refused: Refused) -> None:
    manager, name = cloud.client("secretsmanager"), _create(cloud, SecretString="x")["Name"]
    manager.delete_secret(SecretId=name)
    code = refused(lambda: manager.get_secret_value(SecretId=name))
    assert code == "InvalidRequestException"
    assert manager.describe_secret(SecretId=name)["DeletedDate"]
    manager.delete_secret(SecretId=name, ForceDeleteWithoutRecovery=True)
    code = refused(lambda: manager.describe_secret(SecretId=name))
    assert code == "ResourceNotFoundException"
    manager.create_secret(Name=name, SecretString="x")


def test_the_name_of_a_deleted_secret_is_not_free(cloud: Cloud, refused: Refused) -> None:
    manager, name = cloud.client("secretsmanager"), _create(cloud)["Name"]
    manager.delete_secret(SecretId=name)
    code = refused(lambda: manager.create_secret(Name=name, SecretString="x"))
    assert code == "InvalidRequestException"


def test_wrong_calls_for_secrets(cloud: Cloud, refused: Refused) -> None:
    manager, name = cloud.client("secretsmanager"), _create(cloud)["Name"]
    wrong: tuple[Callable[[], Any], ...] = (
        lambda: manager.put_secret_value(SecretId=name, SecretString="x", SecretBinary=b"x"),
        lambda: manager.put_secret_value(SecretId=name),
        lambda: manager.delete_secret(SecretId=name, RecoveryWindowInDays=1),
    )
    for call in wrong:
        assert refused(call) == "InvalidParameterException"


# ---------------------------------------------------------------------- the runner's reads


@pytest.fixture
def read(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Reads by reference, with the runner's own clients."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", cloud.endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")

    def value(text: str) -> str:
        reference = parse_reference(text)
        return Stores([reference]).read(reference)

    return value


def _described(cloud: Cloud, reference: SecretReference) -> str | None:
    call = description_of(reference)
    answer = getattr(cloud.client(call.service), call.method)(**call.arguments)
    return key_of(reference, answer)


def test_the_runner_reads_every_form(cloud: Cloud, read: Callable[[str], str]) -> None:
    name, made = cloud.unique("/runner/p"), _create(cloud, SecretString='{"user": "ada"}')
    _put(cloud, name, "line one\nline two")
    arn = cloud.client("ssm").get_parameter(Name=name)["Parameter"]["ARN"]
    assert read(f"ssm:{name}") == read(f"ssm:{name}:1") == "line one\nline two"
    assert read(f"ssm:{arn}") == "line one\nline two"
    assert read(f"secretsmanager:{made['Name']}") == '{"user": "ada"}'
    assert read(f"secretsmanager:{made['ARN']}#user") == "ada"
    for text in (f"ssm:{name}", f"ssm:{name}:1", f"secretsmanager:{made['Name']}#user"):
        assert _described(cloud, parse_reference(text)) == ""
    binary = _create(cloud, SecretBinary=b"bytes")
    assert read(f"secretsmanager:{binary['Name']}") == "bytes"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ssm:/none", "does not exist in this account and region"),
        ("secretsmanager:none", "does not exist in this account and region"),
    ],
)
def test_the_runner_reports_what_does_not_exist(
    read: Callable[[str], str], text: str, message: str
) -> None:
    with pytest.raises(Unreadable, match=message) as caught:
        read(text)
    assert caught.value.fault is Fault.ABSENT


def test_the_runner_reports_what_cannot_be_read(cloud: Cloud, read: Callable[[str], str]) -> None:
    made = _create(cloud, SecretString="hunter2")
    with pytest.raises(Unreadable, match="is not a JSON object") as caught:
        read(f"secretsmanager:{made['Name']}#user")
    assert caught.value.fault is Fault.REFUSED
    cloud.client("secretsmanager").delete_secret(SecretId=made["Name"])
    with pytest.raises(Unreadable, match="InvalidRequestException") as deleted:
        read(f"secretsmanager:{made['Name']}")
    assert deleted.value.fault is Fault.REFUSED


def test_a_customers_key_is_described(cloud: Cloud) -> None:
    key = "arn:aws:kms:us-east-1:000000000000:key/00000000-0000-0000-0000-000000000007"
    name = cloud.unique("/keyed/p")
    _put(cloud, name, "x", KeyId=key)
    made = _create(cloud, SecretString="x", KmsKeyId=key)
    assert _described(cloud, parse_reference(f"ssm:{name}")) == key
    assert _described(cloud, parse_reference(f"secretsmanager:{made['ARN']}")) == key
    assert _described(cloud, parse_reference("ssm:/no-such-parameter")) is None
