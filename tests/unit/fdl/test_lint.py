"""Lint: each finding with its severity, place and words; and silence for what is fine."""
# ruff: noqa: E501  (one line per message, as people see it)

from collections.abc import Mapping

import pytest

from corekit.errors import AppError
from fdl.diagnostics import FileFacts, FileKind, MiddlewareFacts, Severity
from fdl.lint.lint import lint
from fdl.parse import parse
from fdl.plan.resources import DeployTarget
from tests.unit.fdl.definitions import AWS, LOCAL

SCRIPT: Mapping[str, FileFacts] = {"run.sh": FileFacts(first_line=b"#!/bin/sh\n")}

GPU = """\
functions:
  aws:
  - lambda:
      name: blast
      init_script: run.sh
      output: [{path: out}]
    gpu: {}
    job: {input: {path: queries}}
"""


def findings(
    text: str, files: Mapping[str, FileFacts] = SCRIPT, place: DeployTarget = LOCAL
) -> list[str]:
    return [note.text("f") for note in lint(parse(text, "f"), files=files, place=place)]


def test_a_good_file_has_no_findings() -> None:
    assert findings(GPU) == []


FUNCTION = "functions:\n  aws:\n  - lambda:\n      name: f\n      init_script: run.sh\n"
PLACES = "      input: [{path: inn/a}]\n      output: [{path: out}]\n"
#: Lines after those of `FUNCTION` and `PLACES` → one of their findings.
WITH_PLACES = {
    "    batch: {enable_gpu: true}\n": "f:8:5: warning: functions.aws[0].batch: AWS Batch is not used; read as gpu: {count: 1}",
    "      execution_mode: batch\n": "f:8:7: warning: functions.aws[0].lambda.execution_mode: 'batch' is read as lambda with timeout: 900",
    "    api_gateway: {name: x}\n": "f:8:5: warning: functions.aws[0].api_gateway: read as http: true: on AWS a Function URL, whose callers sign by IAM, and no API Gateway; deploy makes a role for it, also beside iam.role (http: false: no URL)",
    "      runtime: python3.7\n": "f:8:7: warning: functions.aws[0].lambda.runtime: python3.7 is retired by AWS; read as python3.12",
    "      timeout: 10\n      container: {timeout_threshold: 10}\n": "f:9:19: error: functions.aws[0].lambda.container.timeout_threshold: leaves the script no time: the function's timeout is 10 s",
    "      environment: {Variables: {DB_PASSWORD: hunter2}}\n": "f:8:33: warning: functions.aws[0].lambda.environment.Variables.DB_PASSWORD: looks like a secret in clear; keep it in a store and write `secrets: {DB_PASSWORD: ssm:/NAME}` next to `lambda`",
    "      container: {environment: {Variables: {A: AKIAABCDEFGHIJKLMNOP}}}\n": "f:8:45: warning: functions.aws[0].lambda.container.environment.Variables.A: looks like a secret in clear; keep it in a store and write `secrets: {A: ssm:/NAME}` next to `lambda`",
    "      environment: {Variables: {ORCHGPU_MODE: x}}\n": "f:8:33: error: functions.aws[0].lambda.environment.Variables.ORCHGPU_MODE: this name is reserved",
    "      runtime: image\n": "f:8:7: error: functions.aws[0].lambda.runtime: 'image' needs container.image",
    "      region: eu-west-1\n    iam: {region: us-east-1}\n": "f:9:11: error: functions.aws[0].iam.region: differs from lambda.region (eu-west-1): one deploy, one region",
    "      runtime: image\n      architectures: [arm64]\n      container: {image: 'a/blast:1-amd64'}\n": "f:9:7: warning: functions.aws[0].lambda.architectures: the image is called amd64, the function is arm64: write architectures: [x86_64]",
    "      architectures: [arm64]\n": "f:8:7: warning: functions.aws[0].lambda.architectures: arm64: the script and its programs must be built for it",
    "      file_system: [{Arn: 'arn:x', LocalMountPath: /mnt/x}]\n": "f:8:7: error: functions.aws[0].lambda.file_system: a file system needs vpc.SubnetIds",
    "      extra_payload: ../..\n": "f:8:7: warning: functions.aws[0].lambda.extra_payload: '../..' lies outside of this file's folder: deploy needs --allow-outside",
}
#: The same after those of `FUNCTION` alone.
OTHERS = {
    "      input: [{path: buc/a}]\n      output: [{path: buc/a/b}]\n": "f:7:7: error: functions.aws[0].lambda.output: what it writes triggers f again; change a prefix",
    "      input: [{path: inn}]\n      output: [{path: out, storage_provider: minio.a}]\n": "f:7:28: warning: functions.aws[0].lambda.output[0].storage_provider: minio.a is not served; read as s3 at the same path",
    "      output: [{path: out}]\n": "f:3:5: warning: functions.aws[0].lambda: no input: nothing triggers this function",
    "      input: [{path: inn}]\n": "f:3:5: warning: functions.aws[0].lambda: no output: files the script writes are dropped",
    "      output: [{path: out}]\n    gpu: {}\n": "f:3:5: error: functions.aws[0]: a function with `gpu:` or `job:` has exactly one input, this one has 0: write `job: {input: BUCKET/PREFIX}`",
    "      output: [{path: out}]\n    gpu: {}\n    job: {input: [{path: aaa}, {path: bbb}]}\n": "f:8:11: error: functions.aws[0].job.input: a function with `gpu:` or `job:` has exactly one input, this one has 2: write `job: {input: BUCKET/PREFIX}`",
    "      output: [{path: mid}]\n    job: {input: {path: inn}, intermediate: {path: mid}}\n": "f:7:31: error: functions.aws[0].job.intermediate: the bucket 'mid' is used by this function too; envelopes need their own: write `job: {intermediate: BUCKET}`",
    "      output: [{path: out}]\n    job: {input: inn, queue: {retention: 10m}}\n": "f:7:31: error: functions.aws[0].job.queue.retention: shorter than 3 attempts may take (900 s): jobs are lost",
    "      output: [{path: out}]\n    job: {input: inn}\n    gpu: {lease_length: 1m}\n": "f:8:11: error: functions.aws[0].gpu.lease_length: shorter than lambda.timeout (300 s), which the run may take",
    "      output: [{path: out}]\n    job: {input: inn}\n    gpu: {deadline: 1m, max_wait: 2m}\n": "f:8:25: warning: functions.aws[0].gpu.max_wait: never reached: gpu.deadline comes first",
    "      output: [{path: out}]\n    job: {input: inn}\n    gpu: {on_unavailable: requeue}\n": "f:8:11: error: functions.aws[0].gpu.on_unavailable: needs gpu.max_wait: without it a job waits for its device anyway",
}
CASES = {FUNCTION + PLACES + more: found for more, found in WITH_PLACES.items()} | {
    FUNCTION + more: found for more, found in OTHERS.items()
}


