"""The rights of `orchgpu deploy --serverless` and of its `rm`, in addition to a deployer's."""

from __future__ import annotations

from collections.abc import Iterator

from orchgpu.permissions.model import RoleKind, Scope, Statement, allow
from orchgpu.permissions.roles.deployer import FUNCTIONS, SCHEDULES
from orchgpu.permissions.roles.visits import NAME

_MAPPINGS = tuple(f"lambda:{verb}EventSourceMapping" for verb in ("Create", "Update", "Delete"))
_PASSED = {"iam:PassedToService": ["lambda.amazonaws.com", "scheduler.amazonaws.com"]}


def _needs(scope: Scope) -> Iterator[Statement]:
    names = [arn.rpartition(":")[2] for arn in scope.visits]
    schedules = [scope.place.schedule_arn(name) for name in names]
    # a mapping has no name that a policy could contain, but its function has
    of_visits = {"ArnLike": {"lambda:FunctionArn": list(scope.visits)}}
    yield allow("Visits", *FUNCTIONS, on=scope.visits)
    yield allow("FindMappings", "lambda:ListEventSourceMappings")
    yield allow("Mappings", *_MAPPINGS, when=of_visits)
    yield allow("Schedules", *SCHEDULES, on=schedules)
    role = scope.place.role_arn(NAME)
    yield allow("PassVisitsRole", "iam:PassRole", on=(role,), when={"StringEquals": _PASSED})


ROLE = RoleKind(
    summary="`orchgpu deploy --serverless`, in addition to the deployer", service="", needs=_needs
)
