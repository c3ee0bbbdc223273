"""`schedule:`: reading, errors with their places, and what is made of it."""

from __future__ import annotations

import pytest

from corekit.errors import AppError
from corekit.values import replace
from fdl.diagnostics import FileFacts
from fdl.lint.lint import lint
from fdl.parse import parse
from fdl.plan.facts import Facts
from fdl.plan.groups import deployed
from fdl.plan.resources import Role, Schedule
from fdl.plan.schedules import schedules_of
from tests.unit.fdl.definitions import AWS, LOCAL, errors, only, resources

FILE = """\
functions:
  aws:
  - lambda: {name: f, init_script: s, input: [{path: box/in}], output: [{path: box/out}]}
    schedule: "0 3 * * 1"
"""
SEVERAL = FILE.replace(
    '"0 3 * * 1"',
    "[{cron: '*/5 * * * *', name: often, timezone: Europe/Madrid, input: go},"
    " {cron: 0 0 1 * *, name: month, role: 'arn:aws:iam::123456789012:role/r'}]",
)


def test_a_time_puts_an_object_that_names_it() -> None:
    schedule = only(Schedule, resources(FILE))
    assert (schedule.name, schedule.cron, schedule.timezone) == (
        "f-schedule",
        "cron(0 3 ? * MON *)",
        "UTC",
    )
    assert schedule.put == {
        "Bucket": "box",
        "Key": "in/f-schedule-<aws.scheduler.scheduled-time>",
        "Body": '{"schedule": "f-schedule", "time": "<aws.scheduler.scheduled-time>"}',
        "ExpectedBucketOwner": AWS.account,
        "IfNoneMatch": "*",
    }


def test_several_times_have_names_objects_and_roles() -> None:
    often, month = [one for one in resources(SEVERAL) if isinstance(one, Schedule)]
    role = only(Role, resources(SEVERAL))
    assert (often.name, often.timezone, often.put["Body"]) == ("f-often", "Europe/Madrid", "go")
    assert often.role == AWS.role_arn(role.full_name)
    assert month.role == "arn:aws:iam::123456789012:role/r"


def test_its_role_may_put_these_objects_alone() -> None:
    role = only(Role, resources(FILE, facts=Facts(bucket_keys={"box": "arn:aws:kms:r:1:key/k"})))
    assert role.service == "scheduler.amazonaws.com"
    assert role.boundary == AWS.policy_arn("orchgpu-functions")
    rights = [(one["Action"], one["Resource"]) for one in role.policy["Statement"]]
    assert rights == [
        (["s3:PutObject"], ["arn:aws:s3:::box/in/f-*"]),
        (["kms:GenerateDataKey"], ["arn:aws:kms:r:1:key/k"]),
    ]


def test_a_local_cloud_needs_no_role() -> None:
    assert not [one for one in resources(FILE, LOCAL) if isinstance(one, Role)]


def test_the_key_ends_as_the_input_wants() -> None:
    suffixed = FILE.replace("{path: box/in}", "{path: box/in, suffix: [csv]}")
    assert only(Schedule, resources(suffixed)).put["Key"].endswith("scheduled-time>csv")
    file = FILE.replace('"0 3 * * 1"', "{cron: 0 3 * * 1, input_file: a/plan.json}")
    assert only(Schedule, resources(file)).put["Key"].endswith("scheduled-time>.json")


def test_a_function_without_a_schedule_is_as_before() -> None:
    without = FILE.replace('    schedule: "0 3 * * 1"\n', "")
    made = resources(without)
    assert [one for one in resources(FILE) if not isinstance(one, Schedule | Role)] == made


@pytest.mark.parametrize(
    ("written", "place", "message"),
    [
        ('"0 0 1 * 1"', "f:4:15", "EventBridge takes one of the two"),
        ("{cron: 0 3 * * 9}", "f:4:22", "Bad day-of-week"),
        ("{cron: 0 3 * * 1, timezone: Europe/Nowhere}", "f:4:43", "not a time zone"),
        ("{cron: 0 3 * * 1, input: a, input_file: b}", "f:4:15", "keep one"),
        ("{timezone: UTC}", "f:4:15", "missing key 'cron'"),
    ],
)
def test_an_error_has_its_place(written: str, place: str, message: str) -> None:
    with pytest.raises(AppError, match=message) as raised:
        parse(FILE.replace('"0 3 * * 1"', written), "f")
    assert raised.value.message.startswith(place)


STEPS = """\
functions:
  aws:
  - lambda: {name: a, init_script: s, input: [{path: box/in}], output: [{path: box/mid}]}
  - lambda: {name: b, init_script: s, input: [{path: box/mid}], output: [{path: box/out}]}
    schedule: "0 3 * * 1"
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SEVERAL.replace("month", "often"), "f-often is here twice"),
        (FILE.replace("name: f", f"name: {'f' * 60}"), "EventBridge takes 64 characters"),
        (FILE.replace("input: [{path: box/in}], ", ""), "there is none"),
        (STEPS + "workflows: {w: {steps: [a, b]}}\n", "a run of w begins at its first step"),
        (
            STEPS.replace("    schedule", "    group: g\n    schedule").replace(
                "box/mid}]}\n  -", "box/mid}]}\n    group: g\n  -"
            ),
            "jobs of the group g start at its first step",
        ),
    ],
)
def test_what_cannot_work_is_an_error(text: str, message: str) -> None:
    assert message in "\n".join(errors(text))


def test_a_file_that_is_not_there_is_an_error() -> None:
    text = FILE.replace('"0 3 * * 1"', "{cron: 0 3 * * 1, input_file: plan.json}")
    files = {"s": FileFacts(), "plan.json": FileFacts(exists=False)}
    (note,) = [one for one in lint(parse(text, "f"), files=files) if "schedule" in one.path]
    assert "'plan.json' does not exist" in note.message


def test_an_object_has_eventbridges_size() -> None:
    function = deployed(parse(FILE, "f"))[0]
    for text in ("x" * 300_000, "ü" * 150_000):
        large = replace(function.schedule[0], input=text)
        with pytest.raises(AppError, match="256 KiB"):
            schedules_of(replace(function, schedule=(large,)), AWS, Facts())
    fits = replace(function.schedule[0], input="ü" * 100_000)  # two bytes each, as it is sent
    assert schedules_of(replace(function, schedule=(fits,)), AWS, Facts())
