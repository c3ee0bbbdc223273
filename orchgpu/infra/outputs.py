"""The outputs of a stack for commands: its network, prefixes of names, schedulers."""

from __future__ import annotations

from corekit.errors import AppError, ErrorCode
from fdl.plan.resources import DeployTarget
from orchgpu.infra.model import Output, Stack
from orchgpu.infra.ports import Stacks
from orchgpu.local.stack import StackRecord


def found_stack(stacks: Stacks, name: str) -> Stack:
    """The stack of that name. Raises NOT_FOUND."""
    found = stacks.find(name)
    if found is None or found.proposed:
        text = f"there is no stack {name} in {stacks.place.account}, {stacks.place.region}"
        raise AppError(ErrorCode.NOT_FOUND, f"{text}; `orchgpu infra deploy` makes it")
    return found


def record_of(stack: Stack, place: DeployTarget) -> StackRecord:
    """The outputs and parameters of a stack that commands use."""
    outputs, parameters = stack.outputs, stack.parameters
    inside = parameters.get("Functions") != "outside"
    subnets = outputs.get(Output.SUBNETS, "").split(",") if inside else ()
    return StackRecord(
        name=stack.name,
        account=place.account,
        region=place.region,
        schedulers=outputs.get(Output.SCHEDULERS, ""),
        subnets=tuple(one for one in subnets if one),
        function_group=outputs.get(Output.FUNCTION_GROUP, ""),
        secret=outputs.get(Output.SECRET, ""),
        function_prefix=parameters.get("FunctionPrefix", ""),
        bucket_prefix=parameters.get("BucketPrefix", ""),
        secret_prefix=parameters.get("SecretPrefix", ""),
    )
