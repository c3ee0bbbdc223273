"""Stacks, their changes and outputs, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from corekit.values import Value
from orchgpu.permissions.model import STACK as STACK

#: The tag of a stack with the version of orchgpu that its packages are of.
VERSION_TAG = "orchgpu:version"
#: Parameters of the template that `infra deploy` decides; the others are a person's to set.
OWN_PARAMETERS = ("StateBucket", "SchedulerBundle", "HostBundle", "Stores", "Boundary")


class Output(StrEnum):
    """Outputs of the template that commands use."""

    SCHEDULERS = "Schedulers"  #: ADDR:PORT[,…] in the VPC
    SUBNETS = "Subnets"  #: ID[,…], of functions
    FUNCTION_GROUP = "FunctionGroup"
    DEPLOYER_ROLE = "DeployerRole"
    SECRET = "Secret"  # noqa: S105 - its name
    POOL_A = "PoolA"
    POOL_B = "PoolB"


class Stack(Value):
    """A stack as CloudFormation describes it."""

    name: str
    status: str
    reason: str = ""  #: of the status, for people
    parameters: Mapping[str, str] = {}
    outputs: Mapping[str, str] = {}
    tags: Mapping[str, str] = {}

    @property
    def busy(self) -> bool:
        return self.status.endswith("_IN_PROGRESS") and not self.proposed

    @property
    def proposed(self) -> bool:
        """There is a change set, and no resource yet."""
        return self.status == "REVIEW_IN_PROGRESS"

    @property
    def failed(self) -> bool:
        return "FAILED" in self.status or "ROLLBACK" in self.status

    @property
    def must_go(self) -> bool:
        """A stack whose first creation failed: CloudFormation can only delete it."""
        return self.status in ("ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "DELETE_FAILED")


class Change(Value):
    """One resource that a change set makes, changes or removes."""

    action: str  #: Add, Modify, Remove
    logical: str  #: name in the template
    kind: str  #: AWS::…
    physical: str = ""
    replacement: str = ""  #: True, False, Conditional
    #: property → its value before and afterwards, "" where CloudFormation does not state it
    properties: Mapping[str, tuple[str, str]] = {}


class ChangeSet(Value):
    """The difference between a stack and what was asked for."""

    id: str
    stack_id: str = ""  #: of this stack alone: a later one of the name has another
    changes: tuple[Change, ...] = ()


class Resource(Value):
    """A resource of a stack."""

    logical: str
    kind: str
    physical: str
    status: str
    reason: str = ""


class Kept(Value):
    """The rest of an earlier stack of this name, or of another one, in the account."""

    table: bool = False
    secret: bool = False
    logs: bool = False
    boundary: bool = False
    foreign: tuple[str, ...] = ()  #: kinds of these stores that are not of a stack of this name

    @property
    def stores(self) -> tuple[str, ...]:
        found = {"table": self.table, "secret": self.secret, "logs": self.logs}
        return tuple(name for name, there in found.items() if there)


def named_stores(stack: str) -> dict[str, str]:
    """The stores of a stack by the template's names: kind → physical name."""
    return {"table": stack, "secret": f"{stack}/system", "logs": f"/orchgpu/{stack}"}
