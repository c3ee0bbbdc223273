"""`schedule:` → schedules of EventBridge that put objects, and their role. Pure.

An object's key has the schedule's name and its time, and it is put on the condition that there is
none: a run that EventBridge delivers twice, or two replicas see, is one upload, so one job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePath

from corekit.cron import aws_cron
from corekit.errors import invalid
from fdl.model import Function
from fdl.plan.facts import Facts
from fdl.plan.functions import LOCAL_ROLE, owners_of
from fdl.plan.resources import DeployTarget, Resource, Role, Schedule
from fdl.plan.roles import boundary_of, role_name
from fdl.plan.tags import tags_of
from fdl.scheduled import Scheduled

#: EventBridge's limits of a name, and of a target's input (quotas of EventBridge Scheduler).
NAME_CHARACTERS_MAX, INPUT_BYTES_MAX = 64, 256 * 1024
SERVICE = "scheduler.amazonaws.com"
#: EventBridge replaces it by the time of a run, as 2026-03-29T01:00:00Z.
SCHEDULED_TIME = "<aws.scheduler.scheduled-time>"


def schedule_name(function: Function, scheduled: Scheduled) -> str:
    """The schedule's name in EventBridge and on command lines."""
    return f"{function.name}-{scheduled.name}"


def input_text(put: Mapping[str, str]) -> str:
    """The input of a target that puts an object, as it is sent."""
    return json.dumps(put, ensure_ascii=False)


def needs_role(function: Function) -> bool:
    """True on AWS for a function whose schedules use a role that deploy makes."""
    return bool(function.user_input) and any(not one.role for one in function.schedule)


def schedules_of(function: Function, place: DeployTarget, facts: Facts) -> list[Resource]:
    """The schedules of a function, after the role that they need.

    Raises INVALID for an object that EventBridge cannot hold.
    """
    made: list[Resource] = []
    arn = place.role_arn(LOCAL_ROLE)
    if needs_role(function) and not place.local:
        role = schedule_role(function, place, facts)
        arn = place.role_arn(role.full_name)
        made.append(role)
    made += [_schedule(function, place, one, one.role or arn) for one in function.schedule]
    return made


def schedule_role(function: Function, place: DeployTarget, facts: Facts | None = None) -> Role:
    """The role of all schedules of a function: it may put objects below the input alone."""
    known, source = facts or Facts(), function.user_input[0]
    bucket = source.path.bucket
    puts = f"{place.bucket_arn(bucket)}/{source.path.key_prefix}{function.name}-*"
    statements = [("Input", ["s3:PutObject"], puts)]
    if key := source.kms_key or known.bucket_keys.get(bucket, ""):
        statements.append(("Encryption", ["kms:GenerateDataKey"], key))
    return Role(
        name=role_name(f"{function.name}-schedule", place.region),
        policy={
            "Version": "2012-10-17",
            "Statement": [
                {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": [resource]}
                for sid, actions, resource in statements
            ],
        },
        path=function.iam.path,
        boundary=boundary_of(function, place, known),
        tags=tags_of(function),
        service=SERVICE,
    )


def _schedule(function: Function, place: DeployTarget, scheduled: Scheduled, role: str) -> Schedule:
    name, source = schedule_name(function, scheduled), function.user_input[0]
    suffix = next(iter(source.suffixes), PurePath(scheduled.input_file).suffix)
    given = scheduled.input or scheduled.input_file  # a file may be empty
    body = scheduled.input if given else json.dumps({"schedule": name, "time": SCHEDULED_TIME})
    put = {
        "Bucket": source.path.bucket,
        "Key": f"{source.path.key_prefix}{name}-{SCHEDULED_TIME}{suffix}",
        "Body": body,
        "ExpectedBucketOwner": owners_of(function).get(source.path.bucket) or place.account,
        "IfNoneMatch": "*",
    }
    if len(input_text(put).encode()) > INPUT_BYTES_MAX:
        most = f"{INPUT_BYTES_MAX // 1024} KiB"
        raise invalid(f"{name}: EventBridge takes an object of {most} as JSON at most")
    return Schedule(
        name=name,
        role=role,
        cron=aws_cron(scheduled.cron),
        timezone=scheduled.timezone,
        put=put,
    )
