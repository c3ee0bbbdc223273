"""An AWS account by its answers: each question and each answer is checked by botocore's models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import botocore.session
from botocore.model import OperationModel
from botocore.validate import validate_parameters

from fdl.model import Function
from fdl.parse import parse
from fdl.plan.groups import deployed
from fdl.plan.resources import DeployTarget
from orchgpu.inspection.model import (
    Answer,
    Call,
    Finding,
    Gateway,
    Inspected,
    Reason,
    Refusal,
    Subject,
    Verdict,
    examined,
)
from orchgpu.inspection.registry import checks

PLACE = DeployTarget(account="123456789012", region="eu-west-1")
FDL = """\
functions:
  aws:
  - lambda:
      name: search
      init_script: search.py
      output: [{path: search-out/hits}]
      vpc: {SubnetIds: [subnet-a, subnet-b], SecurityGroupIds: [sg-functions]}
    iam: {create: true}
    gpu: {memory: 512}
    job: {input: {path: search-in/queries}}
"""
ANYWHERE = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
ALLOW_ALL = {"RuleNumber": 100, "Protocol": "-1", "RuleAction": "allow", "CidrBlock": "0.0.0.0/0"}


def function(text: str = FDL) -> Function:
    return deployed(parse(text.encode(), "fdl.yaml"))[0]


def subject(**changes: Any) -> Subject:
    """A function before its first deploy, one host, two devices."""
    values: dict[str, Any] = {
        "place": PLACE,
        "caller": f"arn:aws:iam::{PLACE.account}:user/alice",
        "functions": (Inspected(function=function(), deployed=False),),
        "gateways": (Gateway(host="gpu-a", name="10.0.1.5", address="10.0.1.5", port=4711),),
        "devices": 2,
        "scheduler": "10.0.1.10:4700",
        "scheduler_address": "10.0.1.10",
        "tls": True,
        "orchestrator_role": "orchgpu-orchestrator",
    }
    return Subject(**{**values, **changes})


@cache
def model(service: str, operation: str) -> OperationModel:
    return botocore.session.get_session().get_service_model(service).operation_model(operation)


def refused(code: str, reason: Reason = Reason.DENIED) -> tuple[str, Reason]:
    """An answer that is a refusal."""
    return code, reason


def network() -> dict[str, Any]:
    """The answers of EC2: two subnets, a host and the scheduler in them, an endpoint for S3."""
    interfaces = {
        address: [{"NetworkInterfaceId": eni, "VpcId": "vpc-1", "Groups": [{"GroupId": group}]}]
        for address, eni, group in (
            ("10.0.1.5", "eni-1", "sg-hosts"),
            ("10.0.1.10", "eni-2", "sg-scheduler"),
        )
    }
    groups = {
        "sg-functions": {"IpPermissionsEgress": [ANYWHERE]},
        "sg-hosts": {
            "IpPermissions": [
                {
                    "IpProtocol": "tcp",
                    "FromPort": 4711,
                    "ToPort": 4711,
                    "UserIdGroupPairs": [{"GroupId": "sg-functions"}],
                }
            ]
        },
        "sg-scheduler": {
            "IpPermissions": [
                {
                    "IpProtocol": "tcp",
                    "FromPort": 4700,
                    "ToPort": 4700,
                    "IpRanges": [{"CidrIp": "10.0.0.0/16"}],
                }
            ]
        },
    }
    return {"interfaces": interfaces, "groups": groups}


@dataclass
class Account:
    """Answers by `service.operation`: an answer, or a refusal; healthy where none is given."""

    answers: dict[str, Any] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.network = network()
        self.routes = [{"DestinationCidrBlock": "10.0.0.0/16", "GatewayId": "local"}]
        self.endpoints: list[dict[str, Any]] = [
            {
                "VpcEndpointId": "vpce-1",
                "ServiceName": "com.amazonaws.eu-west-1.s3",
                "State": "available",
                "RouteTableIds": ["rtb-1"],
            }
        ]
        self.attributes = {"enableDnsSupport": True, "enableDnsHostnames": True}
        self.acl = [{**ALLOW_ALL, "Egress": True}, {**ALLOW_ALL, "Egress": False}]
        self.denied: set[str] = set()  #: actions that simulations refuse

    def __call__(self, call: Call) -> Answer:
        self.calls.append(call)
        if call.service == "https":
            return dict(self.answers["https.Get"])
        shapes = model(call.service, call.operation)
        validate_parameters(dict(call.arguments), shapes.input_shape)
        name = f"{call.service}.{call.operation}"
        answer = self.answers.get(name)
        if callable(answer):
            answer = answer(call.arguments)
        if answer is None:
            answer = self.healthy(call.operation, **call.arguments)
        if isinstance(answer, tuple):
            code, reason = answer
            raise Refusal(call, reason, code, f"{code} by the test")
        validate_parameters(dict(answer), shapes.output_shape)
        return dict(answer)

    def findings(self, check: str, given: Subject | None = None) -> list[Finding]:
        return examined(checks()[check], given or subject(), self)

    def verdicts(self, check: str, given: Subject | None = None) -> list[Verdict]:
        return [finding.verdict for finding in self.findings(check, given)]

    def healthy(self, operation: str, **arguments: Any) -> Any:
        """The answer of an account without faults."""
        return getattr(self, f"_{operation}")(arguments)

    # ------------------------------------------------------------------ healthy answers

    def _GetAccountSettings(self, _: Mapping[str, Any]) -> Any:
        return {
            "AccountLimit": {"ConcurrentExecutions": 1000, "UnreservedConcurrentExecutions": 900}
        }

    def _GetFunctionConcurrency(self, _: Mapping[str, Any]) -> Any:
        return {}

    def _ListServiceQuotas(self, arguments: Mapping[str, Any]) -> Any:
        named = {
            "ec2": {
                "Running On-Demand G and VT instances": 64.0,
                "Running On-Demand P instances": 64.0,
                "All G and VT Spot Instance Requests": 64.0,
            },
            "lambda": {"Elastic network interfaces per VPC": 500.0},
        }
        service = arguments["ServiceCode"]
        return {
            "Quotas": [
                {"ServiceCode": service, "QuotaName": n, "QuotaCode": "L-1", "Value": v}
                for n, v in named[service].items()
            ]
        }

    def _GetRole(self, arguments: Mapping[str, Any]) -> Any:
        name = arguments["RoleName"]
        return {
            "Role": {
                "Path": "/team/",
                "RoleName": name,
                "RoleId": "A" * 16,
                "Arn": f"arn:aws:iam::{PLACE.account}:role/team/{name}",
                "CreateDate": 0,
            }
        }

    def _SimulatePrincipalPolicy(self, arguments: Mapping[str, Any]) -> Any:
        return {
            "EvaluationResults": [
                {
                    "EvalActionName": action,
                    "EvalResourceName": resource,
                    "EvalDecision": "implicitDeny" if action in self.denied else "allowed",
                }
                for action in arguments["ActionNames"]
                for resource in arguments.get("ResourceArns", ["*"])
            ]
        }

    def _DescribeSubnets(self, arguments: Mapping[str, Any]) -> Any:
        blocks = {"subnet-a": "10.0.1.0/24", "subnet-b": "10.0.2.0/24"}
        return {
            "Subnets": [
                {
                    "SubnetId": name,
                    "VpcId": "vpc-1",
                    "CidrBlock": blocks[name],
                    "AvailabilityZone": f"eu-west-1{name[-1]}",
                    "AvailableIpAddressCount": 200,
                }
                for name in arguments["SubnetIds"]
            ]
        }

    def _DescribeSecurityGroups(self, arguments: Mapping[str, Any]) -> Any:
        groups = self.network["groups"]
        return {
            "SecurityGroups": [
                {"GroupId": name, "VpcId": "vpc-1", **groups[name]}
                for name in arguments["GroupIds"]
            ]
        }

    def _DescribeRouteTables(self, _: Mapping[str, Any]) -> Any:
        table = {"RouteTableId": "rtb-1", "Associations": [{"Main": True}], "Routes": self.routes}
        return {"RouteTables": [table]}

    def _DescribeNetworkInterfaces(self, arguments: Mapping[str, Any]) -> Any:
        [address] = arguments["Filters"][0]["Values"]
        return {"NetworkInterfaces": self.network["interfaces"].get(address, [])}

    def _DescribeVpcEndpoints(self, _: Mapping[str, Any]) -> Any:
        return {"VpcEndpoints": self.endpoints}

    def _DescribeVpcAttribute(self, arguments: Mapping[str, Any]) -> Any:
        name = arguments["Attribute"]
        return {"VpcId": "vpc-1", name[0].upper() + name[1:]: {"Value": self.attributes[name]}}

    def _DescribeNetworkAcls(self, _: Mapping[str, Any]) -> Any:
        return {"NetworkAcls": [{"NetworkAclId": "acl-1", "Entries": self.acl}]}

    def _HeadBucket(self, _: Mapping[str, Any]) -> Any:
        return {"BucketRegion": PLACE.region}

    def _GetBucketLocation(self, _: Mapping[str, Any]) -> Any:
        return {"LocationConstraint": PLACE.region}

    def _GetBucketVersioning(self, _: Mapping[str, Any]) -> Any:
        return {"Status": "Enabled"}

    def _GetBucketEncryption(self, _: Mapping[str, Any]) -> Any:
        default = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
        return {"ServerSideEncryptionConfiguration": {"Rules": [default]}}

    def _GetQueueUrl(self, arguments: Mapping[str, Any]) -> Any:
        return {"QueueUrl": f"https://sqs/{arguments['QueueName']}"}

    def _GetQueueAttributes(self, _: Mapping[str, Any]) -> Any:
        return {"Attributes": {}}
