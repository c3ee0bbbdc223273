"""The port of `orchgpu infra` to an account and region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from fdl.plan.resources import DeployTarget
from orchgpu.infra.model import ChangeSet, Kept, Resource, Stack
from orchgpu.infra.quotas import Quota


class Stacks(Protocol):
    """CloudFormation, and what a stack needs before and leaves behind.

    Every method raises only `AppError`.
    """

    @property
    def place(self) -> DeployTarget:
        """Account, region and partition."""
        ...

    def find(self, name: str) -> Stack | None:
        """The stack of that name; None: there is none, or it is deleted."""
        ...

    def propose(
        self, name: str, body: str, parameters: Mapping[str, str], tags: Mapping[str, str]
    ) -> ChangeSet:
        """The difference to a template with parameters; nothing of it is made.

        Waits until CloudFormation has computed it; nothing is left of one that fails. A template
        that is too large for a call is put into the state bucket, which is made when absent.
        """
        ...

    def discard(self, change_set: ChangeSet) -> None:
        """Delete a change set, and the stack of it that has neither resources nor other changes."""
        ...

    def execute(self, name: str, change_set: ChangeSet) -> None:
        """Begin to do what a change set describes."""
        ...

    def resources(self, name: str) -> Sequence[Resource]:
        """The resources of a stack, as far as they exist."""
        ...

    def failures(self, name: str) -> Sequence[str]:
        """The first reasons of the newest operation on the stack that failed."""
        ...

    def delete(self, name: str) -> None:
        """Begin to delete a stack; resources that the template retains stay."""
        ...

    def release_machines(self, groups: Sequence[str]) -> None:
        """Let groups be deleted: their instances lose the protection from scale-in."""
        ...

    def interfaces_in(self, group: str) -> int:
        """The network interfaces that have a security group."""
        ...

    def kept(self, name: str, boundary: str) -> Kept:
        """The stores with the names of this stack, and the policy, that exist in the account."""
        ...

    def remove_store(self, kind: str, name: str) -> None:
        """Delete a table, secret or log group with all that is in it; absent ones are ignored."""
        ...

    def has_object(self, key: str) -> bool:
        """Whether the state bucket has the object."""
        ...

    def put_object(self, key: str, file: Path) -> None:
        """Upload a file into the state bucket, which is made when it does not exist."""
        ...

    def remove_objects(self, prefix: str) -> int:
        """Delete every object of the state bucket below a prefix; their number."""
        ...

    def quota(self, quota: Quota) -> float | None:
        """The account's value; None: unknown."""
        ...

    def request_quota(self, quota: Quota) -> bool:
        """Ask AWS for the needed value. False: a request for it is open already."""
        ...

    def read_secret(self, name: str) -> Mapping[str, object]:
        """The JSON object in a secret; empty while nothing is in it. Raises NOT_FOUND."""
        ...
