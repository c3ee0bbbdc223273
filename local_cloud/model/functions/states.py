"""The states of functions: Pending, Active, Inactive, and an update InProgress.

Sources: Lambda developer guide, "Lambda function states" (calls of a Pending function fail; while
an update is InProgress the previous code and configuration run, and changes fail; an idle function
becomes Inactive, its next invocation fails and makes it Pending) and "Giving Lambda functions
access to resources in a VPC" (Inactive after 14 days); the texts: its "Troubleshoot invocation
issues", and terraform-provider-aws `lambda/function.go`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from local_cloud.model.weather import Draws, refusal

ACTIVE, PENDING, INACTIVE = "Active", "Pending", "Inactive"

T = TypeVar("T")


@dataclass(slots=True)
class _Times(Generic[T]):
    """The times of one function."""

    in_vpc: bool
    used_at_s: float
    pending_to_s: float = 0.0
    updating_to_s: float = 0.0
    before: T | None = None  #: runs until the update is done


class FunctionStates(Generic[T]):
    """The state of every function; `T` is what runs: its settings and revision."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._times: dict[str, _Times[T]] = {}

    def created(self, now_s: float, name: str, *, in_vpc: bool) -> None:
        """A function is Pending at first."""
        self._times[name] = _Times(in_vpc, now_s, now_s + self._pending_s(in_vpc=in_vpc))

    def updated(self, now_s: float, name: str, before: T, *, in_vpc: bool) -> None:
        """An update is InProgress for a while."""
        times = self._of(now_s, name)
        times.before, times.in_vpc = before, in_vpc
        times.updating_to_s = now_s + self._draws.delay_s("update in progress")

    def deleted(self, name: str) -> None:
        """The function is gone."""
        self._times.pop(name, None)

    def state(self, now_s: float, name: str) -> str:
        """`State` of the function's configuration."""
        times = self._of(now_s, name)
        if now_s < times.pending_to_s:
            return PENDING
        limit_s = self._draws.weather.inactive_after_s * self._draws.weather.scale
        idle = times.in_vpc and limit_s > 0 and now_s - times.used_at_s > limit_s
        return INACTIVE if idle else ACTIVE

    def updating(self, now_s: float, name: str) -> bool:
        """True while `LastUpdateStatus` is InProgress."""
        return now_s < self._of(now_s, name).updating_to_s

    def previous(self, now_s: float, name: str) -> T | None:
        """The ones that run instead of the newest, while their update is InProgress."""
        return self._of(now_s, name).before if self.updating(now_s, name) else None

    def check_change(self, now_s: float, name: str, arn: str) -> None:
        """Raises ResourceConflictException for a new code or configuration."""
        self.check_call(now_s, name)
        if self.updating(now_s, name):
            self._draws.count("update in progress")
            raise refusal("update in progress", arn)

    def check_call(self, now_s: float, name: str) -> None:
        """Raises ResourceConflictException: any call that operates on a Pending function."""
        if self.state(now_s, name) == PENDING:
            self._draws.count("function pending")
            raise refusal("function pending")

    def check_invoke(self, now_s: float, name: str) -> None:
        """Raises ResourceConflictException or, once for an Inactive one, ResourceNotReady…."""
        self.check_call(now_s, name)
        inactive = self.state(now_s, name) == INACTIVE
        times = self._of(now_s, name)
        times.used_at_s = now_s
        if inactive:
            self._draws.count("function inactive")
            times.pending_to_s = now_s + self._pending_s(in_vpc=True)
            raise refusal("function inactive")

    def _pending_s(self, *, in_vpc: bool) -> float:
        return self._draws.delay_s("function pending", "vpc_pending_s" if in_vpc else "")

    def _of(self, now_s: float, name: str) -> _Times[T]:
        """Functions of an earlier run of the cloud are Active."""
        return self._times.setdefault(name, _Times(in_vpc=False, used_at_s=now_s))