@pytest.mark.parametrize("text", CASES)
def test_finding(text: str) -> None:
    assert CASES[text] in findings(text)


def test_an_endpoint_of_scar_whose_name_is_too_long_is_no_error() -> None:
    for characters, expected in ((59, "read as http: true"), (60, "no URL is made")):
        named = FUNCTION.replace("name: f", f"name: {'f' * characters}")
        (found,) = findings(f"{named}{PLACES}    api_gateway: {{name: x}}\n")
        assert f"warning: functions.aws[0].api_gateway: {expected}" in found


def test_an_image_without_a_script_runs_nothing_off_aws() -> None:
    text = "functions: {aws: [{lambda: {name: a, runtime: image, container: {image: a/b}, input: [{path: inn}], output: [{path: out}]}}]}"
    assert findings(text, {}) == [
        "f:1:20: warning: functions.aws[0].lambda: an image's own command is not run here: nothing runs until you add init_script"
    ]
    ecr = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/b"
    on_aws = text.replace("a/b", ecr).replace(
        "}]}}]}", "}]}, iam: {role: 'arn:aws:iam::123456789012:role/r'}}]}"
    )
    assert findings(on_aws, {}, AWS) == []


def of_middleware(gpu: str) -> list[str]:
    known = {"rcuda": MiddlewareFacts(), "pocl": MiddlewareFacts(one_host=True)}
    text = GPU.replace("gpu: {}", f"gpu: {gpu}")
    return [note.text("f") for note in lint(parse(text, "f"), files=SCRIPT, middlewares=known)]


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ("{count: 2, middleware: rcuda}", []),
        ("{count: 2, placement: same_host, middleware: pocl}", []),
        (
            "{count: 2, middleware: pocl}",
            [
                "f:7:21: error: functions.aws[0].gpu.middleware: its client reaches one host: 2 devices need placement: same_host"
            ],
        ),
        (
            "{middleware: rcdua}",
            [
                "f:7:11: warning: functions.aws[0].gpu.middleware: 'rcdua' is not a middleware known here (rcuda, pocl); did you mean 'rcuda'?"
            ],
        ),
    ],
)
def test_a_middleware_is_compared_with_those_known_here(gpu: str, expected: list[str]) -> None:
    assert of_middleware(gpu) == expected


