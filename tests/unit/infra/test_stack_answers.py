"""Answers of CloudFormation and Service Quotas that moto does not give, by botocore's models."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber

from corekit.errors import AppError, ErrorCode
from fdl.plan.resources import DeployTarget
from orchgpu.adapters.aws.api import AwsClient
from orchgpu.adapters.aws.stacks import AwsStacks
from orchgpu.infra.model import ChangeSet
from orchgpu.infra.quotas import Quota
from orchgpu.infra.template import BODY_BYTES_MAX

PLACE = DeployTarget(account="123456789012", region="eu-west-1")
SPOT = Quota(service="ec2", code="L-3819A6DF", needed=32)
NAMED = {"ServiceCode": "ec2", "QuotaCode": "L-3819A6DF"}
STACK = "arn:aws:cloudformation:eu-west-1:123456789012:stack/lab/1"
#: Call, the parameters that it must have, the answer or an error's code and message.
Answer = tuple[str, Any, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
IDS = {"ChangeSetId": "change-set-1", "ChangeSetName": "c", "StackName": "lab"}


@contextmanager
def answering(service: str, *answers: Answer) -> Iterator[AwsStacks]:
    """The adapter, with a service that gives these answers in this order: call, wanted, answer."""
    client = boto3.client(
        service, region_name="eu-west-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    with Stubber(client) as stubber:
        for call, wanted, answer in answers:
            if isinstance(answer, tuple):
                code, message = answer
                stubber.add_client_error(call, code, message, expected_params=wanted)
            else:
                stubber.add_response(call, answer, wanted)
        yield AwsStacks(lambda _: AwsClient(client), lambda: PLACE, sleep=lambda _: None)
        stubber.assert_no_pending_responses()
    client.close()


def described(status: str) -> dict[str, Any]:
    return {"Stacks": [{"StackName": "lab", "StackStatus": status, "CreationTime": NOW}]}


def proposal(*answers: dict[str, Any], status: str = "CREATE_COMPLETE") -> Any:
    wanted = {"ChangeSetName": "change-set-1", "StackName": STACK, "IncludePropertyValues": True}
    return (
        ("describe_stacks", {"StackName": "lab"}, described(status)),
        ("create_change_set", ANY_OF_A_CHANGE_SET, {"Id": "change-set-1", "StackId": STACK}),
        *(("describe_change_set", wanted, {**IDS, **answer}) for answer in answers),
    )


OF_STACK = {"StackName": STACK}
#: A change set and its empty stack are deleted: by its id, since the name may be another's by now.
DISCARDED: tuple[Answer, ...] = (
    ("delete_change_set", {"ChangeSetName": "change-set-1", **OF_STACK}, {}),
    ("list_change_sets", OF_STACK, {"Summaries": []}),
    ("describe_stacks", OF_STACK, described("REVIEW_IN_PROGRESS")),
    ("delete_stack", OF_STACK, {}),
)
ANY_OF_A_CHANGE_SET = dict.fromkeys(
    (
        *("StackName", "ChangeSetName", "ChangeSetType", "TemplateBody", "Parameters"),
        *("Capabilities", "Tags"),
    ),
    ANY,
)


def test_a_quota_is_asked_for_once() -> None:
    history = "list_requested_service_quota_change_history_by_quota"
    value = {"Quota": {"Value": 0.0}}
    asked: Answer = ("request_service_quota_increase", {**NAMED, "DesiredValue": 32}, {})
    old = {"RequestedQuotas": [{"Status": "DENIED"}]}
    with answering(
        "service-quotas", ("get_service_quota", NAMED, value), (history, NAMED, old), asked
    ) as stacks:
        assert stacks.quota(SPOT) == 0
        assert stacks.request_quota(SPOT)
    open_ = {"RequestedQuotas": [{"Status": "CASE_OPENED"}]}
    with answering("service-quotas", (history, NAMED, open_)) as stacks:
        assert not stacks.request_quota(SPOT)


def test_a_quota_that_may_not_be_read_is_unknown() -> None:
    denied = ("get_service_quota", NAMED, ("AccessDeniedException", "no"))
    with answering("service-quotas", denied) as stacks:
        assert stacks.quota(SPOT) is None


def test_a_change_names_the_values_before_and_afterwards() -> None:
    target = {"Attribute": "Properties", "Name": "MaxSize", "BeforeValue": "4", "AfterValue": "7"}
    resource = {
        "Action": "Modify",
        "LogicalResourceId": "PoolA",
        "PhysicalResourceId": "lab-PoolA-1",
        "ResourceType": "AWS::AutoScaling::AutoScalingGroup",
        "Replacement": "False",
        "Details": [{"Target": target}, {"Target": {"Attribute": "Tags"}}],
    }
    found = {"Status": "CREATE_COMPLETE", "Changes": [{"ResourceChange": resource}]}
    with answering("cloudformation", *proposal({"Status": "CREATE_PENDING"}, found)) as stacks:
        [change] = stacks.propose("lab", "{}", {}, {}).changes
    assert change.properties == {"MaxSize": ("4", "7"), "Tags": ("", "")}
    assert (change.logical, change.replacement) == ("PoolA", "False")


def test_nothing_to_change_is_no_error() -> None:
    reason = "The submitted information didn't contain changes. Submit different information."
    empty = {"Status": "FAILED", "StatusReason": reason}
    with answering("cloudformation", *proposal(empty)) as stacks:
        assert stacks.propose("lab", "{}", {}, {}).changes == ()


def test_a_refused_template_leaves_nothing() -> None:
    reason = "Parameters: [GpuImage] do not exist"
    refused = {"Status": "FAILED", "StatusReason": reason}
    steps = proposal(refused, status="REVIEW_IN_PROGRESS")
    with answering("cloudformation", *steps, *DISCARDED) as stacks:
        with pytest.raises(AppError, match="GpuImage") as caught:
            stacks.propose("lab", "{}", {}, {})
        assert caught.value.code is ErrorCode.INVALID


def test_a_proposal_that_is_never_computed_leaves_nothing() -> None:
    pending = [{"Status": "CREATE_PENDING"}] * 152
    with answering("cloudformation", *proposal(*pending), *DISCARDED) as stacks:
        with pytest.raises(AppError, match="within 5 minutes") as caught:
            stacks.propose("lab", "{}", {}, {})
        assert caught.value.code is ErrorCode.TIMEOUT


@pytest.mark.parametrize(
    "after",
    [
        (("list_change_sets", OF_STACK, {"Summaries": [{"ChangeSetName": "another"}]}),),
        (
            ("list_change_sets", OF_STACK, {"Summaries": []}),
            ("describe_stacks", OF_STACK, described("CREATE_IN_PROGRESS")),
        ),
    ],
)
def test_a_stack_that_another_person_works_on_is_not_discarded(after: tuple[Answer, ...]) -> None:
    with answering("cloudformation", DISCARDED[0], *after) as stacks:
        stacks.discard(ChangeSet(id="change-set-1", stack_id=STACK))


def test_failures_are_the_first_causes_of_the_newest_operation() -> None:
    def event(logical: str, status: str, reason: str = "") -> dict[str, Any]:
        return {
            "StackId": STACK,
            "EventId": f"{logical}-{status}",
            "StackName": "lab",
            "Timestamp": NOW,
            "LogicalResourceId": logical,
            "ResourceStatus": status,
            "ResourceStatusReason": reason,
        }

    events = [
        event("lab", "ROLLBACK_IN_PROGRESS", "The following resource(s) failed to create"),
        event("PoolB", "CREATE_FAILED", "Resource creation cancelled"),
        event("SchedulersA", "CREATE_FAILED", "Received 0 SUCCESS signal(s) out of 1"),
        event("Network", "CREATE_COMPLETE"),
        event("lab", "CREATE_IN_PROGRESS", "User Initiated"),
        event("Journal", "CREATE_FAILED", "of an operation before"),
    ]
    answer = ("describe_stack_events", {"StackName": "lab"}, {"StackEvents": events})
    with answering("cloudformation", answer) as stacks:
        assert stacks.failures("lab") == ["SchedulersA: Received 0 SUCCESS signal(s) out of 1"]


def test_a_stack_that_is_deleted_is_absent() -> None:
    gone = ("ValidationError", "Stack with id lab does not exist")
    with answering("cloudformation", ("describe_stacks", {"StackName": "lab"}, gone)) as stacks:
        assert stacks.find("lab") is None
    deleted = ("describe_stacks", {"StackName": "lab"}, described("DELETE_COMPLETE"))
    with answering("cloudformation", deleted) as stacks:
        assert stacks.find("lab") is None


def test_more_machines_than_one_call_takes_are_released() -> None:
    """SetInstanceProtection takes 50 at most (Auto Scaling API)."""
    names = [f"i-{number}" for number in range(101)]
    instance = {"AvailabilityZone": "a", "HealthStatus": "Healthy", "ProtectedFromScaleIn": True}
    group = {
        "AutoScalingGroupName": "pool",
        "MinSize": 0,
        "MaxSize": 101,
        "DesiredCapacity": 101,
        "DefaultCooldown": 1,
        "AvailabilityZones": ["a"],
        "HealthCheckType": "EC2",
        "CreatedTime": NOW,
        "Instances": [
            {**instance, "InstanceId": name, "LifecycleState": "InService"} for name in names
        ],
    }
    name = {"AutoScalingGroupName": "pool"}
    released: list[Answer] = [
        (
            "set_instance_protection",
            {**name, "InstanceIds": part, "ProtectedFromScaleIn": False},
            {},
        )
        for part in (names[:50], names[50:100], names[100:])
    ]
    with answering(
        "autoscaling",
        (
            "describe_auto_scaling_groups",
            {"AutoScalingGroupNames": ["pool"]},
            {"AutoScalingGroups": [group]},
        ),
        ("update_auto_scaling_group", {**name, "NewInstancesProtectedFromScaleIn": False}, {}),
        *released,
    ) as stacks:
        stacks.release_machines(["pool"])


def test_the_url_of_a_large_template_is_that_of_its_region() -> None:
    """CloudFormation reads it by the caller's rights, at the bucket's own endpoint."""
    body = "x" * (BODY_BYTES_MAX + 1)
    client = boto3.client(
        "s3", region_name="eu-west-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    key = f"infra/lab/{hashlib.sha256(body.encode()).hexdigest()}.template"
    url = f"https://s3.eu-west-1.amazonaws.com/{PLACE.state_bucket}/{key}"
    cloud = boto3.client(
        "cloudformation", region_name="eu-west-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    wanted = {**ANY_OF_A_CHANGE_SET, "TemplateURL": url}
    del wanted["TemplateBody"]
    with Stubber(client) as objects, Stubber(cloud) as stacks:
        objects.add_response("head_object", {}, {"Bucket": PLACE.state_bucket, "Key": key})
        [found, made, *computed] = proposal({"Status": "CREATE_COMPLETE", "Changes": []})
        for call, expected, answer in (found, (made[0], wanted, made[2]), *computed):
            stacks.add_response(call, answer, expected)
        clients = {"s3": AwsClient(client), "cloudformation": AwsClient(cloud)}
        AwsStacks(clients.__getitem__, lambda: PLACE).propose("lab", body, {}, {})
        objects.assert_no_pending_responses()
        stacks.assert_no_pending_responses()
    client.close()
    cloud.close()
