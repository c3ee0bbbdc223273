"""Settings of AWS in a definition: read, checked, and shown in a plan."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from fdl.diagnostics import Severity
from fdl.lint.lint import lint
from fdl.parse import parse
from fdl.plan.desired import desired
from fdl.plan.plan import Observed, plan
from fdl.plan.resources import (
    Bucket,
    DeployTarget,
    FunctionResource,
    Ledger,
    QueueResource,
    Record,
    Role,
    key_of,
)
from tests.unit.fdl.definitions import AWS, CODE

LOCAL = replace(AWS, local=True)
JOB = """\
functions:
  aws:
  - lambda:
      name: f
      init_script: run.sh
      output: [{path: out-1/x}]
      %s
    iam: {create: true}
    gpu: {}
    job: {input: {path: in-1}}
"""


def job(more: str = "") -> str:
    return JOB % more


def wanted(text: str, place: DeployTarget = AWS) -> Any:
    (function,) = parse(text).functions.aws
    return desired(function, place, CODE, Budget())


def of(kind: type, text: str) -> Any:
    return next(r for r in wanted(text).resources if isinstance(r, kind))


def findings(text: str, place: DeployTarget | None = AWS) -> list[str]:
    return [
        f"{note.severity}: {note.path}: {note.message}"
        for note in lint(parse(text), place=place)
        if note.severity is not Severity.NOTE and "no vpc" not in note.message
    ]


def test_every_setting_reaches_the_function() -> None:
    text = job(
        "ephemeral_storage: 4096\n      reserved_concurrency: 8\n      tracing: Active\n"
        "      logging: {format: JSON, system_level: WARN, group: team/gpu}\n"
        "      tags: {team: physics}\n"
        "      kms_key: 'arn:aws:kms:eu-west-1:123456789012:key/0a'"
    )
    made = of(FunctionResource, text)
    assert (made.storage_mib, made.reserved, made.tracing) == (4096, 8, "Active")
    levels = (made.log_format, made.log_level, made.log_system_level)
    assert (levels, made.log_group) == (("JSON", "INFO", "WARN"), "team/gpu")
    assert made.kms_key.endswith("key/0a")
    expected = {
        "createdby": "orchgpu",
        "orchgpu:function": "f",
        "team": "physics",
        "orchgpu:tags": "team",
    }
    tagged = [r for r in wanted(text).resources if hasattr(r, "tags")]
    assert len(tagged) == 9, "four buckets, a role, three queues and the function"
    for resource in tagged:
        shared = resource.name == AWS.state_bucket
        assert resource.tags == ({"createdby": "orchgpu"} if shared else expected)


@pytest.mark.parametrize(
    ("more", "start"),
    [
        ("", "invoke"),
        ("start: event, ", "event"),
        ("start: invoke, ", "invoke"),
        ('completion: object, object: "out-1/x/{job}", ', "event"),
    ],
)
def test_our_runners_functions_are_started_by_invoke(more: str, start: str) -> None:
    text = job().replace("job: {", "job: {" + more)
    record = of(Record, text)
    assert record.body["start"] == start


def test_foreign_code_is_not_started_twice() -> None:
    text = job().replace(
        "job: {", 'job: {start: invoke, completion: object, object: "out-1/x/{job}", '
    )
    assert any(
        "functions.aws[0].job.start: code that our runner does not run would run twice" in found
        for found in findings(text)
    )


PLAIN = """
functions:
  aws:
  - lambda:
      name: f
      init_script: f.sh
      reserved_concurrency: 4
      input: [{storage_provider: s3, path: in-1}]
      output: [{storage_provider: s3, path: out-1}]
