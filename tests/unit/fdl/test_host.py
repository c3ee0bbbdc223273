"""`execution:` and `host:`: what is read, refused and made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from contract.timing import CAP_SLACK_S
from corekit.budget import Budget
from corekit.decode import decode
from corekit.errors import AppError
from fdl.beside_device import HOST_TIMEOUT_S_MAX
from fdl.lint.lint import lint
from fdl.parse import parse
from fdl.plan.facts import Facts
from fdl.plan.resources import (
    FunctionResource,
    InvokeConfig,
    LogRetention,
    Notification,
    Package,
    Permission,
    Record,
    Role,
)
from orchgpu.core.function import BatchPlace, Function
from tests.unit.fdl.definitions import AWS, LOCAL, errors, only, resources

FILE = """\
functions:
  aws:
  - lambda:
      name: fold
      init_script: fold.sh
      output: [{path: folds}]
%s    gpu: {memory: 1GiB}
    job: {input: {path: chains}}
    execution: %s
"""
IMAGE = "ghcr.io/lab/fold@sha256:" + "ab" * 32


def file(execution: str, own: str = "", more: str = "") -> str:
    return FILE % (own, execution) + more


def record_of(text: str, **place: Any) -> Function:
    body: Mapping[str, Any] = only(Record, resources(text, **place)).body
    urls = dict.fromkeys(("queue_url", "dead_letter_url", "completion_url"), "url")
    return decode(Function, {**body, **urls})


def message(text: str) -> str:
    with pytest.raises(AppError) as caught:
        parse(text, "f")
    return caught.value.message.splitlines()[0]


def test_the_bound_is_that_of_its_other_end() -> None:
    budget = Budget()
    longest_s = HOST_TIMEOUT_S_MAX + budget.connect_by_s + CAP_SLACK_S
    assert longest_s <= budget.job_receipt_s_max
    assert longest_s + budget.hand_back_after_s <= 12 * 3600, "SQS's limit of one receipt"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            file("lambda", "      timeout: 3600\n"),
            (
                "f:7:16: error: functions.aws[0].lambda.timeout: 3600: Lambda has 900 s at most;"
                " write `execution: host`"
            ),
        ),
        (
            file("host", "      timeout: 39001\n"),
            "f:7:16: error: functions.aws[0].lambda.timeout: 39001 must lie in 1…39000 s",
        ),
        (
            file("host", "      layers: ['arn:aws:lambda:r:1:layer:l:1']\n"),
            (
                "f:7:15: error: functions.aws[0].lambda.layers: a host has no layers: write"
                " `host: {image: …}`, or add the files by `extra_payload`"
            ),
        ),
        (
            file("auto", more=f"    host: {{image: '{IMAGE}'}}\n"),
            (
                "f:9:16: error: functions.aws[0].execution: auto may run in Lambda, which has no"
                " such image: write `execution: host`"
            ),
        ),
        (
            file("host", more="    host: {image: 'ghcr.io/lab/fold:1'}\n"),
            (
                "f:10:19: error: functions.aws[0].host.image: 'ghcr.io/lab/fold:1' is not an image"
                " by its digest, as registry/name@sha256: with 64 hex digits, or as"
                " s3://bucket/key.tar#sha256: for an archive"
            ),
        ),
    ],
)
def test_what_a_place_cannot_run_is_refused_where_it_stands(text: str, expected: str) -> None:
    assert message(text) == expected


def test_a_host_is_that_of_a_device() -> None:
    text = (
        "needs a device, whose lease names the host: write `gpu:`, or leave it out; or name AWS"
        " Batch by `host: {batch: …}`"
    )
    without = file("host").replace("    gpu: {memory: 1GiB}\n", "")
    assert errors(without) == [f"functions.aws[0].execution: {text}"]
    assert errors(file("host")) == errors(file("auto")) == []


@pytest.mark.parametrize("place", [AWS, LOCAL])
def test_a_host_needs_no_lambda_function(place: Any) -> None:
    found = resources(file("host", "      timeout: 3600\n      memory: 20480\n"), place)
    kinds = {type(one) for one in found}
    assert not kinds & {FunctionResource, InvokeConfig, Permission}
    rules = [one.id for one in found if isinstance(one, Notification)]
    assert rules == ["orchgpu-fold-jobs", "orchgpu-fold-results"]
    record = record_of(file("host", "      timeout: 3600\n      memory: 20480\n"), place=place)
    package = only(Package, found)
    assert record.host is not None
    assert (record.host.package_bucket, record.host.package_key) == (
        package.bucket,
        package.object_key,
    )
    assert (record.execution, record.timeout_s, record.memory_mib) == ("host", 3600.0, 20480)
    assert record.request.programs == ("function-runner",)
    assert record.host.log_group == "/aws/lambda/fold"
    assert record.host.process["ORCHGPU_SCRIPT"] == "script/fold.sh"


def test_an_image_needs_a_host_that_runs_images() -> None:
    text = file(
        "host", more=f"    host: {{image: '{IMAGE}', command: [fold, -v], network: true}}\n"
    )
    record = record_of(text.replace("      init_script: fold.sh\n", ""))
    # the last: of hosts whose operator lets images have a network
    assert record.request.programs == ("function-runner", "containers", "images-network")
    alone = text.replace(", network: true", "").replace("      init_script: fold.sh\n", "")
    assert record_of(alone).request.programs == ("function-runner", "containers")
    assert record.host is not None
    assert (record.host.image, record.host.command) == (IMAGE, ("fold", "-v"))
    assert record.host.network
    assert errors(text.replace("      init_script: fold.sh\n", "")) == []
    assert not [note for note in lint(parse(alone, "f")) if "no script" in note.message]


def test_only_the_handler_of_a_function_on_a_host_stays_warm() -> None:
    text = file("host", more="    host: {warm: true}\n")
    handler = text.replace("init_script: fold.sh", "handler: fold.work")
    assert errors(handler) == []
    record = record_of(handler)
    assert record.host is not None
    assert record.host.warm
    wrong = (text, handler.replace("execution: host", "execution: auto"))
    for one in wrong:
        assert "write `execution: host` and `handler:`" in message(one)


@pytest.mark.parametrize(
    ("written", "idle_s", "call_s"),
    [("true", "60.0", 60.0), ("{idle_s: 5m}", "300.0", 60.0), ("{call_s: 2}", "60.0", 2.0)],
)
def test_a_handler_on_a_host_may_be_called(written: str, idle_s: str, call_s: float) -> None:
    text = file("host", more=f"    endpoint: {written}\n")
    handler = text.replace("init_script: fold.sh", "handler: fold.work")
    assert errors(handler) == []
    host = record_of(handler).host
    assert host is not None
    assert host.call_s == call_s
    assert host.process["ORCHGPU_ENDPOINT_IDLE_S"] == idle_s
    for wrong in (text, handler.replace("execution: host", "execution: auto")):
        assert "calls are answered by the process of a handler" in message(wrong)
    never = handler.replace(f"endpoint: {written}", "endpoint: false")
    assert (
        record_of(never).host == record_of(handler.replace(f"    endpoint: {written}\n", "")).host
    )


@pytest.mark.parametrize(
    ("batch", "memory", "written", "calls_max"),
    [
        ("", 3008, "true", 1),
        ("{wait_ms: 1}", 8192, "true", 8),
        ("{wait_ms: 1}", 2047, "true", 3),
        ("{size_max: 2}", 3008, "true", 2),
        ("{wait_ms: 1}", 3008, "{calls_max: 1}", 1),
        ("", 512, "{calls_max: 16}", 16),
    ],
)
def test_calls_side_by_side_follow_the_batch_and_the_memory(
    batch: str, memory: int, written: str, calls_max: int
) -> None:
    text = file("host", f"      memory: {memory}\n", f"    endpoint: {written}\n")
    text = text.replace("init_script: fold.sh", "handler: fold.work")
    if batch:
        text = text.replace("memory: 1GiB", f"memory: 1GiB, batch: {batch}")
    assert errors(text) == []
    host = record_of(text).host
    assert host is not None
    assert host.calls_max == calls_max
    assert int(host.process.get("ORCHGPU_ENDPOINT_CALLS_MAX", "1")) == calls_max


def test_an_archive_in_s3_is_an_image_that_the_role_may_read() -> None:
    archive = f"s3://lab-images/fold/v1.tar#sha256:{64 * 'a'}"
    text = file("host", more=f"    host: {{image: '{archive}'}}\n    iam: {{create: true}}\n")
    text = text.replace("      init_script: fold.sh\n", "")
    assert errors(text) == []
    record = record_of(text)
    assert record.host is not None
    assert record.host.image == archive
    key = "arn:aws:kms:eu-west-1:123456789012:key/1"
    role = only(Role, resources(text, facts=Facts(bucket_keys={"lab-images": key})))
    policy: Any = role.policy
    statements = {one["Sid"]: one for one in policy["Statement"]}
    assert statements["Image"]["Action"] == ["s3:GetObject"]
    assert statements["Image"]["Resource"] == ["arn:aws:s3:::lab-images/fold/v1.tar"]
    assert key in statements["Decryption"]["Resource"]
    own = "    iam: {create: true}\n"
    for plain in (text.replace(archive, IMAGE), file("host", more=own)):
        assert "Image" not in json.dumps(only(Role, resources(plain)).policy)
    assert "is not an image by its digest" in message(text.replace("v1.tar", "*"))


def test_auto_has_both_with_lambdas_limits() -> None:
    text = file("auto", "      timeout: 3600\n      memory: 20480\n")
    found = resources(text)
    function = only(FunctionResource, found)
    assert (function.timeout_s, function.memory_mib) == (900, 10240)
    assert "orchgpu-fold-staging" in [one.id for one in found if isinstance(one, Notification)]
    record = record_of(text)
    assert (record.timeout_s, record.memory_mib) == (3600.0, 20480)
    assert record.request.programs == ()
    assert record.host is not None
    assert record.host.programs == ("function-runner",)
    assert "ORCHGPU_ADVANCE_S" not in record.host.process


def test_the_account_may_assume_the_role_of_a_function_on_hosts() -> None:
    iam = "    iam: {create: true}\n"
    role = only(Role, resources(file("host", more=iam)))
    assert role.assumed_by == "arn:aws:iam::123456789012:root"
    packages = "arn:aws:s3:::orchgpu-state-123456789012-eu-west-1-an/packages/*"
    assert packages in json.dumps(role.policy)
    plain = only(Role, resources(file("lambda", more=iam)))
    assert plain.assumed_by == ""
    assert packages not in json.dumps(plain.policy)


@pytest.mark.parametrize(
    ("mode", "execution", "timeout_s"), [("batch", "host", 39_000), ("lambda-batch", "auto", 300)]
)
def test_scars_modes_of_execution(mode: str, execution: str, timeout_s: int) -> None:
    text = file("auto", f"      execution_mode: {mode}\n").replace("    execution: auto\n", "")
    (function,) = parse(text, "f").functions.aws
    assert (function.execution, function.function.timeout_s) == (execution, timeout_s)
    (without,) = parse(text.replace("{memory: 1GiB}", "none"), "f").functions.aws
    assert without.execution == "lambda"
    assert without.function.timeout_s == (900 if mode == "batch" else 300)


def test_a_file_without_a_place_has_the_record_that_it_had() -> None:
    body = only(Record, resources(file("lambda"))).body
    assert "execution" not in body
    assert "host" not in body


BATCH = "    host: {batch: {queue: gpus, definition: 'fold:3', start: 30m}}\n"


def in_batch(own: str = "", more: str = "") -> str:
    return file("host", own, BATCH + more).replace("    gpu: {memory: 1GiB}\n", "")


def test_a_function_in_batch_needs_neither_a_device_nor_lambda() -> None:
    text = in_batch("      timeout: 3600\n      memory: 20480\n")
    assert errors(text) == []
    found = resources(text)
    assert not {type(one) for one in found} & {FunctionResource, InvokeConfig, Permission}
    notified = [one.id for one in found if isinstance(one, Notification)]
    assert "orchgpu-fold-staging" not in notified
    record = record_of(text)
    assert (record.request.count, record.execution) == (0, "host")
    assert record.host is not None
    assert record.host.batch == BatchPlace(queue="gpus", definition="fold:3", start_s=1800.0)
    assert (record.host.programs, record.host.log_group) == ((), "/aws/batch/job")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (in_batch(more="    gpu: {count: 1}\n"), "in Batch its queue gives the card"),
        (in_batch().replace("execution: host", "execution: auto"), "auto would try Lambda first"),
        (in_batch("      timeout: 39000\n"), "with 1800 s for `host.batch.start` 37200 s are left"),
        (in_batch().replace("batch:", "warm: true, batch:"), "leave out image, command, network"),
        (in_batch().replace("gpus", "'arn:aws:x'"), "'arn:aws:x' is not a job queue's name"),
        (in_batch().replace("queue: gpus, ", ""), "missing key 'queue'"),
    ],
)
def test_what_batch_cannot_run_is_refused(text: str, expected: str) -> None:
    assert expected in message(text)


def test_containers_in_batch_may_have_the_functions_role() -> None:
    role = only(Role, resources(in_batch(more="    iam: {create: true}\n")))
    assert (role.service, role.assumed_by) == ("ecs-tasks.amazonaws.com", "")
    assert "/packages/*" in json.dumps(role.policy)
    assert "logs:" not in json.dumps(role.policy), "the machine, not the container, writes them"


@pytest.mark.parametrize(("chars", "refused"), [(6000, False), (7000, True)])
def test_variables_beyond_batchs_limit_are_refused(chars: int, refused: bool) -> None:
    half = "ä" * (chars // 2)
    found = errors(in_batch(f"      environment: {{Variables: {{V: {half}, W: {half}}}}}\n"))
    assert any("AWS Batch leaves 7000 characters" in one for one in found) is refused, found


@pytest.mark.parametrize("own", ["", "      logging: {group: /batch/fold}\n"])
def test_days_of_logs_are_of_a_group_of_its_own(own: str) -> None:
    text = in_batch(own, "    cloudwatch: {log_retention_policy_in_days: 30}\n")
    groups = [one.group for one in resources(text, place=AWS) if isinstance(one, LogRetention)]
    assert groups == (["/batch/fold"] if own else [])
    warned = any("of all of Batch's jobs" in one.message for one in lint(parse(text, "f")))
    assert warned is (not own)
