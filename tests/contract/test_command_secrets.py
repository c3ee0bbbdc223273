"""`orchgpu secret` and the stores behind it, on the embedded cloud and on moto."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contract.secrets.reference import parse_reference
from corekit.errors import AppError, ErrorCode
from fdl.plan.resources import DeployTarget
from orchgpu.adapters.aws import commands as aws
from orchgpu.adapters.aws.api import AwsClient
from orchgpu.adapters.aws.deploy.facts import secret_keys
from orchgpu.cloud_services import Address, SecretStores
from tests.commandline import done
from tests.contract.conftest import CloudUnderTest

KEY = "arn:aws:kms:us-east-1:000000000000:key/00000000-0000-0000-0000-000000000007"
#: Status and output of one command line, with this standard input.
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def stores(cloud: CloudUnderTest) -> Iterator[SecretStores]:
    address = Address(endpoint_url=cloud.endpoint, region="us-east-1")
    with aws.deploy_cloud(address, Address()) as found:
        assert found.secrets is not None
        yield found.secrets


@pytest.mark.parametrize("scheme", ["ssm:/", "secretsmanager:"])
def test_a_value_is_stored_changed_and_removed(
    stores: SecretStores, cloud: CloudUnderTest, scheme: str
) -> None:
    reference = parse_reference(scheme + cloud.unique("command"))
    assert not stores.exists(reference)
    assert stores.put(reference, "one")
    assert stores.exists(reference)
    assert not stores.put(reference, "two")
    stores.remove(reference)


def test_a_removed_parameter_is_gone(stores: SecretStores, cloud: CloudUnderTest) -> None:
    reference = parse_reference("ssm:/" + cloud.unique("gone"))
    stores.put(reference, "x")
    stores.remove(reference)
    with pytest.raises(AppError) as caught:
        stores.remove(reference)
    assert caught.value.code is ErrorCode.NOT_FOUND


def test_a_new_version_of_a_parameter_keeps_its_key(
    stores: SecretStores, cloud: CloudUnderTest
) -> None:
    ssm, name = cloud.client("ssm"), cloud.unique("/kept")
    ssm.put_parameter(Name=name, Value="x", Type="SecureString", KeyId=KEY, Tier="Advanced")
    assert not stores.put(parse_reference(f"ssm:{name}"), "y" * 5000)
    filters = [{"Key": "Name", "Option": "Equals", "Values": [name]}]
    (found,) = ssm.describe_parameters(ParameterFilters=filters)["Parameters"]
    assert (found["Type"], found["KeyId"], found["Version"]) == ("SecureString", KEY, 2)


def test_a_parameter_in_clear_does_not_get_a_secret(
    stores: SecretStores, cloud: CloudUnderTest
) -> None:
    ssm, name = cloud.client("ssm"), cloud.unique("/clear")
    ssm.put_parameter(Name=name, Value="x", Type="String")
    with pytest.raises(AppError, match=f"orchgpu secret rm ssm:{name}"):
        stores.put(parse_reference(f"ssm:{name}"), "y")
    assert ssm.get_parameter(Name=name)["Parameter"]["Value"] == "x"


def test_a_secret_that_is_marked_for_deletion_is_restored(
    stores: SecretStores, cloud: CloudUnderTest
) -> None:
    name = cloud.unique("restored")
    reference = parse_reference(f"secretsmanager:{name}")
    stores.put(reference, "one")
    stores.remove(reference)
    assert not stores.exists(reference)
    with pytest.raises(AppError) as caught:
        stores.remove(reference)
    assert caught.value.code is ErrorCode.NOT_FOUND
    assert not stores.put(reference, "two")
    found = cloud.client("secretsmanager").get_secret_value(SecretId=name)
    assert (found["SecretString"], stores.exists(reference)) == ("two", True)


@pytest.mark.parametrize("text", ["secretsmanager:a#key", "ssm:/a:3"])
def test_a_part_of_an_entry_is_not_stored(stores: SecretStores, text: str) -> None:
    with pytest.raises(AppError, match="name its entry alone"):
        stores.put(parse_reference(text), "x")


def test_the_keys_of_customers_are_facts_of_a_deploy(
    stores: SecretStores, cloud: CloudUnderTest
) -> None:
    parameter, plain = cloud.unique("/fact"), cloud.unique("/fact")
    secret, none = cloud.unique("fact"), "/no-such-fact"
    for name, key in ((parameter, {"KeyId": KEY}), (plain, {})):
        cloud.client("ssm").put_parameter(Name=name, Value="x", Type="SecureString", **key)
    cloud.client("secretsmanager").create_secret(Name=secret, SecretString="x", KmsKeyId=KEY)
    texts = (f"ssm:{parameter}", f"ssm:{plain}", f"ssm:{none}", f"secretsmanager:{secret}#a")
    elsewhere = "ssm:arn:aws:ssm:eu-west-1:210987654321:parameter/x"
    references = [parse_reference(text) for text in (*texts, elsewhere, "file:x")]
    place = DeployTarget(account=cloud.account, region="us-east-1")
    found = secret_keys(references, place, lambda service: AwsClient(cloud.client(service)))
    assert found == {texts[0]: KEY, texts[3]: KEY}


@pytest.fixture
def run(cloud: CloudUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL", cloud.endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")

    def one(*words: str, given: bytes = b"") -> tuple[int, str]:
        ended = done(["secret", *words], given)
        return ended.exit_code, ended.output

    return one


def test_the_command_stores_from_a_pipe_and_from_a_file(
    run: Run, cloud: CloudUnderTest, tmp_path: Path
) -> None:
    name = "/" + cloud.unique("piped")

    def value() -> str:
        found = cloud.client("ssm").get_parameter(Name=name, WithDecryption=True)
        return str(found["Parameter"]["Value"])

    assert run("put", f"ssm:{name}", given=b"hunter2\n") == (0, f"ssm:{name}: stored\n")
    assert value() == "hunter2"
    (tmp_path / "file").write_text("a\nb\n")
    status, shown = run("put", f"ssm:{name}", "--file", "file", "--json")
    assert (status, value()) == (0, "a\nb")
    assert '"new": false' in shown
    assert run("rm", f"ssm:{name}") == (0, f"ssm:{name}: removed\n")


@pytest.mark.parametrize(
    ("words", "given", "status", "message"),
    [
        (("put", "file:x"), b"v", 2, "a file is written by an editor"),
        (("put", "hunter2"), b"v", 2, "REFERENCE: not a reference to a secret"),
        (("put", "ssm:/x"), b"\n", 2, "a value has 1 to 65536 bytes, this one 0"),
        (("put", "ssm:/x"), b"\xff", 2, "store it as base64"),
        (("put", "ssm:/x", "--file", "none"), b"", 2, "No such file"),
        (("rm", "ssm:/no-such-entry"), b"", 3, "ssm:/no-such-entry does not exist here"),
    ],
)
def test_wrong_command_lines(
    run: Run, words: tuple[str, ...], given: bytes, status: int, message: str
) -> None:
    ended, shown = run(*words, given=given)
    assert (ended, message in shown) == (status, True), shown
    assert "hunter2" not in shown