def test_a_job_needs_a_script() -> None:
    text = "functions: {aws: [{lambda: {name: a, input: [{path: inn}], output: [{path: out}]}, gpu: {}}]}"
    assert findings(text, {}) == [
        "f:1:20: error: functions.aws[0].lambda: no script: a job has nothing to run; add init_script or handler"
    ]


def test_the_environment_has_a_limit() -> None:
    assert any(
        "Lambda allows 4096" in line
        for line in findings(FUNCTION + f"      environment: {{Variables: {{A: {'x' * 4090}}}}}\n")
    )


def test_two_functions_may_not_share_triggers_queues_or_intermediates() -> None:
    text = (
        GPU
        + "  - lambda: {name: other, init_script: run.sh, output: [{path: out}]}\n    job: {input: {path: queries/a}, queue: blast-jobs, intermediate: blast-intermediate}\n"
    )
    assert findings(text) == [
        "f:8:5: error: functions.aws[0].job: the bucket 'blast-intermediate' is used by other too; envelopes need their own: write `job: {intermediate: BUCKET}`",
        "f:10:11: error: functions.aws[1].job.input: objects there start blast too, and S3 notifies only one function per object: write another path, or a `suffix` that keeps their objects apart",
        "f:10:37: error: functions.aws[1].job.queue: blast uses the queue 'blast-jobs' too; write `job: {queue: NAME}` with a name of its own",
        "f:10:56: error: functions.aws[1].job.intermediate: the bucket 'blast-intermediate' is used by blast too; envelopes need their own: write `job: {intermediate: BUCKET}`",
    ]


def test_a_cycle_through_another_function() -> None:
    text = (
        "functions:\n  aws:\n"
        "  - lambda: {name: a, init_script: run.sh, input: [{path: one}], output: [{path: two}]}\n"
        "  - lambda: {name: b, init_script: run.sh, input: [{path: two}], output: [{path: one}]}\n"
    )
    assert findings(text) == [
        "f:3:66: error: functions.aws[0].lambda.output: what it writes triggers a again through b; change a prefix",
        "f:4:66: error: functions.aws[1].lambda.output: what it writes triggers b again through a; change a prefix",
    ]


def test_a_workflow_without_a_cycle_is_fine() -> None:
    text = (
        "functions:\n  aws:\n"
        "  - lambda: {name: a, init_script: run.sh, input: [{path: one}], output: [{path: two, suffix: [.wav]}]}\n"
        "  - lambda: {name: b, init_script: run.sh, input: [{path: two, suffix: [.wav]}], output: [{path: two, suffix: [.txt]}]}\n"
    )
    assert findings(text) == []


