"""A deploy in AWS's weather: AWS's own answers, through botocore's validators."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from fdl.parse import parse
from fdl.plan.desired import desired
from fdl.plan.functions import Code
from fdl.plan.resources import (
    Bucket,
    DeployTarget,
    Expiry,
    FunctionResource,
    InvokeConfig,
    LogRetention,
    Notification,
    Package,
    Permission,
    QueueResource,
    Role,
    Schedule,
)
from orchgpu.adapters.aws.deploy.calls import Schedules
from orchgpu.adapters.aws.deploy.functions import (
    InvokeConfigs,
    LambdaFunctions,
    LogRetentions,
    Permissions,
)
from orchgpu.adapters.aws.deploy.queues import SqsQueues
from orchgpu.adapters.aws.deploy.roles import IamRoles
from orchgpu.adapters.aws.deploy.storage import Buckets, Expiries, Notifications, StateObjects
from orchgpu.adapters.aws.settling import (
    PENDING_S_MAX,
    SETTLE_S_MAX,
    TRANSIENTS,
    Settling,
)

AWS = DeployTarget(account="123456789012", region="eu-west-1")
ARN = "arn:aws:lambda:eu-west-1:123456789012:function:f"
ROLE = "arn:aws:iam::123456789012:role/orchgpu-f"
LIMIT = "arn:aws:iam::123456789012:policy/orchgpu-functions"
ZIP = b"PK\x05\x06" + bytes(18)
ACTIVE = {"State": "Active", "LastUpdateStatus": "Successful", "Role": ROLE, "FunctionName": "f"}


class Clock:
    """The time that pauses take; no test waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s

    def monotonic(self) -> float:
        return self.now_s


class Cloud:
    """One client of AWS whose answers are written down; and the clock of its calls."""

    def __init__(self, service: str) -> None:
        client: Any = boto3.client(
            service, region_name="eu-west-1", aws_access_key_id="a", aws_secret_access_key="b"
        )
        self.stub = Stubber(client)
        self.stub.activate()
        self.clock = Clock()
        settling = Settling(sleep=self.clock.sleep, monotonic=self.clock.monotonic)
        self.client: Any = settling.client(client)

    def refuses(self, call: str, code: str, text: str, times: int = 1) -> Cloud:
        for _ in range(times):
            self.stub.add_client_error(call, code, text, http_status_code=400)
        return self

    def answers(self, call: str, answer: dict[str, Any] | None = None) -> Cloud:
        self.stub.add_response(call, answer or {}, None)
        return self


FUNCTION = FunctionResource(
    name="f",
    role=ROLE,
    memory_mib=512,
    timeout_s=30,
    runtime="python3.12",
    handler="a.b",
    package="0" * 64,
)
PENDING = (
    "The operation cannot be performed at this time. The function is currently in the following"
    " state: Pending"
)
UPDATING = (
    "The operation cannot be performed at this time. An update is in progress for resource: " + ARN
)
CONCURRENT = "The function could not be updated due to a concurrent update operation."
NOT_ASSUMABLE = "The role defined for the function cannot be assumed by Lambda."
NO_INTERFACE = (
    "The provided execution role does not have permissions to call CreateNetworkInterface on EC2"
)
NO_SEND = "The function's execution role does not have permissions to call SendMessage on " + ARN
BUSY = (
    "A conflicting conditional operation is currently in progress against this resource. Please"
    " try again."
)
UNSEEN = "The role with name orchgpu-f cannot be found."
NO_POLICY = "The role policy with name orchgpu cannot be found."
NO_GRANT = (
    "Lambda was unable to configure access to your environment variables because the KMS key is"
    " invalid for CreateGrant. Please check your KMS key settings. KMS Exception:"
    " InvalidArnException KMS Message: ARN does not refer to a valid principal"
)
EC2_THROTTLED = (
    "Lambda was not able to create an ENI in the VPC of the Lambda function because your request"
    " has been throttled by EC2"
)
IN_PROGRESS = "The resource already exists, or another operation is in progress."
URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/f-jobs"
RACED = (
    "The request was rejected because multiple requests to change this object were submitted"
    " simultaneously."
)
NO_BUCKET = "The specified bucket does not exist"
DELETED = (
    "You must wait 60 seconds after deleting a queue before you can create another with the same"
    " name."
)


def creates_function(cloud: Cloud, code: str, text: str) -> None:
    cloud.refuses("get_function", "ResourceNotFoundException", "Function not found: " + ARN)
    cloud.refuses("create_function", code, text, times=3).answers("create_function", ACTIVE)
    cloud.answers("get_function_configuration", ACTIVE)
    LambdaFunctions(cloud.client, lambda: None, AWS).create(FUNCTION, ZIP)


