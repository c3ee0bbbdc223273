"""The cloud of own hosts under the contract of commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import boto3
import pytest
from botocore.config import Config

from fdl.plan.resources import QueueResource
from orchgpu.adapters.own import commands
from orchgpu.adapters.own.database import Database, conninfo
from orchgpu.adapters.own.tables import Queues
from orchgpu.cloud_services import Address, CloudServices
from tests.contract.conftest import CloudUnderTest
from tests.contract.test_command_services import (
    test_a_file_is_uploaded_once_and_read_in_parts,
    test_a_message_is_hidden_while_it_is_read_and_visible_again,
    test_an_object_is_uploaded_described_read_and_downloaded,
    test_an_object_is_written_once_or_over_the_one_that_was_read,
    test_an_unversioned_object_has_no_version,
    test_missing_things_are_not_found,
)
from tests.own_cloud import OwnCloud, own_cloud

__all__ = [
    "test_a_file_is_uploaded_once_and_read_in_parts",
    "test_a_message_is_hidden_while_it_is_read_and_visible_again",
    "test_an_object_is_uploaded_described_read_and_downloaded",
    "test_an_object_is_written_once_or_over_the_one_that_was_read",
    "test_an_unversioned_object_has_no_version",
    "test_missing_things_are_not_found",
]


class OwnUnderTest(CloudUnderTest):
    """Queues are those of the database."""

    def queue(self, **attributes: str) -> tuple[str, str]:
        name = self.unique("queue")
        address = str(self.own.database.ready["queues"])
        with closing(Database(conninfo(address))) as database:
            Queues(database).put(QueueResource(name=name, retention_s=60, visibility_s=30))
        return name, f"arn:aws:sqs:us-east-1:000000000000:{name}"

    def client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = boto3.Session().client(
                service,
                endpoint_url=self.endpoint,
                config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 0}),
            )
        return self._clients[service]

    own: OwnCloud


@pytest.fixture(scope="module")
def running_own() -> Iterator[OwnUnderTest]:
    with own_cloud() as own:
        made = OwnUnderTest("own", own.endpoint)
        made.own = own
        yield made
        for client in made._clients.values():
            client.close()


@pytest.fixture
def cloud(running_own: OwnUnderTest, monkeypatch: pytest.MonkeyPatch) -> OwnUnderTest:
    for name, value in running_own.own.environment.items():
        monkeypatch.setenv(name, value)
    return running_own


@pytest.fixture
def services(cloud: OwnUnderTest) -> Iterator[CloudServices]:
    with closing(commands.connect(Address(), connections=4, within_s=30.0)) as found:
        yield found


def test_the_caller_is_named_without_its_key(services: CloudServices, cloud: OwnUnderTest) -> None:
    identity = services.identity()
    assert cloud.endpoint in identity.name
    assert cloud.own.environment["AWS_SECRET_ACCESS_KEY"] not in identity.name
    assert identity.date
    assert services.state_bucket == "orchgpu-state-000000000000-us-east-1"