FILES = {
    "missing": (
        FileFacts(exists=False),
        "error",
        "'run.sh' does not exist (paths start at this file's folder)",
    ),
    "folder": (
        FileFacts(kind=FileKind.FOLDER),
        "error",
        "'run.sh' is a folder, not a regular file (paths start at this file's folder)",
    ),
    "windows shebang": (
        FileFacts(first_line=b"#!/bin/sh\r\n", crlf=True),
        "error",
        "'run.sh' has Windows line ends: its shebang names no program",
    ),
    "windows": (
        FileFacts(first_line=b"#!/bin/sh\n", crlf=True),
        "warning",
        "'run.sh' has Windows line ends",
    ),
    "no shebang": (
        FileFacts(first_line=b"echo\n"),
        "warning",
        "'run.sh' has no shebang; /bin/sh will run it",
    ),
    "mode": (
        FileFacts(first_line=b"#!/bin/sh\n", executable=False),
        "note",
        "'run.sh' is not executable; the package makes it so",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_scripts(case: str) -> None:
    facts, severity, message = FILES[case]
    path = "functions.aws[0].lambda.init_script"
    assert findings(GPU, {"run.sh": facts}) == [f"f:5:7: {severity}: {path}: {message}"]


def test_aws_asks_for_more_than_a_local_cloud() -> None:
    text = GPU.replace("init_script", "container: {image: grycap/darknet}\n      init_script")
    assert findings(text, place=LOCAL) == []
    errors = [n for n in lint(parse(text), files=SCRIPT, place=AWS) if n.severity is Severity.ERROR]
    assert [note.path for note in errors] == [
        "functions.aws[0]",
        "functions.aws[0].lambda.container.image",
    ]


def test_on_aws_private_hosts_need_a_vpc() -> None:
    said = "f:3:5: warning: functions.aws[0].lambda: no vpc: GPU hosts with private addresses cannot be reached"
    assert said in findings(GPU, place=AWS)
    assert said not in findings(
        GPU.replace(
            "init_script", "vpc: {SubnetIds: [s], SecurityGroupIds: [g]}\n      init_script"
        ),
        place=AWS,
    )


def test_an_output_that_just_misses_an_input_gives_a_warning() -> None:
    text = (
        "functions:\n  aws:\n"
        "  - lambda: {name: a, init_script: run.sh, input: [{path: one}], output: [{path: mid/video}]}\n"
        "  - lambda: {name: b, init_script: run.sh, input: [{path: mid/videos}], output: [{path: mid/c, suffix: [.txt]}]}\n"
        "  - lambda: {name: c, init_script: run.sh, input: [{path: mid/c, suffix: [.wav]}], output: [{path: end}]}\n"
    )
    assert findings(text) == [
        "f:3:75: warning: functions.aws[0].lambda.output[0]: no function reads it, and b waits for mid/videos; is that the same path?",
        "f:4:82: warning: functions.aws[1].lambda.output[0]: no function reads it, and c waits for other names there: only .wav",
    ]


def test_a_name_keeps_its_capitals_within_a_sentence() -> None:
    text = "functions: {aws: [{lambda: {name: f, init_script: s}}]}\nscar: {a: 1}\n"
    assert "f:2:1: note: scar: no effect: SCAR's own notes" in findings(text)


@pytest.mark.parametrize("key", ["region", "boto_profile"])
def test_functions_of_one_file_go_to_one_place(key: str) -> None:
    names = ("us-east-1", "eu-west-1", "us-east-1")
    lines = [
        f"  - lambda: {{name: f{n}, init_script: run.sh, {key}: {name}}}"
        for n, name in enumerate(names)
    ]
    told = [line for line in findings("\n".join(["functions:", "  aws:", *lines])) if key in line]
    what = "profile" if key == "boto_profile" else key
    where = f"functions.aws[1].lambda.{key}: differs from functions.aws[0].lambda.{key}"
    assert told == [f"f:4:45: error: {where}: one deploy, one {what}"]


WITHOUT = """\
functions:
  aws:
  - lambda: {name: step, init_script: s.sh, input: [{path: one/in}], output: [{path: two/out}]}
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            WITHOUT + "    gpu: {count: 1}\n    job: none\n",
            ["f:5:5: error: functions.aws[0].job: none, but only a job gets the device of `gpu:`"],
        ),
        (
            WITHOUT.replace("{path: one/in}]", "{path: one/in}, {path: one/too}]"),
            ["f:3:45: warning: functions.aws[0].lambda.input: 2 inputs, and jobs have one"],
        ),
        (WITHOUT + "    gpu: none\n", []),
        (WITHOUT + "    job: none\n", []),
        (WITHOUT + "    job: {attempts: 2}\n", []),
    ],
)
def test_what_becomes_jobs(text: str, said: list[str]) -> None:
    found = [note.text("f") for note in lint(parse(text, name="f"))]
    for line, start in zip(found, said, strict=True):
        assert line.startswith(start)


def test_another_word_than_none_is_refused() -> None:
    with pytest.raises(AppError, match=r"f:4:10: .*expected a mapping or the word `none`"):
        parse(WITHOUT + "    gpu: nun\n", name="f")
