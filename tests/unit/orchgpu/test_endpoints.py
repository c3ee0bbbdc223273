"""Which endpoint and keys win, and what is refused."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from corekit.errors import AppError, ErrorCode
from orchgpu.adapters.aws.endpoints import ClientSettings, boto3_client, guard_real_aws, resolve
from orchgpu.local.home import Home
from orchgpu.local.stack import StackRecord, keep_stack
from tests.local_systems import home_of


def found(
    home: Path, environ: Mapping[str, str], service: str = "s3", **arguments: str
) -> ClientSettings:
    return resolve(service, environ=environ, home=Home(home), **arguments)


def test_a_local_system_that_verifies_signatures_gets_its_own_keys(tmp_path: Path) -> None:
    home = home_of(tmp_path, endpoint="http://127.0.0.1:1", access_key="LKIA", secret_key="s")
    assert home.system_file.stat().st_mode & 0o077 == 0
    with home.lock():
        own = found(tmp_path, {"AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "mine"})
        assert (own.access_key_id, own.secret_access_key) == ("LKIA", "s")
        other = found(tmp_path, {"AWS_ENDPOINT_URL": "http://127.0.0.1:2"})
        assert other.access_key_id == "test"


def test_without_any_setting_the_endpoint_is_real_aws(tmp_path: Path) -> None:
    settings = found(tmp_path, {})
    assert settings == ClientSettings(service="s3")
    assert settings.s3_addressing == "auto"


def test_precedence(tmp_path: Path) -> None:
    home = home_of(tmp_path, endpoint="http://127.0.0.1:1111")
    environ = {
        "AWS_ENDPOINT_URL_SQS": "http://127.0.0.1:4444",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:3333",
        "LOCALSTACK_HOST": "127.0.0.1:2222",
    }
    with home.lock():
        explicit = found(tmp_path, environ, endpoint_url="http://localhost:5555")
        assert (explicit.endpoint_url, explicit.source) == (
            "http://localhost:5555",
            "--endpoint-url",
        )
        assert found(tmp_path, environ, "sqs").source == "AWS_ENDPOINT_URL_SQS"
        general = found(tmp_path, environ)
        assert (general.endpoint_url, general.source) == (None, "AWS_ENDPOINT_URL")
        ignored = environ | {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}
        localstack = found(tmp_path, ignored)
        assert (localstack.endpoint_url, localstack.source) == (
            "http://127.0.0.1:2222",
            "LOCALSTACK_HOST",
        )
        running = found(tmp_path, {})
        assert (running.endpoint_url, running.source) == (
            "http://127.0.0.1:1111",
            "the local system",
        )
    assert found(tmp_path, {}).source == "AWS", "a stopped system has no endpoint"


def test_the_region_of_the_stack_in_use_comes_after_the_environments(tmp_path: Path) -> None:
    keep_stack(Home(tmp_path), StackRecord(name="lab", account="1", region="eu-west-1"))
    assert found(tmp_path, {}).region == "eu-west-1"
    assert found(tmp_path, {}, region="eu-north-1").region == "eu-north-1"
    assert found(tmp_path, {"AWS_DEFAULT_REGION": "us-west-2"}).region is None, "botocore's"
    assert found(tmp_path, {"ORCHGPU_STACK": "other"}).region is None
    local = found(tmp_path, {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
    assert local.region == "us-east-1", "a stack is not of a local cloud"


def test_a_local_cloud_gets_fake_keys_and_path_style(tmp_path: Path) -> None:
    settings = found(tmp_path, {"LOCALSTACK_HOST": "example"})
    assert settings.endpoint_url == "http://example:4566"
    assert (settings.access_key_id, settings.region, settings.local) == ("test", "us-east-1", True)
    assert settings.s3_addressing == "path"


def test_a_localstack_host_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="LOCALSTACK_HOST: could not parse h:x"):
        found(tmp_path, {"LOCALSTACK_HOST": "h:x"})
    with pytest.raises(AppError, match="does not know the service 'teleport'"):
        found(tmp_path, {"LOCALSTACK_HOST": "h"}, "teleport")


def test_own_keys_and_region_are_kept(tmp_path: Path) -> None:
    environ = {
        "AWS_ENDPOINT_URL": "http://h:1",
        "AWS_ACCESS_KEY_ID": "A",
        "AWS_REGION": "eu-west-1",
    }
    settings = found(tmp_path, environ)
    assert (settings.access_key_id, settings.region) == (None, "eu-west-1")


def test_a_profile_that_does_not_exist_matters_only_to_aws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    environ = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_PROFILE": "nobody"}
    settings = found(tmp_path, environ)
    assert (settings.profile, settings.access_key_id) == (None, "test")
    boto3_client("sqs", settings).close()
    with pytest.raises(AppError, match=r"profile \(nobody\) could not be found"):
        boto3_client("sqs", found(tmp_path, {"AWS_PROFILE": "nobody"}, region="us-east-1"))


def test_a_profile_that_exists_counts_off_aws_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text("[profile mine]\naws_access_key_id = A\naws_secret_access_key = B\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    settings = found(tmp_path, {"AWS_ENDPOINT_URL": "http://h:1", "AWS_PROFILE": "mine"})
    assert (settings.profile, settings.access_key_id) == ("mine", None)


def test_an_endpoint_of_aws_is_real_aws(tmp_path: Path) -> None:
    settings = found(tmp_path, {}, endpoint_url="https://s3.eu-west-1.amazonaws.com")
    assert not settings.local
    assert settings.access_key_id is None


@pytest.mark.parametrize(
    "url", ["localhost:4566", "ftp://h", "http://", "http://h:0", "http://[", "http://h:x"]
)
def test_an_invalid_endpoint_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(AppError, match="is not a valid endpoint; write http://host:port"):
        found(tmp_path, {}, endpoint_url=url)
    with pytest.raises(AppError, match="AWS_ENDPOINT_URL: "):
        found(tmp_path, {"AWS_ENDPOINT_URL": url})


def test_fake_keys_never_reach_aws(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="is a key for emulators, but no endpoint is set"):
        found(tmp_path, {"AWS_ACCESS_KEY_ID": "test"})
    assert found(tmp_path, {"AWS_ACCESS_KEY_ID": "test"}, profile="real").profile == "real"


def test_real_aws_needs_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = found(tmp_path, {})
    with pytest.raises(AppError, match="--yes-real-aws") as caught:
        guard_real_aws(real, allowed=False)
    assert caught.value.code is ErrorCode.DENIED
    guard_real_aws(real, allowed=True)
    guard_real_aws(found(tmp_path, {}, endpoint_url="http://h:1"), allowed=False)
    monkeypatch.setenv("ORCHGPU_YES_REAL_AWS", "1")
    guard_real_aws(real, allowed=False)


def test_clients_are_made_as_settled(tmp_path: Path) -> None:
    client = boto3_client("sqs", found(tmp_path, {}, endpoint_url="http://127.0.0.1:9"))
    assert client.meta.endpoint_url == "http://127.0.0.1:9"
    assert client.meta.region_name == "us-east-1"
    client.close()
    with pytest.raises(AppError, match=r"profile \(nobody\) could not be found"):
        boto3_client("sqs", found(tmp_path, {}, profile="nobody"))


def test_an_unreadable_system_file_is_reported(tmp_path: Path) -> None:
    home = home_of(tmp_path, endpoint="http://127.0.0.1:1111")
    home.system_file.write_text(json.dumps([1]))
    with home.lock(), pytest.raises(AppError):
        found(tmp_path, {})