"""


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        (PLAIN, True),
        (job("reserved_concurrency: 4"), False),  # as many jobs run as there are devices: doctor
        (job("reserved_concurrency: 4").replace("job: {", "job: {concurrency: 4, "), False),
        (job("reserved_concurrency: 4").replace("job: {", "job: {concurrency: 5, "), True),
    ],
)
def test_a_reservation_throttles_what_exceeds_it(text: str, warned: bool) -> None:
    found = [note for note in lint(parse(text), place=AWS) if "throttled" in note.message]
    assert len(found) == warned
    for note in found:
        assert note.severity is Severity.WARNING
        assert note.at.line == text.splitlines().index("      reserved_concurrency: 4") + 1
        assert "beyond 4 runs at a time" in note.message
    assert not any("throttled" in note.message for note in lint(parse(text), place=LOCAL))


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ("ephemeral_storage: 511", "511 must lie in 512…10240 MB"),
        ("reserved_concurrency: 0", "0 must lie in 1…"),
        ("kms_key: alias/x", "is not the ARN of a KMS key"),
        ("tags: {'aws:x': y}", "is not the name of a tag"),
        ("tags: {createdby: y}", "is not the name of a tag"),
        ("tags: {a b: y}", "is not the name of a tag"),
        ("tags: {%s: y}" % ("a" * 129), "is not the name of a tag"),
        ("tags: {{{}}}".format(", ".join(f"t{n}: x" for n in range(41))), "more than 40 tags"),
        (f"tags: {{{'a' * 128}: x, {'c' * 126}: x, b: x}}", "256 characters together"),
        ("logging: {group: aws/x}", "is not the name of a log group"),
        ("tracing: On", "is not one of PassThrough, Active"),
    ],
)
def test_values_that_aws_refuses_are_refused(more: str, fault: str) -> None:
    with pytest.raises(AppError, match=fault.replace("(", r"\(")):
        parse(job(more))


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ("runtime: python3.12", []),
        ("runtime: python3.13", []),
        (
            "runtime: python3.10",
            ["error: functions.aws[0].lambda.runtime: the runner needs Python 3.11 or newer"],
        ),
        (
            "runtime: python3.11",
            ["error: functions.aws[0].lambda.runtime: on AWS python3.11 runs on Amazon Linux 2"],
        ),
        ("logging: {format: JSON, level: INFO}", []),
        (
            "logging: {level: INFO}",
            ["error: functions.aws[0].lambda.logging.level: needs `format: JSON`"],
        ),
        (
            "logging: {format: JSON, level: WARN}",
            ["warning: functions.aws[0].lambda.logging.level: hides the lines"],
        ),
        (
            "logging: {format: JSON, system_level: WARN}",
            ["warning: functions.aws[0].lambda.logging.system_level: hides the lines"],
        ),
    ],
)
def test_settings_that_would_fail_later_are_found(more: str, found: list[str]) -> None:
    """Defect 8: python3.10 was accepted, and every run died at import."""
    seen = findings(job(more))
    assert len(seen) == len(found)
    assert all(one.startswith(start) for one, start in zip(seen, found, strict=True))


def test_off_aws_an_older_runtime_is_accepted_that_can_import_the_runner() -> None:
    assert findings(job("runtime: python3.11"), LOCAL) == []
    assert findings(job("runtime: python3.10"), LOCAL) != []
    foreign = job("runtime: python3.10").replace(
        "in-1}", "in-1}, completion: object, object: 'out-1/{job}'"
    )
    text = foreign.replace("init_script: run.sh", "handler: a.b")
    assert "runtime" not in "".join(findings(text))


def test_settings_of_a_role_need_one_that_deploy_makes() -> None:
    arn = "arn:aws:iam::123456789012:policy/p"
    own = job().replace("{create: true}", f"{{create: true, permissions_boundary: '{arn}'}}")
    assert findings(own) == []
    other = own.replace("::123456789012:policy", "::111111111111:policy")
    assert "is a policy of account 111111111111" in findings(other)[0]
    given = own.replace("create: true", "role: 'arn:aws:iam::123456789012:role/r', path: /t/")
    assert sorted(text.split(": ")[1] for text in findings(given)) == [
        "functions.aws[0].iam.path",
        "functions.aws[0].iam.permissions_boundary",
    ]


FOREIGN = job().replace("{path: in-1}", "{path: in-1, owner: '111111111111'}")


def test_the_owner_of_a_foreign_bucket_is_in_all_that_names_it() -> None:
    """Defect 5: the state bucket alone was checked."""
    made = {key_of(r): r for r in wanted(FOREIGN).resources}
    assert made["bucket/in-1"].owner == "111111111111"
    assert made["bucket/out-1"].owner == ""
    queue = of(QueueResource, FOREIGN)
    queues = [r for r in wanted(FOREIGN).resources if isinstance(r, QueueResource)]
    conditions = [q.policy["Statement"][0]["Condition"] for q in queues if q.policy]
    accounts = [one["StringEquals"]["aws:SourceAccount"] for one in conditions]
    assert accounts == ["111111111111", "123456789012"]
    assert queue.tags["orchgpu:function"] == "f"
    variables = of(FunctionResource, FOREIGN).variables
    assert variables["ORCHGPU_ACCOUNT"] == "123456789012"
    assert variables["ORCHGPU_BUCKET_OWNERS"] == '{"in-1":"111111111111"}'
    assert of(Record, FOREIGN).body["owners"] == {
        "in-1": "111111111111",
        "f-intermediate": "123456789012",
        "out-1": "123456789012",
    }
    steps = plan([wanted(FOREIGN)], Observed(), AWS).steps
    ledgers = [step.resource for step in steps if isinstance(step.resource, Ledger)]
    assert [ledger.owners for ledger in ledgers] == [{"in-1": "111111111111"}]


def test_a_bucket_has_one_owner() -> None:
    text = FOREIGN.replace("out-1/x}", "in-1/x}")
    assert any("names another owner" in one for one in findings(text))
    other = (FOREIGN + job().partition("aws:\n")[2]).replace("name: f", "name: g", 1)
    assert any("names another owner" in one for one in findings(other))
    assert not any("names another owner" in one for one in findings(FOREIGN))


def observed(*resources: Any) -> Observed:
    return Observed(resources={key_of(r): r for r in resources})


def test_a_bucket_in_another_region_is_found_by_the_plan() -> None:
    """Defect 15: the deploy failed at its last steps, when S3 refused the notification."""
    there = Bucket(name="in-1", region="us-west-2")
    with pytest.raises(AppError, match=r"in us-west-2, this deploy is in eu-west-1") as caught:
        plan([wanted(job())], observed(there), AWS)
    assert caught.value.code is ErrorCode.INVALID
    outputs = Bucket(name="out-1", region="us-west-2")
    assert plan([wanted(job())], observed(outputs), AWS).steps, "S3 notifies of no output here"
    next_step = job().replace("name: f", "name: g").replace("in-1", "in-2")
    reads = next_step.replace("in-2", "out-1").replace("out-1/x", "out-2")
    for texts in ((reads, job()), (job(), reads)):
        with pytest.raises(AppError, match="bucket 'out-1' is in us-west-2"):
            plan([wanted(text) for text in texts], observed(outputs), AWS)


def test_the_path_of_a_role_cannot_be_changed() -> None:
    """Defect 9."""
    role = of(Role, job())
    ledger = Ledger(name="f", bucket=AWS.state_bucket, created=(key_of(role),))
    moved = Observed(resources={key_of(role): replace(role, path="/team/")}, ledgers={"f": ledger})
    with pytest.raises(AppError, match=r"has the path /team/, which IAM cannot change"):
        plan([wanted(job())], moved, AWS)


def test_a_plan_shows_changed_settings() -> None:
    """Defect 4: reserved concurrency, set and removed."""

    def text(more: str = "") -> str:
        return job(more).replace("job: {", "job: {advance: off, ")

    before = of(FunctionResource, text("reserved_concurrency: 5"))
    ledger = Ledger(name="f", bucket=AWS.state_bucket, created=(key_of(before),))
    seen = Observed(resources={key_of(before): before}, ledgers={"f": ledger})
    sentences = [step.sentence() for step in plan([wanted(text())], seen, AWS).steps]
    assert "~ function f: reserved 5 → None" in sentences
    sentences = [
        step.sentence() for step in plan([wanted(text("reserved_concurrency: 9"))], seen, AWS).steps
    ]
    assert "~ function f: reserved 5 → 9" in sentences


def test_a_shared_bucket_keeps_the_tag_of_its_first_function() -> None:
    bucket = next(r for r in wanted(job()).resources if r.name == "in-1")
    ledger = Ledger(name="f", bucket=AWS.state_bucket, created=(key_of(bucket),))
    first = replace(bucket, tags={**bucket.tags, "orchgpu:function": "g"})
    seen = Observed(resources={key_of(first): first}, ledgers={"f": ledger})
    steps = plan([wanted(job())], seen, AWS).steps
    assert key_of(bucket) not in [step.key for step in steps]
    more = plan([wanted(job("tags: {team: a}"))], seen, AWS).steps
    (step,) = [step for step in more if step.key == key_of(bucket)]
    assert step.sentence() == "~ bucket in-1: tags (orchgpu:tags, team)"


def test_results_expire_long_after_their_events() -> None:
    """Low: results and reports stayed without end."""
    made = {r.id: r for r in wanted(job()).resources if r.kind == "expiry"}
    assert {name: (r.prefix, r.days, r.uploads_days) for name, r in made.items()} == {
        "orchgpu-f-uploads": ("x/", 0, 7),
        "orchgpu-f-staging": ("staging/f/", 1, 0),
        "orchgpu-f-results": ("results/", 90, 0),
        "orchgpu-f-attempts": ("attempts/", 90, 0),
    }
    longest_s = Budget().reconcile_back_s + 14 * 86400  # a search, then the message's retention
    with pytest.raises(AppError, match="30…3650 days"):
        parse(job().replace("in-1}", "in-1}, intermediate: {path: mid, results_days: 29}"))
    assert longest_s <= 30 * 86400
