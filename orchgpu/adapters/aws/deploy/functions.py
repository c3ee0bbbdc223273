"""Lambda functions, their policies, logs and destinations of failed events, by boto3."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from fdl.plan.resources import (
    DeployTarget,
    FunctionResource,
    FunctionUrl,
    InvokeConfig,
    LogRetention,
    Permission,
)
from fdl.plan.tags import DEPLOYED_TAG
from orchgpu.adapters.aws.api import Client, Shape, answer_or_none
from orchgpu.adapters.aws.deploy.roles import trust_policy
from orchgpu.adapters.aws.deploy.settings import configuration, emptied, resource_of
from orchgpu.ports import Tolerating

#: A function in a VPC needs a minute or two to become Active.
_SETTLE_S_MAX = 300.0
_SETTLE_POLL_S = 0.5
#: The event by which S3 tests a target: every runner ignores it.
_TEST_EVENT = b'{"Service": "Amazon S3", "Event": "s3:TestEvent"}'
#: What pages of named origins may send: a signed request.
_CORS: Shape = {
    "AllowMethods": ["GET", "POST"],
    "AllowHeaders": [
        *("authorization", "content-type", "idempotency-key"),
        *("x-amz-content-sha256", "x-amz-date", "x-amz-security-token"),
    ],
}
_ERROR_BYTES_MAX = 500  #: of a failed call's answer


class LambdaFunctions:
    """Functions of one account and region."""

    def __init__(self, lambda_: Client, iam: Callable[[], Client], place: DeployTarget) -> None:
        self._lambda = lambda_
        self._iam = iam
        self._place = place

    def observe(self, name: str) -> FunctionResource | None:
        answer = answer_or_none(self._lambda.get_function, FunctionName=name)
        if answer is None:
            return None
        return resource_of(answer, resolved=not self._place.local)

    def create(self, function: FunctionResource, data: bytes | None) -> None:
        if self.observe(function.name) is not None:
            self.update(function, None, data)  # an interrupted deploy made it
            return
        arguments = {
            "FunctionName": function.name,
            "PackageType": "Image" if function.image else "Zip",
            "Code": self._code(function, data),
            "Architectures": list(function.architectures),
            "Tags": dict(function.tags),
            **configuration(function),
        }
        self._create(arguments)
        self._settle(function.name)
        self._reserve(function, None)

    def update(
        self, function: FunctionResource, before: FunctionResource | None, data: bytes | None
    ) -> None:
        name = function.name
        old = before or self.observe(name)
        if old is None or old.tags != function.tags:
            # an image function takes its package from the tag when its code is updated
            self._retag(function, old, without=DEPLOYED_TAG)
        if old is None or _code_of(old) != _code_of(function):
            code = self._code(function, data)
            architectures = list(function.architectures)
            self._lambda.update_function_code(
                FunctionName=name, Architectures=architectures, **code
            )
            self._settle(name)
        arguments = {**emptied(old), **configuration(function)}
        self._lambda.update_function_configuration(FunctionName=name, **arguments)
        self._settle(name)
        self._reserve(function, old)
        if DEPLOYED_TAG in function.tags:
            self._retag(function, None)

    def delete(self, name: str) -> None:
        answer_or_none(self._lambda.delete_function, FunctionName=name)

    def warm(self, name: str) -> None:
        """One synchronous call with S3's test event. Raises INVALID when the function fails."""
        answer = self._lambda.invoke(
            FunctionName=name, InvocationType="RequestResponse", Payload=_TEST_EVENT
        )
        if answer.get("FunctionError"):
            error = answer["Payload"].read(_ERROR_BYTES_MAX).decode("utf-8", "replace")
            raise AppError(ErrorCode.INVALID, f"{name} failed: {error}")

    def _reserve(self, function: FunctionResource, old: FunctionResource | None) -> None:
        name, reserved = function.name, function.reserved
        if (None if old is None else old.reserved) == reserved:
            return
        if reserved is None:
            self._lambda.delete_function_concurrency(FunctionName=name)
            return
        self._lambda.put_function_concurrency(
            FunctionName=name, ReservedConcurrentExecutions=reserved
        )

    def _create(self, arguments: Shape) -> None:
        if self._place.local:
            try:
                self._lambda.at_once.create_function(**arguments)
            except AppError as error:
                if "role" in error.message.lower():  # moto checks that it exists
                    self._make_local_role(str(arguments["Role"]))
            else:
                return
        self._lambda.create_function(**arguments)

    def _make_local_role(self, arn: str) -> None:
        name = arn.rsplit("/", 1)[-1]
        with Tolerating(ErrorCode.CONFLICT):
            trust = trust_policy(assumed_by=f"arn:aws:iam::{arn.split(':')[4]}:root")
            self._iam().create_role(RoleName=name, AssumeRolePolicyDocument=trust)

    def _code(self, function: FunctionResource, data: bytes | None) -> Shape:
        if function.image:
            return {"ImageUri": function.image}
        if function.code_at:
            bucket, key = function.code_at
            return {"S3Bucket": bucket, "S3Key": key}
        if data is None:
            raise AppError(ErrorCode.INTERNAL, f"no package was built for {function.name}")
        return {"ZipFile": data}

    def _retag(
        self, function: FunctionResource, old: FunctionResource | None, *, without: str = ""
    ) -> None:
        arn = self._place.function_arn(function.name)
        gone = [tag for tag in (old.tags if old is not None else {}) if tag not in function.tags]
        tags = {key: value for key, value in function.tags.items() if key != without}
        if gone:
            self._lambda.untag_resource(Resource=arn, TagKeys=gone)
        self._lambda.tag_resource(Resource=arn, Tags=tags)

    def _settle(self, name: str) -> None:
        ends_s = time.monotonic() + _SETTLE_S_MAX
        while True:
            answer = self._lambda.get_function_configuration(FunctionName=name)
            states = (answer.get("State", "Active"), answer.get("LastUpdateStatus", "Successful"))
            if "Failed" in states:
                why = answer.get("StateReason") or answer.get("LastUpdateStatusReason") or "?"
                raise AppError(ErrorCode.INVALID, f"AWS could not set up {name}: {why}")
            if "Pending" not in states and "InProgress" not in states:
                return
            if time.monotonic() > ends_s:
                raise AppError(ErrorCode.TIMEOUT, f"{name} is still {states[0]}; try again")
            time.sleep(_SETTLE_POLL_S)


