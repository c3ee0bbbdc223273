"""Lambda functions, their policies and the destinations of failed events, by boto3."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from botocore.exceptions import ClientError

from corekit.errors import AppError, ErrorCode
from fdl.plan.resources import DeployTarget, FunctionResource, InvokeConfig, Permission
from fdl.plan.tags import DEPLOYED_TAG
from orchgpu.adapters.aws.api import Client, Shape, found
from orchgpu.adapters.aws.deploy.roles import TRUST
from orchgpu.adapters.aws.deploy.settings import configuration, emptied, resource_of
from orchgpu.adapters.aws.errors import translated

#: A function in a VPC needs a minute or two to become Active.
_SETTLE_S_MAX = 300.0
_SETTLE_POLL_S = 0.5
#: The event by which S3 tests a target: every runner ignores it.
_TEST_EVENT = b'{"Service": "Amazon S3", "Event": "s3:TestEvent"}'
_ERROR_BYTES_MAX = 500  #: of a failed call's answer


class Functions:
    """Functions of one account and region."""

    def __init__(self, lambda_: Client, iam: Callable[[], Client], place: DeployTarget) -> None:
        self._lambda = lambda_
        self._iam = iam
        self._place = place

    def observe(self, name: str) -> FunctionResource | None:
        answer = found(f"GetFunction {name}", lambda: self._lambda.get_function(FunctionName=name))
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
        with translated(f"CreateFunction {function.name}"):
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
            with translated(f"UpdateFunctionCode {name}"):
                code = self._code(function, data)
                architectures = list(function.architectures)
                self._lambda.update_function_code(
                    FunctionName=name, Architectures=architectures, **code
                )
            self._settle(name)
        with translated(f"UpdateFunctionConfiguration {name}"):
            arguments = {**emptied(old), **configuration(function)}
            self._lambda.update_function_configuration(FunctionName=name, **arguments)
        self._settle(name)
        self._reserve(function, old)
        if DEPLOYED_TAG in function.tags:
            self._retag(function, None)

    def delete(self, name: str) -> None:
        found(f"DeleteFunction {name}", lambda: self._lambda.delete_function(FunctionName=name))

    def warm(self, name: str) -> None:
        """One synchronous call with S3's test event. Raises INVALID when the function fails."""
        with translated(f"Invoke {name}"):
            answer = self._lambda.invoke(
                FunctionName=name, InvocationType="RequestResponse", Payload=_TEST_EVENT
            )
        if answer.get("FunctionError"):
            error = answer["Payload"].read(_ERROR_BYTES_MAX).decode("utf-8", "replace")
            raise AppError(ErrorCode.INVALID, f"{name} failed: {error}")

    def _reserve(self, function: FunctionResource, old: FunctionResource | None) -> None:
        """Set or remove the reserved concurrency; no call where nothing changes."""
        name, reserved = function.name, function.reserved
        if (None if old is None else old.reserved) == reserved:
            return
        if reserved is None:
            with translated(f"DeleteFunctionConcurrency {name}"):
                self._lambda.delete_function_concurrency(FunctionName=name)
            return
        with translated(f"PutFunctionConcurrency {name}"):
            self._lambda.put_function_concurrency(
                FunctionName=name, ReservedConcurrentExecutions=reserved
            )

    def _create(self, arguments: Shape) -> None:
        if self._place.local:
            try:
                self._lambda.at_once.create_function(**arguments)
            except ClientError as error:
                if "role" in str(error).lower():  # moto checks that it exists
                    self._make_local_role(str(arguments["Role"]))
            else:
                return
        self._lambda.create_function(**arguments)

    def _make_local_role(self, arn: str) -> None:
        iam = self._iam()
        made = iam.exceptions.EntityAlreadyExistsException
        with translated(f"CreateRole {arn}"), suppress(made):
            iam.create_role(RoleName=arn.rsplit("/", 1)[-1], AssumeRolePolicyDocument=TRUST)

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
        with translated(f"TagResource {function.name}"):
            if gone:
                self._lambda.untag_resource(Resource=arn, TagKeys=gone)
            self._lambda.tag_resource(Resource=arn, Tags=tags)

    def _settle(self, name: str) -> None:
        """Wait until the last change is in force. Raises TIMEOUT, or INVALID when AWS gave up."""
        ends_s = time.monotonic() + _SETTLE_S_MAX
        while True:
            with translated(f"GetFunctionConfiguration {name}"):
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
        call = self._lambda.get_function_event_invoke_config
        answer = found(f"GetFunctionEventInvokeConfig {name}", lambda: call(FunctionName=name))
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
        with translated(f"PutFunctionEventInvokeConfig {config.name}"):
            self._lambda.put_function_event_invoke_config(
                FunctionName=config.name,
                MaximumRetryAttempts=config.retries,
                MaximumEventAgeInSeconds=config.event_age_s,
                DestinationConfig={"OnFailure": {"Destination": config.on_failure_arn}},
            )

    def delete(self, name: str) -> None:
        call = self._lambda.delete_function_event_invoke_config
        found(f"DeleteFunctionEventInvokeConfig {name}", lambda: call(FunctionName=name))


class Permissions:
    """Statements of functions' policies."""

    def __init__(self, lambda_: Client) -> None:
        self._lambda = lambda_

    def observe(self, function: str, statement: str) -> Permission | None:
        call = self._lambda.get_policy
        answer = found(f"GetPolicy {function}", lambda: call(FunctionName=function))
        policy = json.loads(answer["Policy"]) if answer is not None else {}
        for item in policy.get("Statement", ()):
            if item.get("Sid") == statement:
                return _permission(function, statement, item.get("Condition", {}))
        return None

    def put(self, permission: Permission) -> None:
        self.delete(permission)
        with translated(f"AddPermission {permission.name}"):
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
            found(
                f"RemovePermission {permission.name}",
                lambda: self._lambda.remove_permission(**names),
            )


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
    """The values that UpdateFunctionCode sets."""
    deployed = function.tags.get(DEPLOYED_TAG, "")
    return function.package, function.image, deployed, *function.architectures
