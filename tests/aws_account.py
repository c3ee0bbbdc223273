"""An AWS account by its answers: each question and each answer is checked by botocore's models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import botocore.session
from botocore.model import OperationModel
from botocore.validate import validate_parameters

from corekit.errors import AppError, ErrorCode
from fdl.model import Function
from fdl.parse import parse
from fdl.plan.groups import deployed
from fdl.plan.resources import DeployTarget
from orchgpu.inspection.checks import installed
from orchgpu.inspection.model import (
    Answer,
    Finding,
    HostGateway,
    Inspected,
    ReadCall,
    Subject,
    Verdict,
    examined,
)

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


def function(text: str = FDL) -> Function:
    return deployed(parse(text.encode(), "fdl.yaml"))[0]


def subject(**changes: Any) -> Subject:
    """A function before its first deploy, one host, two devices."""
    values: dict[str, Any] = {
        "place": PLACE,
        "caller": f"arn:aws:iam::{PLACE.account}:user/alice",
        "functions": (Inspected(function=function(), deployed=False),),
        "gateways": (HostGateway(host="gpu-a", address="10.0.1.5", port=4711),),
        "devices": 2,
        "orchestrator_role": "orchgpu-orchestrator",
    }
    return Subject(**{**values, **changes})


@cache
def model(service: str, operation: str) -> OperationModel:
    return botocore.session.get_session().get_service_model(service).operation_model(operation)


def refused(code: str, kind: ErrorCode = ErrorCode.DENIED) -> AppError:
    """An answer that is a refusal."""
    return AppError(kind, f"{code}: by the test")


def network() -> dict[str, Any]:
    """The answers of EC2: a host in one of two subnets."""
    host = {"NetworkInterfaceId": "eni-1", "VpcId": "vpc-1", "Groups": [{"GroupId": "sg-hosts"}]}
    interfaces = {"10.0.1.5": [host]}
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
    }
    return {"interfaces": interfaces, "groups": groups}


@dataclass
class Account:
    """Answers by `service.operation`: an answer, or a refusal; healthy where none is given."""

    answers: dict[str, Any] = field(default_factory=dict)
    calls: list[ReadCall] = field(default_factory=list)

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
        self.denied: set[str] = set()  #: actions that simulations refuse

    def __call__(self, call: ReadCall) -> Answer:
        self.calls.append(call)
        shapes = model(call.service, call.operation)
        validate_parameters(dict(call.arguments), shapes.input_shape)
        name = f"{call.service}.{call.operation}"
        answer = self.answers.get(name)
        if callable(answer):
            answer = answer(call.arguments)
        if answer is None:
            answer = self.healthy(call.operation, **call.arguments)
        if isinstance(answer, AppError):
            raise AppError(answer.code, f"{call.action}: {answer.message}")
        validate_parameters(dict(answer), shapes.output_shape)
        return dict(answer)

    def findings(self, check: str, given: Subject | None = None) -> list[Finding]:
        return list(examined(installed()[check], given or subject(), self))

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
        [[address]] = [
            given["Values"]
            for given in arguments["Filters"]
            if given["Name"] == "addresses.private-ip-address"
        ]
        return {"NetworkInterfaces": self.network["interfaces"].get(address, [])}

    def _DescribeVpcEndpoints(self, _: Mapping[str, Any]) -> Any:
        return {"VpcEndpoints": self.endpoints}

    def _HeadBucket(self, _: Mapping[str, Any]) -> Any:
        return {"BucketRegion": PLACE.region}

    def _GetBucketVersioning(self, _: Mapping[str, Any]) -> Any:
        return {"Status": "Enabled"}