class InvokeConfigs:
    """The destinations of asynchronous events that fail."""

    def __init__(self, lambda_: Client) -> None:
        self._lambda = lambda_

    def observe(self, name: str) -> InvokeConfig | None:
        answer = answer_or_none(self._lambda.get_function_event_invoke_config, FunctionName=name)
        if answer is None:
            return None
        destination = answer.get("DestinationConfig", {}).get("OnFailure", {})
        return InvokeConfig(
            name=name,
            retries=int(answer.get("MaximumRetryAttempts", 2)),
            event_age_s=int(answer.get("MaximumEventAgeInSeconds", 21600)),
            on_failure_arn=str(destination.get("Destination", "")),
        )

    def put(self, config: InvokeConfig) -> None:
        self._lambda.put_function_event_invoke_config(
            FunctionName=config.name,
            MaximumRetryAttempts=config.retries,
            MaximumEventAgeInSeconds=config.event_age_s,
            DestinationConfig={"OnFailure": {"Destination": config.on_failure_arn}},
        )

    def delete(self, name: str) -> None:
        answer_or_none(self._lambda.delete_function_event_invoke_config, FunctionName=name)


class FunctionUrls:
    """URLs of functions."""

    def __init__(self, lambda_: Client) -> None:
        self._lambda = lambda_

    def observe(self, function: str) -> FunctionUrl | None:
        answer = answer_or_none(self._lambda.get_function_url_config, FunctionName=function)
        if answer is None:
            return None
        origins = answer.get("Cors", {}).get("AllowOrigins", ())
        return FunctionUrl(
            function=function,
            origins=tuple(origins),
            auth=str(answer["AuthType"]),
            answers=str(answer.get("InvokeMode", "BUFFERED")).upper(),
        )

    def put(self, url: FunctionUrl) -> None:
        found = self.observe(url.function)
        client = self._lambda
        write = client.update_function_url_config if found else client.create_function_url_config
        # AWS refuses an empty list of origins; an empty structure takes an earlier one away
        cors: Shape = {"AllowOrigins": list(url.origins), **_CORS} if url.origins else {}
        more: Shape = {"Cors": cors} if cors or found else {}
        write(FunctionName=url.function, AuthType=url.auth, InvokeMode=url.answers, **more)

    def delete(self, function: str) -> None:
        answer_or_none(self._lambda.delete_function_url_config, FunctionName=function)


class Permissions:
    """Statements of functions' policies."""

    def __init__(self, lambda_: Client) -> None:
        self._lambda = lambda_

    def observe(self, function: str, statement: str) -> Permission | None:
        answer = answer_or_none(self._lambda.get_policy, FunctionName=function)
        policy = json.loads(answer["Policy"]) if answer is not None else {}
        for item in policy.get("Statement", ()):
            if item.get("Sid") == statement:
                return _permission(function, statement, item.get("Condition", {}))
        return None

    def put(self, permission: Permission) -> None:
        self.delete(permission)
        self._lambda.add_permission(
            FunctionName=permission.function,
            StatementId=permission.statement,
            Action="lambda:InvokeFunction",
            Principal="s3.amazonaws.com",
            SourceArn=permission.source_arn,
            SourceAccount=permission.account,
        )

    def delete(self, permission: Permission) -> None:
        if self.observe(permission.function, permission.statement) is not None:
            names = {"FunctionName": permission.function, "StatementId": permission.statement}
            answer_or_none(self._lambda.remove_permission, **names)


class LogRetentions:
    """Retention of functions' log groups in CloudWatch: set, and never removed."""

    def __init__(self, logs: Callable[[], Client]) -> None:
        self._client = logs  #: made when it is needed: few files name a retention

    def observe(self, wanted: LogRetention) -> LogRetention | None:
        """The retention; None where it is not set and CloudWatch deletes no logs.

        A group may be shared: tags are set with the retention, and not compared.
        """
        answer = self._client().describe_log_groups(logGroupNamePrefix=wanted.group)
        for group in answer.get("logGroups", ()):
            if group.get("logGroupName") == wanted.group and "retentionInDays" in group:
                return replace(wanted, days=int(group["retentionInDays"]))
        return None

    def put(self, retention: LogRetention) -> None:
        """Set the retention; the group is created where Lambda has not written to it yet."""
        logs = self._client()
        with Tolerating(ErrorCode.CONFLICT):
            logs.create_log_group(logGroupName=retention.group, tags=dict(retention.tags))
        logs.put_retention_policy(logGroupName=retention.group, retentionInDays=retention.days)


def _permission(function: str, statement: str, condition: Shape) -> Permission:
    values = {
        key.lower(): str(value)
        for test in condition.values()
        if isinstance(test, Mapping)
        for key, value in test.items()
    }
    return Permission(
        function=function,
        statement=statement,
        source_arn=values.get("aws:sourcearn", ""),
        account=values.get("aws:sourceaccount", ""),
    )


def _code_of(function: FunctionResource) -> tuple[str, ...]:
    deployed = function.tags.get(DEPLOYED_TAG, "")
    return function.package, function.image, deployed, *function.architectures
