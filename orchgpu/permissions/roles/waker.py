"""The role of `ssgmd --wake sqs:…`, in addition to the others of its machine."""

from __future__ import annotations

from collections.abc import Iterator

from orchgpu.permissions.model import RoleKind, Scope, Statement, allow


def _needs(scope: Scope) -> Iterator[Statement]:
    yield allow("Wake", "sqs:SendMessage", on=scope.queues(2))


ROLE = RoleKind(
    summary="`ssgmd --wake`, which wakes the functions of `orchgpu deploy --serverless`",
    service="ec2.amazonaws.com",
    needs=_needs,
)
