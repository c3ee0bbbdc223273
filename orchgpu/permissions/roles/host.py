"""The role of GPU hosts and of the scheduler's machine, where they have one."""

from __future__ import annotations

from orchgpu.permissions.model import Scope, Statement


class Host:
    """A host calls no AWS service that needs a permission; its role only identifies it."""

    summary = "GPU hosts, as an EC2 instance profile; it identifies them and allows nothing else"
    service = "ec2.amazonaws.com"

    def statements(self, _scope: Scope) -> tuple[Statement, ...]:
        """The call that every identity may make; IAM refuses a policy without statements."""
        return (Statement(sid="Identity", actions=("sts:GetCallerIdentity",)),)


ROLE = Host()
