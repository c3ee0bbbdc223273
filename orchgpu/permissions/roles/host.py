"""The role of GPU hosts and of the scheduler's machine, where they have one.

A host calls no AWS service that needs a permission. IAM refuses a policy without statements, so it
has the call that every identity may make.
"""

from __future__ import annotations

from orchgpu.permissions.model import RoleKind, allow

ROLE = RoleKind(
    summary="GPU hosts, as an EC2 instance profile; it identifies them and allows nothing else",
    service="ec2.amazonaws.com",
    needs=lambda _scope: [allow("Identity", "sts:GetCallerIdentity")],
)