def updates_function(cloud: Cloud, code: str, text: str) -> None:
    """A deploy was cut off, and the same one again finds its function."""
    found = {"Configuration": {**ACTIVE, "CodeSha256": ""}, "Tags": {}}
    cloud.answers("get_function", found)
    cloud.refuses("update_function_code", code, text, times=1 if code == CONFLICT else 0)
    cloud.answers("update_function_code", ACTIVE)
    cloud.answers("get_function_configuration", ACTIVE)
    cloud.refuses("update_function_configuration", code, text)
    cloud.answers("update_function_configuration", ACTIVE)
    cloud.answers("get_function_configuration", ACTIVE)
    LambdaFunctions(cloud.client, lambda: None, AWS).update(FUNCTION, None, ZIP)


def configures_failures(cloud: Cloud, code: str, text: str) -> None:
    cloud.refuses("put_function_event_invoke_config", code, text, times=2)
    cloud.answers("put_function_event_invoke_config")
    queue = "arn:aws:sqs:eu-west-1:123456789012:f-done"
    config = InvokeConfig(name="f", retries=0, event_age_s=60, on_failure_arn=queue)
    InvokeConfigs(cloud.client).put(config)


def allows_s3(cloud: Cloud, code: str, text: str) -> None:
    cloud.refuses("get_policy", "ResourceNotFoundException", "No policy is associated")
    cloud.refuses("add_permission", code, text).answers("add_permission")
    permission = Permission(
        function="f", statement="s", source_arn="arn:aws:s3:::in", account=AWS.account
    )
    Permissions(cloud.client).put(permission)


def creates_queue(cloud: Cloud, code: str, text: str) -> None:
    cloud.refuses("get_queue_url", "AWS.SimpleQueueService.NonExistentQueue", "no such queue")
    cloud.refuses("create_queue", code, text, times=4).answers("create_queue")
    queue = QueueResource(name="f-jobs", retention_s=60, visibility_s=30)
    SqsQueues(cloud.client).put(queue)


def reserves(cloud: Cloud, code: str, text: str) -> None:
    cloud.answers("update_function_configuration", ACTIVE)
    cloud.answers("get_function_configuration", ACTIVE)
    cloud.refuses("put_function_concurrency", code, text).answers("put_function_concurrency")
    reserved = replace(FUNCTION, reserved=5)
    LambdaFunctions(cloud.client, lambda: None, AWS).update(reserved, FUNCTION, ZIP)


def creates_role(cloud: Cloud, code: str, text: str) -> None:
    made = {"RoleName": "orchgpu-f", "Path": "/", "RoleId": "A" * 16, "Arn": ROLE}
    role = {**made, "CreateDate": "2026-11-22T00:00:00Z"}
    raced = code == "ConcurrentModification"
    cloud.refuses("create_role", code, text, times=2 if raced else 0)
    cloud.answers("create_role", {"Role": role})
    cloud.refuses("get_role", "NoSuchEntity", UNSEEN, times=2).answers("get_role", {"Role": role})
    cloud.refuses("get_role_policy", "NoSuchEntity", NO_POLICY)  # at once: it has none yet
    cloud.answers("put_role_permissions_boundary")
    cloud.refuses("put_role_policy", code, text, times=3).answers("put_role_policy")
    IamRoles(lambda: cloud.client).put(Role(name="orchgpu-f", policy={}, boundary=LIMIT))


def creates_schedule(cloud: Cloud, code: str, text: str) -> None:
    cloud.refuses("get_schedule", "ResourceNotFoundException", "no such schedule")
    cloud.refuses("create_schedule", code, text, times=2)
    cloud.answers("create_schedule", {"ScheduleArn": "arn:aws:scheduler:x"})
    schedule = Schedule(name="s", role=ROLE, cron="cron(0 3 * * ? *)", put={"Bucket": "b"})
    Schedules(lambda: cloud.client, AWS).put(schedule)


def creates_bucket(cloud: Cloud, code: str, text: str) -> None:
    if code != "NoSuchBucket":
        cloud.refuses("create_bucket", code, text)
    cloud.answers("create_bucket")
    cloud.refuses("put_bucket_versioning", code, text).answers("put_bucket_versioning")
    cloud.refuses("get_bucket_tagging", code, text).answers("get_bucket_tagging", {"TagSet": []})
    cloud.refuses("put_bucket_tagging", code, text, times=2).answers("put_bucket_tagging")
    bucket = Bucket(name="f-in", versioned=True, tags={"a": "b"})
    Buckets(cloud.client, AWS).put(bucket, exists=False)


