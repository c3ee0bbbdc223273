"""The retention of a function's logs in CloudWatch, by boto3: set, and never removed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from corekit.values import replace
from fdl.plan.resources import LogRetention
from orchgpu.adapters.aws.api import Client
from orchgpu.adapters.aws.errors import translated


class LogRetentions:
    """Retention of functions' log groups."""

    def __init__(self, logs: Callable[[], Client]) -> None:
        self._client = logs  #: made when it is needed: few files name a retention

    def observe(self, wanted: LogRetention) -> LogRetention | None:
        """The retention; None where it is not set and CloudWatch deletes no logs.

        A group may be shared: tags are set with the retention, and not compared.
        """
        with translated(f"DescribeLogGroups {wanted.group}"):
            answer = self._client().describe_log_groups(logGroupNamePrefix=wanted.group)
        for group in answer.get("logGroups", ()):
            if group.get("logGroupName") == wanted.group and "retentionInDays" in group:
                return replace(wanted, days=int(group["retentionInDays"]))
        return None

    def put(self, retention: LogRetention) -> None:
        """Set the retention; the group is created where Lambda has not written to it yet."""
        logs = self._client()
        with translated(f"PutRetentionPolicy {retention.group}"):
            with suppress(logs.exceptions.ResourceAlreadyExistsException):
                logs.create_log_group(logGroupName=retention.group, tags=dict(retention.tags))
            logs.put_retention_policy(logGroupName=retention.group, retentionInDays=retention.days)
