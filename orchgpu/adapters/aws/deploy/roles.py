"""Roles of functions and schedules by boto3: one inline policy each, nothing attached but a
boundary."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from urllib.parse import unquote

from corekit.errors import AppError, ErrorCode
from fdl.plan.resources import Role
from fdl.plan.roles import TASKS, function_of_role
from fdl.plan.schedules import SERVICE
from fdl.plan.tags import own_tags
from orchgpu.adapters.aws.api import Client, Shape, answer_or_none
from orchgpu.ports import Tolerating

#: Called with a sentence while a step waits.
Notice = Callable[[str], None]

_POLICY = "orchgpu"
#: Lambda removes the interfaces of a deleted function within about 20 minutes.
_INTERFACES_S_MAX = 2400.0
_INTERFACES_POLL_S = 15.0


class IamRoles:
    """Roles of functions with `iam: {create: true}`, and of schedules."""

    def __init__(self, iam: Callable[[], Client], account: str = "") -> None:
        self._client = iam  #: made when it is needed: local clouds have none
        self._account = account  #: for which other services than Lambda may take their roles

    def observe(self, name: str) -> Role | None:
        iam = self._client()
        answer = answer_or_none(iam.get_role, RoleName=name)
        if answer is None:
            return None
        role = answer["Role"]
        trust = json.dumps(role.get("AssumeRolePolicyDocument"))
        policy = answer_or_none(iam.get_role_policy, RoleName=name, PolicyName=_POLICY)
        return Role(
            name=name,
            policy={} if policy is None else _document(policy["PolicyDocument"]),
            path=str(role.get("Path", "/")),
            boundary=str(role.get("PermissionsBoundary", {}).get("PermissionsBoundaryArn", "")),
            assumed_by=_assumed_by(_document(role.get("AssumeRolePolicyDocument", {}))),
            tags=own_tags(_tags(role)),
            service=next((one for one in (SERVICE, TASKS) if one in trust), ""),
        )

    def put(self, role: Role) -> None:
        iam = self._client()
        with Tolerating(ErrorCode.CONFLICT):  # a deploy that was cut off has made it
            iam.create_role(
                RoleName=role.name,
                Path=role.path,
                AssumeRolePolicyDocument=self._trust(role),
                Tags=_listed(role),
                Description="made by orchgpu deploy; removed with its function",
                PermissionsBoundary=role.boundary,
            )
        old = self.observe(role.name)
        if old is not None:
            self._update(role, old)
        document = json.dumps(role.policy)
        iam.put_role_policy(RoleName=role.name, PolicyName=_POLICY, PolicyDocument=document)

    def _update(self, role: Role, old: Role) -> None:
        iam, name = self._client(), role.name
        if role.boundary != old.boundary:
            iam.put_role_permissions_boundary(RoleName=name, PermissionsBoundary=role.boundary)
        if (role.assumed_by, role.service) != (old.assumed_by, old.service):
            iam.update_assume_role_policy(RoleName=name, PolicyDocument=self._trust(role))
        gone = [key for key in old.tags if key not in role.tags]
        if old.tags != role.tags:
            if gone:
                iam.untag_role(RoleName=name, TagKeys=gone)
            iam.tag_role(RoleName=name, Tags=_listed(role))

    def _trust(self, role: Role) -> str:
        account = self._account if role.service else ""
        return trust_policy(role.service, account, assumed_by=role.assumed_by)

    def delete(self, name: str) -> None:
        iam = self._client()
        answer_or_none(iam.delete_role_policy, RoleName=name, PolicyName=_POLICY)
        answer_or_none(iam.delete_role, RoleName=name)


def trust_policy(service: str = "", account: str = "", *, assumed_by: str = "") -> str:
    """The policy by which a service takes a role ("" = Lambda), for that account where one is
    given, and this principal too, for runs on hosts."""
    own = {"Condition": {"StringEquals": {"aws:SourceAccount": account}}} if account else {}
    taking = {"Effect": "Allow", "Action": "sts:AssumeRole"}
    by_service = {"Principal": {"Service": service or "lambda.amazonaws.com"}, **taking, **own}
    by_host = {"Principal": {"AWS": assumed_by}, **taking}
    statements = [by_service, by_host] if assumed_by else [by_service]
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def _assumed_by(document: Shape) -> str:
    principals = (one.get("Principal", {}) for one in document.get("Statement", ()))
    named = (one.get("AWS") for one in principals if isinstance(one, dict))
    return next((str(one) for one in named if one), "")


class Interfaces:
    """The network interfaces that Lambda makes for functions in a VPC, by the function's role.

    They are removed by that role too, minutes after the function, and stay without it.
    """

    def __init__(
        self,
        ec2: Callable[[], Client],
        lambda_: Client,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ec2 = ec2
        self._lambda = lambda_
        self._sleep = sleep
        self._monotonic = monotonic

    def wait_gone(self, role: Role, notice: Notice) -> None:
        """Wait until Lambda has removed the interfaces of the role's function. Raises TIMEOUT."""
        function = function_of_role(role)
        begun_s = self._monotonic()
        while left := self._of(function):
            waited_s = self._monotonic() - begun_s
            if waited_s + _INTERFACES_POLL_S > _INTERFACES_S_MAX:
                raise AppError(
                    ErrorCode.TIMEOUT,
                    f"Lambda still has network interfaces of {function} ({', '.join(left)}) and"
                    f" removes them by the role {role.name}, which stays: run the command again"
                    " later",
                )
            notice(
                f"Lambda removes {len(left)} network interface(s) of {function}: {waited_s:.0f} s"
                f" of at most {_INTERFACES_S_MAX:.0f} s"
            )
            self._sleep(_INTERFACES_POLL_S)

    def _of(self, function: str) -> list[str]:
        filters = [
            {"Name": "interface-type", "Values": ["lambda"]},
            {"Name": "description", "Values": [f"AWS Lambda VPC ENI-{function}-*"]},
        ]
        pages = self._ec2().pages("describe_network_interfaces", Filters=filters)
        listed = [one for page in pages for one in page.get("NetworkInterfaces", ())]
        made = [one for one in listed if _is_for(one, function)]
        networks = self._networks() if made else []
        return [str(one["NetworkInterfaceId"]) for one in made if _network(one) not in networks]

    def _networks(self) -> list[tuple[str, frozenset[str]]]:
        """Subnet and security groups of all functions: those with the same share an interface."""
        pages = self._lambda.pages("list_functions")
        configs = [one.get("VpcConfig", {}) for page in pages for one in page["Functions"]]
        return [
            (str(subnet), frozenset(config.get("SecurityGroupIds", ())))
            for config in configs
            for subnet in config.get("SubnetIds", ())
        ]


#: Lambda ends the description with a UUID: `f-1-<uuid>` is not an interface of `f`.
_UUID_CHARACTERS = 36


def _is_for(interface: Shape, function: str) -> bool:
    named = f"AWS Lambda VPC ENI-{function}-"
    description = str(interface.get("Description", ""))
    return description.startswith(named) and len(description) == len(named) + _UUID_CHARACTERS


def _network(interface: Shape) -> tuple[str, frozenset[str]]:
    groups = frozenset(str(group["GroupId"]) for group in interface.get("Groups", ()))
    return str(interface.get("SubnetId", "")), groups


def _tags(role: Shape) -> dict[str, str]:
    return {str(tag["Key"]): str(tag["Value"]) for tag in role.get("Tags", ())}


def _listed(role: Role) -> list[Shape]:
    return [{"Key": key, "Value": value} for key, value in role.tags.items()]


def _document(policy: Shape | str) -> Shape:
    """The policy as data: botocore decodes it, some clouds leave it as text."""
    if not isinstance(policy, str):
        return policy
    document: Shape = json.loads(unquote(policy))
    return document
