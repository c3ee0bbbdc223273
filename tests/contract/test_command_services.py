"""One suite for the clouds of commands: every provider, on the embedded cloud and on moto."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from corekit.errors import AppError, ErrorCode
from orchgpu.adapters.aws import commands as aws
from orchgpu.cloud_services import Address, CloudServices
from tests.contract.conftest import CloudUnderTest


@pytest.fixture
def services(cloud: CloudUnderTest) -> Iterator[CloudServices]:
    address = Address(endpoint_url=cloud.endpoint, region="us-east-1")
    with closing(aws.connect(address, connections=4, within_s=30.0)) as found:
        yield found


def code_of(error: pytest.ExceptionInfo[AppError]) -> ErrorCode:
    return error.value.code


def test_an_object_is_uploaded_described_read_and_downloaded(
    services: CloudServices, cloud: CloudUnderTest, tmp_path: Path
) -> None:
    bucket = cloud.bucket(versioned=True)
    (tmp_path / "in").write_bytes(b"content")
    version = services.upload(tmp_path / "in", bucket, "a/b é", {"mark": "1"})
    head = services.head_object(bucket, "a/b é", version)
    assert (head.version_id, dict(head.metadata)) == (version, {"mark": "1"})
    assert version is not None
    assert '"' not in head.etag
    body, stored_s = services.read_object(bucket, "a/b é")
    assert (body, stored_s) == (b"content", head.modified.timestamp())
    services.download(bucket, "a/b é", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"content"
    (entry,) = services.list_objects(bucket, "a/")
    assert (entry.key, entry.size, int(entry.modified_s)) == ("a/b é", 7, stored_s)


def test_a_file_is_uploaded_once_and_read_in_parts(
    services: CloudServices, cloud: CloudUnderTest, tmp_path: Path
) -> None:
    bucket = cloud.bucket(versioned=True)
    (tmp_path / "in").write_bytes(b"0123456789")
    version = services.upload(tmp_path / "in", bucket, "once", once=True)
    (tmp_path / "in").write_bytes(b"another")
    with pytest.raises(AppError) as error:
        services.upload(tmp_path / "in", bucket, "once", once=True)
    assert code_of(error) is ErrorCode.CONFLICT
    head = services.head_object(bucket, "once")
    assert (head.version_id, head.size) == (version, 10)
    body, _ = services.read_object(bucket, "once", etag=head.etag, part=range(2, 5))
    assert body == b"234"
    with pytest.raises(AppError) as error:
        services.read_object(bucket, "once", etag="other", part=range(2, 5))
    assert code_of(error) is ErrorCode.CONFLICT


def test_an_unversioned_object_has_no_version(
    services: CloudServices, cloud: CloudUnderTest, tmp_path: Path
) -> None:
    bucket = cloud.bucket()
    (tmp_path / "in").touch()
    assert services.upload(tmp_path / "in", bucket, "x") is None
    assert services.head_object(bucket, "x").version_id is None


def test_missing_things_are_not_found(services: CloudServices, cloud: CloudUnderTest) -> None:
    bucket = cloud.bucket()
    for call in (
        lambda: services.read_object(bucket, "none"),
        lambda: services.head_object(bucket, "none"),
        lambda: list(services.list_objects("no-such-bucket-here", "")),
        lambda: services.function_settings("no-such-function"),
        lambda: services.queue_url("no-such-queue"),
    ):
        with pytest.raises(AppError) as error:
            call()
        assert code_of(error) is ErrorCode.NOT_FOUND
    assert list(services.log_events("no-such-function", 0.0)) == []


def test_an_object_is_written_once_or_over_the_one_that_was_read(
    services: CloudServices, cloud: CloudUnderTest
) -> None:
    bucket = cloud.bucket()
    services.write_once(bucket, "result", b"1", replaces=None)
    etag = services.head_object(bucket, "result").etag
    with pytest.raises(AppError) as error:
        services.write_once(bucket, "result", b"2", replaces=None)
    assert code_of(error) is ErrorCode.CONFLICT
    services.write_once(bucket, "result", b"3", replaces=etag)
    assert services.read_object(bucket, "result")[0] == b"3"
    with pytest.raises(AppError) as error:
        services.write_once(bucket, "result", b"4", replaces=etag)
    assert code_of(error) is ErrorCode.CONFLICT


def test_a_message_is_hidden_while_it_is_read_and_visible_again(
    services: CloudServices, cloud: CloudUnderTest
) -> None:
    url, _ = cloud.queue()
    assert services.queue_url(url.rpartition("/")[2]) == url
    services.send(url, "body")
    (message,) = services.receive(url, count_max=10, hidden_s=60, wait_s=5)
    assert message.body == "body"
    counts = services.count_messages(url)
    assert (counts.visible, counts.in_flight, counts.all) == (0, 1, 1)
    services.unhide(url, [message.receipt_handle])
    (again,) = services.receive(url, count_max=10, hidden_s=60, wait_s=5)
    assert again.id == message.id
    services.delete(url, again.receipt_handle)
    assert services.count_messages(url).all == 0


def test_a_function_has_settings_and_an_identity_a_name(
    services: CloudServices, cloud: CloudUnderTest
) -> None:
    name = cloud.function(
        "def handle(event, context): return 1",
        MemorySize=256,
        Environment={"Variables": {"A": json.dumps([1])}},
    )
    settings = services.function_settings(name)
    assert (settings.memory_mib, settings.variables["A"]) == (256, "[1]")
    assert services.identity().name.startswith("arn:")
    assert services.local
    assert cloud.account in services.state_bucket
