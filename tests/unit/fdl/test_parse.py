"""Parsing: the values of all keys, and every kind of bad input with its exact message."""
# ruff: noqa: E501  (one line per message, as people see it)

import pytest

from corekit.errors import AppError, ErrorCode
from fdl.model import Function, Path, Storage
from fdl.parse import parse
from fdl.schema.schema import FAULTS_MAX
from fdl.text.compose import BYTES_MAX, DEPTH_MAX
from fdl.text.nodes import Location
from gpu_scheduler.model import Batch, DeviceKind, Placement, Request, Sharing

WHOLE = """\
functions:
  aws:
  - lambda:
      name: gpu-blast
      memory: 3072
      timeout: 900
      runtime: image
      init_script: blast.sh
      container:
        image: 123456789012.dkr.ecr.us-east-1.amazonaws.com/blast
        create_image: false
        environment:
          Variables: {LEVEL: 010, DEBUG: on, VERSION: 1.10, EMPTY: }
      input:
      - storage_provider: s3
        path: mid/blast
      output:
      - storage_provider: s3.default
        path: out/results/
        suffix: [.tsv]
        prefix: hits-
    iam: {role: "arn:aws:iam::123456789012:role/lambda"}
    gpu:
      count: 2
      memory: 4GiB
      kinds: [cuda, cpu]
      models: any
      compute: {guarantee: 50%, limit: 80}
      sharing: exclusive
      placement: same_host
      priority: -3
      max_wait: 10m
      middleware: rcuda
      x-note: mine
    job:
      input: my-input/seqs
      queue: blast-q
      attempts: 5
x-free: {anything: [at, all]}
"""


@pytest.fixture(name="whole")
def _whole() -> Function:
    (function,) = parse(WHOLE).functions.aws
    return function


def test_the_lambda_block(whole: Function) -> None:
    assert (whole.name, whole.function.memory_mib) == ("gpu-blast", 3072)
    assert whole.function.output == (
        Storage(
            path=Path(bucket="out", prefix="results"),
            storage_provider="s3.default",
            suffixes=(".tsv",),
            prefixes=("hits-",),
        ),
    )


def test_the_input_of_a_job_is_the_users_and_scars_is_the_intermediate_bucket(
    whole: Function,
) -> None:
    assert whole.user_input == (Storage(path=Path(bucket="my-input", prefix="seqs")),)
    assert whole.intermediate == Path(bucket="mid", prefix="blast")


def test_queues_have_the_written_name_or_the_functions(whole: Function) -> None:
    assert whole.queues == ("blast-q", "gpu-blast-dlq", "gpu-blast-done")


def test_the_gpu_block_is_a_request_to_the_scheduler(whole: Function) -> None:
    assert whole.gpu is not None
    assert whole.gpu.request == Request(
        count=2,
        memory_mib=4096,
        kinds=(DeviceKind.CUDA, DeviceKind.CPU),
        compute_guarantee_pct=50,
        compute_limit_pct=80,
        sharing=Sharing.EXCLUSIVE,
        placement=Placement.SAME_HOST,
        priority=-3,
        max_wait_s=600.0,
        middleware="rcuda",
    )


def test_values_of_variables_stay_as_written() -> None:
    variables = parse(WHOLE).functions.aws[0].function.container.variables
    assert variables == {"LEVEL": "010", "DEBUG": "on", "VERSION": "1.10", "EMPTY": ""}


def test_bare_blocks_have_all_defaults() -> None:
    (function,) = parse("functions: {aws: [{lambda: {name: a, input: []}, gpu: }]}").functions.aws
    assert function.queued
    assert function.gpu is not None
    assert function.gpu.request.count == 1


def test_without_our_blocks_it_is_a_plain_function() -> None:
    (function,) = parse("functions: {aws: [{lambda: {name: a}}]}").functions.aws
    assert not function.queued


def test_a_scar_input_is_the_users_input_unless_job_has_one() -> None:
    text = "functions: {aws: [{lambda: {name: Ab_c, input: [{path: inn/x}]}, gpu: {}}]}"
    (function,) = parse(text).functions.aws
    assert function.user_input[0].path == Path(bucket="inn", prefix="x")
    assert function.intermediate == Path(bucket="ab-c-intermediate")


def test_keys_have_locations() -> None:
    document = parse(WHOLE)
    assert document.location("functions.aws[0].lambda.memory") == Location(5, 7)
    assert document.location("functions.aws[0].lambda.nothing.there") == Location(3, 5)


ONE = "functions:\n  aws:\n  - lambda:\n      name: a\n"