class NoLock:
    def __init__(self, bucket: str) -> None:
        del bucket

    def __enter__(self) -> None:
        """Nobody else changes the bucket."""

    def __exit__(self, *_: object) -> None:
        """Nothing to release."""


def notifies_queue(cloud: Cloud, code: str, text: str) -> None:
    arn = "arn:aws:sqs:eu-west-1:123456789012:f-jobs"
    rule = Notification(
        bucket="f-in", id="r", target_arn=arn, prefix="", suffix="", events=("s3:ObjectCreated:*",)
    )
    after = [{"Id": "r", "QueueArn": arn, "Events": list(rule.events)}]
    call = "put_bucket_notification_configuration"
    cloud.answers("get_bucket_notification_configuration")
    cloud.refuses(call, code, text, times=9).answers(call)
    cloud.answers("get_bucket_notification_configuration", {"QueueConfigurations": after})
    Notifications(cloud.client, NoLock).put(rule)


def expires_envelopes(cloud: Cloud, code: str, text: str) -> None:
    call = "put_bucket_lifecycle_configuration"
    cloud.answers("get_bucket_lifecycle_configuration", {"Rules": []})
    cloud.refuses(call, code, text).answers(call)
    expiry = Expiry(bucket="f-mid", id="e", prefix="staging/", days=1)
    Expiries(cloud.client, NoLock).put(expiry)


def waits_for_function(cloud: Cloud, code: str, text: str) -> None:
    """The function was made, and another of Lambda's servers does not know it yet."""
    cloud.refuses("get_function", "ResourceNotFoundException", "Function not found: " + ARN)
    cloud.answers("create_function", ACTIVE)
    cloud.refuses("get_function_configuration", code, text, times=3)
    cloud.answers("get_function_configuration", ACTIVE)
    LambdaFunctions(cloud.client, lambda: None, AWS).create(FUNCTION, ZIP)


def retags(cloud: Cloud, code: str, text: str) -> None:
    cloud.refuses("untag_resource", code, text).answers("untag_resource")
    cloud.refuses("tag_resource", code, text).answers("tag_resource")
    cloud.answers("update_function_configuration", ACTIVE)
    cloud.answers("get_function_configuration", ACTIVE)
    before, after = replace(FUNCTION, tags={"old": "x"}), replace(FUNCTION, tags={"new": "x"})
    LambdaFunctions(cloud.client, lambda: None, AWS).update(after, before, ZIP)


def removes_function(cloud: Cloud, code: str, text: str) -> None:
    call = "delete_function_event_invoke_config"
    cloud.refuses(call, code, text).answers(call)
    InvokeConfigs(cloud.client).delete("f")
    policy = {"Statement": [{"Sid": "s"}]}
    cloud.answers("get_policy", {"Policy": json.dumps(policy)})
    cloud.refuses("remove_permission", code, text).answers("remove_permission")
    permission = Permission(function="f", statement="s", source_arn="a", account=AWS.account)
    Permissions(cloud.client).delete(permission)
    cloud.refuses("delete_function", code, text, times=4).answers("delete_function")
    LambdaFunctions(cloud.client, lambda: None, AWS).delete("f")


def removes_role(cloud: Cloud, code: str, text: str) -> None:
    cloud.answers("delete_role_policy")
    cloud.refuses("delete_role", code, text, times=3).answers("delete_role")
    IamRoles(lambda: cloud.client).delete("orchgpu-f")


def retags_role(cloud: Cloud, code: str, text: str) -> None:
    cloud.refuses("untag_role", code, text).answers("untag_role")
    cloud.refuses("tag_role", code, text).answers("tag_role")
    old = Role(name="orchgpu-f", policy={}, tags={"a": "b"})
    IamRoles(lambda: cloud.client)._update(replace(old, tags={"c": "d"}), old)


def removes_bucket(cloud: Cloud, code: str, text: str) -> None:
    cloud.refuses("delete_bucket", code, text).answers("delete_bucket")
    Buckets(cloud.client, AWS).delete("f-in")


def stores_package(cloud: Cloud, code: str, text: str) -> None:
    cloud.refuses("put_object", code, text, times=5).answers("put_object")
    package = Package(bucket=AWS.state_bucket, sha256="0" * 64)
    StateObjects(cloud.client, AWS).write_package(package, ZIP)


