"""A cloud of the model in weather of the test's choice."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from local_cloud.model.cloud import Cloud
from local_cloud.model.errors import CloudError
from local_cloud.model.roles import Role
from local_cloud.model.s3.body import Content, MemoryBodies
from local_cloud.model.s3.notifications import Rule
from local_cloud.model.s3.object_version import Condition, ObjectVersion
from local_cloud.model.sqs.queue import Queue
from local_cloud.model.weather import Weather

TRUST = json.dumps({"Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole"}]})
OPEN = json.dumps({"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]})


class World:
    """One cloud; times are seconds after its start."""

    def __init__(self, weather: Weather) -> None:
        self.bodies = MemoryBodies()
        self.cloud = Cloud(bodies=self.bodies, weather=weather, strict_policies=False)

    def role(self, name: str = "role") -> str:
        """The ARN of a role that is created at 0."""
        return self.cloud.roles.arn(self.cloud.roles.create(0.0, Role(name=name, trust=TRUST)))

    def put(
        self, now_s: float, key: str = "k", condition: Condition | None = None
    ) -> ObjectVersion:
        return self.cloud.put_object(now_s, "bucket", key, self.content(), condition=condition)

    def content(self) -> Content:
        return self.bodies.add(b"body")

    def bucket(self, *, versioned: bool = False) -> None:
        self.cloud.create_bucket(0.0, "bucket")
        if versioned:
            self.cloud.set_versioning(0.0, "bucket", "Enabled")

    def queue(self, name: str = "queue") -> Queue:
        return self.cloud.queues.create(0.0, name)

    def rule(self, queue: Queue) -> Rule:
        return Rule(id=queue.name, arn=queue.arn, events=("s3:ObjectCreated:*",))

    def keys(self, queue: Queue) -> list[str]:
        """The keys of the events in a queue, hidden or not, in the order of their arrival."""
        bodies = [json.loads(message.body) for message in queue.messages()]
        return [body["Records"][0]["s3"]["object"]["key"] for body in bodies if "Records" in body]


def refusal(call: Callable[[], object]) -> tuple[str, int, str]:
    """Code, status and text of the refusal of a call."""
    with pytest.raises(CloudError) as error:
        call()
    return error.value.code, error.value.status, error.value.message
