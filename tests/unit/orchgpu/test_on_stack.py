"""Definitions on a stack: the network that functions get, and the names that are refused."""

from __future__ import annotations

import re

import pytest

from corekit.errors import AppError, ErrorCode
from fdl.model import Document, Vpc
from fdl.parse import parse
from orchgpu.deploy.on_stack import check_names, in_network
from orchgpu.local.stack import StackRecord

STACK = StackRecord(
    name="lab",
    account="123456789012",
    region="eu-west-1",
    subnets=("subnet-a", "subnet-b"),
    function_group="sg-f",
    function_prefix="gpu-",
    bucket_prefix="data-",
    secret_prefix="lab/",
)
INSIDE = Vpc(subnet_ids=("subnet-a", "subnet-b"), security_group_ids=("sg-f",))
ONE = """\
functions:
  aws:
  - lambda:
      name: {name}
      init_script: s.sh
      output: [{{path: "{bucket}/out"}}]{more}
    iam: {{create: true}}
    gpu: {{memory: 64}}
    job: {{input: [{{path: "{bucket}/in"}}], intermediate: {{path: "{bucket}-x"}}}}
"""
GROUP = """\
functions:
  aws:
  - group: gpu-g
    lambda: {name: a, init_script: s.sh, input: [{path: data-i}], output: [{path: mid}]}
    job: {intermediate: {path: data-x}}
  - group: gpu-g
    lambda: {name: b, init_script: s.sh, input: [{path: mid}], output: [{path: data-o}]}
    gpu: {}
  - lambda: {name: gpu-plain, init_script: s.sh, input: [{path: data-p}]}
    job: {intermediate: {path: data-x}}
"""


def document(text: str) -> Document:
    return parse(text.encode(), "f.yaml")


def one(name: str = "gpu-f", bucket: str = "data-{account}", more: str = "") -> Document:
    return document(ONE.format(name=name, bucket=bucket, more=more))


def networks(given: Document, stack: StackRecord = STACK) -> list[Vpc]:
    return [f.function.vpc for f in in_network(given, stack).functions.aws]


@pytest.mark.parametrize(
    ("written", "network"),
    [
        ("", INSIDE),
        (
            "vpc: {SubnetIds: [subnet-1], SecurityGroupIds: [sg-1]}",
            Vpc(subnet_ids=("subnet-1",), security_group_ids=("sg-1",)),
        ),
        ("vpc: {SubnetIds: [], SecurityGroupIds: []}", Vpc()),
    ],
)
def test_a_function_gets_the_stacks_network_unless_its_own_is_written(
    written: str, network: Vpc
) -> None:
    assert networks(one(more=f"\n      {written}" if written else "")) == [network]


def test_all_steps_of_a_group_with_a_device_get_it_and_no_function_without_one() -> None:
    assert networks(document(GROUP)) == [INSIDE, INSIDE, Vpc()]


def test_functions_outside_of_a_network_stay_there() -> None:
    outside = StackRecord(name="lab", account="1", region="r")
    assert networks(one(), outside) == [Vpc()]
    check_names(one("any", "any"), outside, "f.yaml")  # of an older record no prefix is known


def refused(given: Document) -> list[str]:
    with pytest.raises(AppError) as caught:
        check_names(given, STACK, "f.yaml")
    assert caught.value.code is ErrorCode.INVALID
    *lines, hint = caught.value.message.splitlines()
    assert hint == "`--stack ''` deploys without the stack"
    return lines


def test_names_with_the_prefixes_pass() -> None:
    check_names(one(), STACK, "f.yaml")
    check_names(document(GROUP), STACK, "f.yaml")


def test_each_other_name_is_refused_at_its_place_with_the_one_to_write() -> None:
    reach = "the roles of the stack lab reach no"
    first, *others = refused(one("first", "pics-{account}"))
    assert first == (
        f"f.yaml:4:7: error: functions.aws[0].lambda.name: {reach} 'first': write 'gpu-first', or"
        " another name that begins with 'gpu-'"
    )
    form = re.compile(r"f.yaml:(\d+):\d+: error: functions.aws\[0\].(\S+): (.*), or ")
    found = [match.groups() for line in others if (match := form.match(line))]
    assert found == [
        ("6", "lambda.output[0]", f"{reach} 'pics-{{account}}': write 'data-pics-{{account}}'"),
        ("9", "job.input[0]", f"{reach} 'pics-{{account}}': write 'data-pics-{{account}}'"),
        ("9", "job.intermediate", f"{reach} 'pics-{{account}}-x': write 'data-pics-{{account}}-x'"),
    ]


@pytest.mark.parametrize(
    ("block", "named"),
    [
        ("secrets: {A: ssm:/other/token}", "'other/token': write 'lab/other/token'"),
        ("secrets: {A: 'secretsmanager:db'}", "'db': write 'lab/db'"),
        ("notify: [{queue: ends}]", "'ends': write 'gpu-ends'"),
    ],
)
def test_secrets_and_targets_are_names_too(block: str, named: str) -> None:
    text = ONE.format(name="gpu-f", bucket="data-b", more="") + f"    {block}\n"
    [line] = refused(document(text))
    assert named in line


def test_a_role_of_ones_own_may_reach_other_outputs_and_secrets() -> None:
    text = ONE.format(name="gpu-f", bucket="data-b", more="").replace("data-b/out", "mine/out")
    own = text.replace("create: true", "role: arn:aws:iam::123456789012:role/r")
    check_names(document(own + "    secrets: {A: ssm:/other/token}\n"), STACK, "f.yaml")
    assert len(refused(document(text))) == 1