def keeps_logs(cloud: Cloud, code: str, text: str) -> None:
    if code != "ResourceNotFoundException":
        cloud.refuses("create_log_group", code, text)
    cloud.answers("create_log_group")
    cloud.refuses("put_retention_policy", code, text, times=2).answers("put_retention_policy")
    LogRetentions(lambda: cloud.client).put(LogRetention(name="f", days=7))


def finds_queue(cloud: Cloud, code: str, text: str) -> None:
    """The url of a queue that was just made, for the function's record."""
    cloud.refuses("get_queue_url", code, text).answers("create_queue", {"QueueUrl": URL})
    cloud.refuses("get_queue_url", code, text, times=3).answers("get_queue_url", {"QueueUrl": URL})
    queues = SqsQueues(cloud.client)
    queues.put(QueueResource(name="f-jobs", retention_s=60, visibility_s=30))
    assert queues.url("f-jobs") == URL


def finds_interfaces(cloud: Cloud, code: str, text: str) -> None:
    cloud.refuses("describe_subnets", code, text).answers("describe_subnets", {"Subnets": []})
    cloud.client.describe_subnets()


INVALID = "InvalidParameterValueException"
CONFLICT = "ResourceConflictException"
NEW_TARGET = "Unable to validate the following destination configurations"
WEATHER = [
    ("lambda", creates_function, INVALID, NOT_ASSUMABLE),
    ("lambda", creates_function, INVALID, NO_INTERFACE),
    ("lambda", updates_function, CONFLICT, PENDING),
    ("lambda", updates_function, CONFLICT, UPDATING),
    ("lambda", configures_failures, INVALID, NO_SEND),
    ("lambda", configures_failures, CONFLICT, UPDATING),
    ("lambda", allows_s3, CONFLICT, CONCURRENT),
    ("lambda", allows_s3, "TooManyRequestsException", "Rate exceeded"),
    ("lambda", reserves, CONFLICT, UPDATING),
    ("iam", creates_role, "NoSuchEntity", UNSEEN),
    ("scheduler", creates_schedule, "ValidationException", "must allow AWS to assume the role"),
    ("scheduler", creates_schedule, "ThrottlingException", "Rate exceeded"),
    ("sqs", creates_queue, "AWS.SimpleQueueService.QueueDeletedRecently", DELETED),
    ("sqs", creates_queue, "QueueDeletedRecently", DELETED),
    ("s3", creates_bucket, "OperationAborted", BUSY),
    ("s3", notifies_queue, "InvalidArgument", NEW_TARGET),
    ("s3", notifies_queue, "OperationAborted", BUSY),
    ("s3", expires_envelopes, "OperationAborted", BUSY),
    ("lambda", creates_function, INVALID, NO_GRANT),
    ("lambda", creates_function, INVALID, EC2_THROTTLED),
    ("lambda", creates_function, "TooManyRequestsException", "Rate exceeded"),
    ("lambda", waits_for_function, "ResourceNotFoundException", "Function not found: " + ARN),
    ("lambda", updates_function, INVALID, NO_GRANT),
    ("lambda", updates_function, CONFLICT, CONCURRENT),
    ("lambda", retags, CONFLICT, UPDATING),
    ("lambda", retags, "TooManyRequestsException", "Rate exceeded"),
    ("lambda", removes_function, CONFLICT, UPDATING),
    ("lambda", removes_function, CONFLICT, IN_PROGRESS),
    ("iam", creates_role, "ConcurrentModification", RACED),
    ("iam", retags_role, "ConcurrentModification", RACED),
    ("iam", retags_role, "Throttling", "Rate exceeded"),
    ("iam", removes_role, "DeleteConflict", "Cannot delete entity, must delete policies first."),
    ("iam", removes_role, "ConcurrentModification", RACED),
    ("s3", creates_bucket, "NoSuchBucket", NO_BUCKET),
    ("s3", removes_bucket, "OperationAborted", BUSY),
    ("s3", stores_package, "SlowDown", "Please reduce your request rate."),
    ("s3", stores_package, "ConditionalRequestConflict", BUSY),
    ("logs", keeps_logs, "OperationAbortedException", "A conflicting operation is in progress."),
    ("logs", keeps_logs, "ResourceNotFoundException", "The specified log group does not exist."),
    ("logs", keeps_logs, "ThrottlingException", "Rate exceeded"),
    ("sqs", creates_queue, "RequestThrottled", "Rate exceeded"),
    ("sqs", finds_queue, "AWS.SimpleQueueService.NonExistentQueue", "no such queue"),
    ("sqs", finds_queue, "QueueDoesNotExist", "no such queue"),
    ("ec2", finds_interfaces, "RequestLimitExceeded", "Request limit exceeded."),
]


