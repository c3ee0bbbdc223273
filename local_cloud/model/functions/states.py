"""The states of functions: Pending, Active, Inactive, and an update InProgress.

Sources: Lambda developer guide, "Lambda function states" (calls of a Pending function fail; while
an update is InProgress the previous code and configuration run, and changes fail; an idle function
becomes Inactive, its next invocation fails and makes it Pending) and "Giving Lambda functions
access to resources in a VPC" (Inactive after 14 days); the texts: its "Troubleshoot invocation
issues", and terraform-provider-aws `lambda/function.go`.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from local_cloud.model.weather import Draws, Propagation, refusal

ACTIVE, PENDING, INACTIVE = "Active", "Pending", "Inactive"
_IN_VPC = "vpc_pending_s"

T = TypeVar("T")


class FunctionStates(Generic[T]):
    """The state of every function; `T` is what runs: its settings and revision.

    Functions of an earlier run of the cloud are Active.
    """

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._creations = Propagation[None](draws, "function pending")
        self._updates = Propagation[T](draws, "update in progress")
        self._used_at_s: dict[str, float] = {}  #: of functions in a VPC

    def created(self, now_s: float, name: str, *, in_vpc: bool) -> None:
        """A function is Pending at first."""
        self._creations.changed(now_s, name, None, _IN_VPC if in_vpc else "")
        if in_vpc:
            self._used_at_s[name] = now_s

    def updated(self, now_s: float, name: str, before: T, *, in_vpc: bool) -> None:
        """An update is InProgress for a while."""
        self._updates.changed(now_s, name, before)
        if in_vpc:
            self._used_at_s.setdefault(name, now_s)
        else:
            self._used_at_s.pop(name, None)

    def deleted(self, name: str) -> None:
        """The function is gone."""
        self._creations.forget(name)
        self._updates.forget(name)
        self._used_at_s.pop(name, None)

    def state(self, now_s: float, name: str) -> str:
        """`State` of the function's configuration."""
        if not self._creations.settled(now_s, name):
            return PENDING
        limit_s = self._draws.weather.inactive_after_s * self._draws.weather.scale
        idle_s = now_s - self._used_at_s.get(name, now_s)
        return INACTIVE if 0 < limit_s < idle_s else ACTIVE

    def updating(self, now_s: float, name: str) -> bool:
        """True while `LastUpdateStatus` is InProgress."""
        return not self._updates.settled(now_s, name)

    def running(self, now_s: float, name: str, newest: T) -> T:
        """The one that runs now: the previous one while its update is InProgress."""
        return self._updates.in_force(now_s, name, newest)

    def check_change(self, now_s: float, name: str, arn: str) -> None:
        """Raises ResourceConflictException for a new code or configuration."""
        self.check_call(now_s, name)
        if not self._updates.known(now_s, name):
            raise refusal("update in progress", arn)

    def check_call(self, now_s: float, name: str) -> None:
        """Raises ResourceConflictException: any call that operates on a Pending function."""
        self._creations.check(now_s, name)

    def check_invoke(self, now_s: float, name: str) -> None:
        """Raises ResourceConflictException or, once for an Inactive one, ResourceNotReady…."""
        self.check_call(now_s, name)
        inactive = self.state(now_s, name) == INACTIVE
        if name in self._used_at_s:
            self._used_at_s[name] = now_s
        if inactive:
            self._draws.count("function inactive")
            self._creations.changed(now_s, name, None, _IN_VPC)
            raise refusal("function inactive")