OSCAR = "functions: {oscar: [{c: {name: f, script: s, environment: {%s}}}]}"
BAD = {
    "unknown key": (
        ONE + "      memmory: 4096\n",
        "f.yaml:5:7: error: functions.aws[0].lambda: unknown key 'memmory'; did you mean 'memory'?\n  5 |       memmory: 4096\n    |       ^",
    ),
    "unknown block": (
        ONE + "    gpus: 1\n",
        "f.yaml:5:5: error: functions.aws[0]: unknown key 'gpus'; did you mean 'gpu'?",
    ),
    "a block's key in another": (
        ONE + "    job: {max_wait: 5}\n",
        "f.yaml:5:11: error: functions.aws[0].job: unknown key 'max_wait'; it belongs in 'gpu'",
    ),
    "a block within another": (
        ONE + "      gpu: {}\n",
        "f.yaml:5:7: error: functions.aws[0].lambda: unknown key 'gpu'; it belongs next to 'lambda'",
    ),
    "a block where functions are": (
        "functions:\n  gpu: {memory: 4096, compute: 25}\n" + ONE.split("\n", 1)[1],
        "f.yaml:2:3: error: functions: unknown key 'gpu'; it belongs in an element of the list `functions.aws`, next to 'lambda'",
    ),
    "no block around it": (
        "functions: {aws: [{name: f}]}",
        "f.yaml:1:20: error: functions.aws[0]: unknown key 'name'; it belongs in 'lambda' or in 'job.queue'",
    ),
    "the file's key": (
        ONE + "    storage_providers: {}\n",
        "f.yaml:5:5: error: functions.aws[0]: unknown key 'storage_providers'; leave it out: all storage is in S3, reached by the function's role",
    ),
    "the beginning of a key": (
        ONE + "    gpu: {lease: 960}\n",
        "f.yaml:5:11: error: functions.aws[0].gpu: unknown key 'lease'; did you mean 'lease_length'?",
    ),
    "two spellings of one key": (
        OSCAR % "variables: {A: b}, Variables: {}",
        "f.yaml:1:79: error: functions.oscar[0].c.environment.Variables: is written twice; keep one spelling",
    ),
    "oscar's secrets": (
        OSCAR % "secrets: {A: b}",
        "f.yaml:1:60: error: functions.oscar[0].c.environment.secrets: values in clear, which OSCAR's cluster keeps: keep each in a store instead, and write `secrets: {NAME: ssm:/NAME}` next to `lambda` in `functions.aws`",
    ),
    "unknown top": (
        "function: {}\n",
        "f.yaml:1:1: error: unknown key 'function'; did you mean 'functions'?",
    ),
    "no functions": ("scar: {}\n", "f.yaml:1:1: error: missing key 'functions'"),
    "no name": (
        "functions: {aws: [{lambda: {memory: 512}}]}",
        "f.yaml:1:28: error: functions.aws[0].lambda: missing key 'name'",
    ),
    "no lambda": (
        "functions: {aws: [{gpu: {}}]}",
        "f.yaml:1:19: error: functions.aws[0]: missing key 'lambda'",
    ),
    "memory too large": (
        ONE + "      memory: 999999\n",
        "f.yaml:5:15: error: functions.aws[0].lambda.memory: 999999 must lie in 128…10240 MB",
    ),
    "memory quoted": (
        ONE + "      memory: '512'\n",
        "f.yaml:5:15: error: functions.aws[0].lambda.memory: expected an integer; remove the quotes",
    ),
    "memory float": (
        ONE + "      memory: 5e2\n",
        "f.yaml:5:15: error: functions.aws[0].lambda.memory: expected an integer, got '5e2'",
    ),
    "memory list": (
        ONE + "      memory: [1]\n",
        "f.yaml:5:15: error: functions.aws[0].lambda.memory: expected an integer, got a list",
    ),
    "timeout": (
        ONE + "      timeout: 901\n",
        "f.yaml:5:16: error: functions.aws[0].lambda.timeout: 901 must lie in 1…900 s",
    ),
    "bad name": (
        "functions: {aws: [{lambda: {name: a b}}]}",
        "f.yaml:1:35: error: functions.aws[0].lambda.name: 'a b' is not a function name (letters, digits, - and _, up to 64)",
    ),
    "bad runtime": (
        ONE + "      runtime: ruby3.3\n",
        "f.yaml:5:16: error: functions.aws[0].lambda.runtime: 'ruby3.3' is not python3.x or image",
    ),
    "bad bucket": (
        ONE + "      input: [{path: My_Bucket/x}]\n",
        "f.yaml:5:22: error: functions.aws[0].lambda.input[0].path: 'My_Bucket' is not a bucket name: 3 to 63 characters of a-z, 0-9, - and ., starting and ending with a letter or digit; write 'my-bucket'",
    ),
    "dotted prefix": (
        ONE + "      input: [{path: abc/../x}]\n",
        "f.yaml:5:22: error: functions.aws[0].lambda.input[0].path: the prefix '../x' has an empty or dotted part",
    ),
    "input no list": (
        ONE + "      input: {path: abc}\n",
        "f.yaml:5:14: error: functions.aws[0].lambda.input: expected a list, got a mapping",
    ),
    "provider": (
        ONE + "      input: [{path: abc, storage_provider: gcs}]\n",
        "f.yaml:5:45: error: functions.aws[0].lambda.input[0].storage_provider: 'gcs' is not a storage provider: s3, minio or onedata, or one with `.id`; copy objects that lie elsewhere to S3 and write s3",
    ),
    "variable name": (
        ONE + "      environment: {Variables: {1A: x}}\n",
        "f.yaml:5:33: error: functions.aws[0].lambda.environment.Variables: '1A' is not the name of a variable (letters, digits and _, not starting with a digit)",
    ),
    "role": (
        ONE + "    iam: {role: me}\n",
        "f.yaml:5:17: error: functions.aws[0].iam.role: 'me' is not the ARN of a role (arn:aws:iam::<12 digits>:role/<name>)",
    ),
    "gpu count": (
        ONE + "    gpu: {count: 0}\n",
        "f.yaml:5:18: error: functions.aws[0].gpu.count: 0 must lie in 1…64",
    ),
    "gpu memory": (
        ONE + "    gpu: {memory: 4 GiGa}\n",
        "f.yaml:5:19: error: functions.aws[0].gpu.memory: '4 GiGa' is not a memory size; write MiB, or a unit as in 4GiB",
    ),
    "gpu kind": (
        ONE + "    gpu: {kinds: [cdua]}\n",
        "f.yaml:5:19: error: functions.aws[0].gpu.kinds[0]: 'cdua' is not one of cuda, opencl, cpu, vpu; did you mean 'cuda'?",
    ),
    "gpu contradiction": (
        ONE + "    gpu: {compute: {guarantee: 80, limit: 50}}\n",
        "f.yaml:5:10: error: functions.aws[0].gpu: the guarantee of compute must not exceed the limit of compute",
    ),
    "gpu twice": (
        ONE + "    gpu: {compute: 5, compute_guarantee: 5}\n",
        "f.yaml:5:10: error: functions.aws[0].gpu: compute.guarantee and compute_guarantee are both given; keep one",
    ),
    "gpu percent": (
        ONE + "    gpu: {compute: 120%}\n",
        "f.yaml:5:20: error: functions.aws[0].gpu.compute: '120%' is not a percentage in 0…100",
    ),
    "gpu hundredths of a percent": (
        ONE + "    gpu: {compute: 12.25}\n",
        "f.yaml:5:20: error: functions.aws[0].gpu.compute: '12.25' is not a percentage in 0…100, with at most one decimal",
    ),
    "gpu versions": (
        ONE + "    gpu: {requires: {onnxruntime: new}}\n",
        "f.yaml:5:35: error: functions.aws[0].gpu.requires.onnxruntime: 'new' is not a version or bounds, as 1.12 or '>=1.10,<1.13'",
    ),
    "gpu data": (
        ONE + "    gpu: {data: [proteins, 'a b']}\n",
        "f.yaml:5:28: error: functions.aws[0].gpu.data[1]: 'a b' is not a name such as proteins, or proteins@sha256: with 64 hex digits",
    ),
    "gpu library": (
        ONE + "    gpu: {requires: {'onnx runtime': 1.2}}\n",
        "f.yaml:5:22: error: functions.aws[0].gpu.requires: 'onnx runtime' is not the name of a library, `driver` or `runtime`",
    ),
    "gpu wait": (
        ONE + "    gpu: {max_wait: soon}\n",
        "f.yaml:5:21: error: functions.aws[0].gpu.max_wait: 'soon' is not a duration; write seconds, or a unit as in 10m",
    ),
    "middleware": (
        ONE + "    gpu: {middleware: R CUDA}\n",
        "f.yaml:5:23: error: functions.aws[0].gpu.middleware: 'R CUDA' is not the name of a middleware",
    ),
    "flag": (
        ONE + "      preheat: maybe\n",
        "f.yaml:5:16: error: functions.aws[0].lambda.preheat: expected true or false, got 'maybe'",
    ),
    "fifo queue": (
        ONE + "    job: {queue: a.fifo}\n",
        "f.yaml:5:18: error: functions.aws[0].job.queue: 'a.fifo' is not the name of a standard SQS queue (letters, digits, - and _, up to 80)",
    ),
    # YAML itself
    "twice": (
        ONE + "      memory: 512\n      memory: 600\n",
        "f.yaml:6:7: error: 'memory' is written twice, first on line 5; keep one",
    ),
    "alias": (
        "a: &x 1\nb: *x\n",
        "f.yaml:1:4: error: the anchor &x is not allowed here: quote the value",
    ),
    "lone alias": ("a: *x\n", "f.yaml:1:4: error: the alias *x: write the value out, or quote it"),
    "tag": (
        "a: !!python/object:os.system {}\n",
        "f.yaml:1:4: error: the tag tag:yaml.org,2002:python/object:os.system is not allowed here: leave it out, or quote the value",
    ),
    "merge": ("<<: {a: 1}\n", "f.yaml:1:1: error: << merges mappings: write the keys out"),
    "key": ("? [a]\n: 1\n", "f.yaml:1:3: error: a key must be a plain word"),
    "unclosed": (
        "a: [1\n",
        "f.yaml:1:4: error: not valid YAML: the '[' that opens here is never closed",
    ),
    "tab": (
        "a:\n\tb: 1\n",
        "f.yaml:2:1: error: not valid YAML: a tab: YAML indents with spaces; write spaces instead",
    ),
    "control": (
        "a: \x07\n",
        "f.yaml:1:4: error: not valid YAML: the character U+0007 is not allowed; leave it out",
    ),
    "escape": (
        'a: "\\UFFFFFFFF"\n',
        "f.yaml:1:7: error: not valid YAML: an escape or a directive near here has a number that is too large",
    ),
    "empty": ("", "f.yaml:1:1: error: the file is empty; it needs 'functions:'"),
    "null": ("~\n", "f.yaml:1:1: error: missing key 'functions'"),
    "word": ("hello\n", "f.yaml:1:1: error: expected a mapping, got 'hello'"),
    "second": (
        "a: 1\n---\nb: 1\n",
        "f.yaml:2:1: error: a second document begins here; one file holds one",
    ),
    "deep": ("[" * 40 + "]" * 40, f"f.yaml:1:25: error: nested deeper than {DEPTH_MAX} levels"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gives_location_and_reason(case: str) -> None:
    text, message = BAD[case]
    with pytest.raises(AppError) as caught:
        parse(text, "f.yaml")
    assert caught.value.code is ErrorCode.INVALID
    assert caught.value.message.startswith(message)
    rest = caught.value.message[len(message) :]
    assert rest == "" or rest.startswith("\n") or message.endswith(": ")


def test_all_errors_are_reported_together() -> None:
    text = (
        ONE
        + "      memory: 1\n      memmory: 2\n      input: [{path: B}, {path: abc}, 3]\n    gpu: {count: 0}\n"
    )
    with pytest.raises(AppError) as caught:
        parse(text, "f.yaml")
    places = [(fault["line"], fault["column"]) for fault in caught.value.details["faults"]]
    assert places == [(5, 15), (6, 7), (7, 22), (7, 39), (8, 18)]
    assert caught.value.details["line"] == 5
    assert caught.value.message.count(": error: ") == 5


def test_a_file_full_of_errors_reports_the_first_ones() -> None:
    keys = "".join(f"      k{n}: 1\n" for n in range(10_000))
    with pytest.raises(AppError) as caught:
        parse(ONE + keys, "f.yaml")
    assert caught.value.message.count(": error: ") == FAULTS_MAX


def test_bytes_that_are_not_utf8() -> None:
    with pytest.raises(AppError, match=r"f:2:4: error: byte 0xff is not UTF-8"):
        parse(b"a: 1\nb: \xff", "f")


def test_a_file_may_not_be_huge() -> None:
    with pytest.raises(AppError, match="may have at most"):
        parse(b"#" * (BYTES_MAX + 1))


def test_long_lines_are_cut_around_the_place() -> None:
    with pytest.raises(AppError) as caught:
        parse("functions: {aws: [" + " " * 5000 + "{lambada: 1}]}")
    assert max(len(line) for line in caught.value.message.splitlines()) < 120


def test_rules_of_batches() -> None:
    text = "    gpu: {batch: {wait_ms: 5}, preempts: true, preemptible: true, workload: w}\n"
    (function,) = parse(ONE + text, "f.yaml").functions.aws
    assert function.gpu is not None
    request = function.gpu.request
    assert request.batch == Batch(joins=True, wait_ms=5, size_max=64)
    assert (request.preempts, request.preemptible, request.workload) == (True, True, "w")


def test_versions_of_a_request() -> None:
    """One version exactly, as written (1.10 is not 1.1), or bounds."""
    text = "    gpu: {requires: {onnxruntime: 1.10, driver: '>=550, <600', runtime: 12}}\n"
    (function,) = parse(ONE + text, "f.yaml").functions.aws
    assert function.gpu is not None
    assert function.gpu.request.requires == (
        "onnxruntime==1.10",
        "driver>=550,<600",
        "runtime==12",
    )