@pytest.mark.parametrize(
    ("service", "work", "code", "text"),
    WEATHER,
    ids=[f"{work.__name__}-{code}-{n}" for n, (_, work, code, _) in enumerate(WEATHER)],
)
def test_an_answer_that_passes_is_waited_for(
    service: str, work: Callable[[Cloud, str, str], None], code: str, text: str
) -> None:
    cloud = Cloud(service)
    work(cloud, code, text)
    cloud.stub.assert_no_pending_responses()
    assert 0.0 < cloud.clock.now_s < SETTLE_S_MAX


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (INVALID, "The runtime parameter of python2.7 is no longer supported"),
        (CONFLICT, "Function already exist: f"),
        ("AccessDeniedException", "not authorized to perform: lambda:CreateFunction"),
    ],
)
def test_every_other_answer_ends_the_deploy_at_once(code: str, text: str) -> None:
    cloud = Cloud("lambda")
    with pytest.raises(AppError, match=text.split()[0]):
        creates_function(cloud, code, text)
    assert cloud.clock.now_s == 0.0


def test_every_row_of_the_table_has_an_answer_here() -> None:
    unused = [
        row
        for row in TRANSIENTS
        if not any(
            row.code == code and row.text in text and row.calls[0].split(":")[0] == service
            for service, _, code, text in WEATHER
        )
    ]
    assert unused == []


def test_an_answer_that_stays_is_reported_after_two_minutes() -> None:
    cloud = Cloud("sqs")
    cloud.refuses("get_queue_url", "AWS.SimpleQueueService.NonExistentQueue", "no such queue")
    cloud.refuses("create_queue", "QueueDeletedRecently", DELETED, times=100)
    with pytest.raises(AppError, match="wait 60 seconds") as caught:
        SqsQueues(cloud.client).put(QueueResource(name="f-jobs", retention_s=60, visibility_s=30))
    assert caught.value.code is ErrorCode.INVALID
    assert 110.0 <= cloud.clock.now_s <= SETTLE_S_MAX


def test_a_function_may_be_pending_for_five_minutes() -> None:
    """Defect 17: Lambda needs minutes for the network interfaces of a function in a VPC."""
    cloud = Cloud("lambda")
    cloud.refuses("delete_function", CONFLICT, PENDING, times=100)
    with pytest.raises(AppError, match="Pending"):
        LambdaFunctions(cloud.client, lambda: None, AWS).delete("f")
    assert 290.0 <= cloud.clock.now_s <= PENDING_S_MAX


def test_what_this_deploy_did_not_make_is_missing_at_once() -> None:
    cloud = Cloud("s3")
    cloud.refuses("delete_bucket_lifecycle", "NoSuchBucket", NO_BUCKET)
    with pytest.raises(AppError):
        cloud.client.delete_bucket_lifecycle(Bucket="f-in")
    cloud.answers("create_bucket").answers("delete_bucket")
    cloud.client.create_bucket(Bucket="f-in")
    cloud.client.delete_bucket(Bucket="f-in")
    cloud.refuses("get_bucket_tagging", "NoSuchBucket", NO_BUCKET)
    with pytest.raises(AppError):
        cloud.client.get_bucket_tagging(Bucket="f-in")
    assert cloud.clock.now_s == 0.0


@pytest.mark.parametrize(
    ("iam", "principals"),
    [
        ("{create: true}", ["s3.amazonaws.com"]),
        ("{role: 'arn:aws:iam::123456789012:role/mine'}", ["s3.amazonaws.com", "mine"]),
    ],
)
def test_no_policy_names_a_role_of_ours(iam: str, principals: list[str]) -> None:
    """SQS refuses a policy with a role that was made a moment ago, and the role's own allows it."""
    text = (
        "functions:\n  aws:\n  - lambda: {name: f, init_script: run.sh, output: [{path: out}]}\n"
        f"    iam: {iam}\n    gpu: {{}}\n    job: {{input: {{path: queries/in}}}}\n"
    )
    (function,) = parse(text).functions.aws
    made = desired(function, AWS, Code(sha256="0" * 64, size=1), Budget())
    (done,) = [r for r in made.resources if isinstance(r, QueueResource) and r.name == "f-done"]
    statements: Any = done.policy["Statement"]
    named = [next(iter(s["Principal"].values())).rsplit("/", 1)[-1] for s in statements]
    assert named == principals
