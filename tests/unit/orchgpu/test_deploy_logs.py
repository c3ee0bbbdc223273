"""The retention of a function's logs: planned on AWS only, set once, left behind."""

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from corekit.budget import Budget
from fdl.parse import parse
from fdl.plan.desired import desired, owned_keys
from fdl.plan.functions import Code
from fdl.plan.resources import DeployTarget, LogRetention
from fdl.plan.tags import tags_of
from orchgpu.adapters.aws.api import AwsClient
from orchgpu.adapters.aws.deploy.functions import LogRetentions

TEXT = """\
functions:
  aws:
  - lambda: {name: f, init_script: s, input: [{path: inn}], output: [{path: out}]}
    iam: {role: "arn:aws:iam::123456789012:role/r"}
    cloudwatch: {log_retention_policy_in_days: 30}
"""


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        client = boto3.client("logs", region_name="eu-west-1")
        yield client
        client.close()


def test_it_is_set_and_set_again(logs: Any) -> None:
    retentions, f = LogRetentions(lambda: AwsClient(logs)), LogRetention(name="f", days=30)
    assert retentions.observe(f) is None
    logs.create_log_group(logGroupName="/aws/lambda/f")
    logs.create_log_group(logGroupName="/aws/lambda/f-too")
    assert retentions.observe(f) is None, "kept for ever"
    for days in (30, 7):
        retentions.put(LogRetention(name="f", days=days))
        assert retentions.observe(f) == LogRetention(name="f", days=days)
    retentions.put(LogRetention(name="g", days=1))
    other = LogRetention(name="g", days=1)
    assert retentions.observe(other) == other
    assert retentions.observe(LogRetention(name="f-too", days=1)) is None


def test_a_group_of_the_definition_is_kept_and_tagged(logs: Any) -> None:
    retentions = LogRetentions(lambda: AwsClient(logs))
    shared = LogRetention(name="f", days=7, group_name="team/gpu", tags={"team": "a"})
    retentions.put(shared)
    assert retentions.observe(shared) == shared
    (group,) = logs.describe_log_groups(logGroupNamePrefix="team/")["logGroups"]
    assert logs.list_tags_for_resource(resourceArn=group["arn"].removesuffix(":*"))["tags"] == {
        "team": "a"
    }


@pytest.mark.parametrize("local", [True, False])
def test_it_is_set_on_aws_only_and_is_not_in_the_ledger(local: bool) -> None:
    (function,) = parse(TEXT).functions.aws
    place = DeployTarget(account="123456789012", region="eu-west-1", local=local)
    wanted = desired(function, place, Code(sha256="0" * 64, size=1), Budget())
    found = [r for r in wanted.resources if isinstance(r, LogRetention)]
    assert found == ([] if local else [LogRetention(name="f", days=30, tags=tags_of(function))])
    assert [key for key in owned_keys(wanted, place) if "log" in key] == []
